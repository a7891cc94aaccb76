#include <cerrno>
#include <chrono>
#include <gtest/gtest.h>

#include "orbitkv/base/check.h"
#include "orbitkv/base/log.h"
#include "orbitkv/base/prng.h"
#include "orbitkv/base/result.h"
#include "orbitkv/base/units.h"

namespace orbitkv {
namespace {

Result<int> Half(int value) {
  if (value % 2 != 0) return Fail(Code::kInvalid, "odd", static_cast<std::uint64_t>(value));
  return value / 2;
}

Result<int> Quarter(int value) {
  ORBITKV_ASSIGN_OR_RETURN(const int half, Half(value));
  ORBITKV_TRY(Half(half));
  return half / 2;
}

TEST(Result, MacrosPassValuesAndErrors) {
  EXPECT_EQ(Quarter(12).value(), 3);
  EXPECT_EQ(Quarter(7).error().a, 7U);
  EXPECT_EQ(Quarter(6).error().a, 3U);
}

TEST(Result, ErrnoChoosesTheCode) {
  errno = ENOSPC;
  const Error full = FailErrno("cannot reserve").error();
  EXPECT_EQ(full.code, Code::kExhausted);
  EXPECT_EQ(full.sys_errno, ENOSPC);
  EXPECT_EQ(ToString(full), "exhausted: cannot reserve (No space left on device)");
  errno = EACCES;
  EXPECT_EQ(FailErrno("x").error().code, Code::kRefused);
}

TEST(Check, EndsTheProcessWithTheCondition) {
  EXPECT_DEATH(ORBITKV_CHECK(1 + 1 == 3), "broken invariant at .*1 \\+ 1 == 3");
}

TEST(Units, ZeroIsNone) {
  EXPECT_TRUE(LeaseId{}.is_none());
  EXPECT_LT(LeaseId{1}, LeaseId{2});
}

TEST(Prng, SequenceIsFixed) {
  Prng prng(1);
  EXPECT_EQ(prng.Next(), 0x910a2dec89025cc1ULL);
}

TEST(RateLimit, CountsWhatItHeldBack) {
  log::RateLimit limit(std::chrono::milliseconds(100));
  const auto start = std::chrono::steady_clock::time_point{} + std::chrono::seconds(1);
  EXPECT_TRUE(limit.Allow(start));
  EXPECT_FALSE(limit.Allow(start + std::chrono::milliseconds(50)));
  EXPECT_TRUE(limit.Allow(start + std::chrono::milliseconds(100)));
  EXPECT_EQ(limit.suppressed(), 1U);
}

}  // namespace
}  // namespace orbitkv
