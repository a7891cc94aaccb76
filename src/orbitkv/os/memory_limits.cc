#include "orbitkv/os/memory_limits.h"

#include <algorithm>
#include <charconv>
#include <string_view>

#include "orbitkv/os/file.h"

namespace orbitkv::os {
namespace {

constexpr std::uint64_t kMaxFactBytes = 1U << 20U;
// Version 1 writes a number near 2^63 for "no limit".
constexpr std::uint64_t kUnlimited = 1ULL << 62U;

std::optional<std::uint64_t> ParseNumber(std::string_view text) {
  std::uint64_t value = 0;
  const auto first = text.find_first_not_of(" \t");
  if (first == std::string_view::npos) return std::nullopt;
  text.remove_prefix(first);
  if (std::from_chars(text.data(), text.data() + text.size(), value).ec != std::errc{}) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> ReadNumber(const std::string& path) {
  const auto text = ReadFile(path, kMaxFactBytes);
  return text ? ParseNumber(*text) : std::nullopt;
}

// The number after a key at the start of a line.
std::optional<std::uint64_t> Field(std::string_view text, std::string_view key) {
  for (std::size_t at = 0; at < text.size();) {
    const auto end = std::min(text.find('\n', at), text.size());
    const auto line = text.substr(at, end - at);
    if (line.starts_with(key)) return ParseNumber(line.substr(key.size()));
    at = end + 1;
  }
  return std::nullopt;
}

struct GroupNames {
  const char* limit;
  const char* usage;
  const char* droppable;
};
constexpr GroupNames kVersion2{"memory.max", "memory.current", "inactive_file "};
constexpr GroupNames kVersion1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};

// What one group says: its limit, or the room below it.
using GroupFact = std::optional<std::uint64_t> (*)(const std::string& group, const GroupNames& names);

std::optional<std::uint64_t> LimitOf(const std::string& group, const GroupNames& names) {
  const auto limit = ReadNumber(group + "/" + names.limit);
  return limit && *limit < kUnlimited ? limit : std::nullopt;
}

std::optional<std::uint64_t> RoomOf(const std::string& group, const GroupNames& names) {
  const auto limit = LimitOf(group, names);
  if (!limit) return std::nullopt;
  std::uint64_t usage = ReadNumber(group + "/" + names.usage).value_or(0);
  if (const auto stat = ReadFile(group + "/memory.stat", kMaxFactBytes)) {
    usage -= std::min(usage, Field(*stat, names.droppable).value_or(0));
  }
  return *limit > usage ? *limit - usage : 0;
}

// A container may see its own group as the root, under a path that does not exist here: then only the root counts.
std::optional<std::uint64_t> SmallestUpTheTree(const std::string& root, std::string path, const GroupNames& names,
                                               GroupFact fact) {
  std::optional<std::uint64_t> smallest;
  for (;;) {
    if (const auto value = fact(root + path, names)) smallest = std::min(smallest.value_or(*value), *value);
    if (path.empty()) return smallest;
    path.erase(path.rfind('/'));
  }
}

Result<std::uint64_t> MeminfoBytes(const MemoryPaths& paths, std::string_view key) {
  ORBITKV_ASSIGN_OR_RETURN(const std::string text, ReadFile(paths.meminfo, kMaxFactBytes));
  const auto kib = Field(text, key);
  if (!kib) return Fail(Code::kInvalid, "the kernel does not say how much memory there is");
  return *kib * 1024U;
}

}  // namespace

Result<std::uint64_t> AvailableMemory(const MemoryPaths& paths) { return MeminfoBytes(paths, "MemAvailable:"); }

Result<std::uint64_t> TotalMemory(const MemoryPaths& paths) { return MeminfoBytes(paths, "MemTotal:"); }

namespace {

std::optional<std::uint64_t> SmallestOfOwnGroups(const MemoryPaths& paths, GroupFact fact) {
  const auto text = ReadFile(paths.own_cgroups, kMaxFactBytes);
  if (!text) return std::nullopt;
  std::optional<std::uint64_t> smallest;
  const auto consider = [&smallest](std::optional<std::uint64_t> value) {
    if (value) smallest = std::min(smallest.value_or(*value), *value);
  };
  for (std::size_t at = 0; at < text->size();) {
    const auto end = std::min(text->find('\n', at), text->size());
    const auto line = std::string_view(*text).substr(at, end - at);
    at = end + 1;
    const auto colon1 = line.find(':');
    const auto colon2 = colon1 == std::string_view::npos ? colon1 : line.find(':', colon1 + 1);
    if (colon2 == std::string_view::npos) continue;
    const auto controllers = line.substr(colon1 + 1, colon2 - colon1 - 1);
    std::string path(line.substr(colon2 + 1));
    if (path == "/" || !path.starts_with('/')) path.clear();
    if (controllers.empty()) {
      consider(SmallestUpTheTree(paths.cgroup_root, path, kVersion2, fact));
      consider(SmallestUpTheTree(paths.cgroup_root + "/unified", path, kVersion2, fact));
    } else if (("," + std::string(controllers) + ",").find(",memory,") != std::string::npos) {
      consider(SmallestUpTheTree(paths.cgroup_root + "/memory", path, kVersion1, fact));
    }
  }
  return smallest;
}

}  // namespace

std::optional<std::uint64_t> CgroupRoom(const MemoryPaths& paths) { return SmallestOfOwnGroups(paths, RoomOf); }

std::optional<std::uint64_t> CgroupLimit(const MemoryPaths& paths) { return SmallestOfOwnGroups(paths, LimitOf); }

Result<std::uint64_t> MemoryRoom(const MemoryPaths& paths) {
  ORBITKV_ASSIGN_OR_RETURN(const std::uint64_t available, AvailableMemory(paths));
  return std::min(available, CgroupRoom(paths).value_or(available));
}

}  // namespace orbitkv::os
