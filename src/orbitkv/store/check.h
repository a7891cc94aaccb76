// Goes through a store's file and says what is in it, without changing it.
//
// Owns: nothing. Threads: one. Blocks: for the device. Units: bytes; seconds since 1970.
// Errors: as BlockingFile; a segment that cannot be read is counted.
// Invariant: CheckStore has read every record and hashed it; DescribeStore believes summaries.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "orbitkv/base/result.h"
#include "orbitkv/store/recovery.h"

namespace orbitkv::store {

struct StoreReport {
  wire::Superblock superblock;
  std::uint32_t free_segments = 0;
  std::uint32_t sealed_segments = 0;
  std::uint32_t unsealed_segments = 0;
  std::uint32_t damaged_summaries = 0;
  std::uint32_t unreadable_segments = 0;
  std::uint64_t records = 0;
  std::uint64_t payload_bytes = 0;
  std::uint64_t oldest_unix_s = 0;  // 0 without records
  std::uint64_t newest_unix_s = 0;
  std::map<std::string, std::uint64_t> records_by_namespace;  // digest in hex
  // Of CheckStore only.
  std::uint64_t damaged_records = 0;  // of sealed segments: the summary names them, their bytes do not match
  std::uint64_t torn_records = 0;     // of unsealed segments: cut by the end of a Manager or of the power
  // Whether nothing is damaged that was once complete.
  bool sound() const { return damaged_records == 0 && damaged_summaries == 0 && unreadable_segments == 0; }
};

// What follows the last sealed segment is not counted by DescribeStore.
Result<StoreReport> DescribeStore(BlockingFile& file, const wire::Superblock& superblock);
Result<StoreReport> CheckStore(BlockingFile& file, const wire::Superblock& superblock);

}  // namespace orbitkv::store
