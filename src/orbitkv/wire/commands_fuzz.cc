// Every command decoder over arbitrary bytes: no crash, no read beyond the payload, and what decodes encodes back.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/fuzz_input.h"
#include "orbitkv/wire/commands.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::wire;
  if (size == 0) return 0;
  const orbitkv::FuzzInput input(data, size);
  const std::vector<std::byte>& payload = input.payload;
  switch (input.choice % 9) {
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
        ORBITKV_CHECK(input.Same(EncodeBegin(view->header.boundary_blocks, view->ranks)));
      }
      break;
    case 4:
      if (const auto view = DecodeEnd(payload)) ORBITKV_CHECK(EncodeEnd(view->mismatches).size() == payload.size());
      break;
    case 5: static_cast<void>(DecodeReserveAnswer(payload)); break;
    case 6: static_cast<void>(DecodePlan(payload)); break;
    case 7:
      if (const auto view = DecodeEndV1(payload)) ORBITKV_CHECK(EncodeEndV1(view->indices).size() == payload.size());
      break;
    default: static_cast<void>(DecodeCommitAnswer(payload)); break;
  }
  return 0;
}
