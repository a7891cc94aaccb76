#include "orbitkv/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace orbitkv::internal {

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "orbitkv: broken invariant at %s:%d: %s\n", file, line, condition);
  std::abort();
}

}  // namespace orbitkv::internal
