#include <cstring>
#include <immintrin.h>

#include "orbitkv/copy/copy_hash.h"
#include "orbitkv/copy/copy_hash_isa.h"

namespace orbitkv::copy {
namespace {

constexpr std::size_t kLine = 64;

[[gnu::target("avx512f")]] void StreamAvx512(std::byte* dst, const std::byte* src, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    _mm512_stream_si512(reinterpret_cast<__m512i*>(dst + at), _mm512_loadu_si512(src + at));
  }
}

[[gnu::target("avx2")]] void StreamAvx2(std::byte* dst, const std::byte* src, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += kLine) {
    const auto* from = reinterpret_cast<const __m256i*>(src + at);
    auto* to = reinterpret_cast<__m256i*>(dst + at);
    const __m256i low = _mm256_loadu_si256(from);
    const __m256i high = _mm256_loadu_si256(from + 1);
    _mm256_stream_si256(to, low);
    _mm256_stream_si256(to + 1, high);
  }
}

void StreamScalar(std::byte* dst, const std::byte* src, std::size_t bytes) {
  for (std::size_t at = 0; at < bytes; at += sizeof(long long)) {
    long long word = 0;
    std::memcpy(&word, src + at, sizeof(word));
    _mm_stream_si64(reinterpret_cast<long long*>(dst + at), word);
  }
}

}  // namespace

void Copy(void* dst, const void* src, std::size_t bytes, Stores stores) {
  if (bytes == 0) return;
  const bool aligned = reinterpret_cast<std::uintptr_t>(dst) % kLine == 0;
  if (stores == Stores::kOrdinary || !aligned || bytes < internal::kMinFusedBytes) {
    std::memcpy(dst, src, bytes);
    return;
  }
  auto* to = static_cast<std::byte*>(dst);
  const auto* from = static_cast<const std::byte*>(src);
  const std::size_t lines = bytes / kLine * kLine;
  switch (internal::BestIsa()) {
    case internal::Isa::kAvx512: StreamAvx512(to, from, lines); break;
    case internal::Isa::kAvx2: StreamAvx2(to, from, lines); break;
    case internal::Isa::kScalar: StreamScalar(to, from, lines); break;
  }
  std::memcpy(to + lines, from + lines, bytes - lines);
}

}  // namespace orbitkv::copy
