"""Pools that are known, by exact class: where their pages lie; and what is refused, with the reason."""

from types import SimpleNamespace

import pytest
import torch
from cache_tree import PAGE, SLOTS, WINDOW, Tree, mha_pool, mla_pool, swa_pool
from sglang.srt.mem_cache import memory_pool, page_interleave_pool, unified_draft_pool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType

import orbitkv
from orbitkv.sglang import pools
from orbitkv.sglang.errors import UnsupportedError

FULL, SWA, MAMBA = ComponentType.FULL, ComponentType.SWA, ComponentType.MAMBA
PAGES = SLOTS // PAGE + 1  # with the one that is padding


def params_of(pool, **more):
    values = {
        "token_to_kv_pool_allocator": SimpleNamespace(get_kvcache=lambda: pool),
        "req_to_token_pool": None,
        "page_size": PAGE,
        "swa_retain_window": WINDOW,
        "swa_gates_prefix_match": True,
    }
    return SimpleNamespace(**(values | more))


def resolve(pool, *components, **more):
    return pools.resolve(params_of(pool, **more), components or (FULL,))


def refused(pool, *components, **more):
    with pytest.raises(UnsupportedError) as error:
        resolve(pool, *components, **more)
    assert "start this engine without OrbitKV's linker" in str(error.value)
    return str(error.value)


def page_of(layer, number):
    import ctypes

    return ctypes.string_at(layer.address + number * layer.block_stride_bytes, layer.page_bytes)


def bytes_of(buffer, number):
    return buffer[number * PAGE : (number + 1) * PAGE].contiguous().view(torch.uint8).numpy().tobytes()


@pytest.mark.parametrize("make", [mha_pool, mla_pool], ids=["mha", "mla"])
def test_a_layer_is_where_the_pool_has_its_page(make):
    pool = make()
    (found,) = resolve(pool)
    if make is mla_pool:
        buffers = list(pool.kv_buffer)
    else:
        # K and V of a layer share an allocation, and lie behind each other in a block.
        buffers = [buffer for pair in zip(pool.k_buffer, pool.v_buffer, strict=True) for buffer in pair]
        assert pool.k_buffer[0].untyped_storage().data_ptr() == pool.v_buffer[0].untyped_storage().data_ptr()
    for number, buffer in enumerate(buffers):
        buffer.copy_(torch.randn(buffer.shape, generator=torch.Generator().manual_seed(number)))
    for page in (0, 1, PAGES - 1):
        assert [page_of(layer, page) for layer in found.layers] == [bytes_of(buffer, page) for buffer in buffers]
    assert found.page_count == PAGES
    assert {layer.block_count for layer in found.layers} == {PAGES}
    # A forward may use a layer when its buffers, and all before them, are copied.
    of_layer = len(buffers) // pool.layer_num
    assert resolve(pool).copied_layers == tuple(of_layer * (layer + 1) for layer in range(pool.layer_num))


def test_layers_of_two_sizes_are_cut_into_equal_pieces():
    pool = mha_pool(v_head_dim=4)
    for number, buffer in enumerate([*pool.k_buffer, *pool.v_buffer]):
        buffer.copy_(torch.randn(buffer.shape, generator=torch.Generator().manual_seed(number)))
    (found,) = resolve(pool)
    assert len({layer.page_bytes for layer in found.layers}) == 1
    pairs = zip(pool.k_buffer, pool.v_buffer, strict=True)
    expected = b"".join(bytes_of(k, 5) + bytes_of(v, 5) for k, v in pairs)
    assert b"".join(page_of(layer, 5) for layer in found.layers) == expected
    assert [entry.shape for entry in found.formats[:2]] == [(PAGE, 2, 8), (PAGE, 2, 4)]
    # K has two of the pieces.
    assert resolve(pool).copied_layers == tuple(3 * (layer + 1) for layer in range(pool.layer_num))


def test_windows_are_a_group_of_their_own():
    group = resolve(swa_pool(), FULL, SWA)
    assert [(pool.name, pool.rule, pool.span_tokens) for pool in group] == [
        ("kv", "full_attention", 0),
        ("swa", "sliding_window", WINDOW + 1),
    ]
    assert [pool.page_count for pool in group] == [PAGES, SLOTS // 2 // PAGE + 1]
    assert group.layer_count == 4
    # One pool is copied after the other.
    assert group.copied_layers == (sum(len(pool.layers) for pool in group),) * 4
    # Layers without a cache of their own are counted too: a forward waits for layers by number.
    sparse = swa_pool(swa_attention_layer_ids=[0, 2], full_attention_layer_ids=[7])
    assert resolve(sparse, FULL, SWA).layer_count == 8


@pytest.mark.parametrize(("make", "replicated"), [(mha_pool, False), (mla_pool, True)])
def test_latent_pages_are_the_same_on_all_ranks(make, replicated):
    assert resolve(make()).rank_replicated is replicated
    windows = swa_pool(token_to_kv_pool_class=memory_pool.MHATokenToKVPool)
    assert resolve(windows, FULL, SWA).rank_replicated is False


@pytest.mark.parametrize("window", [1, 15, 16, 17, 32, 33, 100])
def test_a_boundary_demands_what_sglang_loads(window):
    group = resolve(swa_pool(), FULL, SWA, swa_retain_window=window)
    contract = orbitkv.Contract(group.declared(), hash_block_tokens=PAGE)
    for boundary in range(1, 12):
        # SGLang asks for the window's pages at the end of what it lacks, and for all of it when that is shorter.
        trailing = min(boundary, -(-window // PAGE))
        assert contract.demand(0, boundary) == [(0, 0, boundary), (1, boundary - trailing, trailing)]


OTHER_CLASSES = [
    (module, name)
    for module in (memory_pool, page_interleave_pool, unified_draft_pool)
    for name in sorted(vars(module))
    if isinstance(getattr(module, name), type)
    and issubclass(getattr(module, name), memory_pool.KVCache)
    and getattr(module, name)
    not in (memory_pool.KVCache, memory_pool.MHATokenToKVPool, memory_pool.MLATokenToKVPool, SWAKVPool)
]


@pytest.mark.parametrize(("module", "name"), OTHER_CLASSES, ids=[name for _, name in OTHER_CLASSES])
def test_another_class_of_pools_is_refused_by_its_name(module, name):
    pool = object.__new__(getattr(module, name))
    assert f"of the class {name};" in refused(pool)


def test_a_class_of_ones_own_is_refused():
    other = type("BetterPool", (memory_pool.MHATokenToKVPool,), {})
    pool = mha_pool()
    pool.__class__ = other
    assert "KV pools of the class BetterPool" in refused(pool)
    windows = swa_pool()
    windows.swa_kv_pool.__class__ = other
    assert "KV pools of the class BetterPool" in refused(windows, FULL, SWA)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_cache_layout": "hnd"}, "the KV cache layout hnd"),
        ({"kv_cache_layout": "vectorized_5d"}, "the KV cache layout vectorized_5d"),
        ({"k_scale_buffer": [1]}, "with scales beside them"),
        ({"native_k_scale_buffer": [1]}, "with scales beside them"),
        ({"quant_method": SimpleNamespace(name="int4")}, "quantized by int4"),
        ({"page_size": 2 * PAGE}, "pages of 32 tokens beside pages of 16"),
        ({"layer_shard_enabled": True}, "layer_shard_enabled"),
        ({"post_capture_active": True}, "post_capture_active"),
        ({"requires_physical_write_loc": True}, "requires_physical_write_loc"),
    ],
)
def test_a_known_class_in_an_unknown_form_is_refused(change, reason):
    pool = mha_pool()
    vars(pool).update(change)
    assert reason in refused(pool)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"kv_scale_buffer": [1]}, "with scales beside them"),
        ({"use_dsa": True}, "sparse latent attention"),
        ({"dcp_replicated": True}, "dcp_replicated"),
    ],
)
def test_latent_pools_in_an_unknown_form_are_refused(change, reason):
    pool = mla_pool()
    vars(pool).update(change)
    assert reason in refused(pool)


def test_pages_that_are_no_run_of_bytes_are_refused():
    pool = mha_pool()
    pool.k_buffer[1] = pool.k_buffer[1].transpose(1, 2)
    assert "a page is not one run of bytes" in refused(pool)
    pool = mha_pool()
    pool.k_buffer[1] = torch.empty(pool.k_buffer[1].shape, device="meta")
    assert "KV pages on meta yet" in refused(pool)


def test_a_buffer_whose_memory_has_shrunk_is_refused():
    pool = mha_pool()
    storage = pool.v_buffer[0].untyped_storage()
    storage.resize_(storage.nbytes() - 1)
    assert "buffer 1: a buffer that reaches beyond its memory" in refused(pool)


def test_combinations_that_are_not_known_are_refused():
    assert "KV pools of the class SWAKVPool" in refused(swa_pool(), FULL)
    assert "with the components FULL, MAMBA, SWA" in refused(swa_pool(), FULL, SWA, MAMBA)
    assert "a MHATokenToKVPool with the components FULL, SWA" in refused(mha_pool(), FULL, SWA)
    assert "components of the radix cache" in refused(mha_pool(), component_registry_override={FULL: object})
    assert "that a match does not need" in refused(swa_pool(), FULL, SWA, swa_gates_prefix_match=False)


def test_what_is_refused_ends_the_start_before_a_manager_hears_of_it(tmp_path):
    pool, connected = mha_pool(), []
    pool.kv_cache_layout = "hnd"
    with pytest.raises(UnsupportedError, match="the KV cache layout hnd"):
        Tree(tmp_path / "socket", pool=pool, connect=lambda *of: connected.append(of))
    assert connected == []


def test_slots_are_pages():
    (pool,) = resolve(mha_pool())
    pages = torch.tensor([7, 1, PAGES - 1])
    slots = (pages[:, None] * PAGE + torch.arange(PAGE)).flatten()
    assert pool.pages(slots) == [7, 1, PAGES - 1]
    assert pool.pages(slots[:0]) == []


@pytest.mark.parametrize(
    "slots",
    [
        torch.arange(PAGE, 2 * PAGE - 1),  # not whole
        torch.arange(PAGE + 1, 2 * PAGE + 1),  # not aligned
        torch.arange(2 * PAGE, PAGE, -1),  # another order
        torch.cat([torch.arange(PAGE, PAGE + 8), torch.arange(2 * PAGE, 2 * PAGE + 8)]),
        torch.arange(0, PAGE),  # padding
        torch.arange(PAGES * PAGE, (PAGES + 1) * PAGE),  # behind the end
        torch.arange(-PAGE, 0),
    ],
)
def test_other_slots_are_no_pages(slots):
    (pool,) = resolve(mha_pool())
    with pytest.raises(pools.PageError):
        pool.pages(slots)
