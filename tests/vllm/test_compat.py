"""What is refused by name, how pages are found in tensors, and which of vLLM's hooks the connector has."""

import ast
import importlib.util
import inspect
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    FullAttentionSpec,
    HiSparseResidentSpec,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    UniformTypeKVCacheSpecs,
    compute_layout_strides,
    create_kv_cache_views,
)
from vllm.v1.kv_cache_layout import KVCacheLayout

from orbitkv.canonical import canonical
from orbitkv.vllm import OrbitKVConnector, changes, compat, pages, register

pytestmark = pytest.mark.each_vllm

SHAPE = {"block_size": 32, "num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
SPEC = FullAttentionSpec(**SHAPE)


def state(mode="align", **more):
    return MambaSpec(
        block_size=32, shapes=((3, 8), (4, 16)), dtypes=(torch.float32,) * 2, mamba_cache_mode=mode, **more
    )


def config(**changes):
    parallel = {"tensor_parallel_size": 1, "pipeline_parallel_size": 1} | changes.pop("parallel", {})
    cache = {"block_size": 32, "prefix_caching_hash_algo": "sha256"} | changes.pop("cache", {})
    return SimpleNamespace(
        parallel_config=SimpleNamespace(**parallel),
        cache_config=SimpleNamespace(**cache),
        speculative_config=changes.pop("speculative", None),
        **changes,
    )


def cache_config(spec=SPEC, groups=1, **changes):
    group = {"kv_cache_spec": spec, "layer_names": ["l0", "l1"]} | changes.pop("group", {})
    return SimpleNamespace(
        kv_cache_groups=[SimpleNamespace(**group)] * groups, num_blocks=10, kv_tp_replicas=1, **changes
    )


def test_one_full_attention_group_is_supported():
    groups = compat.check_supported(config(), cache_config())
    (group,) = groups
    assert (group.block_tokens, group.kind, groups.align_tokens, groups.plain) == (32, "full_attention", 32, True)
    assert group.page_bytes == SPEC.page_size_bytes == 2 * 32 * 64 * 4


@pytest.mark.parametrize(
    ("vllm_config", "kv_config", "reason"),
    [
        (config(), cache_config(groups=0), "models without a cache group"),
        (config(), cache_config(SimpleNamespace(page_size_bytes=1)), "kind unknown"),
        (config(), cache_config(SinkFullAttentionSpec(**SHAPE, sink_len=4)), "sink_full_attention"),
        (config(), cache_config(RSWASpec(**SHAPE, rswa_window=64)), "full_attention .RSWASpec"),
        (config(), cache_config(CircularBufferSpec(**SHAPE)), "by prefix .CircularBufferSpec"),
        (config(), cache_config(HiSparseResidentSpec(block_size=32, page_size=64)), "by prefix .HiSparseResidentSpec"),
        (
            config(),
            cache_config(SlidingWindowMLASpec(**SHAPE, sliding_window=64, bounded_replay=True)),
            "prefix replay",
        ),
        (config(), cache_config(state("none")), "mamba_cache_mode none"),
        (config(), cache_config(state(num_speculative_blocks=2)), "speculative decoding with recurrent layers"),
        (config(), cache_config(group={"host_resident": True}), "HiSparse"),
        (config(), cache_config(hisparse_host_num_blocks=4), "HiSparse"),
        (config(), cache_config(group={"enable_kv_transfer": False}), "excludes from transfer"),
        (config(), cache_config(hash_block_size=20), "no multiple of the hash block"),
        (config(), cache_config(cache_hit_alignment_tokens=64), "cache_hit_alignment_tokens 64"),
        (config(), cache_config(hash_block_size=16, cache_hit_alignment_tokens=16), "cache_hit_alignment_tokens 16"),
        (config(parallel={"nnodes": 2}), cache_config(), "another host"),
        (config(parallel={"distributed_executor_backend": "ray"}), cache_config(), "placed by Ray"),
        (config(parallel={"decode_context_parallel_size": 2}), cache_config(), "decode_context_parallel_size"),
        (config(speculative=SimpleNamespace(method="medusa")), cache_config(), "'medusa'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(vllm_config, kv_config, reason):
    with pytest.raises(compat.UnsupportedError, match=reason) as caught:
        compat.check_supported(vllm_config, kv_config)
    assert "start this engine without OrbitKVConnector" in str(caught.value)


@pytest.mark.parametrize("method", ["ngram", "eagle", "mtp", "draft_model"])
def test_drafters_with_and_without_a_cache_are_fine(method):
    compat.check_supported(config(speculative=SimpleNamespace(method=method)), cache_config())


@pytest.mark.parametrize(
    ("spec", "rule", "span"),
    [
        (SPEC, "full_attention", 0),
        (MLAAttentionSpec(**SHAPE), "full_attention", 0),
        (SlidingWindowSpec(**SHAPE, sliding_window=64), "sliding_window", 64),
        (SlidingWindowSpec(**SHAPE, sliding_window=64, extra_retained_tokens=3), "sliding_window", 67),
        (SlidingWindowMLASpec(**SHAPE, sliding_window=64), "sliding_window", 64),
        (ChunkedLocalAttentionSpec(**SHAPE, attention_chunk_size=96), "chunked_local", 96),
        (state("align"), "recurrent", 0),
        (state("all"), "recurrent", 0),
    ],
)
def test_every_kind_has_its_rule(spec, rule, span):
    (group,) = compat.check_supported(config(), cache_config(spec))
    assert (group.rule, group.span_tokens) == (rule, span)
    assert group.exact == (getattr(spec, "mamba_cache_mode", "") == "align")
    (declared,) = compat.check_supported(config(), cache_config(spec)).declared()
    assert (declared.kind, declared.block_tokens, declared.span_tokens, len(declared.layers)) == (rule, 32, span, 0)


def test_a_group_with_draft_layers_is_volatile():
    (group,) = compat.check_supported(config(), cache_config(group={"is_eagle_group": True}))
    assert group.volatile
    # vLLM does not mark the group of every drafter.
    for method, volatile in (("eagle", True), ("mtp", True), ("ngram", False), ("draft_model", False)):
        assert compat.check_supported(config(speculative=SimpleNamespace(method=method)), cache_config()).volatile == (
            volatile
        )
    undropped = SimpleNamespace(method="eagle", use_eagle_block_drop=lambda: False)
    assert not compat.check_supported(config(speculative=undropped), cache_config()).volatile


def test_the_seed_probe_is_vllms_first_hash(monkeypatch):
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    for seed in (None, "0"):
        if seed is None:
            monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        else:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        for algorithm in ("sha256", "sha256_cbor"):
            kv_cache_utils.init_none_hash(get_hash_fn_by_name(algorithm))
            assert compat.seed_probe(config(cache={"prefix_caching_hash_algo": algorithm})) == kv_cache_utils.NONE_HASH
    assert compat.hash_bytes(config()) == 32


def test_hashes_that_no_process_can_repeat_are_refused(monkeypatch):
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    with pytest.raises(compat.UnsupportedError, match="PYTHONHASHSEED"):
        compat.seed_probe(config(cache={"prefix_caching_hash_algo": "xxhash"}))


def test_ranks_with_identical_kv_share_a_shard():
    four = config(parallel={"tensor_parallel_size": 4}, model_config=model(heads=4))
    assert compat.ranks(four, cache_config()) == compat.Ranks(4, 4, 1)
    replicated = cache_config()
    replicated.kv_tp_replicas = 2
    both = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    assert compat.ranks(config(parallel=both), replicated) == compat.Ranks(8, 4, 2)
    with pytest.raises(compat.UnsupportedError, match="replicas"):
        compat.ranks(config(parallel={"tensor_parallel_size": 3}), replicated)


def model(architecture="LlamaForCausalLM", heads=1):
    return SimpleNamespace(architecture=architecture, get_total_num_kv_heads=lambda: heads)


@pytest.mark.parametrize(
    ("tensor_parallel", "changes", "per_rank", "replicas"),
    [
        (2, {"model_config": model()}, 1, 2),
        (8, {"model_config": model(heads=2)}, 1, 4),
        (2, {"model_config": model(heads=2)}, 1, 1),
        (6, {"model_config": model(heads=4)}, 1, 1),
        (2, {"model_config": model("Gemma3ForCausalLM")}, 1, 1),
        (2, {"model_config": model()}, 2, 1),
        (2, {"model_config": model(), "speculative": SimpleNamespace(method="eagle")}, 1, 1),
        (2, {"model_config": model(), "speculative": SimpleNamespace(method="ngram")}, 1, 2),
    ],
)
def test_ranks_with_the_same_kv_head_share_a_shard(tensor_parallel, changes, per_rank, replicas):
    spec = FullAttentionSpec(**(SHAPE | {"num_kv_heads": per_rank}))
    found = compat.ranks(config(parallel={"tensor_parallel_size": tensor_parallel}, **changes), cache_config(spec))
    assert found == compat.Ranks(tensor_parallel, tensor_parallel // replicas, replicas)


def test_latent_attention_needs_amx_to_go_on_behind_a_prefix(monkeypatch):
    latent, dense = (config(model_config=SimpleNamespace(use_mla=mla)) for mla in (True, False))
    for amx in (True, False):
        monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda amx=amx: amx)
        assert compat.attends_to_prefixes(latent) == amx
        assert compat.attends_to_prefixes(dense)


# ---- pages ----------------------------------------------------------------------------------------------------------


def two_layers(block_count=10, shape=(2, 32, 64)):
    storage = torch.arange(2 * block_count * 2 * 32 * 64, dtype=torch.float32)
    views = storage.view(2, block_count, *shape)
    return {"l0": views[0], "l1": views[1]}


def test_pages_are_found_through_strides():
    group = compat.check_supported(config(), cache_config())
    caches = two_layers()
    layers, page_format = pages.collect_pages(caches, cache_config(), group)
    assert [layer.block_stride for layer in layers] == [16384, 16384]
    assert layers[1].address - layers[0].address == 10 * 16384
    assert layers[1].address == caches["l1"].data_ptr()
    assert (page_format.order, page_format.shape, page_format.dtype) == ("HNC", (1, 2, 32, 64), "float32")


def test_blocks_of_all_layers_together():
    group = compat.check_supported(config(), cache_config())
    storage = torch.zeros(10, 2, 2, 32, 64)
    layers, _ = pages.collect_pages({"l0": storage[:, 0], "l1": storage[:, 1]}, cache_config(), group)
    assert [layer.block_stride for layer in layers] == [32768, 32768]
    assert layers[1].address - layers[0].address == 16384


def test_the_order_of_a_page_is_part_of_its_format_and_the_number_of_blocks_is_not():
    group = compat.check_supported(config(), cache_config())
    _, hnc = pages.collect_pages(two_layers(), cache_config(), group)
    token_major = {name: view.view(10, 32, 2, 64).transpose(1, 2) for name, view in two_layers().items()}
    _, nhc = pages.collect_pages(token_major, cache_config(), group)
    assert (hnc.order, nhc.order) == ("HNC", "NHC")
    more = cache_config()
    more.num_blocks = 20
    _, same = pages.collect_pages(two_layers(20), more, group)
    assert same == hnc


def test_kernel_blocks_smaller_than_blocks():
    group = compat.check_supported(config(), cache_config())
    caches = {name: view.reshape(20, 2, 16, 64) for name, view in two_layers().items()}
    layers, page_format = pages.collect_pages(caches, cache_config(), group)
    assert layers[0].block_stride == 16384
    assert page_format.shape == (2, 2, 16, 64)


def uniform(*sizes):
    members = {f"l{i}": FullAttentionSpec(**(SHAPE | {"head_size": size})) for i, size in enumerate(sizes)}
    return cache_config(UniformTypeKVCacheSpecs(block_size=32, kv_cache_specs=members))


def test_layers_of_different_page_sizes_are_cut_into_pieces_of_one():
    whole = uniform(32, 48)
    groups = compat.check_supported(config(), whole)
    memory = torch.zeros(10 * 2 * 32 * (64 + 96))
    small, large = memory[: 10 * 2 * 32 * 64], memory[10 * 2 * 32 * 64 :]
    caches = {"l0": small.view(10, 2, 32, 64), "l1": large.view(10, 2, 32, 96)}
    layers, page_format = pages.collect_pages(caches, whole, groups)
    assert page_format.page_bytes == 8192
    assert [layer.page_bytes for layer in layers] == [8192] * 5
    assert [layer.block_stride for layer in layers] == [16384] * 2 + [24576] * 3
    begin = memory.data_ptr()
    assert [layer.address - begin for layer in layers] == [0, 8192, 163840, 172032, 180224]
    assert (page_format.order, page_format.dtype) == ("HNC+HNC", "float32+float32")
    assert page_format.shape == (1, 2, 32, 64, 1, 2, 32, 96)
    _, other = pages.collect_pages(caches | {"l1": large.view(10, 32, 2, 96).transpose(1, 2)}, whole, groups)
    assert other != page_format
    # The scheduler sees the first layer's spec alone, and counts with the same rule.
    alone = compat.check_supported(config(), cache_config(next(iter(groups)).spec))
    assert alone.declared() == groups.declared()


def test_layers_of_one_group_with_different_rules_are_refused():
    members = {"l0": SPEC, "l1": SlidingWindowSpec(**SHAPE, sliding_window=64)}
    mixed = SimpleNamespace(kv_cache_specs=members, block_size=32)
    with pytest.raises(compat.UnsupportedError, match="different rules"):
        compat.check_supported(config(), cache_config(mixed))


def test_of_a_padded_page_the_content_is_kept():
    spec = state(page_size_padded=512)
    groups = compat.check_supported(config(), cache_config(spec))
    memory = torch.zeros(20 * 512, dtype=torch.int8)
    caches = {f"l{i}": memory[i * 5120 :].as_strided((10, 1, 1, 352), (512, 352, 352, 1)) for i in range(2)}
    layers, page_format = pages.collect_pages(caches, cache_config(spec), groups)
    assert [(layer.page_bytes, layer.block_stride) for layer in layers] == [(352, 512)] * 2
    assert page_format.page_bytes == 352


def test_layers_that_share_kv_count_once():
    group = compat.check_supported(config(), cache_config())
    caches = two_layers()
    layers, _ = pages.collect_pages({"l0": caches["l0"], "l1": caches["l0"]}, cache_config(), group)
    assert len(layers) == 1


@pytest.mark.parametrize(
    ("caches", "reason"),
    [
        ({"l0": two_layers()["l0"]}, "layers without a KV tensor .l1"),
        # Heads outermost: a block's page is in pieces.
        ({name: torch.zeros(2, 10, 32, 64).transpose(0, 1) for name in ("l0", "l1")}, "not one run of bytes"),
        ({name: torch.zeros(10, 2, 32, 32) for name in ("l0", "l1")}, "pages of 8192 bytes where vLLM says 16384"),
        ({name: torch.zeros(11, 2, 32, 64) for name in ("l0", "l1")}, "does not hold 10 blocks"),
        ({name: torch.zeros(10, 2, 32, 64, device="meta") for name in ("l0", "l1")}, "KV pages on meta"),
        ({name: [torch.zeros(10, 2, 32, 64)] for name in ("l0", "l1")}, "more than one tensor"),
    ],
)
def test_layouts_that_are_not_understood_are_refused_with_the_reason(caches, reason):
    group = compat.check_supported(config(), cache_config())
    with pytest.raises(compat.UnsupportedError, match=reason):
        pages.collect_pages(caches, cache_config(), group)


@pytest.mark.parametrize("name", ["LBHNC", "LBNHC", "BLHNC", "BLNHC", "LHBNC", "BHLNC"])
def test_the_layouts_whose_page_is_not_one_run_are_refused_by_name(name):
    layout = KVCacheLayout[name]
    layer_stride, block_stride, *_ = compute_layout_strides(SPEC, 10, 2, layout)
    size = 2 * 10 * SPEC.page_size_bytes
    place = KVCacheTensor(size=size, layers=["l0", "l1"], layer_stride=layer_stride, block_stride=block_stride)
    views = create_kv_cache_views(torch.zeros(size, dtype=torch.int8), SPEC, 10, layout, place)
    kv_config = cache_config(kv_cache_layout=name)
    groups = compat.check_supported(config(), kv_config)
    caches = dict(zip(["l0", "l1"], views, strict=True))
    if name in ("LHBNC", "BHLNC"):
        with pytest.raises(compat.UnsupportedError, match=f"KV cache layout {name} with strides"):
            pages.collect_pages(caches, kv_config, groups)
        return
    layers, page_format = pages.collect_pages(caches, kv_config, groups)
    assert [(layer.block_stride, layer.page_bytes) for layer in layers] == [(block_stride, 16384)] * 2
    assert layers[1].address - layers[0].address == layer_stride
    assert page_format.order == name.replace("L", "").replace("B", "")


# ---- configuration --------------------------------------------------------------------------------------------------


def test_texts_do_not_depend_on_the_process():
    text = canonical({"b": {1, 2}, "a": object(), "_name": "x", "c": torch.float32})
    assert text == canonical({"c": torch.float32, "a": object(), "b": {2, 1}})
    assert "0x" not in text
    assert "_name" not in text


def test_long_rope_factors_depend_on_the_length():
    def model(rope, length):
        return SimpleNamespace(
            model_config=SimpleNamespace(hf_text_config=SimpleNamespace(rope_scaling=rope), max_model_len=length)
        )

    assert compat.long_rope_length(model({"rope_type": "longrope"}, 4096)) == 4096
    assert compat.long_rope_length(model({"rope_type": "linear", "factor": 2}, 4096)) == 0


# ---- vLLM's interface -----------------------------------------------------------------------------------------------

# What vLLM 0.33.0 may call, and what 0.32.0 has not. One that is not listed here was never looked at.
HOOK_NAMES = """
    bind_connector_metadata bind_gpu_block_pool bind_kv_cache_manager build_connector_meta build_connector_worker_meta
    build_kv_connector_stats build_prom_metrics clear_connector_metadata finish_forward
    get_block_ids_with_load_errors get_external_cache_hit_sources get_finished get_finished_count
    get_handshake_metadata get_kv_connector_kv_cache_events get_kv_connector_stats get_loaded_kv_cache_group_ids
    get_mem_pool_context get_num_new_matched_tokens get_required_kvcache_layout get_transfer_results
    handle_preemptions has_connector_metadata has_pending_block_frees has_pending_push_work on_new_request
    register_finished_partial_tail register_kv_caches request_finished requires_kv_delivery
    requires_piecewise_for_cudagraph reset_cache reset_capture_state restore_kv_caches role save_kv_layer
    set_host_xfer_buffer_ops set_xfer_handshake_metadata set_xfer_handshake_metadata_pp_aware shutdown
    start_load_kv supports_divergent_local_hybrid_hits supports_sleep_mode take_events unregister_kv_caches
    update_connector_output update_state_after_alloc wait_for_layer_load wait_for_save
"""
HOOKS = HOOK_NAMES.split()
SINCE_0_33 = ["restore_kv_caches", "supports_sleep_mode", "unregister_kv_caches"]


def test_this_is_the_vllm_that_was_asked_for(variant):
    assert compat.engine_version() == variant.version


def test_vllm_has_the_hooks_that_we_know_and_no_other(variant):
    theirs = sorted(name for name in dir(base.KVConnectorBase_V1) if not name.startswith("_"))
    assert theirs == [name for name in HOOKS if name not in SINCE_0_33 or variant.version != "0.32.0"]


@pytest.mark.parametrize("name", [name for name in HOOKS if hasattr(base.KVConnectorBase_V1, name)])
def test_every_hook_is_of_the_kind_and_has_the_parameters_that_vllm_uses(name):
    theirs = inspect.getattr_static(base.KVConnectorBase_V1, name)
    ours = inspect.getattr_static(OrbitKVConnector, name)
    assert type(ours) is type(theirs), "a method, a class method or a property"
    if callable(getattr(base.KVConnectorBase_V1, name)):
        left, right = getattr(OrbitKVConnector, name), getattr(base.KVConnectorBase_V1, name)
        assert list(inspect.signature(left).parameters) == list(inspect.signature(right).parameters)
        assert [(p.kind, p.default) for p in inspect.signature(left).parameters.values()] == [
            (p.kind, p.default) for p in inspect.signature(right).parameters.values()
        ]


def test_the_hook_for_several_groups_has_vllms_parameters():
    left, right = (kind.request_finished_all_groups for kind in (OrbitKVConnector, base.SupportsHMA))
    assert list(inspect.signature(left).parameters) == list(inspect.signature(right).parameters)


def test_nothing_abstract_is_left_and_later_hooks_exist():
    assert not OrbitKVConnector.__abstractmethods__
    assert issubclass(OrbitKVConnector, base.SupportsHMA)
    assert OrbitKVConnector.supports_sleep_mode({}) is True
    assert OrbitKVConnector.get_required_kvcache_layout(None) is None


def test_registering_twice_is_harmless():
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    register()
    register()
    assert KVConnectorFactory.get_connector_class_by_name("OrbitKVConnector") is OrbitKVConnector


# Methods of a worker that are about weights and change none.
HARMLESS = {
    "compute_weight_checksums",
    "init_weight_transfer_engine",
    "shutdown_weight_transfer_engine",
    "supports_draft_weight_updates",
}


def methods_of(module, name):
    """From the source: the modules of a GPU's workers cannot all be imported without one."""
    tree = ast.parse(Path(importlib.util.find_spec(module).origin).read_text())
    (found,) = (node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name)
    return {node.name for node in found.body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("entry", changes.WATCHED)
def test_vllm_has_the_methods_that_are_watched(entry):
    assert set(entry.methods) <= methods_of(entry.module, entry.name)


def test_no_other_method_of_a_worker_changes_weights():
    about = {name for name in methods_of(*changes.WORKER) if "weight" in name and not name.startswith("_")}
    assert about == set(changes.WORKER_METHODS) | HARMLESS


def test_a_model_of_an_unknown_architecture_has_no_class_and_that_is_told(caplog):
    config = SimpleNamespace(model_config=SimpleNamespace(model="m", architectures=["NobodyKnowsMe"]))
    with caplog.at_level(logging.WARNING, "orbitkv"):
        assert compat.model_class(config) is None
    assert "load_weights" in caplog.text and "m:" in caplog.text
