// Declarations and demands of arbitrary values: what compiles keeps the contract's invariants, and its own demand
// passes its own check.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "orbitkv/base/check.h"
#include "orbitkv/state/contract.h"

namespace {

class Bytes {
 public:
  Bytes(const std::uint8_t* data, std::size_t size) : data_(data), size_(size) {}
  std::uint32_t Next() {
    std::uint32_t value = 0;
    const std::size_t take = std::min(size_, sizeof(value));
    std::memcpy(&value, data_, take);
    data_ += take;
    size_ -= take;
    return value;
  }
  bool empty() const { return size_ == 0; }

 private:
  const std::uint8_t* data_;
  std::size_t size_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace orbitkv::state;
  if (size < 4) return 0;
  Bytes bytes(data, size);
  const std::uint32_t groups = bytes.Next() % (kMaxGroups + 2);
  ContractDeclaration declaration;
  declaration.hash_block_tokens = bytes.Next();
  declaration.shard_count = bytes.Next();
  for (std::uint32_t i = 0; i < groups; ++i) {
    const auto kind = static_cast<GroupKind>(bytes.Next() % 6);
    declaration.groups.push_back({kind, bytes.Next(), bytes.Next(), bytes.Next()});
  }
  const auto contract = RecoveryContract::Compile(declaration);
  if (!contract) return 0;
  ORBITKV_CHECK(contract->alignment_blocks() > 0 && contract->alignment_blocks() <= kMaxAlignmentBlocks);
  const std::uint32_t prefix = bytes.Next();
  const std::uint32_t boundary = bytes.Next() / contract->alignment_blocks() * contract->alignment_blocks();
  if (const auto demand = contract->Demand(prefix, boundary)) {
    for (const GroupDemand& one : *demand) {
      ORBITKV_CHECK(boundary % contract->ratio(one.group) == 0);
      ORBITKV_CHECK(one.first_block + one.block_count == boundary / contract->ratio(one.group));
      ORBITKV_CHECK(one.block_count == 0 || contract->KeyPosition(one.group, one.first_block) >= prefix);
    }
    ORBITKV_CHECK(contract->CheckDemand(prefix, boundary, *demand).has_value());
    ORBITKV_CHECK(contract->CheckBundle(*contract->Describe(prefix, boundary)).has_value());
  }
  std::vector<std::uint32_t> present;
  while (!bytes.empty() && present.size() < 4096) present.push_back(bytes.Next());
  for (const std::uint32_t found : contract->Boundaries(prefix, present)) {
    ORBITKV_CHECK(contract->IsBoundary(prefix, found) && found - prefix <= present.size());
  }
  return 0;
}
