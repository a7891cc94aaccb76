// The decoders of look-ups over arbitrary bytes: no crash, no read beyond the payload, and what decodes encodes back.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/base/fuzz_input.h"
#include "orbitkv/wire/query.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::wire;
  if (size == 0) return 0;
  const orbitkv::FuzzInput input(data, size);
  const std::vector<std::byte>& payload = input.payload;
  switch (input.choice % 7) {
    case 0:
      if (const auto view = DecodeQuery(payload)) {
        ORBITKV_CHECK(input.Same(EncodeQuery(view->header, view->hashes, view->views)));
        for (const HashView& one : view->views) ORBITKV_CHECK(one.first + one.count <= view->hashes.size());
      }
      break;
    case 1:
      if (const auto view = DecodeQueryV1(payload)) {
        const QueryHeader& header = view->header;
        ORBITKV_CHECK(input.Same(EncodeQueryV1({.request_key_hi = header.request_key_hi,
                                                .request_key_lo = header.request_key_lo,
                                                .attempt = header.attempt,
                                                .group = header.group,
                                                .prefix_blocks = header.prefix_blocks},
                                               view->hashes)));
      }
      break;
    case 2:
      if (const auto requests = DecodePoll(payload)) ORBITKV_CHECK(input.Same(EncodePoll(*requests)));
      break;
    case 3:
      if (const auto view = DecodePollAnswer(payload)) {
        ORBITKV_CHECK(input.Same(EncodePollAnswer(view->entries, view->boundaries)));
      }
      break;
    case 4:
      if (const auto claim = DecodeClaim(payload)) ORBITKV_CHECK(input.Same(EncodeClaim(*claim)));
      break;
    case 5:
      if (const auto view = DecodeDiscovery(payload)) {
        ORBITKV_CHECK(input.Same(EncodeDiscovery(view->boundaries, view->tiers)));
      }
      break;
    default: static_cast<void>(DecodeBoundaries(payload)); break;
  }
  return 0;
}
