#include "orbitkv/cache/policies.h"

#include <algorithm>
#include <array>

namespace orbitkv::cache {

std::span<const NamedPolicy> Policies() {
  static constexpr std::array<NamedPolicy, 6> kPolicies{{{kDefaultPolicy, &MakeReusePolicy},
                                                         {"lru", &MakeLruPolicy},
                                                         {"slru", &MakeSlruPolicy},
                                                         {"s3-fifo", &MakeS3FifoPolicy},
                                                         {"w-tinylfu", &MakeTinyLfuPolicy},
                                                         {"arc", &MakeArcPolicy}}};
  return kPolicies;
}

PolicyMaker FindPolicy(std::string_view name) {
  if (name == "default") name = kDefaultPolicy;
  const auto found = std::ranges::find(Policies(), name, &NamedPolicy::name);
  return found == Policies().end() ? nullptr : found->make;
}

}  // namespace orbitkv::cache
