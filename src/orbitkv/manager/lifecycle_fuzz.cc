// Lifecycle frames of arbitrary bytes: no crash, and a registration that is accepted is within the bounds of its
// fields and declares groups that can be kept.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/fuzz_input.h"
#include "orbitkv/manager/lifecycle.h"
#include "orbitkv/service/registration_check.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::manager;
  if (size == 0) return 0;
  const orbitkv::FuzzInput input(data, size);
  const std::vector<std::byte>& payload = input.payload;
  switch (input.choice % 4) {
    case 0:
      if (const auto registration = DecodeRegister(payload)) {
        ORBITKV_CHECK(!registration->instance.empty());
        // A worker that passes the check has rules that compile.
        orbitkv::service::Limits limits;
        limits.pool_bytes = 1;
        if (registration->representation && orbitkv::service::CheckRegistration(*registration, limits).empty() &&
            !registration->groups.empty()) {
          const bool worker = registration->role != orbitkv::service::Role::kScheduler;
          ORBITKV_CHECK(!worker ||
                        orbitkv::service::ContractOf(registration->groups, registration->shard_count).has_value());
        }
      }
      break;
    case 1: static_cast<void>(DecodeDrained(payload)); break;
    case 2: static_cast<void>(DecodeEmpty(payload)); break;
    default:
      if (const auto health = DecodeHealth(payload)) {
        static_cast<void>(HealthAsJson(*health));
        static_cast<void>(HealthAsText(*health));
      }
      break;
  }
  return 0;
}
