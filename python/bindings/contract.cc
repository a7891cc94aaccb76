#include "orbitkv/state/contract.h"

#include <algorithm>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>
#include <tuple>
#include <utility>

#include "bindings.h"

namespace orbitkv::python {
namespace {

using Run = std::tuple<std::uint32_t, std::uint32_t, std::uint32_t>;

state::GroupKind KindOf(const std::string& kind) {
  if (kind == "full_attention") return state::GroupKind::kFullAttention;
  if (kind == "sliding_window") return state::GroupKind::kSlidingWindow;
  if (kind == "recurrent") return state::GroupKind::kRecurrent;
  if (kind == "chunked_local") return state::GroupKind::kChunkedLocal;
  throw InvalidArgument("kind must be full_attention, sliding_window, recurrent or chunked_local, not " + kind);
}

class Contract {
 public:
  Contract(nb::handle groups, std::uint32_t hash_block_tokens) : contract_(Compile(groups, hash_block_tokens)) {}

  const state::RecoveryContract& operator*() const { return contract_; }

  std::vector<Run> Demand(std::uint32_t prefix, std::uint32_t boundary) const {
    std::vector<Run> runs;
    for (const state::GroupDemand& run : ValueOrThrow(contract_.Demand(prefix, boundary))) {
      runs.emplace_back(run.group, run.first_block, run.block_count);
    }
    return runs;
  }
  std::uint32_t KeyPosition(std::uint32_t group, std::uint32_t block) const {
    if (group >= contract_.group_count()) throw InvalidArgument("the contract has no such group");
    const std::uint64_t end = (std::uint64_t{block} + 1) * contract_.ratio(group);
    if (end > state::kMaxPosition) throw InvalidArgument("the block lies too far from the prompt's start");
    return static_cast<std::uint32_t>(end) - 1;
  }

 private:
  static state::RecoveryContract Compile(nb::handle groups, std::uint32_t hash_block_tokens) {
    state::ContractDeclaration declaration;
    declaration.hash_block_tokens = hash_block_tokens;
    for (const nb::handle group : groups) declaration.groups.push_back(RuleOf(group));
    return ValueOrThrow(state::RecoveryContract::Compile(declaration));
  }

  state::RecoveryContract contract_;
};

}  // namespace

state::GroupRule RuleOf(nb::handle group) {
  // What a boundary demands does not depend on the bytes of a block.
  return {.kind = KindOf(Attribute<std::string>(group, "kind", "str")),
          .block_tokens = Attribute<std::uint32_t>(group, "block_tokens", "an int from 0"),
          .span_tokens = Attribute<std::uint32_t>(group, "span_tokens", "an int from 0"),
          .block_bytes = 1};
}

void AddContract(nb::module_& module) {
  nb::class_<Contract>(module, "Contract")
      .def(nb::init<nb::handle, std::uint32_t>(), nb::arg("groups"), nb::kw_only(), nb::arg("hash_block_tokens") = 0)
      .def_prop_ro("hash_block_tokens", [](const Contract& self) { return (*self).hash_block_tokens(); })
      .def_prop_ro("alignment_blocks", [](const Contract& self) { return (*self).alignment_blocks(); })
      .def(
          "last_boundary", [](const Contract& self, std::uint64_t tokens) { return (*self).LastBoundary(tokens); },
          nb::arg("tokens"))
      .def("demand", &Contract::Demand, nb::arg("prefix_blocks"), nb::arg("boundary_blocks"))
      .def("key_position", &Contract::KeyPosition, nb::arg("group"), nb::arg("block"));
}

}  // namespace orbitkv::python
