#include "orbitkv/base/check.h"
#include "orbitkv/wire/frame.h"

using namespace orbitkv::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const auto* bytes = reinterpret_cast<const std::byte*>(data);
  // The first byte says in what pieces the rest arrives.
  const std::size_t step = size > 0 ? std::size_t{data[0]} + 1 : 1;
  FrameReader reader;
  for (std::size_t at = 1; at < size; at += step) {
    reader.Append({bytes + at, step < size - at ? step : size - at});
    for (;;) {
      const auto frame = reader.Next();
      if (!frame) return 0;
      if (!*frame) break;
      const auto message = DecodeFrame(**frame);
      if (!message) continue;
      const auto again = EncodeFrame(*message);
      ORBITKV_CHECK(again.has_value());
      ORBITKV_CHECK(DecodeFrame(std::span(*again).subspan(kFrameLengthBytes)).has_value());
    }
  }
  return 0;
}
