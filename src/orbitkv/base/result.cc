#include "orbitkv/base/result.h"

#include <cerrno>
#include <cstring>
#include <fmt/format.h>

namespace orbitkv {

std::string_view CodeName(Code code) {
  switch (code) {
    case Code::kInvalid: return "invalid";
    case Code::kNotFound: return "not found";
    case Code::kBusy: return "busy";
    case Code::kTimedOut: return "timed out";
    case Code::kUnavailable: return "unavailable";
    case Code::kRefused: return "refused";
    case Code::kStale: return "stale";
    case Code::kCorrupt: return "corrupt";
    case Code::kExhausted: return "exhausted";
    case Code::kUnsupported: return "unsupported";
    case Code::kIo: return "i/o";
    case Code::kCancelled: return "cancelled";
  }
  return "unknown";
}

std::string ToString(const Error& error) {
  std::string text = fmt::format("{}: {}", CodeName(error.code), error.text);
  if (error.sys_errno != 0) text += fmt::format(" ({})", std::strerror(error.sys_errno));
  if (error.a != 0 || error.b != 0) text += fmt::format(" [{}, {}]", error.a, error.b);
  return text;
}

std::unexpected<Error> FailErrno(const char* text, std::uint64_t a, std::uint64_t b) {
  const int err = errno;
  Code code = Code::kIo;
  if (err == ENOMEM || err == ENOSPC || err == EMFILE || err == ENFILE) code = Code::kExhausted;
  if (err == EACCES || err == EPERM) code = Code::kRefused;
  if (err == ENOENT || err == ECONNREFUSED || err == EPIPE || err == ECONNRESET) code = Code::kUnavailable;
  return std::unexpected(Error{code, err, text, a, b});
}

}  // namespace orbitkv
