"""What the digests that name an engine's blocks depend on, with vLLM's own configuration objects: each ingredient
changes them, and what only says where and how large an engine is does not."""

import copy
import shutil
from types import SimpleNamespace

import pytest
import torch

import orbitkv
from orbitkv.folders import PROCESSOR_FILES
from orbitkv.identity import representation_digest
from orbitkv.vllm import compat, identity, pages
from orbitkv.vllm.groups import Group, Groups

WEIGHTS = "sha256:" + "ab" * 32
PLAIN = Group(32, 16384, "full_attention", "torch.float32", None)


@pytest.fixture(scope="module")
def make(seeded):
    from vllm.engine.arg_utils import EngineArgs

    def build(**more):
        settings = {
            "model": str(seeded),
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "block_size": 32,
            "max_model_len": 1024,
        }
        return EngineArgs(**(settings | more)).create_engine_config()

    return build


@pytest.fixture(scope="module")
def base(make):
    return make()


def digest(config, groups=None, weights=WEIGHTS, **more):
    fields = identity.computation_fields(config, groups or Groups([PLAIN]), weights, **more)
    return orbitkv.computation_digest(fields)


ROPE = {"rope_type": "yarn", "factor": 2.0, "rope_theta": 10000.0, "original_max_position_embeddings": 2048}

INGREDIENTS = {
    "rope scaling": {"hf_overrides": {"rope_parameters": ROPE}},
    "resolved configuration": {"hf_overrides": {"rms_norm_eps": 1e-5}},
    "implementation": {"model_impl": "transformers"},
    "dtype": {"dtype": "bfloat16"},
    "cache dtype": {"kv_cache_dtype": "fp8"},
    "hash algorithm": {"prefix_caching_hash_algo": "sha256_cbor"},
    "tensor parallel": {"tensor_parallel_size": 2},
    "pipeline parallel": {"pipeline_parallel_size": 2},
}


@pytest.mark.parametrize("changes", INGREDIENTS.values(), ids=INGREDIENTS.keys())
def test_an_ingredient_changes_the_digest(make, base, changes):
    assert digest(make(**changes)) != digest(base)


OTHERS = {
    "number of blocks": {"num_gpu_blocks_override": 77},
    "memory for the cache": {"kv_cache_memory_bytes": 1 << 26},
    "GPU memory utilisation": {"gpu_memory_utilization": 0.5},
    "requests at once": {"max_num_seqs": 3, "max_num_batched_tokens": 2048},
    "longest prompt": {"max_model_len": 2048},
    "name": {"served_model_name": "x"},
    "seed": {"seed": 7},
    "drafter without a cache": {
        "speculative_config": {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3}
    },
    "adapters": {"enable_lora": True},
    "address": {"kv_transfer_config": {"kv_role": "kv_both", "engine_id": "x", "kv_buffer_device": "cpu"}},
}


@pytest.mark.parametrize("changes", OTHERS.values(), ids=OTHERS.keys())
def test_what_is_no_ingredient_changes_nothing(make, base, changes):
    if "kv_transfer_config" in changes:
        from vllm.config import KVTransferConfig

        ours = {"kv_connector": "OrbitKVConnector", "kv_connector_module_path": "orbitkv.vllm"}
        changes = {"kv_transfer_config": KVTransferConfig(**ours, **changes["kv_transfer_config"])}
    assert digest(make(**changes)) == digest(base)


def test_data_parallel_replicas_share(base):
    for name, value in (
        ("data_parallel_size", 4),
        ("data_parallel_rank", 3),
        ("data_parallel_rank_local", 1),
        ("data_parallel_master_ip", "10.0.0.7"),
        ("data_parallel_master_port", 4711),
        ("data_parallel_rpc_port", 4712),
    ):
        replica = copy.copy(base)
        replica.parallel_config = copy.copy(base.parallel_config)
        assert hasattr(replica.parallel_config, name), name
        setattr(replica.parallel_config, name, value)
        assert digest(replica) == digest(base), name


def test_the_place_of_the_weights_changes_nothing_and_their_content_does(make, base, seeded, tmp_path):
    shutil.copytree(seeded, tmp_path / "moved")
    assert digest(make(model=str(tmp_path / "moved"))) == digest(base)
    assert digest(base, weights="sha256:" + "ac" * 32) != digest(base)


def with_parts(base, **parts):
    """A copy of the configuration with some attributes of its parts replaced: part={name: value}."""
    changed = copy.copy(base)
    for part, values in parts.items():
        inner = copy.copy(getattr(base, part))
        for name, value in values.items():
            setattr(inner, name, value)
        setattr(changed, part, inner)
    return changed


@pytest.mark.parametrize(
    "parts",
    [
        {"parallel_config": {"decode_context_parallel_size": 2}},
        {"parallel_config": {"prefill_context_parallel_size": 2}},
        {"model_config": {"quantization": "fp8"}},
        {"model_config": {"disable_sliding_window": True}},
        {"model_config": {"runner_type": "pooling"}},
        {"cache_config": {"mamba_ssm_cache_dtype": "float16"}},
    ],
    ids=lambda parts: "+".join(next(iter(parts.values()))),
)
def test_ingredients_that_this_model_cannot_have(base, parts):
    assert digest(with_parts(base, **parts)) != digest(base)


def test_layers_that_the_caches_quantization_skips(make):
    quantized = make(kv_cache_dtype="fp8")
    skipping = with_parts(quantized, cache_config={"kv_cache_dtype_skip_layers": ["0"]})
    assert digest(skipping) != digest(quantized)


def test_what_a_quantization_method_was_told(base):
    class Method:
        def __init__(self, bits):
            self.bits = bits

    four, eight = copy.copy(base), copy.copy(base)
    four.quant_config, eight.quant_config = Method(4), Method(8)
    assert len({digest(four), digest(eight), digest(base)}) == 3


def test_the_resolved_cache_dtype(base):
    half = Groups([Group(32, 8192, "full_attention", "torch.bfloat16", None)])
    assert digest(base, half) != digest(base)


def test_a_window(make, base):
    assert digest(make(hf_overrides={"sliding_window": 64})) != digest(base)
    fields = identity.computation_fields(make(hf_overrides={"sliding_window": 64}), Groups([PLAIN]), WEIGHTS)
    assert fields["sliding_window"] == 64


def test_the_length_counts_where_it_selects_rope_factors(base):
    def long(length):
        text = copy.copy(base.model_config.hf_text_config)
        text.rope_parameters = {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [2.0]}
        return with_parts(base, model_config={"hf_config": text, "hf_text_config": text, "max_model_len": length})

    assert digest(long(1024)) != digest(long(8192))


def test_hash_seed_block_sizes_and_alignment(base, monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    without = digest(base)
    monkeypatch.setenv("PYTHONHASHSEED", "1")
    assert digest(base) != without
    larger = Group(64, 32768, "full_attention", "torch.float32", None)
    kinds = [Groups([PLAIN]), Groups([larger]), Groups([larger], 32)]
    assert len({digest(base, groups) for groups in kinds}) == len(kinds)


def test_the_split_of_the_layers(make, monkeypatch):
    config = make(pipeline_parallel_size=2)
    digests = {digest(config)}
    for split in ("1,1", "2,0"):
        monkeypatch.setenv("VLLM_PP_LAYER_PARTITION", split)
        digests.add(digest(config))
    assert len(digests) == 3


def test_the_engines_version(base, monkeypatch):
    before = digest(base)
    monkeypatch.setattr(compat, "engine_version", lambda: "0.99.0")
    assert digest(base) != before


def test_a_drafter_with_a_cache(base):
    def drafting(**changes):
        config = copy.copy(base)
        draft = {"model": "/draft", "hf_config": {"layers": 1}, "dtype": "float32"} | changes
        method = draft.pop("method", "eagle")
        config.speculative_config = SimpleNamespace(method=method, draft_model_config=SimpleNamespace(**draft))
        return config

    config = drafting()
    assert identity.drafter_folder(config) == "/draft"
    assert identity.drafter_folder(base) == ""
    digests = {digest(base), digest(config, drafter_weights="one"), digest(config, drafter_weights="two")}
    digests |= {digest(drafting(hf_config={"layers": 2}), drafter_weights="one")}
    digests |= {digest(drafting(dtype="bfloat16"), drafter_weights="one")}
    digests |= {digest(drafting(method="eagle3"), drafter_weights="one")}
    assert len(digests) == 6
    assert digest(drafting(model="/elsewhere"), drafter_weights="one") in digests


def test_how_images_are_prepared(base, tmp_path):
    def seeing(folder=tmp_path, **options):
        config = with_parts(base, model_config={"model": str(folder)})
        config.model_config.multimodal_config = SimpleNamespace(
            **dict.fromkeys(identity.MULTIMODAL_OPTIONS), mm_processor_cache_gb=options.pop("cache", 4)
        )
        for name, value in options.items():
            setattr(config.model_config.multimodal_config, name, value)
        return config

    before = digest(seeing())
    assert digest(seeing(cache=0)) == before
    for name in identity.MULTIMODAL_OPTIONS:
        assert digest(seeing(**{name: "x"})) != before, name
    digests = {before}
    for name in PROCESSOR_FILES:
        (tmp_path / name).write_text("{}")
        digests.add(digest(seeing()))
    (tmp_path / PROCESSOR_FILES[0]).write_text("{ }")
    digests.add(digest(seeing()))
    assert len(digests) == 5


# ---- pages ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def represent(monkeypatch):
    """The digest of a worker's pages of one group; what the hardware says is given."""

    def of(group=PLAIN, shape=(2, 32, 64), dtype=torch.float32, layers=2, blocks=10, order=(0, 1, 2), **hardware):
        monkeypatch.setattr(pages, "attention_backend", lambda *_: hardware.get("backend", "CPU_ATTN"))
        monkeypatch.setattr(pages, "instruction_set", lambda *_: hardware.get("isa", "vec"))
        storage = torch.zeros(layers, blocks, *(shape[i] for i in order), dtype=dtype)
        back = [1 + order.index(i) for i in range(3)]
        caches = {f"l{layer}": storage[layer].permute(0, *back) for layer in range(layers)}
        config = SimpleNamespace(
            kv_cache_groups=[SimpleNamespace(layer_names=list(caches))], num_blocks=blocks, kv_tp_replicas=1
        )
        places, page_format = pages.collect_pages(caches, config, [group])
        fields = identity.representation_fields(None, group, list(caches), page_format, len(places))
        return representation_digest([fields])

    return of


def group(**changes):
    values = {"block_tokens": 32, "page_bytes": 16384, "kind": "full_attention", "dtype": "", "spec": None} | changes
    return Group(**values)


def test_each_property_of_a_page_changes_the_digest_and_the_number_of_blocks_does_not(represent):
    digests = [
        represent(),
        represent(layers=3),
        represent(order=(1, 0, 2)),
        represent(shape=(4, 32, 32)),
        represent(group=group(page_bytes=8192), dtype=torch.bfloat16),
        represent(dtype=torch.int32),
        represent(group=group(kind="mla_attention")),
        represent(group=group(block_tokens=16)),
        represent(backend="OTHER"),
        represent(isa="amx"),
    ]
    assert len(set(digests)) == len(digests)
    assert represent(blocks=20) == digests[0]


def test_groups_count_in_their_order(represent):
    fields = {
        "page_bytes": 16384,
        "layer_count": 2,
        "order": "HNC",
        "page_shape": [1, 2, 32, 64],
        "page_strides": [0, 2048, 64, 1],
        "spec_kind": "full_attention",
        "dtype": "float32",
        "attention_backend": "CPU_ATTN",
        "instruction_set": "vec",
        "page_tokens": 32,
    }
    other = fields | {"spec_kind": "sliding_window"}
    digests = [representation_digest(groups) for groups in ([fields], [fields, other], [other, fields])]
    assert len(set(digests)) == 3
