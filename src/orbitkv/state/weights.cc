#include "orbitkv/state/weights.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fmt/format.h>
#include <optional>
#include <string_view>
#include <system_error>
#include <vector>

#include "orbitkv/base/log.h"
#include "orbitkv/base/mutex.h"
#include "orbitkv/os/file.h"
#include "orbitkv/state/digest.h"

namespace orbitkv::state {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kDefaultPiece = 4U << 20U;
constexpr std::uint64_t kMaxFiles = 100'000;
constexpr std::chrono::milliseconds kLockPoll{20};
constexpr std::string_view kEntryMagic = "orbitkv-file-hash 1";

// Files whose content decides what a model computes. An index says which file holds which tensor; Python files are
// model code that an engine may run; a quantization file says how to read the tensors.
bool DecidesTheComputation(const fs::path& path) {
  static constexpr std::array<std::string_view, 10> kExtensions = {".safetensors", ".bin", ".pt",  ".pth",     ".gguf",
                                                                   ".ckpt",        ".npz", ".npy", ".tensors", ".py"};
  const std::string extension = path.extension().string();
  if (std::ranges::find(kExtensions, extension) != kExtensions.end()) return true;
  const std::string name = path.filename().string();
  return name.ends_with(".index.json") || (extension == ".json" && name.find("quant") != std::string::npos);
}

bool IsHex64(std::string_view text) {
  return text.size() == 64 &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

// A link into .../blobs/<64 hex digits>: the downloader has named the blob by its SHA-256.
std::optional<std::string> BlobName(const fs::path& path) {
  std::error_code error;
  if (!fs::is_symlink(path, error)) return std::nullopt;
  const fs::path target = fs::read_symlink(path, error);
  if (error || target.parent_path().filename() != "blobs") return std::nullopt;
  if (!fs::exists(path, error)) return std::nullopt;
  std::string name = target.filename().string();
  if (!IsHex64(name)) return std::nullopt;
  return name;
}

bool Cancelled(const WeightsOptions& options) {
  return options.cancel != nullptr && options.cancel->load(std::memory_order_relaxed);
}

// One entry is one line: magic, identity, hash, and the hash of all that, so that a damaged entry is recognised.
std::string EntryText(const os::FileIdentity& id, std::string_view hex) {
  const std::string body =
      fmt::format("{} {} {} {} {} {} {}", kEntryMagic, id.device, id.inode, id.bytes, id.mtime_ns, id.ctime_ns, hex);
  const std::string check = ToHex(DigestBuilder("file-hash-entry").Add("body", body).Finish());
  return body + " " + check + "\n";
}

class HashCache {
 public:
  explicit HashCache(const WeightsOptions& options) : options_(options) {
    dir_ = options.cache_dir.empty() ? DefaultCacheDir() : options.cache_dir;
    if (dir_.empty()) return;
    dir_ += "/weights";
    std::error_code error;
    fs::create_directories(dir_, error);
    if (error) Disable("cannot create it");
  }

  std::optional<std::string> Find(const os::FileIdentity& id) const {
    if (dir_.empty()) return std::nullopt;
    const Result<std::string> content = os::ReadFile(EntryPath(id), 4096);
    if (!content) return std::nullopt;
    // The hash is the last field but one; the entry counts only if it is exactly what we would write for it.
    const std::size_t check = content->rfind(' ');
    if (check == std::string::npos || check < 64) return std::nullopt;
    std::string hex = content->substr(check - 64, 64);
    if (!IsHex64(hex) || *content != EntryText(id, hex)) return std::nullopt;
    return hex;
  }

  void Store(const os::FileIdentity& id, std::string_view hex) {
    if (dir_.empty()) return;
    if (!os::ReplaceFile(EntryPath(id), EntryText(id, hex))) Disable("cannot write to it");
  }

  // Waits for another process that reads the same file. Without a usable cache there is nothing to wait for.
  Result<std::optional<os::FileLock>> Lock(const os::FileIdentity& id) {
    Mutex mutex;
    CondVar never;
    while (!dir_.empty()) {
      auto lock = os::FileLock::TryAcquire(EntryPath(id) + ".lock");
      if (!lock) {
        Disable("cannot lock in it");
        break;
      }
      if (*lock) return std::move(*lock);
      if (Cancelled(options_)) return Fail(Code::kCancelled, "hashing the weights was cancelled");
      const MutexLock guard(mutex);
      never.WaitUntil(mutex, std::chrono::steady_clock::now() + kLockPoll);
    }
    return std::optional<os::FileLock>();
  }

 private:
  std::string EntryPath(const os::FileIdentity& id) const { return fmt::format("{}/{}-{}", dir_, id.device, id.inode); }
  void Disable(const char* why) {
    log::Warning("weights", "weight hashes are not kept dir={} reason=\"{}\"", dir_, why);
    dir_.clear();
  }

  const WeightsOptions& options_;
  std::string dir_;
};

Result<std::string> ReadAndHash(const std::string& path, const os::FileIdentity& expected,
                                const WeightsOptions& options, std::uint64_t& bytes_read) {
  ORBITKV_ASSIGN_OR_RETURN(const os::UniqueFd fd, os::OpenForReading(path));
  std::vector<std::byte> piece(options.piece_bytes == 0 ? kDefaultPiece : options.piece_bytes);
  Sha256 sha;
  std::uint64_t offset = 0;
  for (;;) {
    if (Cancelled(options)) return Fail(Code::kCancelled, "hashing the weights was cancelled");
    ORBITKV_ASSIGN_OR_RETURN(const std::size_t got, os::ReadAt(fd.get(), offset, piece));
    if (got == 0) break;
    sha.Update(std::span(piece).first(got));
    offset += got;
  }
  bytes_read += offset;
  ORBITKV_ASSIGN_OR_RETURN(const os::FileIdentity after, os::IdentityOf(fd.get()));
  if (after != expected || offset != expected.bytes) {
    return Fail(Code::kBusy, "a weight file changed while it was read; start again when it is complete", offset);
  }
  return ToHex(sha.Finish());
}

struct OneHash {
  std::string hex;
  bool known = false;
  std::uint64_t bytes_read = 0;
};

Result<OneHash> HashOne(const fs::path& path, const WeightsOptions& options, HashCache& cache) {
  OneHash result;
  if (std::optional<std::string> blob = BlobName(path)) {
    result.hex = std::move(*blob);
    result.known = true;
    return result;
  }
  ORBITKV_ASSIGN_OR_RETURN(const os::FileIdentity id, os::IdentityOf(path.string()));
  std::optional<std::string> known = cache.Find(id);
  if (!known) {
    ORBITKV_ASSIGN_OR_RETURN(const std::optional<os::FileLock> lock, cache.Lock(id));
    known = cache.Find(id);  // another process may have read the file while we waited
    if (!known) {
      ORBITKV_ASSIGN_OR_RETURN(result.hex, ReadAndHash(path.string(), id, options, result.bytes_read));
      cache.Store(id, result.hex);
      return result;
    }
  }
  result.hex = std::move(*known);
  result.known = true;
  return result;
}

struct NamedFile {
  std::string name;  // relative, with '/' between parts
  fs::path path;
  bool operator<(const NamedFile& other) const { return name < other.name; }
};

Result<std::vector<NamedFile>> ListFiles(const fs::path& root) {
  std::error_code error;
  if (fs::is_regular_file(root, error)) return std::vector<NamedFile>{{root.filename().string(), root}};
  std::vector<NamedFile> files;
  fs::recursive_directory_iterator it(root, error);
  if (error) return Fail(Code::kNotFound, "the model folder cannot be read; OrbitKV needs local weights or a model_id");
  for (const fs::recursive_directory_iterator end; it != end; it.increment(error)) {
    if (error) return Fail(Code::kIo, "the model folder cannot be read");
    if (!it->is_regular_file(error) || !DecidesTheComputation(it->path())) continue;
    files.push_back({it->path().lexically_relative(root).generic_string(), it->path()});
    if (files.size() > kMaxFiles) return Fail(Code::kInvalid, "the model folder holds too many files", kMaxFiles);
  }
  if (error) return Fail(Code::kIo, "the model folder cannot be read");
  std::ranges::sort(files, {}, &NamedFile::name);
  return files;
}

bool IsWeightFile(const NamedFile& file) { return !file.name.ends_with(".py") && !file.name.ends_with(".json"); }

Status RefuseRemote(const WeightsOptions& options) {
  static constexpr std::array<std::string_view, 11> kLocal = {
      "",        "auto", "hf",      "safetensors",  "fastsafetensors", "pt",
      "npcache", "gguf", "mistral", "bitsandbytes", "sharded_state"};
  if (std::ranges::find(kLocal, options.load_format) == kLocal.end()) {
    return Fail(Code::kRefused, "weights of this load format cannot be told apart; set a model_id");
  }
  if (options.path.find("://") != std::string::npos) {
    return Fail(Code::kRefused, "weights of a remote path cannot be told apart; set a model_id");
  }
  return {};
}

}  // namespace

std::string DefaultCacheDir() {
  // getenv is read while no thread changes the environment: at start-up.
  if (const char* xdg = std::getenv("XDG_CACHE_HOME");
      xdg != nullptr && *xdg == '/') {  // NOLINT(concurrency-mt-unsafe)
    return std::string(xdg) + "/orbitkv";
  }
  if (const char* home = std::getenv("HOME"); home != nullptr && *home == '/') {  // NOLINT(concurrency-mt-unsafe)
    return std::string(home) + "/.cache/orbitkv";
  }
  return {};
}

Result<WeightsIdentity> IdentifyWeights(const WeightsOptions& options) {
  WeightsIdentity identity;
  if (!options.model_id.empty()) {
    identity.text = "model_id:" + options.model_id;
    return identity;
  }
  ORBITKV_TRY(RefuseRemote(options));
  ORBITKV_ASSIGN_OR_RETURN(const std::vector<NamedFile> files, ListFiles(options.path));
  if (std::ranges::none_of(files, IsWeightFile)) {
    return Fail(Code::kNotFound, "the model folder holds no weight file; set a model_id");
  }
  HashCache cache(options);
  DigestBuilder builder("weights");
  for (const NamedFile& file : files) {
    ORBITKV_ASSIGN_OR_RETURN(const OneHash hash, HashOne(file.path, options, cache));
    builder.Add("name", file.name).Add("content", hash.hex);
    ++identity.files;
    identity.bytes_read += hash.bytes_read;
    identity.hashes_known += hash.known ? 1 : 0;
  }
  identity.text = "sha256:" + ToHex(builder.Finish());
  return identity;
}

Result<FileHash> HashFile(const std::string& path, const WeightsOptions& options) {
  HashCache cache(options);
  ORBITKV_ASSIGN_OR_RETURN(OneHash hash, HashOne(path, options, cache));
  return FileHash{std::move(hash.hex), hash.bytes_read};
}

}  // namespace orbitkv::state
