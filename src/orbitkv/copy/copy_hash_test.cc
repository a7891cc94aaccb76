#include "orbitkv/copy/copy_hash.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <gtest/gtest.h>
#include <memory>
#include <new>
#include <vector>
#include <xxhash.h>

#include "orbitkv/base/prng.h"
#include "orbitkv/copy/copy_hash_isa.h"

namespace orbitkv::copy {
namespace {

constexpr std::size_t kMaxBytes = 300 * 1024;
constexpr std::size_t kMargin = 128;
constexpr std::byte kGuard{0xa5};

class CopyHash : public testing::TestWithParam<internal::Isa> {
 protected:
  CopyHash() : src_(Buffer()), dst_(Buffer()) {
    if (!internal::IsSupported(GetParam())) return;
    Prng prng(7);
    for (std::size_t at = 0; at < kTotal; at += sizeof(std::uint64_t)) {
      const std::uint64_t word = prng.Next();
      std::memcpy(src_.get() + at, &word, sizeof(word));
    }
  }
  void SetUp() override {
    if (!internal::IsSupported(GetParam())) GTEST_SKIP() << "this CPU does not have it";
  }

  struct Free {
    void operator()(std::byte* memory) const { ::operator delete(memory, std::align_val_t{64}); }
  };
  using Memory = std::unique_ptr<std::byte, Free>;
  static constexpr std::size_t kTotal = kMaxBytes + 4 * kMargin;
  static Memory Buffer() { return Memory(static_cast<std::byte*>(::operator new(kTotal, std::align_val_t{64}))); }

  // Copies with the given misalignments and checks the value, the bytes and that nothing beside them was written.
  testing::AssertionResult Check(std::size_t bytes, std::size_t src_shift, std::size_t dst_shift, Stores stores) {
    const std::byte* src = src_.get() + kMargin + src_shift;
    std::byte* dst = dst_.get() + kMargin + dst_shift;
    std::memset(dst - kMargin, std::to_integer<int>(kGuard), bytes + 2 * kMargin);
    const std::uint64_t hash = internal::CopyAndHashWith(GetParam(), dst, src, bytes, stores);
    StoreFence();
    const auto where = [&] {
      return testing::AssertionFailure() << bytes << " bytes, source +" << src_shift << ", destination +" << dst_shift
                                         << (stores == Stores::kNonTemporal ? ", non-temporal: " : ", ordinary: ");
    };
    if (hash != XXH3_64bits(src, bytes)) return where() << "another hash than the library's";
    if (std::memcmp(dst, src, bytes) != 0) return where() << "other bytes";
    const auto is_guard = [](std::byte b) { return b == kGuard; };
    if (!std::all_of(dst - kMargin, dst, is_guard) || !std::all_of(dst + bytes, dst + bytes + kMargin, is_guard)) {
      return where() << "bytes outside were written";
    }
    return testing::AssertionSuccess();
  }

  Memory src_;
  Memory dst_;
};

constexpr std::array kBothStores = {Stores::kOrdinary, Stores::kNonTemporal};

TEST_P(CopyHash, EqualsTheLibraryForEveryShortLength) {
  for (std::size_t bytes = 0; bytes <= 2100; ++bytes) {
    for (const Stores stores : kBothStores) {
      ASSERT_TRUE(Check(bytes, 0, 0, stores));
      ASSERT_TRUE(Check(bytes, bytes % 61, (bytes * 7) % 64, stores));
    }
  }
}

TEST_P(CopyHash, EqualsTheLibraryForEveryAlignment) {
  for (const std::size_t bytes : {1024, 1025, 1087, 1088, 2047, 2048, 2049, 3199, 4096}) {
    for (std::size_t shift = 0; shift < 64; ++shift) {
      for (const Stores stores : kBothStores) {
        ASSERT_TRUE(Check(bytes, shift, 0, stores));
        ASSERT_TRUE(Check(bytes, 0, shift, stores));
        ASSERT_TRUE(Check(bytes, shift, 63 - shift, stores));
      }
    }
  }
}

TEST_P(CopyHash, EqualsTheLibraryForLongRandomLengths) {
  Prng prng(11);
  for (int i = 0; i < 200; ++i) {
    const std::size_t bytes = prng.Below(kMaxBytes + 1);
    const std::size_t src_shift = prng.Below(64);
    // Half of them aligned, so that the non-temporal kernel runs.
    const std::size_t dst_shift = i % 2 == 0 ? 0 : prng.Below(64);
    for (const Stores stores : kBothStores) ASSERT_TRUE(Check(bytes, src_shift, dst_shift, stores));
  }
}

TEST_P(CopyHash, OneChangedBitChangesTheValue) {
  constexpr std::size_t kBytes = 4096 + 17;
  std::byte* src = src_.get();
  const std::uint64_t before = internal::CopyAndHashWith(GetParam(), dst_.get(), src, kBytes, Stores::kOrdinary);
  for (std::size_t at = 0; at < kBytes; at += 13) {
    src[at] ^= std::byte{0x10};
    EXPECT_NE(internal::CopyAndHashWith(GetParam(), dst_.get(), src, kBytes, Stores::kOrdinary), before) << at;
    src[at] ^= std::byte{0x10};
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, CopyHash, testing::ValuesIn(internal::kAllIsas), [](const auto& test) {
  switch (test.param) {
    case internal::Isa::kAvx512: return "avx512";
    case internal::Isa::kAvx2: return "avx2";
    case internal::Isa::kScalar: break;
  }
  return "scalar";
});

TEST(CopyHashDispatch, TakesTheBestSupportedKernel) {
  EXPECT_TRUE(internal::IsSupported(internal::BestIsa()));
  for (const internal::Isa isa : internal::kAllIsas) {
    EXPECT_TRUE(!internal::IsSupported(isa) || isa <= internal::BestIsa());
  }
}

TEST(CopyHashDispatch, PlainCopyAndHashAgreeWithTheFusedOne) {
  std::vector<std::byte> src(9000);
  Prng prng(3);
  for (std::byte& b : src) b = static_cast<std::byte>(prng.Next());
  for (const std::size_t bytes : {0, 1, 1023, 1024, 4160, 8999}) {
    for (const Stores stores : kBothStores) {
      std::vector<std::byte> fused(9000, kGuard);
      std::vector<std::byte> plain(9000, kGuard);
      EXPECT_EQ(CopyAndHash(fused.data(), src.data(), bytes, stores), HashOnly(src.data(), bytes));
      Copy(plain.data(), src.data(), bytes, stores);
      StoreFence();
      EXPECT_EQ(fused, plain);
    }
  }
}

}  // namespace
}  // namespace orbitkv::copy
