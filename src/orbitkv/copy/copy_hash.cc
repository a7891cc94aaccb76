#include "orbitkv/copy/copy_hash.h"

#include <array>
#include <cstring>
#include <immintrin.h>
#include <xxhash.h>

#include "orbitkv/copy/copy_hash_isa.h"

// The long form of XXH3 keeps eight 64-bit accumulators. The input is a row of 64-byte stripes, one 64-bit word for
// each accumulator; stripe i of a block of 16 is mixed with the secret from byte 8 i on. For lane j with input word w
// and secret word k:
//     acc[j] += low32(w ^ k) * high32(w ^ k);   acc[j ^ 1] += w
// After each block the accumulators are scrambled with the last 64 bytes of the secret. The last stripe of the input is
// always its last 64 bytes, mixed at an offset of its own; where the length is no multiple of 64 it overlaps the stripe
// before. At the end the accumulators are folded in pairs.
//
// Each kernel below does the stripes of full blocks in one unrolled loop with the secret in registers where they
// suffice. A stripe is loaded once, stored, then mixed: the store stands between load and mixing, so a compiler, which
// must assume that both memories may be one, cannot load a second time. The overlapping last stripe is stored again
// from the load that was hashed.

namespace orbitkv::copy {
namespace internal {
namespace {

constexpr std::size_t kStripe = 64;
constexpr std::size_t kStripesPerBlock = 16;
constexpr std::size_t kBlock = kStripe * kStripesPerBlock;
constexpr std::size_t kScrambleOffset = 128;    // the last 64 bytes of the secret
constexpr std::size_t kLastStripeOffset = 121;  // seven bytes before them
constexpr std::size_t kMergeOffset = 11;

constexpr std::uint32_t kPrime32A = 0x9E3779B1U;
constexpr std::uint32_t kPrime32B = 0x85EBCA77U;
constexpr std::uint32_t kPrime32C = 0xC2B2AE3DU;
constexpr std::uint64_t kPrime64A = 0x9E3779B185EBCA87ULL;
constexpr std::uint64_t kPrime64B = 0xC2B2AE3D27D4EB4FULL;
constexpr std::uint64_t kPrime64C = 0x165667B19E3779F9ULL;
constexpr std::uint64_t kPrime64D = 0x85EBCA77C2B2AE63ULL;
constexpr std::uint64_t kPrime64E = 0x27D4EB2F165667C5ULL;
constexpr std::uint64_t kAvalanche = 0x165667919E3779F9ULL;

alignas(64) constexpr auto kSecret = std::to_array<std::uint8_t>(
    {0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c, 0xde, 0xd4,
     0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f, 0xcb, 0x79, 0xe6, 0x4e,
     0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21, 0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43,
     0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c, 0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb,
     0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3, 0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19,
     0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8, 0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7,
     0xc7, 0x0b, 0x4f, 0x1d, 0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78,
     0x73, 0x64, 0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
     0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e, 0x2b, 0x16,
     0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce, 0x45, 0xcb, 0x3a, 0x8f,
     0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e});
static_assert(kSecret.size() == kScrambleOffset + kStripe);

struct alignas(64) Accumulators {
  std::array<std::uint64_t, 8> lane = {kPrime32C, kPrime64A, kPrime64B, kPrime64C,
                                       kPrime64D, kPrime32B, kPrime64E, kPrime32A};
};

// What a kernel copies. bytes >= kMinFusedBytes.
struct Span {
  std::byte* dst;
  const std::byte* src;
  std::size_t bytes;

  // The blocks and stripes before the last stripe, which is not counted even where it is a whole one.
  std::size_t blocks() const { return (bytes - 1) / kBlock; }
  std::size_t rest_stripes() const { return ((bytes - 1) % kBlock) / kStripe; }
};

std::uint64_t Read64(const void* from) {
  std::uint64_t value = 0;
  std::memcpy(&value, from, sizeof(value));
  return value;
}

std::uint64_t Merge(const Accumulators& acc, std::size_t bytes) {
  std::uint64_t hash = bytes * kPrime64A;
  for (std::size_t i = 0; i < 8; i += 2) {
    const std::uint8_t* key = kSecret.data() + kMergeOffset + 8 * i;
    __extension__ using Wide = unsigned __int128;
    const Wide product = Wide{acc.lane[i] ^ Read64(key)} * (acc.lane[i + 1] ^ Read64(key + 8));
    hash += static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64U);
  }
  hash ^= hash >> 37U;
  hash *= kAvalanche;
  return hash ^ (hash >> 32U);
}

void StoreWords(std::byte* dst, const std::array<std::uint64_t, 8>& words, Stores stores) {
  if (stores == Stores::kOrdinary) {
    std::memcpy(dst, words.data(), kStripe);
    return;
  }
  for (std::size_t j = 0; j < 8; ++j) {
    _mm_stream_si64(reinterpret_cast<long long*>(dst + 8 * j), static_cast<long long>(words[j]));
  }
}

template <Stores kStores>
void ScalarStripe(std::byte* dst, const std::byte* src, const std::uint8_t* secret, Accumulators& acc) {
  std::array<std::uint64_t, 8> words;
  std::memcpy(words.data(), src, kStripe);
  StoreWords(dst, words, kStores);
  for (std::size_t j = 0; j < 8; ++j) {
    const std::uint64_t keyed = words[j] ^ Read64(secret + 8 * j);
    acc.lane[j ^ 1U] += words[j];
    acc.lane[j] += (keyed & 0xffffffffU) * (keyed >> 32U);
  }
}

template <Stores kStores>
std::uint64_t ScalarKernel(const Span& span) {
  Accumulators acc;
  const std::uint8_t* secret = kSecret.data();
  std::size_t offset = 0;
  for (std::size_t block = 0; block < span.blocks(); ++block) {
    for (std::size_t i = 0; i < kStripesPerBlock; ++i, offset += kStripe) {
      ScalarStripe<kStores>(span.dst + offset, span.src + offset, secret + 8 * i, acc);
    }
    for (std::size_t j = 0; j < 8; ++j) {
      std::uint64_t& lane = acc.lane[j];
      lane = ((lane ^ (lane >> 47U)) ^ Read64(secret + kScrambleOffset + 8 * j)) * kPrime32A;
    }
  }
  for (std::size_t i = 0; i < span.rest_stripes(); ++i, offset += kStripe) {
    ScalarStripe<kStores>(span.dst + offset, span.src + offset, secret + 8 * i, acc);
  }
  const std::size_t last = span.bytes - kStripe;
  ScalarStripe<Stores::kOrdinary>(span.dst + last, span.src + last, secret + kLastStripeOffset, acc);
  return Merge(acc, span.bytes);
}

// ---- AVX2: a stripe is two vectors of four lanes.

template <Stores kStores>
[[gnu::target("avx2"), gnu::always_inline]] inline void Avx2Stripe(std::byte* dst, const std::byte* src,
                                                                   const std::uint8_t* secret, __m256i& low,
                                                                   __m256i& high) {
  const __m256i a = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src));
  const __m256i b = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(src) + 1);
  auto* out = reinterpret_cast<__m256i*>(dst);
  if constexpr (kStores == Stores::kNonTemporal) {
    _mm256_stream_si256(out, a);
    _mm256_stream_si256(out + 1, b);
  } else {
    _mm256_storeu_si256(out, a);
    _mm256_storeu_si256(out + 1, b);
  }
  const auto* key = reinterpret_cast<const __m256i*>(secret);
  const __m256i keyed_a = _mm256_xor_si256(a, _mm256_loadu_si256(key));
  const __m256i keyed_b = _mm256_xor_si256(b, _mm256_loadu_si256(key + 1));
  low = _mm256_add_epi64(low, _mm256_shuffle_epi32(a, _MM_SHUFFLE(1, 0, 3, 2)));
  high = _mm256_add_epi64(high, _mm256_shuffle_epi32(b, _MM_SHUFFLE(1, 0, 3, 2)));
  low = _mm256_add_epi64(low, _mm256_mul_epu32(keyed_a, _mm256_srli_epi64(keyed_a, 32)));
  high = _mm256_add_epi64(high, _mm256_mul_epu32(keyed_b, _mm256_srli_epi64(keyed_b, 32)));
}

[[gnu::target("avx2"), gnu::always_inline]] inline __m256i Avx2Scramble(__m256i acc, const std::uint8_t* secret) {
  const __m256i key = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(secret));
  const __m256i prime = _mm256_set1_epi64x(kPrime32A);
  const __m256i mixed = _mm256_xor_si256(_mm256_xor_si256(acc, _mm256_srli_epi64(acc, 47)), key);
  const __m256i upper = _mm256_mul_epu32(_mm256_srli_epi64(mixed, 32), prime);
  return _mm256_add_epi64(_mm256_mul_epu32(mixed, prime), _mm256_slli_epi64(upper, 32));
}

template <Stores kStores>
[[gnu::target("avx2")]] std::uint64_t Avx2Kernel(const Span& span) {
  Accumulators acc;
  auto* lanes = reinterpret_cast<__m256i*>(acc.lane.data());
  __m256i low = _mm256_load_si256(lanes);
  __m256i high = _mm256_load_si256(lanes + 1);
  const std::uint8_t* secret = kSecret.data();
  std::size_t offset = 0;
  for (std::size_t block = 0; block < span.blocks(); ++block) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kStripesPerBlock; ++i) {
      const std::size_t at = offset + i * kStripe;
      Avx2Stripe<kStores>(span.dst + at, span.src + at, secret + 8 * i, low, high);
    }
    offset += kBlock;
    low = Avx2Scramble(low, secret + kScrambleOffset);
    high = Avx2Scramble(high, secret + kScrambleOffset + 32);
  }
  for (std::size_t i = 0; i < span.rest_stripes(); ++i, offset += kStripe) {
    Avx2Stripe<kStores>(span.dst + offset, span.src + offset, secret + 8 * i, low, high);
  }
  const std::size_t last = span.bytes - kStripe;
  Avx2Stripe<Stores::kOrdinary>(span.dst + last, span.src + last, secret + kLastStripeOffset, low, high);
  _mm256_store_si256(lanes, low);
  _mm256_store_si256(lanes + 1, high);
  return Merge(acc, span.bytes);
}

// ---- AVX-512: a stripe is one vector; sixteen keys stay in registers.

template <Stores kStores>
[[gnu::target("avx512f"), gnu::always_inline]] inline __m512i Avx512Stripe(std::byte* dst, const std::byte* src,
                                                                           __m512i key, __m512i acc) {
  const __m512i words = _mm512_loadu_si512(src);
  if constexpr (kStores == Stores::kNonTemporal) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst), words);
  } else {
    _mm512_storeu_si512(dst, words);
  }
  const __m512i keyed = _mm512_xor_si512(words, key);
  acc = _mm512_add_epi64(acc, _mm512_shuffle_epi32(words, _MM_PERM_BADC));
  return _mm512_add_epi64(acc, _mm512_mul_epu32(keyed, _mm512_srli_epi64(keyed, 32)));
}

[[gnu::target("avx512f"), gnu::always_inline]] inline __m512i Avx512Scramble(__m512i acc, __m512i key, __m512i prime) {
  const __m512i mixed = _mm512_xor_si512(_mm512_xor_si512(acc, _mm512_srli_epi64(acc, 47)), key);
  const __m512i upper = _mm512_mul_epu32(_mm512_srli_epi64(mixed, 32), prime);
  return _mm512_add_epi64(_mm512_mul_epu32(mixed, prime), _mm512_slli_epi64(upper, 32));
}

template <Stores kStores>
[[gnu::target("avx512f")]] std::uint64_t Avx512Kernel(const Span& span) {
  Accumulators acc;
  __m512i lanes = _mm512_load_si512(acc.lane.data());
  const std::uint8_t* secret = kSecret.data();
  const __m512i prime = _mm512_set1_epi64(kPrime32A);
  const __m512i scramble_key = _mm512_loadu_si512(secret + kScrambleOffset);
  std::size_t offset = 0;
  for (std::size_t block = 0; block < span.blocks(); ++block) {
#pragma GCC unroll 16
    for (std::size_t i = 0; i < kStripesPerBlock; ++i) {
      const std::size_t at = offset + i * kStripe;
      lanes = Avx512Stripe<kStores>(span.dst + at, span.src + at, _mm512_loadu_si512(secret + 8 * i), lanes);
    }
    offset += kBlock;
    lanes = Avx512Scramble(lanes, scramble_key, prime);
  }
  for (std::size_t i = 0; i < span.rest_stripes(); ++i, offset += kStripe) {
    lanes = Avx512Stripe<kStores>(span.dst + offset, span.src + offset, _mm512_loadu_si512(secret + 8 * i), lanes);
  }
  const std::size_t last = span.bytes - kStripe;
  lanes = Avx512Stripe<Stores::kOrdinary>(span.dst + last, span.src + last,
                                          _mm512_loadu_si512(secret + kLastStripeOffset), lanes);
  _mm512_store_si512(acc.lane.data(), lanes);
  return Merge(acc, span.bytes);
}

template <Stores kStores>
std::uint64_t Run(Isa isa, const Span& span) {
  switch (isa) {
    case Isa::kAvx512: return Avx512Kernel<kStores>(span);
    case Isa::kAvx2: return Avx2Kernel<kStores>(span);
    case Isa::kScalar: break;
  }
  return ScalarKernel<kStores>(span);
}

bool IsStripeAligned(const void* at) { return reinterpret_cast<std::uintptr_t>(at) % kStripe == 0; }

}  // namespace

bool IsSupported(Isa isa) {
  switch (isa) {
    case Isa::kAvx512: return __builtin_cpu_supports("avx512f") != 0;
    case Isa::kAvx2: return __builtin_cpu_supports("avx2") != 0;
    case Isa::kScalar: break;
  }
  return true;
}

Isa BestIsa() {
  static const Isa best = [] {
    if (IsSupported(Isa::kAvx512)) return Isa::kAvx512;
    return IsSupported(Isa::kAvx2) ? Isa::kAvx2 : Isa::kScalar;
  }();
  return best;
}

std::uint64_t CopyAndHashWith(Isa isa, void* dst, const void* src, std::size_t bytes, Stores stores) {
  if (bytes < kMinFusedBytes) {
    if (bytes != 0) std::memcpy(dst, src, bytes);
    // The copy, not the source, which another thread may have changed in between.
    return XXH3_64bits(dst, bytes);
  }
  const Span span{static_cast<std::byte*>(dst), static_cast<const std::byte*>(src), bytes};
  if (stores == Stores::kNonTemporal && IsStripeAligned(dst)) return Run<Stores::kNonTemporal>(isa, span);
  return Run<Stores::kOrdinary>(isa, span);
}

}  // namespace internal

std::uint64_t CopyAndHash(void* dst, const void* src, std::size_t bytes, Stores stores) {
  return internal::CopyAndHashWith(internal::BestIsa(), dst, src, bytes, stores);
}

std::uint64_t HashOnly(const void* src, std::size_t bytes) { return XXH3_64bits(src, bytes); }

void StoreFence() { _mm_sfence(); }

}  // namespace orbitkv::copy
