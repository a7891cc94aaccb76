"""Where SGLang keeps the pages of its cache: the pools that are known, by exact class.

A subclass may put other bytes into the same buffers, so what is not known by its own class is refused by name rather
than guessed. Checked with 0.5.23.

Units: bytes; a slot is one token's row of a buffer, or one recurrent state; a page is `page_size` slots, or one state.
Threads: any; nothing changes after construction.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

import orbitkv
from orbitkv.sglang.errors import refuse

# SGLang's names of pools (PoolName), in the order of our cache groups.
KV, SWA, MAMBA = "kv", "swa", "mamba"

MAX_PIECES = 4096  # of one page, over all layers; the client's limit


class PageError(ValueError):
    """Slots that are not whole pages of a pool."""


@dataclass(frozen=True)
class BufferFormat:
    """One buffer's part of a page. What the bytes are, never where they lie or how many pages there are."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class DevicePool:
    """One pool: a cache group of ours.

    Attributes:
        name: SGLang's name of it.
        pool_class: SGLang's class.
        rule: what a boundary needs of it, as of `orbitkv.Group`.
        span_tokens: of a window; the next token counts.
        page_slots: slots of one page.
        page_count: pages that the buffers hold.
        first_page: the pages before it are padding.
        formats: of each buffer's part of a page, in the order of the copy.
        layers: the same buffers, cut into pieces of one size.
        pieces: of each buffer, how many.
    """

    name: str
    pool_class: str
    rule: Literal["full_attention", "sliding_window", "recurrent"]
    span_tokens: int
    page_slots: int
    page_count: int
    first_page: int
    formats: tuple[BufferFormat, ...]
    layers: tuple[orbitkv.Layer, ...]
    pieces: tuple[int, ...]

    def pages(self, slots: Any) -> list[int]:
        """The pages that a tensor of slots means, in its order.

        Raises:
            PageError: a page is not whole, not contiguous, misaligned, padding, or outside the pool.
        """
        rows = slots.detach().cpu().numpy().reshape(-1)
        if rows.size % self.page_slots:
            raise PageError(f"pool {self.name}: {rows.size} slots are no whole pages of {self.page_slots}")
        grid = rows.reshape(-1, self.page_slots)
        first = grid[:, 0]
        if (grid - first[:, None] != np.arange(self.page_slots)).any() or (first % self.page_slots).any():
            raise PageError(f"pool {self.name}: the slots of a page are not contiguous and aligned")
        pages = first // self.page_slots
        if pages.size and (pages.min() < self.first_page or pages.max() >= self.page_count):
            raise PageError(f"pool {self.name}: pages {pages.min()} to {pages.max()} of {self.page_count}")
        numbers: list[int] = pages.tolist()
        return numbers


class DevicePoolGroup:
    """All pools of one engine process; cache group i is the i-th one.

    Attributes:
        page_size: tokens of a page, in all of them.
        layer_count: over all pools, as SGLang counts layers for its load counter.
        rank_replicated: every tensor parallel rank holds the same bytes.
        copied_layers: for each of SGLang's layers, how many of a restore's, from the first one on, must be in their
            pages before a forward may use it. A restore copies one pool after the other; with several of them the
            forward waits for all.
    """

    def __init__(
        self, pools: Sequence[DevicePool], page_size: int, layer_count: int, *, rank_replicated: bool = False
    ) -> None:
        self._pools = tuple(pools)
        self.page_size = page_size
        self.layer_count = layer_count
        self.rank_replicated = rank_replicated
        self.by_name: Mapping[str, DevicePool] = {pool.name: pool for pool in pools}
        self.copied_layers = _copied_layers(pools, layer_count)

    def __len__(self) -> int:
        return len(self._pools)

    def __iter__(self) -> Iterator[DevicePool]:
        return iter(self._pools)

    def __getitem__(self, number: int) -> DevicePool:
        return self._pools[number]

    def declared(self) -> list[orbitkv.Group]:
        return [
            orbitkv.Group(block_tokens=self.page_size, kind=pool.rule, span_tokens=pool.span_tokens, layers=pool.layers)
            for pool in self._pools
        ]

    def register(self, client: orbitkv.Client) -> None:
        client.register_groups(self.declared(), hash_block_tokens=self.page_size)


def _copied_layers(pools: Sequence[DevicePool], layer_count: int) -> tuple[int, ...]:
    pieces = [pool.pieces for pool in pools]
    buffers = pieces[0]
    if len(pieces) > 1 or len(buffers) % layer_count:
        return (sum(map(sum, pieces)),) * layer_count
    of_layer = len(buffers) // layer_count
    return tuple(itertools.accumulate(buffers))[of_layer - 1 :: of_layer]


# ---- buffers --------------------------------------------------------------------------------------------------------


def _page_layers(name: str, buffers: Sequence[Any], page_slots: int) -> tuple[list[orbitkv.Layer], list[BufferFormat]]:
    """Each buffer's pages and their form. A buffer is [slots, ...]; a page of it must be one run of bytes."""
    layers: list[orbitkv.Layer] = []
    formats: list[BufferFormat] = []
    for number, buffer in enumerate(buffers):
        where = f"pool {name}, buffer {number}"
        if buffer.device.type != "cpu":
            raise refuse(f"KV pages on {buffer.device} yet (CPU engines only)")
        slots, item = int(buffer.shape[0]), int(buffer.element_size())
        slot_bytes = item * math.prod(int(size) for size in buffer.shape[1:])
        if slots < page_slots or slot_bytes == 0:
            raise refuse(f"{where}: a buffer of the shape {tuple(buffer.shape)}")
        strides = tuple(int(stride) for stride in buffer.stride())
        if not _is_compact(tuple(buffer.shape[1:]), strides[1:]) or (
            page_slots > 1 and strides[0] * item != slot_bytes
        ):
            raise refuse(f"{where}: strides {strides} (a page is not one run of bytes)")
        storage = buffer.untyped_storage()
        begin = int(buffer.storage_offset()) * item
        end = begin + (slots - 1) * strides[0] * item + slot_bytes
        if end > int(storage.nbytes()):
            raise refuse(f"{where}: a buffer that reaches beyond its memory")
        layers.append(
            orbitkv.Layer(
                address=int(storage.data_ptr()) + begin,
                block_stride_bytes=strides[0] * item * page_slots,
                page_bytes=slot_bytes * page_slots,
                block_count=slots // page_slots,
                keepalive=buffer,
            )
        )
        dtype = str(buffer.dtype).removeprefix("torch.")
        formats.append(BufferFormat((page_slots, *(int(size) for size in buffer.shape[1:])), dtype))
    return layers, formats


def _is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for size, stride in zip(reversed(shape), reversed(strides), strict=True):
        if size != 1 and stride != expected:
            return False
        expected *= int(size)
    return True


def _pieces(name: str, layers: Sequence[orbitkv.Layer]) -> tuple[orbitkv.Layer, ...]:
    """The same bytes in pieces of one size, which a cache group needs."""
    size = math.gcd(*(layer.page_bytes for layer in layers))
    count = sum(layer.page_bytes // size for layer in layers)
    if count > MAX_PIECES:
        raise refuse(f"pool {name}: buffers whose pages have only {size} bytes in common ({count} pieces)")
    return tuple(
        orbitkv.Layer(layer.address + at, layer.block_stride_bytes, size, layer.block_count, layer.keepalive)
        for layer in layers
        for at in range(0, layer.page_bytes, size)
    )


def _pool(name: str, pool: Any, buffers: Iterable[Any], page_slots: int, **rule: Any) -> DevicePool:
    listed = list(buffers)
    if not listed:
        raise refuse(f"pool {name} without buffers")
    whole, formats = _page_layers(name, listed, page_slots)
    layers = _pieces(name, whole)
    return DevicePool(
        name=name,
        pool_class=type(pool).__name__,
        page_slots=page_slots,
        page_count=min(layer.block_count for layer in whole),
        formats=tuple(formats),
        layers=layers,
        pieces=tuple(layer.page_bytes // layers[0].page_bytes for layer in whole),
        **({"span_tokens": 0, "first_page": 1} | rule),
    )


# ---- SGLang's classes -----------------------------------------------------------------------------------------------


def _mha_buffers(pool: Any) -> list[Any]:
    """K and V of each layer, in layer order."""
    layout = str(getattr(pool, "kv_cache_layout", "nhd"))
    if layout != "nhd":
        raise refuse(f"the KV cache layout {layout}")
    if any(getattr(pool, name, None) is not None for name in ("k_scale_buffer", "v_scale_buffer")) or (
        getattr(pool, "native_k_scale_buffer", None) is not None
    ):
        raise refuse("KV caches with scales beside them")
    return [buffer for pair in zip(pool.k_buffer, pool.v_buffer, strict=True) for buffer in pair]


def _mla_buffers(pool: Any) -> list[Any]:
    if getattr(pool, "kv_scale_buffer", None) is not None:
        raise refuse("KV caches with scales beside them")
    if getattr(pool, "use_dsa", False):
        raise refuse("sparse latent attention (DSA)")
    return list(pool.kv_buffer)


def _attention(name: str, pool: Any, page_size: int, **rule: Any) -> tuple[DevicePool, bool]:
    """A pool of attention keys and values, and whether every tensor parallel rank has the same bytes in it."""
    from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool

    known: dict[type, tuple[Callable[[Any], list[Any]], bool]] = {
        MHATokenToKVPool: (_mha_buffers, False),
        MLATokenToKVPool: (_mla_buffers, True),
    }
    if type(pool) not in known:
        raise refuse(f"KV pools of the class {type(pool).__name__}")
    if int(pool.page_size) != page_size:
        raise refuse(f"pool {name}: pages of {pool.page_size} tokens beside pages of {page_size}")
    method = getattr(getattr(pool, "quant_method", None), "name", "unquantized")
    if method != "unquantized":
        raise refuse(f"KV caches quantized by {method}")
    for flag in ("layer_shard_enabled", "post_capture_active", "requires_physical_write_loc", "dcp_replicated"):
        if getattr(pool, flag, False):
            raise refuse(f"KV pools with {flag}")
    buffers, replicated = known[type(pool)]
    return _pool(name, pool, buffers(pool), page_size, **({"rule": "full_attention"} | rule)), replicated


def _states(params: Any) -> DevicePool:
    from sglang.srt.mem_cache.memory_pool import HybridReqToTokenPool, MambaPool

    requests = params.req_to_token_pool
    pool: Any = getattr(requests, "mamba_pool", None)
    if type(requests) is not HybridReqToTokenPool or pool.__class__ is not MambaPool:
        raise refuse(f"recurrent states in a {pool.__class__.__name__} of a {type(requests).__name__}")
    if getattr(requests, "mamba_ckpt_pool", None) is not None:
        raise refuse("quantized checkpoints of recurrent states")
    for side in ("short_conv_pool", "ngram_pool"):
        if getattr(getattr(requests, side, None), "enabled", False):
            raise refuse(f"states beside the recurrent ones ({side})")
    if list(getattr(pool, "_slot_siblings", ())):
        raise refuse("states beside the recurrent ones")
    cache = pool.mamba_cache
    known = {"conv", "temporal"}
    more = [name for name, value in vars(cache).items() if name not in known and value is not None]
    if more or type(cache) is not MambaPool.State:
        raise refuse(f"recurrent states with {', '.join(more) or type(cache).__name__}")
    states = [state for state in (cache.temporal, *cache.conv) if state.numel() > 0]
    buffers = [state[layer] for layer in range(int(pool.num_mamba_layers)) for state in states]
    # Slot 0 belongs to requests that have none.
    return _pool(MAMBA, pool, buffers, 1, rule="recurrent", first_page=1)


def _window_tokens(params: Any) -> int:
    """As `orbitkv.Group` counts: SGLang's window is of the tokens before the next one."""
    if not getattr(params, "swa_gates_prefix_match", True):
        raise refuse("sliding windows that a match does not need")
    return int(params.swa_retain_window) + 1


def resolve(params: Any, components: Iterable[Any]) -> DevicePoolGroup:
    """The pools of an engine process, from the parameters of its radix cache.

    Raises:
        UnsupportedError: a pool, or a combination of them, that is not known.
    """
    from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool
    from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

    if getattr(params, "component_registry_override", None):
        raise refuse("components of the radix cache that are not SGLang's own")
    names = {str(component.name) for component in components}
    kvcache = params.token_to_kv_pool_allocator.get_kvcache()
    page_size = int(params.page_size)
    if type(kvcache) is SWAKVPool and names == {"FULL", "SWA"}:
        full, same = _attention(KV, kvcache.full_kv_pool, page_size)
        window, also = _attention(
            SWA, kvcache.swa_kv_pool, page_size, rule="sliding_window", span_tokens=_window_tokens(params)
        )
        # A forward waits for layers by their numbers in the model.
        layers = max(kvcache.layers_mapping) + 1 - int(kvcache.start_layer)
        return DevicePoolGroup([full, window], page_size, layers, rank_replicated=same and also)
    if type(kvcache) is HybridLinearKVPool and names == {"FULL", "MAMBA"}:
        full, _ = _attention(KV, kvcache.full_kv_pool, page_size)
        layers = max((*kvcache.full_attention_layer_id_mapping, *params.req_to_token_pool.mamba_map)) + 1
        # The states are cut over the ranks, whatever the attention's pool is.
        return DevicePoolGroup([full, _states(params)], page_size, layers - int(kvcache.start_layer))
    if names != {"FULL"}:
        raise refuse(f"a {type(kvcache).__name__} with the components {', '.join(sorted(names))}")
    full, replicated = _attention(KV, kvcache, page_size)
    return DevicePoolGroup([full], page_size, int(kvcache.layer_num), rank_replicated=replicated)
