// Turns records into large sequential writes of one open segment.
//
// Records are copied one behind the other into buffers; a buffer goes out when it is full, or some time after its first
// byte. A segment that takes no more is sealed: the summary of its records goes to its end.
//
// Owns: the state of its buffers; the memory behind them belongs to the caller. Threads: one. Blocks: no.
// Units: bytes; nanoseconds. Limits: `buffers` writes under way.
// Errors: a write that fails ends the segment without a summary: records whose bytes are all written stay, if
//         the segment's header is, the others fail.
// Invariants: each record that was taken ends once. A payload is read until its record has ended.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "orbitkv/orbite/engine.h"
#include "orbitkv/store/facts.h"
#include "orbitkv/store/segments.h"
#include "orbitkv/wire/store_format.h"

namespace orbitkv::store {

struct RecordJob {
  std::uint64_t id = 0;
  state::StateKey key;
  Facts facts;
  std::uint32_t page_count = 0;
  std::uint64_t page_bytes = 0;
  std::uint64_t saved_unix_s = 0;
  std::span<const std::byte> payload;
};

class Writer {
 public:
  struct Parts {
    orbite::Engine* engine = nullptr;
    orbite::RegionId file;
    orbite::RegionId memory;
    std::span<std::byte> buffers;  // from the start of the memory region
    std::uint64_t buffer_bytes = 0;
    const wire::Superblock* superblock = nullptr;
    Segments* segments = nullptr;
    std::uint64_t id_tag = 0;  // of its batches
    std::uint64_t flush_after_ns = 0;
    std::uint64_t deadline_ns = 0;  // of one write, from its begin
  };
  struct Ended {
    std::uint64_t id = 0;
    state::StateKey key;
    Facts facts;
    Location location;
    bool ok = false;
  };
  enum class Begin : std::uint8_t { kTaken, kNoSegment, kSegmentFull };

  explicit Writer(const Parts& parts);

  bool open() const { return open_.has_value(); }
  // Something is being copied that waits for a buffer: nothing can begin.
  bool streaming() const { return stream_.has_value(); }
  bool idle() const { return !stream_ && filling_ == kNone && writing_ == 0; }
  void Open(std::uint32_t segment, std::uint64_t unix_s);
  Begin Start(const RecordJob& job);
  void Seal(std::uint64_t unix_s);
  // The open segment takes no more, and gets no summary.
  void Abandon();
  // Copies and writes what may be written. most: writes under way.
  void Step(std::uint64_t now_ns, std::size_t most);
  // Writes what is there, however little.
  void Flush(std::uint64_t now_ns);
  // number: the id of the batch without the tag.
  void Completed(std::uint64_t number, const Status& status, std::uint64_t now_ns);
  std::vector<Ended> TakeEnded() { return std::exchange(ended_, {}); }
  std::uint64_t next_flush_ns() const;
  std::uint64_t written_bytes() const { return written_bytes_; }

 private:
  static constexpr std::size_t kNone = ~std::size_t{0};
  struct Buffer {
    bool writing = false;
    std::uint32_t segment = 0;
    std::uint64_t file_offset = 0;
    std::uint64_t fill = 0;
    bool seals = false;
    std::vector<std::uint64_t> records;
  };
  struct Pending {
    Ended result;
    std::uint32_t buffers = 0;  // not yet written: its own, and that of its segment's header
    bool copied = false;
    bool failed = false;
  };
  // What is being copied into buffers: a head, then a payload, then zeros.
  struct Stream {
    std::vector<std::byte> head;
    std::span<const std::byte> payload;
    std::uint64_t bytes = 0;
    std::uint64_t done = 0;
    std::uint64_t record = 0;  // its number among the pending ones, or 0
    bool seals = false;
  };
  struct OpenSegment {
    std::uint32_t index = 0;
    std::uint64_t position = 0;
    std::vector<wire::SummaryEntry> entries;
    std::size_t header = kNone;  // the buffer that carries the segment's header, until it is written
  };

  std::span<std::byte> BytesOf(std::size_t buffer) const {
    return parts_.buffers.subspan(buffer * parts_.buffer_bytes, parts_.buffer_bytes);
  }
  bool NeedBuffer(std::uint64_t now_ns, std::size_t most);
  void CopySome(std::uint64_t now_ns);
  void WriteOut(std::uint64_t now_ns);
  // The record has ended when the buffer is written, too.
  void Await(std::uint64_t record, Buffer& buffer);
  void BufferEnded(Buffer& buffer, bool ok);
  void SettleIfEnded(std::uint64_t record);

  const Parts parts_;
  std::vector<Buffer> buffers_;
  std::size_t filling_ = kNone;
  std::uint64_t filling_since_ns_ = 0;
  std::size_t writing_ = 0;
  std::optional<OpenSegment> open_;
  std::optional<Stream> stream_;
  std::map<std::uint64_t, Pending> pending_;
  std::uint64_t next_record_ = 1;
  std::vector<Ended> ended_;
  std::uint64_t written_bytes_ = 0;
};

}  // namespace orbitkv::store
