#include "orbitkv/manager/pool_memory.h"

#include <algorithm>
#include <chrono>
#include <fmt/format.h>

#include "orbitkv/base/log.h"
#include "orbitkv/os/clock.h"
#include "orbitkv/os/memfd.h"
#include "orbitkv/os/memory_limits.h"

namespace orbitkv::manager {
namespace {

constexpr const char* kTag = "pool";

Result<os::UniqueFd> HugeFile(std::uint64_t bytes) {
  const std::uint64_t free = os::FreeHugePageBytes();
  if (free < bytes) return Fail(Code::kExhausted, "too few reserved huge pages are free", free, bytes);
  return os::CreateHugeMemfd("orbitkv-pool", bytes);
}

// Reserved memory is cleared by the kernel when a page is first touched, which an engine's first saves would pay for. A
// first touch by reading, which is how clients fault the pool in, costs ten times as much as this one.
Status ReserveCleared(int fd, std::uint64_t offset, std::uint64_t bytes) {
  ORBITKV_TRY(os::Reserve(fd, offset, bytes));
  // Not part of the promise: without it, or on an old kernel, whoever comes first clears the page.
  auto mapping = os::Mapping::Map(fd, bytes, os::Access::kReadWrite, offset);
  if (mapping) static_cast<void>(mapping->Populate(0, bytes, os::Access::kReadWrite));
  return {};
}

}  // namespace

std::string PoolTooLarge(std::uint64_t pool_bytes, std::uint64_t total_bytes, std::uint64_t limit_bytes) {
  if (pool_bytes > total_bytes) {
    return fmt::format(
        "a pool of {} bytes is larger than this machine's memory of {} bytes; give a smaller --pool-bytes", pool_bytes,
        total_bytes);
  }
  if (limit_bytes != 0 && pool_bytes > limit_bytes) {
    return fmt::format(
        "a pool of {} bytes is larger than the memory limit of {} bytes of this control group; give a smaller "
        "--pool-bytes or raise the limit",
        pool_bytes, limit_bytes);
  }
  return {};
}

std::string PoolTooLarge(std::uint64_t pool_bytes) {
  const auto total = os::TotalMemory();
  return PoolTooLarge(pool_bytes, total ? *total : pool_bytes, os::CgroupLimit().value_or(0));
}

std::string TablesTooLarge(std::uint64_t table_bytes, std::uint64_t total_bytes, std::uint64_t limit_bytes) {
  const std::uint64_t most = (limit_bytes != 0 ? std::min(total_bytes, limit_bytes) : total_bytes) / 2;
  if (table_bytes <= most) return {};
  return fmt::format(
      "the tables take {} bytes, more than half of the memory ({}); give smaller --max-slots and --max-blocks",
      table_bytes, most);
}

std::string TablesTooLarge(std::uint64_t table_bytes) {
  const auto total = os::TotalMemory();
  return TablesTooLarge(table_bytes, total ? *total : 2 * table_bytes, os::CgroupLimit().value_or(0));
}

Result<PoolMemory> PoolMemory::Create(std::uint64_t bytes, HugePages huge_pages) {
  os::UniqueFd fd;
  os::Mapping mapping;
  bool huge = false;
  if (huge_pages == HugePages::kAuto) {
    if (auto file = HugeFile(bytes)) {
      // Mapping it takes the pages out of the free ones, so that nobody else gets them meanwhile.
      if (auto mapped = os::Mapping::Map(file->get(), bytes, os::Access::kRead)) {
        fd = std::move(*file);
        mapping = std::move(*mapped);
        huge = true;
      }
    } else {
      log::Info(kTag, "pages=4KiB reason=\"{}\"", ToString(file.error()));
    }
  }
  if (!huge) {
    ORBITKV_ASSIGN_OR_RETURN(fd, os::CreateMemfd("orbitkv-pool", bytes));
    ORBITKV_ASSIGN_OR_RETURN(mapping, os::Mapping::Map(fd.get(), bytes, os::Access::kRead));
  }
  ORBITKV_TRY(os::SealSize(fd.get()));
  return PoolMemory(std::move(fd), std::move(mapping), huge);
}

Result<PoolMemory> PoolMemory::Of(os::UniqueFd fd, std::uint64_t bytes, bool huge) {
  ORBITKV_ASSIGN_OR_RETURN(os::Mapping mapping, os::Mapping::Map(fd.get(), bytes, os::Access::kRead));
  return PoolMemory(std::move(fd), std::move(mapping), huge);
}

PoolReserver::Options PoolReserver::ForMachine(const PoolMemory& memory, std::uint64_t reserved_bytes,
                                               const Config& config) {
  Options options;
  options.reserved_bytes = reserved_bytes;
  options.fd = memory.fd();
  options.pool_bytes = memory.bytes();
  options.reserve = ReserveCleared;
  if (memory.huge()) {
    // Huge pages were set aside by the mapping and are not part of available memory.
    options.room = [bytes = memory.bytes()]() -> Result<std::uint64_t> { return bytes; };
    return options;
  }
  options.room = [] { return os::MemoryRoom(); };
  // A small machine or control group keeps an eighth free, not all of itself.
  const auto total = os::TotalMemory();
  std::uint64_t most = total ? *total : 0;
  if (const auto limit = os::CgroupLimit()) most = std::min(most, *limit);
  options.keep_free_bytes = std::min(config.keep_free_bytes, most / 8);
  return options;
}

Result<std::uint64_t> PoolReserver::Step() {
  const std::uint64_t step = std::min(options_.step_bytes, options_.pool_bytes - reserved_);
  ORBITKV_ASSIGN_OR_RETURN(last_room_, options_.room());
  if (last_room_ < step + options_.keep_free_bytes) return 0;
  if (const Status reserved = options_.reserve(options_.fd, reserved_, step); !reserved) {
    if (reserved.error().code == Code::kExhausted) return 0;
    return std::unexpected(reserved.error());
  }
  reserved_ += step;
  return step;
}

bool PoolReserver::Pause() {
  MutexLock lock(mutex_);
  if (!stop_) wake_.WaitUntil(mutex_, std::chrono::steady_clock::now() + std::chrono::nanoseconds(options_.poll_ns));
  return stop_;
}

Result<std::uint64_t> PoolReserver::ReserveFirst(std::uint64_t deadline_ns) {
  if (reserved_ > 0) return 0;
  bool told = false;
  for (;;) {
    ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t more, Step());
    if (more != 0) return more;
    const std::uint64_t needed = std::min(options_.step_bytes, options_.pool_bytes) + options_.keep_free_bytes;
    if (os::MonotonicNs() >= deadline_ns || Pause()) {
      return Fail(Code::kExhausted, "no memory for the first slab; free some or lower --keep-free-bytes [room, needed]",
                  last_room_, needed);
    }
    if (!told) log::Warning(kTag, "waiting for memory room_bytes={} needed_bytes={}", last_room_, needed);
    told = true;
  }
}

Status PoolReserver::Start(std::function<void(std::uint64_t)> on_reserved) {
  if (thread_.running() || reserved_ == options_.pool_bytes) return {};
  return thread_.Start("okv-reserve", [this, callback = std::move(on_reserved)] { Run(callback); });
}

void PoolReserver::Run(const std::function<void(std::uint64_t)>& on_reserved) {
  bool told = false;
  while (reserved_ < options_.pool_bytes) {
    const auto more = Step();
    if (more && *more != 0) {
      on_reserved(*more);
      told = false;
      MutexLock lock(mutex_);
      if (stop_) return;
      continue;
    }
    if (!told) {
      log::Warning(kTag, "waiting for memory reserved_bytes={} pool_bytes={} room_bytes={}{}{}", reserved_,
                   options_.pool_bytes, last_room_, more ? "" : " error=", more ? "" : ToString(more.error()));
      told = true;
    }
    if (Pause()) return;
  }
  log::Info(kTag, "reserved_bytes={} complete=true", reserved_);
}

void PoolReserver::Stop() {
  {
    MutexLock lock(mutex_);
    stop_ = true;
  }
  wake_.NotifyAll();
  thread_.Join();
}

}  // namespace orbitkv::manager
