#include "orbitkv/state/identity.h"

namespace orbitkv::state {

Status ComputationIdentity::Validate() const {
  if (weights.empty()) return Fail(Code::kInvalid, "identity without weights");
  if (model_config.empty()) return Fail(Code::kInvalid, "identity without model configuration");
  if (dtype.empty() || dtype == "auto") return Fail(Code::kInvalid, "identity without a resolved dtype");
  if (engine.empty() || engine_version.empty()) return Fail(Code::kInvalid, "identity without engine and version");
  if (cache_dtype.empty() || cache_dtype == "auto") {
    return Fail(Code::kInvalid, "identity without a resolved cache dtype");
  }
  if (hash_algorithm.empty()) return Fail(Code::kInvalid, "identity without hash algorithm");
  if (seed_probe.empty()) return Fail(Code::kInvalid, "identity without the seed of the block hashes");
  if (block_tokens == 0 || hash_block_tokens == 0 || hit_alignment_tokens == 0) {
    return Fail(Code::kInvalid, "identity without block size, hash block size or hit alignment");
  }
  if (tensor_parallel == 0 || pipeline_parallel == 0 || decode_context_parallel == 0 || prefill_context_parallel == 0) {
    return Fail(Code::kInvalid, "identity without parallel degrees");
  }
  return {};
}

Status RepresentationIdentity::Validate() const {
  if (page_bytes == 0 || layer_count == 0 || page_tokens == 0) {
    return Fail(Code::kInvalid, "representation without page size, layers or tokens");
  }
  if (order.empty() || page_shape.empty() || page_shape.size() != page_strides.size()) {
    return Fail(Code::kInvalid, "representation without the order, shape and strides of a page");
  }
  if (spec_kind.empty() || dtype.empty() || attention_backend.empty()) {
    return Fail(Code::kInvalid, "representation without kind, dtype or attention backend");
  }
  return {};
}

Digest ComputationDigest(const ComputationIdentity& identity) {
  return DigestBuilder("computation")
      .Add("weights", identity.weights)
      .Add("model_config", identity.model_config)
      .Add("rope_scaling", identity.rope_scaling)
      .Add("sliding_window", identity.sliding_window)
      .Add("long_rope_length", identity.long_rope_length)
      .Add("dtype", identity.dtype)
      .Add("quantization", identity.quantization)
      .Add("engine", identity.engine)
      .Add("engine_version", identity.engine_version)
      .Add("cache_dtype", identity.cache_dtype)
      .Add("skipped_layers", identity.skipped_layers)
      .Add("hash_algorithm", identity.hash_algorithm)
      .Add("seed_probe", std::span<const std::byte>(identity.seed_probe))
      .Add("block_tokens", identity.block_tokens)
      .Add("hash_block_tokens", identity.hash_block_tokens)
      .Add("hit_alignment_tokens", identity.hit_alignment_tokens)
      .Add("tensor_parallel", identity.tensor_parallel)
      .Add("pipeline_parallel", identity.pipeline_parallel)
      .Add("pipeline_split", identity.pipeline_split)
      .Add("decode_context_parallel", identity.decode_context_parallel)
      .Add("prefill_context_parallel", identity.prefill_context_parallel)
      .Add("drafter", identity.drafter)
      .Finish();
}

Digest RepresentationDigest(const RepresentationIdentity& identity) {
  return DigestBuilder("representation")
      .Add("page_bytes", identity.page_bytes)
      .Add("layer_count", identity.layer_count)
      .Add("order", identity.order)
      .Add("page_shape", identity.page_shape)
      .Add("page_strides", identity.page_strides)
      .Add("spec_kind", identity.spec_kind)
      .Add("dtype", identity.dtype)
      .Add("attention_backend", identity.attention_backend)
      .Add("instruction_set", identity.instruction_set)
      .Add("page_tokens", identity.page_tokens)
      .Finish();
}

std::uint32_t HashBlockTokens(std::span<const GroupShape> groups) {
  std::vector<std::uint32_t> sizes;
  for (const GroupShape& group : groups) {
    if (group.hash_block_tokens != 0) return group.hash_block_tokens;
    sizes.push_back(group.block_tokens);
  }
  return CommonBlockTokens(sizes);
}

Digest NamespaceDigest(const Digest& computation, const Digest& representation, std::span<const GroupShape> groups,
                       std::uint32_t shard_count) {
  DigestBuilder builder("namespace with rules");
  builder.Add("computation", std::span<const std::byte>(computation));
  builder.Add("representation", std::span<const std::byte>(representation));
  builder.Add("shard_count", std::uint64_t{shard_count});
  builder.Add("hash_block_tokens", std::uint64_t{HashBlockTokens(groups)});
  builder.Add("groups", std::uint64_t{groups.size()});
  for (const GroupShape& group : groups) {
    builder.Add("block_tokens", std::uint64_t{group.block_tokens});
    builder.Add("page_count", std::uint64_t{group.page_count});
    builder.Add("page_bytes", group.page_bytes);
    builder.Add("kind", std::uint64_t{static_cast<std::uint8_t>(group.kind)});
    builder.Add("span_tokens", std::uint64_t{group.span_tokens});
  }
  return builder.Finish();
}

}  // namespace orbitkv::state
