// Reads records into memory and believes none of them: header, key and the slot's checksum are compared.
//
// The payload goes straight to its target; the header, and what would reach over the target's end, into memory of the
// reader's own.
//
// Owns: the state of its reads; scratch memory belongs to the caller. Threads: one. Blocks: no.
// Units: bytes; nanoseconds. Limits: `reads` at once. The target has room for the payload rounded up to 512.
// Errors: Start false when all reads are in use. A read's own error comes with its end.
// Invariant: each read that was started ends once, when nothing writes into its target any more.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/orbite/engine.h"
#include "orbitkv/store/facts.h"
#include "orbitkv/store/segments.h"
#include "orbitkv/wire/store_format.h"

namespace orbitkv::store {

class Reader {
 public:
  static constexpr std::uint64_t kScratchBytes = 2 * wire::kStoreBlockBytes;  // of one read

  struct Parts {
    orbite::Engine* engine = nullptr;
    orbite::RegionId file;
    orbite::RegionId memory;
    std::uint64_t scratch_offset = 0;  // in the memory region
    std::span<std::byte> scratch;
    const wire::Superblock* superblock = nullptr;
    Segments* segments = nullptr;
    std::uint64_t id_tag = 0;
    std::uint64_t deadline_ns = 0;  // of one read, from its begin
  };
  struct Job {
    std::uint64_t id = 0;
    state::StateKey key;
    bool any_key = false;  // whatever record lies there
    Location location;
    std::uint32_t payload_bytes = 0;
    orbite::RegionId target;
    std::uint64_t target_offset = 0;
    std::span<std::byte> target_bytes;  // the payload, where it will be
  };
  enum class Result : std::uint8_t { kOk, kFailed, kShort, kWrong };
  struct Ended {
    Job job;
    Result result = Result::kFailed;
    Error error{};
    wire::RecordHeader header;
  };

  explicit Reader(const Parts& parts) : parts_(parts), reads_(parts.scratch.size() / kScratchBytes) {}

  bool Start(const Job& job, std::uint64_t now_ns);
  Ended Completed(std::uint64_t number, const Status& status);
  // Reads that could not even be submitted.
  std::vector<Ended> TakeRefused() { return std::exchange(refused_, {}); }
  std::size_t under_way() const { return under_way_; }
  std::uint64_t bytes_under_way() const { return bytes_; }

 private:
  struct Read {
    bool used = false;
    Job job;
    std::uint64_t direct_bytes = 0;  // of the payload, into the target
    std::uint64_t sequence = 0;      // of the segment when it began
  };
  std::span<std::byte> ScratchOf(std::size_t number) const {
    return parts_.scratch.subspan(number * kScratchBytes, kScratchBytes);
  }
  void Verify(const Read& read, std::span<const std::byte> scratch, Ended& ended) const;

  const Parts parts_;
  std::vector<Read> reads_;
  std::size_t under_way_ = 0;
  std::uint64_t bytes_ = 0;
  std::vector<Ended> refused_;
};

}  // namespace orbitkv::store
