#include <cstring>

#include "orbitkv/base/check.h"
#include "orbitkv/wire/descriptor.h"

using namespace orbitkv::wire;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  Descriptor descriptor;
  std::memcpy(&descriptor, data, size < sizeof descriptor ? size : sizeof descriptor);
  const DescriptorLimits limits{.abi = descriptor.abi, .session_epoch = 3, .slot_bytes = 4096, .arena_bytes = 16384};
  for (const auto& decoded : {DecodeRequest(descriptor, limits), DecodeAnswer(descriptor, limits)}) {
    if (!decoded || decoded->arena_offset == kNoArena) continue;
    ORBITKV_CHECK(decoded->arena_offset < limits.arena_bytes);
    ORBITKV_CHECK(decoded->arena_length <= limits.slot_bytes);
    ORBITKV_CHECK(decoded->arena_offset + decoded->arena_length <= limits.arena_bytes);
  }
  return 0;
}
