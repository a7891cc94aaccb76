// What makes two blocks interchangeable. The computation identity says which numbers a token prefix leads to (model,
// configuration, engine); the representation identity says how a rank keeps those numbers in a page. Both become a
// digest. A namespace is the computation, the representation that all ranks share, the shapes and rules of the cache
// groups and the number of shards; the Manager and every client form it from the same registration.
// Owns: plain values. Threads: values. Blocks: no.
// Units: sizes in bytes and tokens.
// Errors: Validate names the missing ingredient; an identity with an empty ingredient would let two models share
// blocks. Invariants: every field enters the digest; nothing that depends on the number of blocks (block, layer or
// storage
//             strides) or on the data-parallel replica is a field.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "orbitkv/base/result.h"
#include "orbitkv/state/contract.h"
#include "orbitkv/state/digest.h"

namespace orbitkv::state {

struct ComputationIdentity {
  std::string weights;                        // "sha256:<hex>" of all weight files, or "model_id:<text>" by opt-in
  std::string model_config;                   // canonical JSON of the configuration after all overrides
  std::string rope_scaling;                   // canonical JSON, empty without scaling
  std::uint64_t sliding_window = 0;           // tokens, 0 without a window
  std::uint64_t long_rope_length = 0;         // the length that selects long-rope factors, 0 when none apply
  std::string dtype;                          // the resolved one, never "auto"
  std::string quantization;                   // the resolved method, empty without
  std::string engine;                         // "vllm", "sglang"
  std::string engine_version;                 // as released
  std::string cache_dtype;                    // the resolved one
  std::vector<std::string> skipped_layers;    // layers kept out of the cache's quantization
  std::string hash_algorithm;                 // of the block hashes
  std::vector<std::byte> seed_probe;          // the hash that a chain of block hashes starts with
  std::uint64_t block_tokens = 0;             // tokens of one scheduler block
  std::uint64_t hash_block_tokens = 0;        // tokens of one hashed block
  std::uint64_t hit_alignment_tokens = 0;     // granularity of a usable hit
  std::uint64_t tensor_parallel = 0;          // degrees, at least 1
  std::uint64_t pipeline_parallel = 0;        //
  std::vector<std::uint64_t> pipeline_split;  // layers of each stage; empty means the engine's even split
  std::uint64_t decode_context_parallel = 0;
  std::uint64_t prefill_context_parallel = 0;
  std::string drafter;  // identity of a speculative drafter that owns cache groups, empty without

  Status Validate() const;
};

struct RepresentationIdentity {
  std::uint64_t page_bytes = 0;             // one layer's part of one block
  std::uint64_t layer_count = 0;            // pages of one block
  std::string order;                        // dimensions of a page from outer to inner, for example "HNC"
  std::vector<std::uint64_t> page_shape;    // elements per dimension of a page
  std::vector<std::uint64_t> page_strides;  // elements, within a page only
  std::string spec_kind;                    // "full_attention", ...
  std::string dtype;                        // of the elements in the page
  std::string attention_backend;            //
  std::string instruction_set;              // the page's order of elements may depend on it; empty on accelerators
  std::uint64_t page_tokens = 0;            // tokens of one page

  Status Validate() const;
};

Digest ComputationDigest(const ComputationIdentity& identity);
Digest RepresentationDigest(const RepresentationIdentity& identity);

// What registration says of one cache group.
struct GroupShape {
  std::uint32_t block_tokens = 0;
  std::uint32_t page_count = 0;  // pages (layers) of one block in one shard
  std::uint64_t page_bytes = 0;
  GroupKind kind = GroupKind::kFullAttention;
  std::uint32_t span_tokens = 0;        // of a window or chunk, 0 for the other kinds
  std::uint32_t hash_block_tokens = 0;  // the same in all groups; 0: the common divisor of their block sizes
  bool operator==(const GroupShape&) const = default;
};

// What the groups name as their hash block, or the common divisor where they name none.
std::uint32_t HashBlockTokens(std::span<const GroupShape> groups);

Digest NamespaceDigest(const Digest& computation, const Digest& representation, std::span<const GroupShape> groups,
                       std::uint32_t shard_count);

}  // namespace orbitkv::state
