"""What is refused by name, how pages are found in tensors, and which of vLLM's hooks the connector has."""

import inspect
from types import SimpleNamespace

import pytest
import torch
from vllm.distributed.kv_transfer.kv_connector.v1 import base
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec

from orbitkv.vllm import OrbitKVConnector, compat, register

pytestmark = pytest.mark.each_vllm

SPEC = FullAttentionSpec(block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32)


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
        (
            config(),
            cache_config(
                ChunkedLocalAttentionSpec(
                    block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32, attention_chunk_size=64
                )
            ),
            "chunked_local_attention",
        ),
        (config(), cache_config(SimpleNamespace(page_size_bytes=1)), "kind unknown"),
        (config(), cache_config(group={"host_resident": True}), "HiSparse"),
        (config(), cache_config(hisparse_host_num_blocks=4), "HiSparse"),
        (config(), cache_config(group={"enable_kv_transfer": False}), "excludes from transfer"),
        (config(), cache_config(group={"is_eagle_group": True}), "draft layers"),
        (config(), cache_config(hash_block_size=20), "no multiple of the hash block"),
        (config(), cache_config(cache_hit_alignment_tokens=64), "cache_hit_alignment_tokens 64"),
        (config(), cache_config(hash_block_size=16, cache_hit_alignment_tokens=16), "cache_hit_alignment_tokens 16"),
        (config(parallel={"nnodes": 2}), cache_config(), "another host"),
        (config(parallel={"decode_context_parallel_size": 2}), cache_config(), "decode_context_parallel_size"),
        (config(speculative=SimpleNamespace(method="eagle")), cache_config(), "'eagle'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(vllm_config, kv_config, reason):
    with pytest.raises(compat.UnsupportedError, match=reason) as caught:
        compat.check_supported(vllm_config, kv_config)
    assert "start this engine without OrbitKVConnector" in str(caught.value)


def test_a_drafter_without_cache_is_fine():
    compat.check_supported(config(speculative=SimpleNamespace(method="ngram")), cache_config())


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
    assert compat.ranks(config(parallel={"tensor_parallel_size": 4}), cache_config()) == compat.Ranks(4, 4, 1)
    replicated = cache_config()
    replicated.kv_tp_replicas = 2
    both = {"tensor_parallel_size": 4, "pipeline_parallel_size": 2}
    assert compat.ranks(config(parallel=both), replicated) == compat.Ranks(8, 4, 2)
    with pytest.raises(compat.UnsupportedError, match="replicas"):
        compat.ranks(config(parallel={"tensor_parallel_size": 3}), replicated)


# ---- pages ----------------------------------------------------------------------------------------------------------


def two_layers(block_count=10, shape=(2, 32, 64)):
    storage = torch.arange(2 * block_count * 2 * 32 * 64, dtype=torch.float32)
    views = storage.view(2, block_count, *shape)
    return {"l0": views[0], "l1": views[1]}


def test_pages_are_found_through_strides():
    group = compat.check_supported(config(), cache_config())
    caches = two_layers()
    layers, page_format = compat.collect_pages(caches, cache_config(), group)
    assert [layer.block_stride for layer in layers] == [16384, 16384]
    assert layers[1].address - layers[0].address == 10 * 16384
    assert layers[1].address == caches["l1"].data_ptr()
    assert (page_format.order, page_format.shape, page_format.dtype) == ("HNC", (1, 2, 32, 64), "float32")


def test_blocks_of_all_layers_together():
    group = compat.check_supported(config(), cache_config())
    storage = torch.zeros(10, 2, 2, 32, 64)
    layers, _ = compat.collect_pages({"l0": storage[:, 0], "l1": storage[:, 1]}, cache_config(), group)
    assert [layer.block_stride for layer in layers] == [32768, 32768]
    assert layers[1].address - layers[0].address == 16384


def test_the_order_of_a_page_is_part_of_its_format_and_the_number_of_blocks_is_not():
    group = compat.check_supported(config(), cache_config())
    _, hnc = compat.collect_pages(two_layers(), cache_config(), group)
    token_major = {name: view.view(10, 32, 2, 64).transpose(1, 2) for name, view in two_layers().items()}
    _, nhc = compat.collect_pages(token_major, cache_config(), group)
    assert (hnc.order, nhc.order) == ("HNC", "NHC")
    more = cache_config()
    more.num_blocks = 20
    _, same = compat.collect_pages(two_layers(20), more, group)
    assert same == hnc


def test_kernel_blocks_smaller_than_blocks():
    group = compat.check_supported(config(), cache_config())
    caches = {name: view.reshape(20, 2, 16, 64) for name, view in two_layers().items()}
    layers, page_format = compat.collect_pages(caches, cache_config(), group)
    assert layers[0].block_stride == 16384
    assert page_format.shape == (2, 2, 16, 64)


def test_layers_that_share_kv_count_once():
    group = compat.check_supported(config(), cache_config())
    caches = two_layers()
    layers, _ = compat.collect_pages({"l0": caches["l0"], "l1": caches["l0"]}, cache_config(), group)
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
        ({"l0": torch.zeros(10, 2, 32, 64), "l1": torch.zeros(10, 2, 64, 32)}, "different page formats"),
    ],
)
def test_layouts_that_are_not_understood_are_refused_with_the_reason(caches, reason):
    group = compat.check_supported(config(), cache_config())
    with pytest.raises(compat.UnsupportedError, match=reason):
        compat.collect_pages(caches, cache_config(), group)


# ---- configuration --------------------------------------------------------------------------------------------------


def test_texts_do_not_depend_on_the_process():
    text = compat.canonical({"b": {1, 2}, "a": object(), "_name": "x", "c": torch.float32})
    assert text == compat.canonical({"c": torch.float32, "a": object(), "b": {2, 1}})
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
