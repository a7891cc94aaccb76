#include "orbitkv/os/mapping.h"

#include <cerrno>
#include <sys/mman.h>
#include <unistd.h>

namespace orbitkv::os {
namespace {

constexpr int kPopulateRead = 22;   // MADV_POPULATE_READ, absent from older headers
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE

}  // namespace

Result<Mapping> Mapping::Map(int fd, std::uint64_t bytes, Access access, std::uint64_t offset) {
  if (bytes == 0) return Fail(Code::kInvalid, "a mapping of zero bytes");
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = ::mmap(nullptr, bytes, protection, MAP_SHARED, fd, static_cast<off_t>(offset));
  if (address == MAP_FAILED) return FailErrno("cannot map shared memory", bytes, offset);
  Mapping mapping(static_cast<std::byte*>(address), bytes);
  if (::madvise(address, bytes, MADV_DONTFORK) != 0) return FailErrno("cannot keep a mapping out of children", bytes);
  return mapping;
}

Result<Mapping> Mapping::Anonymous(std::uint64_t bytes) {
  if (bytes == 0) return Fail(Code::kInvalid, "a mapping of zero bytes");
  void* address = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (address == MAP_FAILED) return FailErrno("cannot map private memory", bytes);
  return Mapping(static_cast<std::byte*>(address), bytes);
}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  if (this != &other) {
    Unmap();
    data_ = std::exchange(other.data_, nullptr);
    size_ = std::exchange(other.size_, 0);
    guard_ = other.guard_;
  }
  return *this;
}

Status Mapping::Populate(std::uint64_t offset, std::uint64_t bytes, Access access) {
  if (offset > size_ || bytes > size_ - offset) return Fail(Code::kInvalid, "range outside the mapping", offset, bytes);
  if (bytes == 0) return {};
  const auto page = static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = offset / page * page;
  const int advice = access == Access::kRead ? kPopulateRead : kPopulateWrite;
  while (::madvise(data_ + begin, bytes + (offset - begin), advice) != 0) {
    if (errno == EINTR) continue;
    if (errno == EINVAL) return Fail(Code::kUnsupported, "this kernel cannot populate mappings");
    return FailErrno("cannot populate a mapping", offset, bytes);
  }
  return {};
}

void Mapping::Unmap() {
  if (data_ != nullptr && !guard_.InChild()) ::munmap(data_, size_);
  data_ = nullptr;
  size_ = 0;
}

}  // namespace orbitkv::os
