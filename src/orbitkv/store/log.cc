#include "orbitkv/store/log.h"

#include <algorithm>

#include "orbitkv/store/layout.h"
#include "orbitkv/store/scan.h"

namespace orbitkv::store {
namespace {

constexpr unsigned kTagShift = 56;
constexpr std::uint64_t kWriteTag = std::uint64_t{1} << kTagShift;
constexpr std::uint64_t kReadTag = std::uint64_t{2} << kTagShift;
constexpr std::uint64_t kNumberMask = kWriteTag - 1;
// The one read, and the one record, that come from a segment that is being given up.
constexpr std::uint64_t kReinsertId = ~std::uint64_t{0};

constexpr orbite::OwnerId kOwner{1};

// The device itself is in question, not one place of it.
bool Grave(const Error& error) { return error.code == Code::kUnavailable || error.code == Code::kTimedOut; }

}  // namespace

Status LogConfig::Validate() const {
  if (write_bytes < kWriteAlign || write_bytes % kWriteAlign != 0 || write_bytes > (std::uint64_t{64} << 20U)) {
    return Fail(Code::kInvalid, "writes are a multiple of 4096 bytes, at most 64 MiB", write_bytes);
  }
  if (writes < 2 || writes > 64 || reads < 2 || reads > 1024) {
    return Fail(Code::kInvalid, "2 to 64 writes and 2 to 1024 reads at once", writes, reads);
  }
  if (reinsert_bytes % kWriteAlign != 0) return Fail(Code::kInvalid, "reinsert_bytes is a multiple of 4096");
  return {};
}

std::uint64_t Log::ArenaBytes(const LogConfig& config) {
  return config.writes * config.write_bytes + config.reads * Reader::kScratchBytes + config.reinsert_bytes +
         kWriteAlign;
}

Result<std::unique_ptr<Log>> Log::Create(const LogConfig& config, const Parts& parts) {
  ORBITKV_TRY(config.Validate());
  auto log = std::unique_ptr<Log>(new Log(config, parts));
  ORBITKV_ASSIGN_OR_RETURN(log->arena_, os::Mapping::Anonymous(ArenaBytes(config)));
  log->memory_ = parts.engine->AddMemory(log->arena_.bytes(), kOwner);
  const std::uint64_t buffer_bytes = config.writes * config.write_bytes;
  const std::uint64_t scratch_bytes = config.reads * Reader::kScratchBytes;
  log->reinsert_offset_ = buffer_bytes + scratch_bytes;
  log->reinsert_bytes_ = log->arena_.bytes().subspan(log->reinsert_offset_);

  Writer::Parts writer;
  writer.engine = parts.engine;
  writer.file = parts.file;
  writer.memory = log->memory_;
  writer.buffers = log->arena_.bytes().first(buffer_bytes);
  writer.buffer_bytes = config.write_bytes;
  writer.superblock = parts.superblock;
  writer.segments = parts.segments;
  writer.id_tag = kWriteTag;
  writer.flush_after_ns = config.flush_after_ns;
  writer.deadline_ns = config.deadline_ns;
  log->writer_ = std::make_unique<Writer>(writer);

  Reader::Parts reader;
  reader.engine = parts.engine;
  reader.file = parts.file;
  reader.memory = log->memory_;
  reader.scratch_offset = buffer_bytes;
  reader.scratch = log->arena_.bytes().subspan(buffer_bytes, scratch_bytes);
  reader.superblock = parts.superblock;
  reader.segments = parts.segments;
  reader.id_tag = kReadTag;
  reader.deadline_ns = config.deadline_ns;
  log->reader_ = std::make_unique<Reader>(reader);
  return log;
}

void Log::AttachPool(std::span<std::byte> pool) {
  pool_ = pool;
  pool_region_ = parts_.engine->AddMemory(pool, kOwner);
}

void Log::EndLoad(std::uint64_t id, LogEnd::Result result, std::uint64_t checksum) {
  if (result != LogEnd::Result::kOk) ++counters_.loads_failed;
  ends_.push_back({true, id, result, checksum});
}

void Log::EndSave(const SaveJob& job, LogEnd::Result result) {
  if (result == LogEnd::Result::kNoRoom) ++counters_.saves_no_room;
  if (result == LogEnd::Result::kFailed) ++counters_.saves_failed;
  ends_.push_back({false, job.id, result, 0});
}

void Log::Load(const LoadJob& job) {
  if (job.offset > pool_.size() || AlignUp(job.payload_bytes, kSectorBytes) > pool_.size() - job.offset ||
      job.payload_bytes == 0) {
    return EndLoad(job.id, LogEnd::Result::kFailed);
  }
  loads_.push_back(job);
}

void Log::Save(const SaveJob& job) {
  const std::uint64_t bytes = job.facts.payload_bytes;
  if (bytes == 0 || job.offset > pool_.size() || bytes > pool_.size() - job.offset) {
    return EndSave(job, LogEnd::Result::kFailed);
  }
  if (bytes > MaxPayloadBytes(parts_.superblock->segment_bytes) ||
      (save_bytes_ > 0 && save_bytes_ + bytes > config_.save_bytes)) {
    return EndSave(job, LogEnd::Result::kNoRoom);
  }
  save_bytes_ += bytes;
  saves_.push_back(job);
}

void Log::Finish(std::uint64_t now_ns, std::uint64_t within_ns) {
  finish_ns_ = std::min(finish_ns_, now_ns + within_ns);
  if (now_ns < finish_ns_) return;
  for (; !loads_.empty(); loads_.pop_front()) EndLoad(loads_.front().id, LogEnd::Result::kFailed);
  DropSaves();
}

void Log::DropSaves() {
  for (; !saves_.empty(); saves_.pop_front()) {
    save_bytes_ -= saves_.front().facts.payload_bytes;
    EndSave(saves_.front(), LogEnd::Result::kFailed);
  }
}

void Log::Step(std::uint64_t now_ns, std::uint64_t unix_s) {
  last_step_ns_ = now_ns;
  completions_.clear();
  parts_.engine->Poll(now_ns, completions_);
  for (const orbite::Completion& completion : completions_) Dispatch(completion, now_ns);
  Harvest();
  bool more = true;
  while (more) {
    PumpReads(now_ns);
    const std::uint64_t evicted = counters_.evicted_segments;
    PumpEviction(now_ns);
    PumpWrites(now_ns, unix_s);
    PumpEviction(now_ns);
    more = Harvest() || counters_.evicted_segments != evicted;
  }
  counters_.written_bytes = writer_->written_bytes();
}

void Log::Dispatch(const orbite::Completion& completion, std::uint64_t now_ns) {
  const bool write = (completion.id & ~kNumberMask) == kWriteTag;
  const std::uint64_t number = completion.id & kNumberMask;
  if (!completion.drained) {
    ++counters_.slow;
    if (write) {
      NoteWriteError(completion.status.error(), now_ns);
    } else {
      NoteReadError(completion.status.error(), now_ns);
    }
    return;
  }
  if (!write) return ReadEnded(reader_->Completed(number, completion.status), now_ns);
  if (completion.status) {
    write_backoff_.Succeeded(now_ns);
  } else {
    NoteWriteError(completion.status.error(), now_ns);
  }
  writer_->Completed(number, completion.status, now_ns);
}

void Log::NoteReadError(const Error& error, std::uint64_t now_ns) {
  ++counters_.read_errors;
  last_error_ = error;
  if (read_backoff_.Failed(now_ns, Grave(error))) ++counters_.pauses;
}

// A write that fails has cost its whole segment, so the next one is not tried at once.
void Log::NoteWriteError(const Error& error, std::uint64_t now_ns) {
  ++counters_.write_errors;
  last_error_ = error;
  if (write_backoff_.Failed(now_ns, true)) ++counters_.pauses;
}

void Log::ReadEnded(const Reader::Ended& ended, std::uint64_t now_ns) {
  const bool reinserts = ended.job.id == kReinsertId;
  if (ended.result == Reader::Result::kOk) {
    read_backoff_.Succeeded(now_ns);
    if (!reinserts) {
      ++counters_.loads;
      counters_.loaded_bytes += ended.job.payload_bytes;
      return EndLoad(ended.job.id, LogEnd::Result::kOk, ended.header.checksum);
    }
    RecordJob job;
    job.id = kReinsertId;
    job.key = KeyOf(ended.header);
    if ((ended.header.flags & wire::RecordHeader::kHasParent) != 0) job.facts.parent = ended.header.parent;
    job.facts.depth = ended.header.depth;
    job.facts.payload_bytes = ended.header.payload_bytes;
    job.facts.checksum = ended.header.checksum;
    job.page_count = ended.header.page_count;
    job.page_bytes = ended.header.page_bytes;
    job.saved_unix_s = ended.header.saved_unix_s;
    job.payload = reinsert_bytes_.first(ended.job.payload_bytes);
    reinsert_ = job;
    return;
  }
  if (ended.result == Reader::Result::kWrong) {
    ++counters_.loads_wrong;
    last_error_ = ended.error;
  } else {
    NoteReadError(ended.error, now_ns);
  }
  // What could not be read is not offered again in this life.
  if (reinserts) return ReinsertEnded();
  if (parts_.index->Erase(ended.job.key, ended.job.location)) ++counters_.forgotten_records;
  EndLoad(ended.job.id, ended.result == Reader::Result::kShort ? LogEnd::Result::kShort : LogEnd::Result::kFailed);
}

void Log::PumpReads(std::uint64_t now_ns) {
  while (!loads_.empty()) {
    const LoadJob job = loads_.front();
    const auto found = readable(now_ns) ? parts_.index->Find(job.key) : std::nullopt;
    if (!found || found->facts.payload_bytes != job.payload_bytes) {
      loads_.pop_front();
      EndLoad(job.id, LogEnd::Result::kFailed);
      continue;
    }
    if (reader_->under_way() > 0 && reader_->bytes_under_way() + job.payload_bytes > config_.read_bytes) break;
    Reader::Job read;
    read.id = job.id;
    read.key = job.key;
    read.location = found->location;
    read.payload_bytes = job.payload_bytes;
    read.target = pool_region_;
    read.target_offset = job.offset;
    read.target_bytes = pool_.subspan(job.offset, job.payload_bytes);
    if (!reader_->Start(read, now_ns)) break;
    static_cast<void>(parts_.index->Use(job.key));
    loads_.pop_front();
  }
  for (const Reader::Ended& refused : reader_->TakeRefused()) ReadEnded(refused, now_ns);
}

void Log::PumpWrites(std::uint64_t now_ns, std::uint64_t unix_s) {
  const std::size_t most = loads_.empty() ? config_.writes : 1;
  writer_->Step(now_ns, most);
  if (!writable(now_ns)) {
    DropSaves();
    if (reinsert_) {
      reinsert_.reset();
      ReinsertEnded();
    }
    return;
  }
  while (!writer_->streaming() && BeginNext(unix_s)) writer_->Step(now_ns, most);
}

bool Log::OpenSegment(std::uint64_t unix_s) {
  const auto segment = parts_.segments->Open();
  if (!segment) return false;
  writer_->Open(*segment, unix_s);
  return true;
}

bool Log::BeginNext(std::uint64_t unix_s) {
  if (!reinsert_ && saves_.empty()) return false;
  RecordJob record;
  if (reinsert_) {
    record = *reinsert_;
  } else {
    const SaveJob& job = saves_.front();
    const auto known = parts_.index->Find(job.key);
    if (known && known->facts.checksum == job.facts.checksum && known->facts.payload_bytes == job.facts.payload_bytes) {
      save_bytes_ -= job.facts.payload_bytes;
      EndSave(job, LogEnd::Result::kOk);
      saves_.pop_front();
      return true;
    }
    record.id = next_write_id_;
    record.key = job.key;
    record.facts = job.facts;
    record.page_count = job.page_count;
    record.page_bytes = job.page_bytes;
    record.saved_unix_s = unix_s;
    record.payload = pool_.subspan(job.offset, job.facts.payload_bytes);
  }
  switch (writer_->Start(record)) {
    case Writer::Begin::kTaken: break;
    case Writer::Begin::kSegmentFull: writer_->Seal(unix_s); return true;
    case Writer::Begin::kNoSegment:
      if (OpenSegment(unix_s)) return true;
      // What would be written again has no place: it goes with its segment.
      if (reinsert_) {
        reinsert_.reset();
        ReinsertEnded();
      }
      return false;
  }
  if (reinsert_) {
    reinsert_.reset();
    return true;
  }
  writing_.emplace(next_write_id_++, saves_.front());
  saves_.pop_front();
  return true;
}

bool Log::Harvest() {
  const std::vector<Writer::Ended> ended = writer_->TakeEnded();
  for (const Writer::Ended& one : ended) WriteEnded(one);
  return !ended.empty();
}

void Log::WriteEnded(const Writer::Ended& ended) {
  const auto known = parts_.index->Find(ended.key);
  if (ended.id == kReinsertId) {
    // What was erased meanwhile is not to be kept.
    if (ended.ok && known) {
      static_cast<void>(Keep(ended, known->location));
      ++counters_.reinserted;
      counters_.reinserted_bytes += ended.facts.payload_bytes;
    }
    return ReinsertEnded();
  }
  const auto job = writing_.find(ended.id);
  save_bytes_ -= ended.facts.payload_bytes;
  LogEnd::Result result = LogEnd::Result::kFailed;
  if (ended.ok) {
    const bool kept = Keep(ended, known ? std::optional(known->location) : std::nullopt);
    result = kept ? LogEnd::Result::kOk : LogEnd::Result::kNoRoom;
    if (kept) {
      ++counters_.saves;
      counters_.saved_bytes += ended.facts.payload_bytes;
    }
  }
  EndSave(job->second, result);
  writing_.erase(job);
}

// False when the index is full.
bool Log::Keep(const Writer::Ended& ended, std::optional<Location> known) {
  if (known && parts_.segments->Later(*known, ended.location)) return true;
  const auto entry = parts_.index->Put(ended.key, ended.facts, ended.location);
  if (entry) parts_.segments->at(ended.location.segment).entries.push_back(*entry);
  return entry.has_value();
}

// One segment is kept free, so that what is to be written again has a place beside new records.
void Log::PumpEviction(std::uint64_t now_ns) {
  if (!eviction_) {
    if (parts_.segments->free_count() > 0 || (saves_.empty() && writing_.empty())) return;
    BeginEviction();
  }
  while (eviction_ && !eviction_->busy) {
    switch (ReinsertNext(now_ns)) {
      case Reinsert::kStarted: break;
      case Reinsert::kWait: return;
      case Reinsert::kNone: FinishEviction(); return;
    }
  }
}

void Log::BeginEviction() {
  const auto victim = parts_.segments->Oldest();
  if (!victim) return;
  eviction_.emplace();
  eviction_->segment = *victim;
  eviction_->budget_bytes = parts_.superblock->segment_bytes / 2;
  std::vector<EntryId> cold;
  std::vector<std::pair<std::uint32_t, EntryId>> hot;
  for (const EntryId id : parts_.segments->at(*victim).entries) {
    const auto found = parts_.index->InSegment(id, *victim);
    if (!found) continue;
    if (found->uses == 0) {
      cold.push_back(id);
    } else {
      hot.emplace_back(found->uses, id);
    }
  }
  // The budget goes to those that were read most.
  for (std::uint32_t uses = Index::kMostUses; uses > 0; --uses) {
    for (const auto& [count, id] : hot) {
      if (count == uses) eviction_->hot.push_back(id);
    }
  }
  counters_.evicted_records += parts_.index->EraseFromSegment(cold, *victim);
}

// Starts the next record's way into the open segment.
Log::Reinsert Log::ReinsertNext(std::uint64_t now_ns) {
  if (!writer_->open() || !readable(now_ns) || !writable(now_ns)) return Reinsert::kNone;
  while (eviction_->next < eviction_->hot.size()) {
    const auto found = parts_.index->InSegment(eviction_->hot[eviction_->next++], eviction_->segment);
    if (!found || found->facts.payload_bytes > config_.reinsert_bytes) continue;
    const std::uint64_t bytes = RecordBytes(parts_.superblock->align, found->facts.payload_bytes);
    if (bytes > eviction_->budget_bytes) continue;
    Reader::Job read;
    read.id = kReinsertId;
    read.any_key = true;
    read.location = found->location;
    read.payload_bytes = found->facts.payload_bytes;
    read.target = memory_;
    read.target_offset = reinsert_offset_;
    read.target_bytes = reinsert_bytes_;
    if (!reader_->Start(read, now_ns)) {
      --eviction_->next;
      return Reinsert::kWait;
    }
    eviction_->budget_bytes -= bytes;
    eviction_->busy = true;
    return Reinsert::kStarted;
  }
  return Reinsert::kNone;
}

void Log::FinishEviction() {
  Segment& segment = parts_.segments->at(eviction_->segment);
  counters_.evicted_records += parts_.index->EraseFromSegment(segment.entries, eviction_->segment);
  // Reads that began before still have their bytes.
  if (segment.readers > 0 || segment.writers > 0) return;
  parts_.segments->Free(eviction_->segment);
  ++counters_.evicted_segments;
  eviction_.reset();
}

bool Log::idle() const {
  return loads_.empty() && saves_.empty() && writing_.empty() && writer_->idle() && reader_->under_way() == 0 &&
         parts_.engine->open_batches() == 0 && ends_.empty();
}

std::uint64_t Log::next_due_ns() const {
  std::uint64_t due = std::min(writer_->next_flush_ns(), parts_.engine->next_deadline_ns());
  for (const Backoff* backoff : {&read_backoff_, &write_backoff_}) {
    if (backoff->Pausing(last_step_ns_)) due = std::min(due, backoff->until_ns());
  }
  return finish_ns_ > last_step_ns_ ? std::min(due, finish_ns_) : due;
}

}  // namespace orbitkv::store
