// Reading and writing the payloads of commands: one header struct, then arrays whose lengths the header names.
// Owns: nothing; spans point into the payload. Threads: values. Blocks: no. Units: none.
// Errors: nullopt when the bytes are not there or not aligned for what is asked.
// Invariant: nothing beyond the payload is read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>
#include <type_traits>
#include <vector>

#include "orbitkv/base/result.h"

namespace orbitkv::wire {

// Reads one header and then arrays off the front of a payload; every step checks that the bytes are there.
class PayloadReader {
 public:
  explicit PayloadReader(std::span<const std::byte> rest) : rest_(rest) {}

  template <typename T>
  std::optional<T> Header() {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return std::nullopt;
    T value;
    std::memcpy(&value, rest_.data(), sizeof(T));
    rest_ = rest_.subspan(sizeof(T));
    return value;
  }
  template <typename T>
  std::optional<std::span<const T>> Array(std::size_t count) {
    if (count > rest_.size() / sizeof(T)) return std::nullopt;
    if (reinterpret_cast<std::uintptr_t>(rest_.data()) % alignof(T) != 0) return std::nullopt;
    const std::span<const T> values(reinterpret_cast<const T*>(rest_.data()), count);
    rest_ = rest_.subspan(count * sizeof(T));
    return values;
  }
  bool AtEnd() const { return rest_.empty(); }

 private:
  std::span<const std::byte> rest_;
};

template <typename Header, typename... Entries>
std::vector<std::byte> EncodePayload(const Header& header, std::span<const Entries>... arrays) {
  static_assert(std::is_trivially_copyable_v<Header>);
  std::vector<std::byte> bytes(sizeof(Header) + (arrays.size_bytes() + ... + 0));
  std::memcpy(bytes.data(), &header, sizeof(Header));
  std::size_t at = sizeof(Header);
  [[maybe_unused]] const auto append = [&bytes, &at](std::span<const std::byte> piece) {
    if (!piece.empty()) std::memcpy(bytes.data() + at, piece.data(), piece.size());
    at += piece.size();
  };
  (append(std::as_bytes(arrays)), ...);
  return bytes;
}

template <typename Entry>
Result<std::span<const Entry>> DecodeArray(std::span<const std::byte> payload, const char* text) {
  if (payload.size() % sizeof(Entry) != 0) return Fail(Code::kInvalid, text, payload.size());
  PayloadReader reader(payload);
  const auto entries = reader.Array<Entry>(payload.size() / sizeof(Entry));
  if (!entries) return Fail(Code::kInvalid, text, payload.size());
  return *entries;
}

}  // namespace orbitkv::wire
