// Strong types for ids and handles that could be swapped by mistake. A StrongId compares, hashes and prints, and does
// no arithmetic. Zero means "none" for every id type here; issuers start at 1. Threads: values.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>

namespace orbitkv {

template <typename Tag, typename Rep>
class StrongId {
 public:
  using rep = Rep;
  constexpr StrongId() = default;
  constexpr explicit StrongId(Rep value) : value_(value) {}
  constexpr Rep value() const { return value_; }
  constexpr bool is_none() const { return value_ == Rep{}; }
  constexpr auto operator<=>(const StrongId&) const = default;
  template <typename H>
  friend H AbslHashValue(H h, const StrongId& id) {
    return H::combine(std::move(h), id.value_);
  }

 private:
  Rep value_{};
};

using SessionId = StrongId<struct SessionIdTag, std::uint64_t>;        // session epoch; unique within one Manager life
using InstanceId = StrongId<struct InstanceIdTag, std::uint32_t>;      // one engine, numbered by the Manager
using NamespaceRow = StrongId<struct NamespaceRowTag, std::uint32_t>;  // row of the namespace table
using LeaseId = StrongId<struct LeaseIdTag, std::uint64_t>;            // a found lease, numbered by the Manager
using GrantId = StrongId<struct GrantIdTag, std::uint64_t>;            // chosen by the client, unique in the instance
using ReservationId = StrongId<struct ReservationIdTag, std::uint64_t>;  // one PublishReserve, numbered by the Manager
using Rank = StrongId<struct RankTag, std::uint32_t>;                    // a rank of an instance; 0 is the first rank

// Random 128-bit id of one Manager life.
struct Incarnation {
  std::uint64_t hi = 0;
  std::uint64_t lo = 0;
  auto operator<=>(const Incarnation&) const = default;
};

}  // namespace orbitkv

template <typename Tag, typename Rep>
struct std::hash<orbitkv::StrongId<Tag, Rep>> {
  std::size_t operator()(const orbitkv::StrongId<Tag, Rep>& id) const noexcept { return std::hash<Rep>{}(id.value()); }
};
