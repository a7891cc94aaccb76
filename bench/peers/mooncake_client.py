"""Mooncake's thin client of the process that owns the segment: a Unix socket and shared memory, on one host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from peer import Client, Geometry, key_bytes

POOL_BYTES = 1 << 30  # of the client's own, which holds its pages
BUFFER_BYTES = 256 << 20


class MooncakeClient(Client):
    """Pages lie in memory that the client has from its owner; a block goes as a list of its pages."""

    def __init__(self, settings: dict[str, Any], geometry: Geometry) -> None:
        import numpy as np
        from mooncake.store import MooncakeDistributedStore

        self._store = MooncakeDistributedStore()
        status = self._store.setup_dummy(POOL_BYTES, BUFFER_BYTES, settings["daemon"])
        if status != 0:
            raise RuntimeError(f"setup_dummy gave {status}")
        layer_bytes = geometry.blocks * geometry.page_bytes
        base = self._store.alloc_from_mem_pool(geometry.layers * layer_bytes)
        if not base:
            raise RuntimeError("no memory for the pages")
        status = self._store.register_buffer(base, geometry.layers * layer_bytes)
        if status != 0:
            raise RuntimeError(f"register_buffer gave {status}")
        memory = (ctypes.c_uint8 * (geometry.layers * layer_bytes)).from_address(base)
        whole = np.frombuffer(memory, dtype=np.uint8)
        self.views = list(whole.reshape(geometry.layers, geometry.blocks, geometry.page_bytes))
        starts = [base + layer * layer_bytes for layer in range(geometry.layers)]
        size = geometry.page_bytes
        self._places = [[start + block * size for start in starts] for block in range(geometry.blocks)]
        self._sizes = [size] * geometry.layers
        self._geometry = geometry
        self._at_once = settings["loads_at_once"]

    def prepare(self, keys: Sequence[int]) -> list[str]:
        return [f"{self._geometry.block_bytes}-{key_bytes(key).hex()}" for key in keys]

    def save(self, keys: list[str], pages: Sequence[int]) -> int:
        addresses = [self._places[page] for page in pages]
        put = self._store.batch_put_from_multi_buffers(keys, addresses, [self._sizes] * len(pages))
        return sum(status == 0 for status in put)

    def lookup(self, keys: list[str]) -> int:
        found = self._store.batch_is_exist(keys)
        return next((number for number, status in enumerate(found) if status != 1), len(found))

    def load(self, keys: list[str], pages: Sequence[int]) -> int:
        for first in range(0, len(keys), self._at_once):
            some = keys[first : first + self._at_once]
            addresses = [self._places[page] for page in pages[first : first + self._at_once]]
            got = self._store.batch_get_into_multi_buffers(some, addresses, [self._sizes] * len(some))
            for number, count in enumerate(got, first):
                if count != self._geometry.block_bytes:
                    return number
        return len(keys)

    def empty(self) -> bool:
        self._store.remove_all()
        return True

    def close(self) -> None:
        self.views = []
        self._store.close()
