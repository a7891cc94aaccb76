#include "orbitkv/store/reader.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/base/check.h"
#include "orbitkv/copy/pages.h"
#include "orbitkv/store/layout.h"
#include "orbitkv/store/scan.h"

namespace orbitkv::store {

bool Reader::Start(const Job& job, std::uint64_t now_ns) {
  const auto free = std::ranges::find(reads_, false, &Read::used);
  if (free == reads_.end()) return false;
  const auto number = static_cast<std::size_t>(free - reads_.begin());
  const std::uint32_t align = parts_.superblock->align;
  const std::uint64_t whole = AlignUp(job.payload_bytes, align);
  const bool fits = whole <= AlignUp(job.payload_bytes, kSectorBytes);
  free->used = true;
  free->job = job;
  free->direct_bytes = fits ? whole : job.payload_bytes / align * align;
  free->sequence = parts_.segments->at(job.location.segment).sequence;

  const std::uint64_t at =
      SegmentOffset(*parts_.superblock, job.location.segment) + std::uint64_t{job.location.sector} * kSectorBytes;
  const std::uint64_t head = RecordHeaderBytes(align);
  const std::uint64_t scratch = parts_.scratch_offset + number * kScratchBytes;
  orbite::Batch batch;
  batch.id = parts_.id_tag | number;
  batch.deadline_ns = now_ns + parts_.deadline_ns;
  batch.ranges.push_back({{parts_.file, at}, {parts_.memory, scratch}, head});
  if (free->direct_bytes > 0) {
    batch.ranges.push_back({{parts_.file, at + head}, {job.target, job.target_offset}, free->direct_bytes});
  }
  if (whole > free->direct_bytes) {
    batch.ranges.push_back({{parts_.file, at + head + free->direct_bytes},
                            {parts_.memory, scratch + wire::kStoreBlockBytes},
                            whole - free->direct_bytes});
  }
  ++parts_.segments->at(job.location.segment).readers;
  ++under_way_;
  bytes_ += job.payload_bytes;
  if (const Status taken = parts_.engine->Submit(batch, now_ns); !taken) refused_.push_back(Completed(number, taken));
  return true;
}

Reader::Ended Reader::Completed(std::uint64_t number, const Status& status) {
  Read& read = reads_[number];
  ORBITKV_CHECK(read.used);
  Ended ended;
  ended.job = read.job;
  if (status) {
    Verify(read, ScratchOf(number), ended);
  } else {
    ended.error = status.error();
    ended.result = ended.error.code == Code::kIo && ended.error.sys_errno == 0 ? Result::kShort : Result::kFailed;
  }
  read.used = false;
  --under_way_;
  bytes_ -= read.job.payload_bytes;
  --parts_.segments->at(read.job.location.segment).readers;
  return ended;
}

void Reader::Verify(const Read& read, std::span<const std::byte> scratch, Ended& ended) const {
  ended.result = Result::kWrong;
  const Job& job = read.job;
  const auto header = wire::DecodeRecordHeader(scratch);
  if (!header) {
    ended.error = header.error();
    return;
  }
  ended.header = *header;
  const state::StateKey key = KeyOf(*header);
  if (header->uuid != parts_.superblock->uuid || header->sequence != read.sequence ||
      header->payload_bytes != job.payload_bytes || (!job.any_key && key != job.key)) {
    ended.error = Error{Code::kStale, 0, "another record lies there", 0, 0};
    return;
  }
  if (read.direct_bytes < job.payload_bytes) {
    std::memcpy(job.target_bytes.data() + read.direct_bytes, scratch.data() + wire::kStoreBlockBytes,
                job.payload_bytes - read.direct_bytes);
  }
  const Status checked = copy::CheckSlot(job.target_bytes.first(job.payload_bytes),
                                         {header->page_count, header->page_bytes}, key, header->checksum);
  if (checked) {
    ended.result = Result::kOk;
  } else {
    ended.error = checked.error();
  }
}

}  // namespace orbitkv::store
