// Any bytes as any struct of a store: refused, or equal to themselves when they are sealed again.
#include <cstdlib>
#include <cstring>

#include "orbitkv/wire/store_format.h"

namespace {

template <typename T>
void SealsToItself(T value) {
  T again = value;
  orbitkv::wire::Seal(again);
  if (std::memcmp(&value, &again, sizeof value) != 0) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto value = orbitkv::wire::DecodeSuperblock(bytes)) SealsToItself(*value);
  if (const auto value = orbitkv::wire::DecodeSegmentHeader(bytes)) SealsToItself(*value);
  if (const auto value = orbitkv::wire::DecodeRecordHeader(bytes)) SealsToItself(*value);
  if (const auto value = orbitkv::wire::DecodeSummaryFooter(bytes)) SealsToItself(*value);
  return 0;
}
