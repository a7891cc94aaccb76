// Lifecycle frames of arbitrary bytes: no crash, and a registration that is accepted is within the bounds of its
// fields.
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/manager/lifecycle.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::manager;
  if (size == 0) return 0;
  const std::vector<std::byte> payload(reinterpret_cast<const std::byte*>(data + 1),
                                       reinterpret_cast<const std::byte*>(data + size));
  switch (data[0] % 4) {
    case 0:
      if (const auto registration = DecodeRegister(payload)) {
        ORBITKV_CHECK(!registration->instance.empty());
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
