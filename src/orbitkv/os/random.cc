#include "orbitkv/os/random.h"

#include <cerrno>
#include <sys/random.h>

namespace orbitkv::os {

Status RandomBytes(std::span<std::byte> out) {
  while (!out.empty()) {
    const auto got = ::getrandom(out.data(), out.size(), 0);
    if (got < 0) {
      if (errno == EINTR) continue;
      return FailErrno("cannot read random bytes");
    }
    out = out.subspan(static_cast<std::size_t>(got));
  }
  return {};
}

}  // namespace orbitkv::os
