#include "orbitkv/store/writer.h"

#include <algorithm>
#include <cstring>

#include "orbitkv/base/check.h"
#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/store/layout.h"
#include "orbitkv/store/scan.h"

namespace orbitkv::store {
namespace {

// Batches whose number has this bit are syncs.
constexpr std::uint64_t kSyncBit = std::uint64_t{1} << 32U;

template <typename T>
std::vector<std::byte> BlockOf(const T& value, std::uint64_t bytes) {
  std::vector<std::byte> block(bytes);
  std::memcpy(block.data(), &value, sizeof value);
  return block;
}

}  // namespace

Writer::Writer(const Parts& parts) : parts_(parts), buffers_(parts.buffers.size() / parts.buffer_bytes) {}

void Writer::Open(std::uint32_t segment, std::uint64_t unix_s) {
  ORBITKV_CHECK(!open_ && !stream_ && filling_ == kNone);
  open_ = OpenSegment{};
  open_->index = segment;
  wire::SegmentHeader header;
  header.index = segment;
  header.uuid = parts_.superblock->uuid;
  header.sequence = parts_.segments->at(segment).sequence;
  header.opened_unix_s = unix_s;
  wire::Seal(header);
  stream_ = Stream{};
  stream_->head = BlockOf(header, wire::kStoreBlockBytes);
  stream_->bytes = wire::kStoreBlockBytes;
}

Writer::Begin Writer::Start(const RecordJob& job) {
  ORBITKV_CHECK(!stream_);
  if (!open_) return Begin::kNoSegment;
  const std::uint32_t align = parts_.superblock->align;
  const std::uint64_t bytes = RecordBytes(align, job.payload.size());
  // A flush may move the position to the next multiple of kWriteAlign before the summary.
  const std::uint64_t end = AlignUp(open_->position + bytes, kWriteAlign);
  if (end + SummaryBytes(open_->entries.size() + 1) > parts_.superblock->segment_bytes) return Begin::kSegmentFull;

  wire::RecordHeader header;
  header.flags = job.facts.parent ? wire::RecordHeader::kHasParent : 0;
  header.uuid = parts_.superblock->uuid;
  header.sequence = parts_.segments->at(open_->index).sequence;
  header.namespace_digest = job.key.namespace_digest;
  header.hash = job.key.hash;
  header.parent = job.facts.parent.value_or(state::BlockHash{});
  header.group = job.key.group;
  header.shard = job.key.shard;
  header.depth = job.facts.depth;
  header.payload_bytes = static_cast<std::uint32_t>(job.payload.size());
  header.page_bytes = job.page_bytes;
  header.page_count = job.page_count;
  header.checksum = job.facts.checksum;
  header.saved_unix_s = job.saved_unix_s;
  wire::Seal(header);
  const auto sector = static_cast<std::uint32_t>(open_->position / kSectorBytes);
  open_->entries.push_back(EntryOf(header, open_->position));

  const std::uint64_t record = next_record_++;
  pending_[record].result = {job.id, job.key, job.facts, {open_->index, sector}, false};
  // Without its segment's header nobody would find it again.
  if (open_->header != kNone) Await(record, buffers_[open_->header]);
  stream_ = Stream{};
  stream_->head = BlockOf(header, RecordHeaderBytes(align));
  stream_->payload = job.payload;
  stream_->bytes = bytes;
  stream_->record = record;
  return Begin::kTaken;
}

// The footer is the segment's last block, the entries lie right before it.
void Writer::Seal(std::uint64_t unix_s) {
  ORBITKV_CHECK(open_ && !stream_);
  const std::uint64_t sequence = parts_.segments->at(open_->index).sequence;
  stream_ = Stream{};
  stream_->head = EncodeSummary(*parts_.superblock, sequence, open_->entries, unix_s);
  stream_->bytes = stream_->head.size();
  stream_->seals = true;
}

bool Writer::NeedBuffer(std::uint64_t now_ns, std::size_t most) {
  if (filling_ != kNone) return true;
  if (writing_ >= most) return false;
  for (std::size_t i = 0; i < buffers_.size(); ++i) {
    if (buffers_[i].writing) continue;
    buffers_[i] = Buffer{};
    buffers_[i].segment = open_->index;
    buffers_[i].file_offset = SegmentOffset(*parts_.superblock, open_->index) + open_->position;
    filling_ = i;
    filling_since_ns_ = now_ns;
    return true;
  }
  return false;
}

void Writer::CopySome(std::uint64_t now_ns) {
  Buffer& buffer = buffers_[filling_];
  Stream& stream = *stream_;
  std::byte* to = BytesOf(filling_).data() + buffer.fill;
  std::uint64_t from = stream.done;
  const std::uint64_t part = std::min(stream.bytes - stream.done, parts_.buffer_bytes - buffer.fill);
  std::uint64_t left = part;
  if (from < stream.head.size()) {
    const std::uint64_t bytes = std::min<std::uint64_t>(left, stream.head.size() - from);
    std::memcpy(to, stream.head.data() + from, bytes);
    to += bytes;
    from += bytes;
    left -= bytes;
  }
  const std::uint64_t payload_end = stream.head.size() + stream.payload.size();
  if (left > 0 && from < payload_end) {
    const std::uint64_t bytes = std::min(left, payload_end - from);
    copy::Copy(to, stream.payload.data() + (from - stream.head.size()), bytes, copy::Stores::kNonTemporal);
    to += bytes;
    left -= bytes;
  }
  std::memset(to, 0, left);
  if (stream.record != 0) Await(stream.record, buffer);
  buffer.fill += part;
  stream.done += part;
  open_->position += part;
  const bool whole = stream.done == stream.bytes;
  if (whole && stream.record == 0 && !stream.seals) open_->header = filling_;
  const bool sealed = whole && stream.seals;
  if (whole && stream.record != 0) pending_[stream.record].copied = true;
  buffer.seals = sealed;
  if (whole) stream_.reset();
  if (sealed || buffer.fill == parts_.buffer_bytes) WriteOut(now_ns);
  if (sealed && open_) {
    parts_.segments->Seal(open_->index);
    open_.reset();
  }
}

void Writer::Step(std::uint64_t now_ns, std::size_t most) {
  while (stream_) {
    // The summary lies at the end of the segment, not behind the last record.
    if (stream_->seals && stream_->done == 0) {
      if (filling_ != kNone) WriteOut(now_ns);
      if (!open_) break;
      open_->position = parts_.superblock->segment_bytes - stream_->bytes;
    }
    if (!NeedBuffer(now_ns, most)) return;
    CopySome(now_ns);
  }
  if (filling_ != kNone && now_ns >= filling_since_ns_ + parts_.flush_after_ns) WriteOut(now_ns);
}

void Writer::Flush(std::uint64_t now_ns) {
  if (filling_ != kNone && !stream_) WriteOut(now_ns);
}

void Writer::WriteOut(std::uint64_t now_ns) {
  const std::size_t number = filling_;
  Buffer& buffer = buffers_[number];
  const std::uint64_t bytes = AlignUp(buffer.fill, kWriteAlign);
  std::memset(BytesOf(number).data() + buffer.fill, 0, bytes - buffer.fill);
  if (open_) open_->position = AlignUp(open_->position, kWriteAlign);
  filling_ = kNone;
  buffer.writing = true;
  ++writing_;
  ++parts_.segments->at(buffer.segment).writers;
  copy::StoreFence();
  orbite::Batch batch;
  batch.id = parts_.id_tag | number;
  batch.ranges = {{{parts_.memory, number * parts_.buffer_bytes}, {parts_.file, buffer.file_offset}, bytes}};
  batch.deadline_ns = now_ns + parts_.deadline_ns;
  written_bytes_ += bytes;
  if (const Status taken = parts_.engine->Submit(batch, now_ns); !taken) BufferEnded(buffer, false);
}

void Writer::Completed(std::uint64_t number, const Status& status, std::uint64_t now_ns) {
  if ((number & kSyncBit) != 0) return;
  Buffer& buffer = buffers_[number];
  ORBITKV_CHECK(buffer.writing);
  const bool sync = buffer.seals && status.has_value();
  BufferEnded(buffer, status.has_value());
  if (!sync) return;
  orbite::Batch batch;
  batch.id = parts_.id_tag | kSyncBit | number;
  batch.sync = parts_.file;
  batch.deadline_ns = now_ns + parts_.deadline_ns;
  // What a loss of power takes from an unsynced segment is seen by its checksums.
  static_cast<void>(parts_.engine->Submit(batch, now_ns));
}

void Writer::Await(std::uint64_t record, Buffer& buffer) {
  buffer.records.push_back(record);
  ++pending_.at(record).buffers;
}

void Writer::BufferEnded(Buffer& buffer, bool ok) {
  buffer.writing = false;
  --writing_;
  --parts_.segments->at(buffer.segment).writers;
  if (open_ && open_->header != kNone && &buffers_[open_->header] == &buffer) open_->header = kNone;
  const std::vector<std::uint64_t> records = std::exchange(buffer.records, {});
  for (const std::uint64_t record : records) {
    Pending& pending = pending_.at(record);
    --pending.buffers;
    pending.failed = pending.failed || !ok;
    SettleIfEnded(record);
  }
  if (!ok && open_ && open_->index == buffer.segment) Abandon();
}

void Writer::SettleIfEnded(std::uint64_t record) {
  const auto found = pending_.find(record);
  if (!found->second.copied || found->second.buffers > 0) return;
  found->second.result.ok = !found->second.failed;
  ended_.push_back(found->second.result);
  pending_.erase(found);
}

void Writer::Abandon() {
  if (!open_) return;
  parts_.segments->Seal(open_->index);
  open_.reset();
  if (stream_ && stream_->record != 0) {
    Pending& pending = pending_.at(stream_->record);
    pending.copied = true;
    pending.failed = true;
    if (pending.buffers == 0) SettleIfEnded(stream_->record);
  }
  stream_.reset();
  if (filling_ == kNone) return;
  Buffer& buffer = buffers_[std::exchange(filling_, kNone)];
  const std::vector<std::uint64_t> records = std::exchange(buffer.records, {});
  for (const std::uint64_t record : records) {
    Pending& pending = pending_.at(record);
    --pending.buffers;
    pending.failed = true;
    SettleIfEnded(record);
  }
}

std::uint64_t Writer::next_flush_ns() const {
  return filling_ == kNone ? ~std::uint64_t{0} : filling_since_ns_ + parts_.flush_after_ns;
}

}  // namespace orbitkv::store
