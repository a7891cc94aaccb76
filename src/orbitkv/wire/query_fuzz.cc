// The decoders of look-ups over arbitrary bytes: no crash, no read beyond the payload, and what decodes encodes back.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/query.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::wire;
  if (size == 0) return 0;
  // A copy of exactly the payload's size, so that AddressSanitizer sees a read beyond it.
  const std::vector<std::byte> payload(reinterpret_cast<const std::byte*>(data + 1),
                                       reinterpret_cast<const std::byte*>(data + size));
  const auto same = [&payload](const std::vector<std::byte>& again) {
    return again.size() == payload.size() && std::memcmp(again.data(), payload.data(), again.size()) == 0;
  };
  switch (data[0] % 6) {
    case 0:
      if (const auto view = DecodeQuery(payload)) {
        ORBITKV_CHECK(same(EncodeQuery(view->header, view->hashes, view->views)));
        for (const HashView& one : view->views) ORBITKV_CHECK(one.first + one.count <= view->hashes.size());
      }
      break;
    case 1:
      if (const auto view = DecodeQueryV1(payload)) {
        const QueryHeader& header = view->header;
        ORBITKV_CHECK(same(EncodeQueryV1({.request_key_hi = header.request_key_hi,
                                          .request_key_lo = header.request_key_lo,
                                          .attempt = header.attempt,
                                          .group = header.group,
                                          .prefix_blocks = header.prefix_blocks},
                                         view->hashes)));
      }
      break;
    case 2:
      if (const auto requests = DecodePoll(payload)) ORBITKV_CHECK(same(EncodePoll(*requests)));
      break;
    case 3:
      if (const auto view = DecodePollAnswer(payload)) {
        ORBITKV_CHECK(same(EncodePollAnswer(view->entries, view->boundaries)));
      }
      break;
    case 4:
      if (const auto claim = DecodeClaim(payload)) ORBITKV_CHECK(same(EncodeClaim(*claim)));
      break;
    default: static_cast<void>(DecodeBoundaries(payload)); break;
  }
  return 0;
}
