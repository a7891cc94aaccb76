"""LMCache's engine-side transfer, as its connector uses it: the client copies between paged KV and shared memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from peer import Client, Geometry

CALL_LIMIT_S = 60.0
POLLS = 1_000_000


@dataclass
class Prompt:
    """Token ids, which the server hashes, and a request of its own."""

    tokens: tuple[int, ...]
    request: str


class LMCacheClient(Client):
    """Registers its pages through the client of LMCache's benchmark, and submits transfers for the pages it is told.

    A look-up waits for its answer without the pause of 50 ms that the benchmark's has.
    """

    def __init__(self, settings: dict[str, Any], geometry: Geometry) -> None:
        import numpy as np
        import torch
        from lmcache.cli.commands.bench.server_bench import helpers
        from lmcache.cli.commands.bench.server_bench.client import ServerBenchClient
        from lmcache.cli.commands.bench.server_bench.config import BenchConfig

        helpers._INSTANCE_ID_BASE = os.getpid() * 100 + geometry.block_bytes.bit_length()
        helpers._MODEL_NAME = f"peers-{geometry.block_bytes}"
        shape = f"(2,{geometry.blocks},{geometry.block_tokens},{geometry.kv_heads},{geometry.head_dim})"
        tokens = geometry.blocks * geometry.block_tokens
        config = BenchConfig(
            settings["url"],
            settings["http_url"],
            "cpu",
            "engine_driven",
            1,
            False,
            tokens,
            f"{shape}:float16:{geometry.layers}",
            geometry.blocks,
            geometry.block_tokens,
        )
        self._helpers = helpers
        self._client = ServerBenchClient(config, lambda text: None)
        self._client.start()
        self._worker = self._client._workers[0]
        self._requests = self._client._req_client
        self._tokens = geometry.block_tokens
        self.unit_blocks = self._client._chunk_size // geometry.block_tokens
        self.views = [np.moveaxis(tensor.view(torch.int16).numpy(), 1, 0) for tensor in self._worker.kv_caches.values()]
        self._count = 0
        self._owed: list[str] = []

    def prepare(self, keys: Sequence[int]) -> Prompt:
        tokens = tuple(key * self._tokens + number for key in keys for number in range(self._tokens))
        return Prompt(tokens, "")

    def _key(self, prompt: Prompt, count: int, worker: bool) -> Any:
        more = {"worker_id": self._worker.spec.kv_worker_id} if worker else {}
        return self._helpers._make_key(prompt.tokens, prompt.request, start=0, end=count, world_size=1, **more)

    def _begin(self, prompt: Prompt) -> None:
        self._count += 1
        prompt.request = f"{os.getpid()}-{self._count}"
        self._owed.append(prompt.request)

    def _transfer(self, name: str, prompt: Prompt, pages: Sequence[int], **more: Any) -> bool:
        context = self._worker.transfer_context
        event = context.create_recorded_event()
        future = getattr(context, name)(
            prompt.request,
            self._key(prompt, len(pages) * self._tokens, worker=True),
            self._worker.kv_caches,
            [list(pages)],
            event,
            self.unit_blocks,
            **more,
        )
        return bool(future.result(timeout=CALL_LIMIT_S))

    def save(self, keys: Prompt, pages: Sequence[int]) -> int:
        self._begin(keys)
        return len(pages) if self._transfer("submit_store", keys, pages) else 0

    def _find(self, prompt: Prompt) -> int:
        self._begin(prompt)
        key = self._key(prompt, len(prompt.tokens), worker=False)
        if not self._helpers._send_lookup(self._requests, key, tp_size=1):
            raise TimeoutError("a look-up was not answered")
        chunks = self._helpers._poll_prefetch_status(self._requests, prompt.request, POLLS, 0.0)
        return self.unit_blocks * (chunks or 0)

    def lookup(self, keys: Prompt) -> int:
        return self._find(keys)

    def load(self, keys: Prompt, pages: Sequence[int]) -> int:
        found = self._find(keys)
        if found == 0:
            return 0
        done = self._transfer("submit_retrieve", keys, pages[:found], skip_first_n_tokens=0)
        return found if done else 0

    def rest(self) -> None:
        for request in self._owed:
            self._helpers._send_end_session(self._requests, request)
        self._owed.clear()

    def close(self) -> None:
        self.views = []
        self._client.close()
