// A range of mapped memory: a piece of a file that other processes may map too, or private zeroed memory.
// Owns: the address range; the file stays open or not, as the caller likes.
// Threads: the object belongs to one; the bytes follow the rules of what lies in them. Blocks: Populate, for the
// kernel. Units: bytes; offset is a multiple of the page size. Errors: kInvalid for zero bytes, kIo with errno
// otherwise; nothing is mapped after an error. Invariant: shared mappings are left out of a forked child
// (MADV_DONTFORK).
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <utility>

#include "orbitkv/base/result.h"
#include "orbitkv/os/fork_guard.h"

namespace orbitkv::os {

enum class Access : std::uint8_t { kRead, kReadWrite };

class Mapping {
 public:
  static Result<Mapping> Map(int fd, std::uint64_t bytes, Access access, std::uint64_t offset = 0);
  static Result<Mapping> Anonymous(std::uint64_t bytes);

  Mapping() = default;
  Mapping(Mapping&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)), guard_(other.guard_) {}
  Mapping& operator=(Mapping&& other) noexcept;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() { Unmap(); }

  bool valid() const { return data_ != nullptr; }
  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  std::span<std::byte> bytes() const { return {data_, size_}; }

  // Faults the pages of a range in, for reading or for writing. A hint: kUnsupported on kernels before 5.14.
  Status Populate(std::uint64_t offset, std::uint64_t bytes, Access access);
  void Unmap();

 private:
  Mapping(std::byte* data, std::uint64_t size) : data_(data), size_(size) {}
  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  ForkGuard guard_;
};

}  // namespace orbitkv::os
