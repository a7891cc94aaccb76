"""Where an engine keeps its pages."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orbitkv._native import InvalidArgument


@dataclass(frozen=True)
class Layer:
    """One layer's pages: block b lies at ``address + b * block_stride_bytes`` and is ``page_bytes`` long.

    Attributes:
        address: of block 0's page.
        block_stride_bytes: from one block's page to the next one's.
        page_bytes: the same in all layers.
        block_count: blocks that the engine has.
        keepalive: whatever owns the memory; the client holds it until it is destroyed.
    """

    address: int
    block_stride_bytes: int
    page_bytes: int
    block_count: int
    keepalive: object = None

    @classmethod
    def of(cls, buffer: Any) -> Layer:
        """The layer of a writable array or buffer of shape [blocks, ...] whose blocks are contiguous inside.

        Raises:
            InvalidArgument: the buffer is read-only, has no block dimension, or a block is scattered.
        """
        try:
            view = memoryview(buffer)
        except TypeError as error:
            raise InvalidArgument("a layer needs an object with the buffer protocol, such as a numpy array") from error
        if view.readonly:
            raise InvalidArgument("a layer needs a writable buffer")
        if view.ndim < 1 or view.shape is None or view.strides is None or 0 in view.shape:
            raise InvalidArgument("a layer needs the shape [blocks, ...]")
        page_bytes = view.itemsize
        for size, stride in zip(reversed(view.shape[1:]), reversed(view.strides[1:]), strict=True):
            if stride != page_bytes and size > 1:
                raise InvalidArgument("the bytes of a block must be contiguous; only the block stride may be larger")
            page_bytes *= size
        if view.strides[0] < page_bytes and view.shape[0] > 1:
            raise InvalidArgument("blocks overlap: the block stride is smaller than a page")
        return cls(_address(buffer, view), view.strides[0], page_bytes, view.shape[0], buffer)


@dataclass(frozen=True, kw_only=True)
class Group:
    """One cache group: what a boundary needs of it, and where a worker keeps its pages.

    Attributes:
        block_tokens: tokens of one block.
        kind: "full_attention" needs all blocks up to the boundary, "sliding_window" those that the next token's window
            reaches, "recurrent" the last one, "chunked_local" those since the chunk that the next token is in began.
        span_tokens: of the window (the next token counts) or the chunk; 0 for the other kinds.
        layers: each layer's pages; a `Contract` needs none.
    """

    block_tokens: int
    kind: Literal["full_attention", "sliding_window", "recurrent", "chunked_local"] = "full_attention"
    span_tokens: int = 0
    layers: Sequence[Layer] = ()


def _address(buffer: Any, view: memoryview) -> int:
    interface = getattr(buffer, "__array_interface__", None)
    if interface is not None:
        return int(interface["data"][0])
    if not view.contiguous:
        raise InvalidArgument("a buffer with gaps needs __array_interface__, as numpy arrays have")
    return ctypes.addressof(ctypes.c_char.from_buffer(view))
