#include "orbitkv/testing/fake_device.h"

#include <cstring>
#include <utility>
#include <vector>

namespace orbitkv::doubles {

using copy::CopyJob;
using copy::Direction;
using copy::JobId;
using copy::JobResult;
using copy::JobState;

struct FakeDeviceEngine::DeviceJob {
  JobId id;
  CopyJob job;
  bool begun = false;
  std::atomic<bool> cancelled = false;
  std::uint64_t next_page = 0;
  std::vector<std::vector<std::uint64_t>> lists;  // of each block
  std::vector<bool> mismatched;
  std::vector<std::uint32_t> moved;  // pages of each block
  JobResult result;

  std::uint32_t layers() const { return job.layout->layer_count(); }
  std::uint64_t blocks() const { return job.blocks.size(); }
  std::uint64_t page_bytes() const { return job.layout->page_bytes; }
  bool complete() const { return next_page == blocks() * layers(); }
};

FakeDeviceEngine::FakeDeviceEngine(std::uint32_t max_jobs) : table_(max_jobs) {}

FakeDeviceEngine::~FakeDeviceEngine() { Stop(); }

Result<JobId> FakeDeviceEngine::Submit(CopyJob&& job) {
  ORBITKV_TRY(copy::ValidateJob(job));
  ORBITKV_ASSIGN_OR_RETURN(const JobId id, table_.Admit());
  auto device_job = std::make_unique<DeviceJob>();
  device_job->id = id;
  device_job->job = std::move(job);
  const MutexLock lock(mutex_);
  jobs_.push_back(std::move(device_job));
  return id;
}

bool FakeDeviceEngine::Step() {
  if (broken_) return false;
  DeviceJob* job = nullptr;
  {
    const MutexLock lock(mutex_);
    if (jobs_.empty()) return false;
    job = jobs_.front().get();
  }
  if (!job->begun) {
    table_.SetEnqueued(job->id);
    Begin(*job);
    return true;
  }
  if (!job->cancelled && !job->result.error && !job->complete()) {
    MovePage(*job);
    return true;
  }
  End(*job);
  const MutexLock lock(mutex_);
  jobs_.pop_front();
  return true;
}

bool FakeDeviceEngine::idle() {
  const MutexLock lock(mutex_);
  return jobs_.empty();
}

void FakeDeviceEngine::RunUntilIdle() {
  while (Step()) {
  }
}

void FakeDeviceEngine::Begin(DeviceJob& job) {
  job.begun = true;
  job.lists.assign(job.blocks(), std::vector<std::uint64_t>(job.layers()));
  job.mismatched.assign(job.blocks(), false);
  job.moved.assign(job.blocks(), 0);
  if (job.cancelled) return;
  if (job.job.prepare) {
    if (const Status status = job.job.prepare(); !status) {
      job.result.error = status.error();
      return;
    }
  }
  if (job.job.before_block) {
    for (const copy::BlockCopy& block : job.job.blocks) job.job.before_block(block);
  }
  if (job.job.direction == Direction::kPublish) {
    job.result.slot_checksums.assign(job.blocks(), 0);
    return;
  }
  for (std::size_t i = 0; i < job.blocks(); ++i) {
    const copy::BlockCopy& block = job.job.blocks[i];
    copy::ReadList(block.slot, job.page_bytes(), job.lists[i]);
    const std::uint64_t payload = copy::PayloadBytes(job.layers(), job.page_bytes());
    job.mismatched[i] = copy::SlotChecksum(block.identity, payload, job.lists[i]) != block.slot_checksum;
  }
}

void FakeDeviceEngine::MovePage(DeviceJob& job) {
  const auto layer = static_cast<std::uint32_t>(job.next_page / job.blocks());
  const std::size_t index = job.next_page % job.blocks();
  const copy::BlockCopy& block = job.job.blocks[index];
  std::byte* page = job.job.layout->page(layer, block.block);
  std::byte* in_slot = block.slot + layer * job.page_bytes();
  std::vector<std::uint64_t>& list = job.lists[index];
  ++job.next_page;
  ++job.moved[index];
  if (job.job.direction == Direction::kPublish) {
    std::memcpy(in_slot, page, job.page_bytes());
    list[layer] = copy::HashOnly(in_slot, job.page_bytes());
    if (job.moved[index] == job.layers()) {
      copy::WriteList(block.slot, job.page_bytes(), list);
      const std::uint64_t payload = copy::PayloadBytes(job.layers(), job.page_bytes());
      job.result.slot_checksums[index] = copy::SlotChecksum(block.identity, payload, list);
    }
    return;
  }
  if (!job.mismatched[index]) {
    if (copy::HashOnly(in_slot, job.page_bytes()) == list[layer]) {
      std::memcpy(page, in_slot, job.page_bytes());
    } else {
      job.mismatched[index] = true;
    }
  }
  bool all_good = index + 1 == job.blocks();
  for (const bool bad : job.mismatched) all_good = all_good && !bad;
  if (all_good) {
    table_.SetLayersDone(job.id, layer + 1);
    if (job.job.on_layer) job.job.on_layer(job.id, layer);
  }
}

void FakeDeviceEngine::End(DeviceJob& job) {
  JobResult& result = job.result;
  for (std::uint32_t i = 0; i < job.blocks(); ++i) {
    if (job.mismatched[i]) {
      result.mismatched.push_back(i);
    } else if (job.moved[i] != job.layers()) {
      result.unfinished.push_back(i);
    }
  }
  if (!result.error && !result.mismatched.empty()) {
    result.error = Error{Code::kCorrupt, 0, "blocks do not match their checksums", result.mismatched.size()};
  } else if (!result.error && !result.unfinished.empty()) {
    result.error = Error{Code::kCancelled, 0, "the copy was cancelled", result.unfinished.size()};
  }
  result.state = result.error ? JobState::kDrainedFailed : JobState::kDrainedOk;
  if (job.job.on_done) job.job.on_done(job.id, result);
  table_.Finish(job.id, std::move(result));
}

Result<JobState> FakeDeviceEngine::Wait(JobId id, std::uint64_t deadline_ns) {
  ORBITKV_ASSIGN_OR_RETURN(const JobState state, table_.Poll(id));
  if (broken_ && !copy::IsDrained(state)) return Fail(Code::kIo, "the device cannot be drained", id.value());
  return table_.Wait(id, deadline_ns);
}

Status FakeDeviceEngine::Cancel(JobId id) {
  ORBITKV_TRY(table_.Poll(id));
  const MutexLock lock(mutex_);
  for (const auto& job : jobs_) {
    if (job->id == id) job->cancelled = true;
  }
  return {};
}

Status FakeDeviceEngine::Drain(std::uint64_t deadline_ns) {
  if (broken_) {
    const MutexLock lock(mutex_);
    if (!jobs_.empty()) return Fail(Code::kIo, "the device cannot be drained", jobs_.size());
  }
  return table_.Drain(deadline_ns);
}

void FakeDeviceEngine::Stop() {
  table_.Close();
  RunUntilIdle();
}

}  // namespace orbitkv::doubles
