"""OrbitKV as a peer among peers: a Manager whose pool outlives it, the connector, and the client of its Python API."""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from harness.manager import Manager
from harness.processes import SHARED_MEMORY, session_pids
from harness.vllm_server import connector_config
from peer import Client, Config, Geometry, Peer, key_bytes, plain_pages

JOB_LIMIT_S = 30.0
SSD_BYTES = 4 << 30
# For all 256 blocks from the SSD; an engine gives the time that it takes to compute them.
LOAD_WAIT_S = 5.0
# A scheduler goes on without an answer after 50 ms; here everybody waits for it.
QUERY_DEADLINE_MS = 5000


class OrbitKV(Peer):
    name = "orbitkv"
    label = "OrbitKV"
    choices = (
        "--pool-path DIR: the pool outlives its Manager, as it does under systemd without a setting",
        "query_deadline_ms 5000 in suites A, C and D: the client waits for an answer, as the others do",
        "no --pool-path in suites C and D, so that nothing of a killed Manager's memory is left",
        "kv_load_failure_policy recompute, as `orbitkv run` sets it",
    )

    def __init__(self, survives: bool = True) -> None:
        """`survives`: a pool with a name; without, it ends with the Manager and its last client."""
        super().__init__()
        self._survives = survives
        self._pool: tempfile.TemporaryDirectory[str] | None = None

    def start(self, config: Config) -> None:
        if self.server is None:
            extra = []
            if self._survives:
                self._pool = tempfile.TemporaryDirectory(prefix="orbitkv-peers-", dir=SHARED_MEMORY)
                extra = ["--pool-path", self._pool.name]
            if config.ssd is not None:
                extra += ["--ssd-path", str(config.ssd / "store"), "--ssd-bytes", str(SSD_BYTES)]
            self.server = Manager(
                config.folder / "run" / "manager.sock", str(config.pool_bytes), config.folder / "manager.log", extra
            )
            self.server.start()
            self.server.wait_serving(0)  # until the pool has its memory
        else:
            self.server.start()

    def close(self) -> None:
        if self.server is not None:
            self.server.close()
        if self._pool is not None:
            self._pool.cleanup()

    def pids(self) -> list[int]:
        return session_pids(self.server.pid)

    def ssd_bytes(self, config: Config) -> int:
        return int(self.server.sample("orbitkv_ssd_cached_bytes_total"))

    def connector(self) -> dict[str, Any]:
        return connector_config(self.server.socket)

    def client_settings(self) -> dict[str, Any]:
        return {"socket": str(self.server.socket)}


class OrbitKVClient(Client):
    def __init__(self, settings: dict[str, Any], geometry: Geometry) -> None:
        import orbitkv

        digest = hashlib.sha256(f"peers {geometry}".encode()).digest()
        options = orbitkv.ClientOptions(
            socket=settings["socket"],
            instance=f"peers-{os.getpid()}-{geometry.block_bytes}",
            role="both",
            computation_digest=digest,
            representation_digest=digest,
            query_deadline_ms=QUERY_DEADLINE_MS,
        )
        self.views = plain_pages(geometry)
        self._orbitkv = orbitkv
        self._client = orbitkv.Client(options)
        layers = [orbitkv.Layer.of(layer) for layer in self.views]
        self._client.register_layout(layers, block_tokens=geometry.block_tokens)
        if not self._client.wait_up(10):
            raise RuntimeError("the client did not reach the Manager")
        self._requests = 0

    def prepare(self, keys: Sequence[int]) -> Any:
        return self._orbitkv.BlockHashes([key_bytes(key) for key in keys])

    def _wait(self, job: int) -> Any:
        end = time.monotonic() + JOB_LIMIT_S
        while time.monotonic() < end:
            self._client.wait_job(job, JOB_LIMIT_S)
            for completion in self._client.poll():
                if completion.job == job:
                    return completion
        raise TimeoutError("a job of the client did not end")

    def save(self, keys: Any, pages: Sequence[int]) -> int:
        job = self._client.publish(keys, pages)
        return 0 if job is None else sum(outcome in (1, 2) for outcome in self._wait(job).outcomes)

    def _ask(self, keys: Any) -> Any:
        """Until what was on the SSD alone is in the pool as well."""
        self._requests += 1
        end = time.monotonic() + 2 * LOAD_WAIT_S
        while True:
            answer = self._client.query(f"peers-{self._requests}", keys, wait_s=5.0, load_wait_s=LOAD_WAIT_S)
            if answer is None or answer.reason != "loading" or time.monotonic() >= end:
                return answer
            time.sleep(0.0005)

    def lookup(self, keys: Any) -> int:
        answer = self._ask(keys)
        if answer is None or answer.found_blocks == 0:
            return 0
        self._client.release_lease(answer.lease)
        return int(answer.found_blocks)

    def load(self, keys: Any, pages: Sequence[int]) -> int:
        answer = self._ask(keys)
        found = 0 if answer is None else answer.found_blocks
        if found == 0:
            return 0
        grant = self._client.begin_restore(answer.lease, found)
        outcomes = self._wait(self._client.restore(grant, keys[:found], pages[:found])).outcomes
        return next((number for number, outcome in enumerate(outcomes) if outcome != 4), len(outcomes))

    def close(self) -> None:
        self._client.close()
