// Every command decoder over arbitrary bytes: no crash, no read beyond the payload, and what decodes encodes back.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/commands.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::wire;
  if (size == 0) return 0;
  // A copy of exactly the payload's size, so that AddressSanitizer sees a read beyond it.
  const std::vector<std::byte> payload(reinterpret_cast<const std::byte*>(data + 1),
                                       reinterpret_cast<const std::byte*>(data + size));
  const auto same = [&payload](const std::vector<std::byte>& again) {
    return again.size() == payload.size() && std::memcmp(again.data(), payload.data(), again.size()) == 0;
  };
  switch (data[0] % 8) {
    case 0: static_cast<void>(DecodePlanV1(payload)); break;
    case 1:
      if (const auto view = DecodeReserve(payload)) {
        ORBITKV_CHECK(EncodeReserve(view->header, view->hashes).size() == payload.size());
      }
      break;
    case 2:
      if (const auto view = DecodeCommit(payload)) {
        ORBITKV_CHECK(EncodeCommit(view->entries).size() == payload.size());
      }
      break;
    case 3:
      if (const auto view = DecodeBegin(payload)) {
        ORBITKV_CHECK(same(EncodeBegin(view->header.boundary_blocks, view->ranks)));
      }
      break;
    case 4:
      if (const auto view = DecodeEnd(payload)) ORBITKV_CHECK(EncodeEnd(view->indices).size() == payload.size());
      break;
    case 5: static_cast<void>(DecodeReserveAnswer(payload)); break;
    case 6: static_cast<void>(DecodePlan(payload)); break;
    default: static_cast<void>(DecodeCommitAnswer(payload)); break;
  }
  return 0;
}
