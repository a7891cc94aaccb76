// Configuration files, flags and variables of arbitrary bytes: no crash; what is accepted is within its limits, what is
// refused is said in one line.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/manager/config.h"
#include "orbitkv/os/unique_fd.h"

namespace {

using orbitkv::manager::Config;

std::vector<std::string> SplitAtZeros(std::string_view text) {
  std::vector<std::string> parts;
  while (!text.empty()) {
    const std::size_t end = std::min(text.find('\0'), text.size());
    parts.emplace_back(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  return parts;
}

void Check(const std::vector<std::string>& args, const std::vector<std::string>& environment) {
  const auto line = orbitkv::manager::ParseCommandLine(args, environment);
  const auto printable = [](char c) { return static_cast<unsigned char>(c) >= ' ' && c != 0x7f; };
  if (!line) {
    ORBITKV_CHECK(!line.error().empty() && std::ranges::all_of(line.error(), printable));
    return;
  }
  for (const std::string& warning : line->warnings) ORBITKV_CHECK(std::ranges::all_of(warning, printable));
  if (line->print.empty()) ORBITKV_CHECK(line->config.Validate().empty());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data + 1), size - 1);
  switch (data[0] % 3) {
    case 0: {
      const orbitkv::os::UniqueFd file(::memfd_create("config", MFD_CLOEXEC));
      ORBITKV_CHECK(::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size()));
      Check({"--config", "/proc/self/fd/" + std::to_string(file.get())}, {});
      break;
    }
    case 1: Check(SplitAtZeros(text), {}); break;
    default: Check({}, SplitAtZeros(text)); break;
  }
  return 0;
}
