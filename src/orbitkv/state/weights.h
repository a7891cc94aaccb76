// Which weights a model folder holds, told by content: the SHA-256 over (relative name, SHA-256 of the content) of
// every file that decides what the model computes. Two fine-tunes of one architecture never share a block because of
// it. A file in a Hugging Face cache is a link to blobs/<SHA-256 of the content> and is identified by that name without
// being read. Every other file is read once per host: its hash is kept in a cache folder under (device, inode, size,
// mtime, ctime), and a lock beside it lets one process read while the others wait for the result.
// Owns: nothing after the call; the cache folder keeps one small file and one lock file per weight file.
// Threads: any, also several processes at once. Blocks: for as long as reading the weights takes; made for a background
//          thread. `cancel` is looked at between pieces and while waiting for another process.
// Units: bytes; times in nanoseconds as the file system gives them.
// Errors: kRefused for weights that are not local files (load format, remote path) without a model_id; kNotFound when
//         the folder holds no weight file; kCancelled; kBusy when a file changes while it is read; kIo otherwise.
// Invariants: a damaged, foreign or unwritable cache costs time, never a wrong identity.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "orbitkv/base/result.h"

namespace orbitkv::state {

struct WeightsOptions {
  std::string path;               // model folder, or a single weight file
  std::string load_format;        // as the engine names it; empty or "auto" means local files
  std::string model_id;           // opt-in: taken as the identity instead of the content
  std::string cache_dir;          // empty: $XDG_CACHE_HOME/orbitkv, else ~/.cache/orbitkv
  std::uint64_t piece_bytes = 0;  // read at once; 0 means 4 MiB
  const std::atomic<bool>* cancel = nullptr;
};

struct WeightsIdentity {
  std::string text;  // "sha256:<hex>" or "model_id:<text>"
  std::uint64_t files = 0;
  std::uint64_t bytes_read = 0;    // 0 when every hash was known
  std::uint64_t hashes_known = 0;  // files identified by the cache or by a blob's name
};

Result<WeightsIdentity> IdentifyWeights(const WeightsOptions& options);

// SHA-256 of one file's content as hex, through the same cache. Used for adapters as well.
struct FileHash {
  std::string hex;
  std::uint64_t bytes_read = 0;
};
Result<FileHash> HashFile(const std::string& path, const WeightsOptions& options);

// The folder used when cache_dir is empty; empty when neither variable is set.
std::string DefaultCacheDir();

}  // namespace orbitkv::state
