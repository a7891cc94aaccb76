// Result<T>: a value or an Error. The return type of everything that may fail for a reason outside its own code.
// Owns: nothing; an Error allocates nothing and may be copied freely.
// Threads: values, no shared state.
// Errors: Code says what the caller can do about it; sys_errno is the errno of the failed system call or 0; text is a
//         string literal that names the problem and, where there is one, the remedy; a and b are numbers for the
//         message.
// Invariant: a miss is an std::optional, never an Error.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

namespace orbitkv {

enum class Code : std::uint8_t {
  kInvalid = 1,  // the input is malformed or out of range; asking again the same way fails again
  kNotFound,     // the named thing does not exist (any more)
  kBusy,         // full or occupied; ask again later
  kTimedOut,     // the deadline passed
  kUnavailable,  // the other side is gone or not there yet
  kRefused,      // understood and denied: identity, credentials, policy, version
  kStale,        // an older generation, epoch or incarnation
  kCorrupt,      // a checksum does not match
  kExhausted,    // memory, descriptors or disk space ran out
  kUnsupported,  // this build or kernel cannot do it
  kIo,           // a system call failed
  kCancelled,    // the caller or a shutdown ended it
};

std::string_view CodeName(Code code);

struct Error {
  Code code = Code::kInvalid;
  int sys_errno = 0;
  const char* text = "";
  std::uint64_t a = 0;
  std::uint64_t b = 0;
};

// One line for people: "kIo: cannot map the pool (Cannot allocate memory) [4096, 0]".
std::string ToString(const Error& error);

template <typename T>
using Result = std::expected<T, Error>;
using Status = Result<void>;

inline std::unexpected<Error> Fail(Code code, const char* text, std::uint64_t a = 0, std::uint64_t b = 0) {
  return std::unexpected(Error{code, 0, text, a, b});
}
// Takes errno, which the failed call has just set.
std::unexpected<Error> FailErrno(const char* text, std::uint64_t a = 0, std::uint64_t b = 0);

}  // namespace orbitkv

#define ORBITKV_CONCAT_INNER(a, b) a##b
#define ORBITKV_CONCAT(a, b) ORBITKV_CONCAT_INNER(a, b)

// Returns the error of a Status or Result expression from the enclosing function.
#define ORBITKV_TRY(expr)                                        \
  do {                                                           \
    if (auto orbitkv_try_result = (expr); !orbitkv_try_result) { \
      return std::unexpected(orbitkv_try_result.error());        \
    }                                                            \
  } while (0)

// Declares or assigns lhs from a Result expression, or returns its error.
#define ORBITKV_ASSIGN_OR_RETURN(lhs, expr) \
  ORBITKV_ASSIGN_OR_RETURN_INNER(ORBITKV_CONCAT(orbitkv_r_, __LINE__), lhs, expr)
#define ORBITKV_ASSIGN_OR_RETURN_INNER(tmp, lhs, expr) \
  auto tmp = (expr);                                   \
  if (!tmp) return std::unexpected(tmp.error());       \
  lhs = std::move(*tmp)
