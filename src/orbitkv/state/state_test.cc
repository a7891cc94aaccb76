#include <functional>
#include <gtest/gtest.h>
#include <set>
#include <string>
#include <vector>

#include "orbitkv/state/digest.h"
#include "orbitkv/state/identity.h"

namespace orbitkv::state {
namespace {

ComputationIdentity SampleComputation() {
  ComputationIdentity id;
  id.weights = "sha256:aa";
  id.model_config = R"({"layers":2})";
  id.dtype = "float32";
  id.engine = "vllm";
  id.engine_version = "0.33.0";
  id.cache_dtype = "float32";
  id.hash_algorithm = "sha256";
  id.seed_probe = {std::byte{6}, std::byte{0x6b}};
  id.block_tokens = 32;
  id.hash_block_tokens = 32;
  id.hit_alignment_tokens = 32;
  id.tensor_parallel = 1;
  id.pipeline_parallel = 1;
  id.decode_context_parallel = 1;
  id.prefill_context_parallel = 1;
  return id;
}

RepresentationIdentity SampleRepresentation() {
  RepresentationIdentity id;
  id.page_bytes = 16384;
  id.layer_count = 2;
  id.order = "HNC";
  id.page_shape = {2, 32, 64};
  id.page_strides = {2048, 64, 1};
  id.spec_kind = "full_attention";
  id.dtype = "float32";
  id.attention_backend = "CPU_ATTN";
  id.instruction_set = "vec";
  id.page_tokens = 32;
  return id;
}

// The frozen encoding: a stored block is found again only while these stay.
TEST(Digest, GoldenValues) {
  EXPECT_EQ(ToHex(DigestBuilder("golden").Add("a", 1U).Add("b", "text").Finish()),
            "76289e7104ebee97f6c3454b0f02b14f3d54e5ad331f6ff46af6b89a081e7981");
  EXPECT_EQ(ToHex(ComputationDigest(SampleComputation())),
            "4cd6853d3bfb92f66303375c62a708990017e604baacf86a2e59a1acddd62678");
  EXPECT_EQ(ToHex(RepresentationDigest(SampleRepresentation())),
            "39a6abccd58cf250cf4fb5eda3a749c10092e9692741616f7574acad2fd60e47");
  const std::vector<GroupShape> groups = {{32, 2, 16384}};
  EXPECT_EQ(ToHex(NamespaceDigest(ComputationDigest(SampleComputation()), RepresentationDigest(SampleRepresentation()),
                                  groups, 1)),
            "26d319f264a34eaa6b4dd565e136adf736b7f0623a2f2c3f604d61b4388cafdc");
}

TEST(Digest, PlainSha256IsTheStandardFunction) {
  Sha256 sha;
  sha.Update(std::as_bytes(std::span(std::string_view("ab"))));
  sha.Update(std::as_bytes(std::span(std::string_view("c"))));
  EXPECT_EQ(ToHex(sha.Finish()), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

TEST(Digest, FramesKeepFieldsApart) {
  const std::vector<std::string> ab_c = {"ab", "c"};
  const std::vector<std::string> a_bc = {"a", "bc"};
  const std::vector<std::string> none;
  const std::vector<std::uint64_t> no_numbers;
  const std::array<std::byte, 1> x = {std::byte{'x'}};
  std::set<std::string> seen;
  const auto expect_new = [&](DigestBuilder& builder) { EXPECT_TRUE(seen.insert(ToHex(builder.Finish())).second); };
  expect_new(DigestBuilder("d").Add("ab", "c"));
  expect_new(DigestBuilder("d").Add("a", "bc"));
  expect_new(DigestBuilder("d").Add("a", "b").Add("c", ""));
  expect_new(DigestBuilder("d").Add("c", "").Add("a", "b"));
  expect_new(DigestBuilder("da").Add("b", "c"));
  expect_new(DigestBuilder("e").Add("ab", "c"));
  expect_new(DigestBuilder("d").Add("l", ab_c));
  expect_new(DigestBuilder("d").Add("l", a_bc));
  expect_new(DigestBuilder("d").Add("l", none));
  expect_new(DigestBuilder("d").Add("l", no_numbers));
  expect_new(DigestBuilder("d").Add("l", ""));
  expect_new(DigestBuilder("d").Add("v", "x"));
  expect_new(DigestBuilder("d").Add("v", std::span<const std::byte>(x)));
  expect_new(DigestBuilder("d").Add("v", std::uint64_t{'x'}));
  DigestBuilder empty("d");
  expect_new(empty);
}

TEST(Identity, EveryComputationIngredientChangesTheDigest) {
  using Change = std::function<void(ComputationIdentity&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"weights", [](auto& id) { id.weights = "sha256:ab"; }},
      {"model_config", [](auto& id) { id.model_config = R"({"layers":3})"; }},
      {"rope_scaling", [](auto& id) { id.rope_scaling = R"({"factor":2})"; }},
      {"sliding_window", [](auto& id) { id.sliding_window = 64; }},
      {"long_rope_length", [](auto& id) { id.long_rope_length = 8192; }},
      {"dtype", [](auto& id) { id.dtype = "bfloat16"; }},
      {"quantization", [](auto& id) { id.quantization = "fp8"; }},
      {"engine", [](auto& id) { id.engine = "sglang"; }},
      {"engine_version", [](auto& id) { id.engine_version = "0.33.1"; }},
      {"cache_dtype", [](auto& id) { id.cache_dtype = "fp8"; }},
      {"skipped_layers", [](auto& id) { id.skipped_layers = {"0"}; }},
      {"hash_algorithm", [](auto& id) { id.hash_algorithm = "sha256_cbor"; }},
      {"seed_probe", [](auto& id) { id.seed_probe[0] = std::byte{7}; }},
      {"block_tokens", [](auto& id) { id.block_tokens = 64; }},
      {"hash_block_tokens", [](auto& id) { id.hash_block_tokens = 16; }},
      {"hit_alignment_tokens", [](auto& id) { id.hit_alignment_tokens = 64; }},
      {"tensor_parallel", [](auto& id) { id.tensor_parallel = 2; }},
      {"pipeline_parallel", [](auto& id) { id.pipeline_parallel = 2; }},
      {"pipeline_split", [](auto& id) { id.pipeline_split = {2}; }},
      {"decode_context_parallel", [](auto& id) { id.decode_context_parallel = 2; }},
      {"prefill_context_parallel", [](auto& id) { id.prefill_context_parallel = 2; }},
      {"drafter", [](auto& id) { id.drafter = "eagle:sha256:cc"; }},
  };
  std::set<std::string> seen = {ToHex(ComputationDigest(SampleComputation()))};
  for (const auto& [name, change] : changes) {
    ComputationIdentity id = SampleComputation();
    change(id);
    EXPECT_TRUE(seen.insert(ToHex(ComputationDigest(id))).second) << name;
  }
  EXPECT_EQ(ComputationDigest(SampleComputation()), ComputationDigest(SampleComputation()));
}

TEST(Identity, EveryRepresentationIngredientChangesTheDigest) {
  using Change = std::function<void(RepresentationIdentity&)>;
  const std::vector<std::pair<const char*, Change>> changes = {
      {"page_bytes", [](auto& id) { id.page_bytes = 8192; }},
      {"layer_count", [](auto& id) { id.layer_count = 3; }},
      {"order", [](auto& id) { id.order = "NHC"; }},
      {"page_shape", [](auto& id) { id.page_shape[0] = 4; }},
      {"page_strides", [](auto& id) { id.page_strides[0] = 4096; }},
      {"spec_kind", [](auto& id) { id.spec_kind = "mla"; }},
      {"dtype", [](auto& id) { id.dtype = "bfloat16"; }},
      {"attention_backend", [](auto& id) { id.attention_backend = "FLASH_ATTN"; }},
      {"instruction_set", [](auto& id) { id.instruction_set = "amx"; }},
      {"page_tokens", [](auto& id) { id.page_tokens = 16; }},
  };
  std::set<std::string> seen = {ToHex(RepresentationDigest(SampleRepresentation()))};
  for (const auto& [name, change] : changes) {
    RepresentationIdentity id = SampleRepresentation();
    change(id);
    EXPECT_TRUE(seen.insert(ToHex(RepresentationDigest(id))).second) << name;
  }
}

TEST(Identity, EveryPartOfARegistrationChangesTheNamespace) {
  const Digest a = ComputationDigest(SampleComputation());
  const Digest b = RepresentationDigest(SampleRepresentation());
  using Groups = std::vector<GroupShape>;
  const Groups sample = {{32, 2, 16384}};
  std::set<std::string> seen;
  const auto expect_new = [&](const Digest& c, const Digest& r, const Groups& groups, std::uint32_t shards) {
    EXPECT_TRUE(seen.insert(ToHex(NamespaceDigest(c, r, groups, shards))).second);
  };
  expect_new(a, b, sample, 1);
  expect_new(b, a, sample, 1);
  expect_new(a, a, sample, 1);
  expect_new(a, b, sample, 2);
  expect_new(a, b, {{64, 2, 16384}}, 1);
  expect_new(a, b, {{32, 3, 16384}}, 1);
  expect_new(a, b, {{32, 2, 32768}}, 1);
  expect_new(a, b, {{32, 2, 16384}, {32, 2, 16384}}, 1);
  expect_new(a, b, {{32, 2, 16384, GroupKind::kRecurrent}}, 1);
  expect_new(a, b, {{32, 2, 16384, GroupKind::kSlidingWindow, 64}}, 1);
  expect_new(a, b, {{32, 2, 16384, GroupKind::kSlidingWindow, 65}}, 1);
  expect_new(a, b, {{32, 2, 16384, GroupKind::kChunkedLocal, 64}}, 1);
  expect_new(a, b, {{32, 2, 16384, GroupKind::kFullAttention, 0, 16}}, 1);
  // Naming the common divisor says the same as leaving it out.
  EXPECT_EQ(NamespaceDigest(a, b, Groups{{32, 2, 16384, GroupKind::kFullAttention, 0, 32}}, 1),
            NamespaceDigest(a, b, sample, 1));
  expect_new(a, b, {}, 1);
}

TEST(Identity, MissingIngredientsAreRefused) {
  EXPECT_TRUE(SampleComputation().Validate());
  EXPECT_TRUE(SampleRepresentation().Validate());
  const std::vector<std::function<void(ComputationIdentity&)>> holes = {
      [](auto& id) { id.weights.clear(); },          [](auto& id) { id.model_config.clear(); },
      [](auto& id) { id.dtype = "auto"; },           [](auto& id) { id.engine.clear(); },
      [](auto& id) { id.engine_version.clear(); },   [](auto& id) { id.cache_dtype = "auto"; },
      [](auto& id) { id.hash_algorithm.clear(); },   [](auto& id) { id.seed_probe.clear(); },
      [](auto& id) { id.block_tokens = 0; },         [](auto& id) { id.hash_block_tokens = 0; },
      [](auto& id) { id.hit_alignment_tokens = 0; }, [](auto& id) { id.tensor_parallel = 0; },
  };
  for (std::size_t i = 0; i < holes.size(); ++i) {
    ComputationIdentity id = SampleComputation();
    holes[i](id);
    EXPECT_FALSE(id.Validate()) << i;
  }
  RepresentationIdentity rep = SampleRepresentation();
  rep.page_strides.pop_back();
  EXPECT_FALSE(rep.Validate());
}

}  // namespace
}  // namespace orbitkv::state
