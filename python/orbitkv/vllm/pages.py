"""Where vLLM keeps the pages of its cache, and in which form: tensors, layouts, backends.

Like compat.py checked with 0.32.0 and 0.33.0; what is not known is refused by name rather than guessed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from orbitkv.vllm.compat import page_content_bytes, refuse
from orbitkv.vllm.groups import Group, Groups


@dataclass(frozen=True)
class LayerPages:
    """One layer's pages. Addresses and sizes in bytes; block b starts at address + b * block_stride."""

    address: int
    block_stride: int
    page_bytes: int
    block_count: int
    tensor: Any


@dataclass(frozen=True)
class PageFormat:
    """Of a layer; of several layers that differ, one behind the other. `page_bytes`: what is copied as one piece."""

    order: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str
    page_bytes: int


def _page_order(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Names of the page's dimensions from outer to inner: H heads, N tokens, C content of a [B, H, N, C] view."""
    names = "HNC"[-len(shape) :] if len(shape) <= 3 else "".join(chr(ord("a") + i) for i in range(len(shape)))
    return "".join(names[i] for i in sorted(range(len(shape)), key=lambda i: (-strides[i], i)))


def _is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def layer_pages(
    name: str, tensor: Any, block_count: int, page_bytes: int, layout: str = ""
) -> tuple[LayerPages, PageFormat]:
    """Where the pages of one layer lie, from the tensor's own strides. A page must be one run of bytes."""
    if isinstance(tensor, (list, tuple)):
        raise refuse(f"layer {name}: more than one tensor per layer")
    if tensor.device.type != "cpu":
        raise refuse(f"KV pages on {tensor.device.type} yet (CPU engines only)")
    if tensor.dim() < 2 or tensor.shape[0] % block_count != 0:
        raise refuse(f"layer {name}: shape {tuple(tensor.shape)} does not hold {block_count} blocks")
    per_block = tensor.shape[0] // block_count  # kernel blocks of one block
    item = tensor.element_size()
    inner_shape, inner_strides = tuple(tensor.shape[1:]), tuple(tensor.stride()[1:])
    kernel_bytes = item
    for size in inner_shape:
        kernel_bytes *= size
    stride = tensor.stride(0) * item
    if not _is_compact(inner_shape, inner_strides) or (per_block > 1 and stride != kernel_bytes):
        raise refuse(
            f"layer {name}: the KV cache layout {layout} with strides {tuple(tensor.stride())} (a page is not one run "
            "of bytes)"
        )
    if kernel_bytes * per_block != page_bytes:
        raise refuse(f"layer {name}: pages of {kernel_bytes * per_block} bytes where vLLM says {page_bytes}")
    pages = LayerPages(tensor.data_ptr(), stride * per_block, page_bytes, block_count, tensor)
    page_format = PageFormat(
        _page_order(inner_shape, inner_strides),
        (per_block, *inner_shape),
        (tensor.stride(0), *inner_strides) if per_block > 1 else (0, *inner_strides),
        str(tensor.dtype).removeprefix("torch."),
        page_bytes,
    )
    return pages, page_format


def collect_pages(
    kv_caches: dict[str, Any], kv_cache_config: Any, groups: Groups, number: int = 0
) -> tuple[list[LayerPages], PageFormat]:
    """Pages of all layers of a group in the model's order, each storage place once, and their format.

    Groups lie over each other: a block's bytes belong to the group that has it. Layers whose pages differ in size are
    cut into pieces of one size.
    """
    names = list(kv_cache_config.kv_cache_groups[number].layer_names)
    missing = [name for name in names if name not in kv_caches]
    if missing:
        raise refuse(f"layers without a KV tensor ({', '.join(missing[:3])})")
    layout = str(getattr(kv_cache_config, "kv_cache_layout", None) or "of this engine")
    places: dict[int, LayerPages] = {}
    formats: list[PageFormat] = []
    for name in names:
        tensor = kv_caches[name]
        if not isinstance(tensor, (list, tuple)) and tensor.data_ptr() in places:
            continue  # it uses the cache of an earlier layer
        member = groups[number].layer_specs.get(name)
        content = groups[number].page_bytes if member is None else page_content_bytes(member)
        pages, page_format = layer_pages(name, tensor, int(kv_cache_config.num_blocks), content, layout)
        places[pages.address] = pages
        formats.append(page_format)
    piece = math.gcd(*(pages.page_bytes for pages in places.values()))
    pieces = [
        replace(pages, address=pages.address + at, page_bytes=piece)
        for pages in places.values()
        for at in range(0, pages.page_bytes, piece)
    ]
    return pieces, _joined(formats, piece)


def _joined(formats: Sequence[PageFormat], piece: int) -> PageFormat:
    if len(set(formats)) == 1:
        return formats[0]
    return PageFormat(
        "+".join(one.order for one in formats),
        tuple(size for one in formats for size in one.shape),
        tuple(stride for one in formats for stride in one.strides),
        "+".join(one.dtype for one in formats),
        piece,
    )


def attention_backend(vllm_config: Any, layer_names: Iterable[str]) -> str:
    layers = vllm_config.compilation_config.static_forward_context
    names = set()
    for layer_name in layer_names:
        layer = layers[layer_name]
        get_backend: Callable[[], Any] | None = getattr(layer, "get_attn_backend", None)
        backend = get_backend() if get_backend is not None else layer.attn_backend
        names.add(str(backend.get_name()))
    return "+".join(sorted(names))


def instruction_set(vllm_config: Any, group: Group) -> str:
    """The CPU backend orders a page's elements by instruction set and vector width."""
    import torch
    from vllm.v1.attention.backends import cpu_attn

    chosen = set()
    for spec in group.layer_specs.values() or (group.spec,):
        size, dtype = getattr(spec, "head_size", None), getattr(spec, "dtype", None)
        if dtype is None:  # a state has no heads; its parts are in the order of its shapes
            chosen.add("/".join(str(tuple(shape)) for shape in getattr(spec, "shapes", ())))
            continue
        cache_dtype = str(vllm_config.cache_config.cache_dtype)
        chosen.add(str(cpu_attn._get_attn_isa(dtype, group.block_tokens, size, cache_dtype)))
    return f"{'+'.join(sorted(chosen))}/{torch.backends.cpu.get_cpu_capability()}"
