"""What the linker's calls cost SGLang's scheduler thread, and how fast it loads.

The pages of a prompt are stored once in a real Manager, then asked for, loaded and offered again and again. No model
and no tree: the transfers are those that SGLang's tree makes. Beside the look-up stands the client's own question with
hashes that are prepared, which is what the Manager and the rings need of it. Beside the load of a prompt of 4,096
tokens stands a plain copy of the same bytes within the pool.

Run by bench/run.py in the environment of tools/sglang_rig.py; prints rows as JSON. An argument is the number of rounds.
"""

from __future__ import annotations

import hashlib
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from cost_rows import row
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.hicache_storage import PoolName, PoolTransfer
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.unified_cache.component_type import ComponentType
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

import orbitkv
from orbitkv.sglang import OrbitKVLinker

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))

from harness.manager import Manager

PAGE_TOKENS = 16
PAGES = 256
LOADS = 24
COPY_THREADS = 2
RETRY_S = 0.03  # longer than the linker keeps an answer that may change
ASLEEP_S = 0.002  # without work for so long the Manager sleeps, and a look-up has to wake it
# What a look-up of so many pages may take at the median.
AIMS_US = {"lookup": 50.0}


@dataclass(frozen=True)
class Shape:
    """Of a model's keys and values, with heads of 64 numbers, and of the pool."""

    layers: int
    heads: int
    dtype: torch.dtype
    pages: int


SMALL = Shape(2, 2, torch.bfloat16, PAGES)
# SmolLM2-135M in float32, with room to load a prompt beside itself.
SMOLLM2 = Shape(30, 3, torch.float32, 2 * PAGES)


class Connected:
    """A client at once, in a namespace of its own."""

    def __init__(self, socket: Path, group: Any, name: str) -> None:
        self.client = orbitkv.Client(
            orbitkv.ClientOptions(
                socket=str(socket),
                instance=name,
                role="both",
                computation_digest=digest("computation"),
                representation_digest=digest(name),
                name="bench",
                copy_threads=COPY_THREADS,
            )
        )
        group.register(self.client)

    def renew(self) -> None:
        raise NotImplementedError("nothing is flushed here")

    def close(self, timeout_s: float) -> None:
        self.client.close(timeout_s)


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def keys(name: str) -> list[str]:
    return [digest(f"{name} {page}").hex() for page in range(PAGES)]


def linker_of(socket: Path, shape: Shape) -> tuple[OrbitKVLinker, MHATokenToKVPool]:
    """Once connected, with the pool that it copies from and to."""
    slots = (shape.pages + 1) * PAGE_TOKENS
    pool = MHATokenToKVPool(
        size=slots,
        page_size=PAGE_TOKENS,
        dtype=shape.dtype,
        head_num=shape.heads,
        head_dim=64,
        layer_num=shape.layers,
        device="cpu",
        enable_memory_saver=False,
    )
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(size=1, max_context_len=slots, device="cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=PagedTokenToKVPoolAllocator(
            slots, page_size=PAGE_TOKENS, dtype=shape.dtype, device="cpu", kvcache=pool, need_sort=False
        ),
        page_size=PAGE_TOKENS,
        tree_components=(ComponentType.FULL,),
    )
    linker = OrbitKVLinker(
        None,
        params,
        components={ComponentType.FULL},
        extra_config={"endpoint": f"unix://{socket}"},
        connect=lambda params, group, options: Connected(socket, group, f"bench {shape.layers}"),
    )
    check(linker.connection.client.wait_up(30.0), "no Manager")
    return linker, pool


class Times:
    """Of each call, in microseconds."""

    def __init__(self) -> None:
        self._times: dict[str, list[float]] = {}
        self.silent = 0

    def take(self, name: str, call: Callable[[], Any]) -> Any:
        began = time.perf_counter_ns()
        result = call()
        self._times.setdefault(name, []).append((time.perf_counter_ns() - began) / 1000)
        return result

    def find(self, name: str, linker: OrbitKVLinker, rid: str, transfers: list[PoolTransfer]) -> None:
        """A look-up that has to find all pages. On a busy machine the Manager may be silent for the look-up's wait."""
        for _ in range(1000):
            if self.take(name, lambda: linker.lookup(rid, transfers))[-1:] == [PAGES]:
                return
            self.silent += 1
            time.sleep(RETRY_S)
        raise SystemExit("sglang linker: the pages were not found")

    def rows(self) -> list[dict[str, Any]]:
        rows = []
        for name, times in self._times.items():
            times.sort()
            median = times[len(times) // 2]
            aim = AIMS_US.get(name)
            rows.append(
                {
                    "name": f"sglang.call_us.{name}",
                    "value": round(median, 1),
                    "unit": "us",
                    "baseline": "the aim" if aim else "",
                    "baseline_value": aim,
                    "ratio": aim and round(median / aim, 3),
                    "p99": round(times[len(times) * 99 // 100], 1),
                    "samples": len(times),
                }
            )
        return rows


def check(condition: bool, what: str) -> None:
    if not condition:
        raise SystemExit(f"sglang linker: {what}")


def end_offload(linker: OrbitKVLinker) -> None:
    while not linker.num_completed_offloads():
        time.sleep(0.0001)
    check(linker.pop_completed_offload(), "an offload failed")


class Bench:
    """The calls, with SGLang's transfers for one prompt whose pages are stored."""

    def __init__(self, linker: OrbitKVLinker, client: orbitkv.Client) -> None:
        self._linker, self._client = linker, client
        self._slots = torch.arange(PAGE_TOKENS, (PAGES + 1) * PAGE_TOKENS)
        self._prompt = keys("prompt")
        self.times = Times()
        self.offload("offload_new")

    def _transfers(self, names: list[str] | None = None, indices: Any = None) -> list[PoolTransfer]:
        # SGLang makes the hashes anew on each pass.
        return [PoolTransfer(name=PoolName.KV, keys=list(names or self._prompt), device_indices=indices)]

    def offload(self, name: str) -> None:
        transfers = self._transfers(indices=self._slots)
        self.times.take(name, lambda: self._linker.offload(transfers))
        end_offload(self._linker)

    def look_up(self, number: int) -> None:
        """Nothing but look-ups: the Manager is awake, and no copy has emptied the caches."""
        prepared = orbitkv.BlockHashes([bytes.fromhex(key) for key in self._prompt])
        first, again, miss = self._transfers(), self._transfers(), self._transfers(keys(f"miss {number}"))
        rid, other, unknown = f"r{number}", f"q{number}", f"m{number}"

        def awake() -> None:
            """The Manager's answer says that nothing else is under way. It looks for work for some microseconds."""
            self._client.query("awake", prepared[:1], wait_s=1.0)

        awake()
        self.times.find("lookup", self._linker, rid, first)
        self.times.take("lookup_repeated", lambda: self._linker.lookup(rid, again))
        awake()
        answer = self.times.take("client_query", lambda: self._client.query(other, prepared, wait_s=1.0))
        self._client.release_lease(answer.lease)
        awake()
        self.times.take("lookup_miss", lambda: self._linker.lookup(unknown, miss))
        # The lease goes: a session has 128.
        self._linker.load(rid, self._transfers(indices=self._slots))
        self._linker.cancel_queued_load(rid)

    def restore(self, number: int) -> None:
        """A request's whole way, in the midst of its copies."""
        rid = f"s{number}"
        time.sleep(ASLEEP_S)
        self.times.find("lookup_asleep", self._linker, rid, self._transfers())
        transfers = self._transfers(indices=self._slots)
        check(self.times.take("load", lambda: self._linker.load(rid, transfers)), "a load was refused")
        index = self.times.take("start", self._linker.start_layer_wise_loading)
        check(self._linker.finish_layer_wise_loading(index), "a load failed")
        self.offload("offload")


class Loads:
    """Of one prompt, into other pages than it was saved from."""

    def __init__(self, linker: OrbitKVLinker, pool: MHATokenToKVPool) -> None:
        self._linker = linker
        buffers = [buffer.numpy() for pair in zip(pool.k_buffer, pool.v_buffer, strict=True) for buffer in pair]
        ends = [page * PAGE_TOKENS for page in (1, 1 + PAGES, 1 + 2 * PAGES)]
        self._saved = [buffer[ends[0] : ends[1]] for buffer in buffers]
        self._loaded = [buffer[ends[1] : ends[2]] for buffer in buffers]
        self._slots = torch.arange(ends[1], ends[2])
        self._keys = keys("prompt")
        generator = np.random.default_rng(1)
        for part in self._saved:
            part[:] = generator.random(part.shape, dtype=np.float32)
        transfers = self._transfers(torch.arange(ends[0], ends[1]))
        check(linker.offload(transfers), "an offload was refused")
        end_offload(linker)

    def _transfers(self, slots: Any = None) -> list[PoolTransfer]:
        return [PoolTransfer(name=PoolName.KV, keys=list(self._keys), device_indices=slots)]

    def _timed(self, call: Callable[[], Any]) -> float:
        """GB/s of a call that copies all of the prompt, which is compared."""
        for part in self._loaded:
            part.fill(0)
        began = time.perf_counter()
        call()
        took = time.perf_counter() - began
        same = all(np.array_equal(a, b) for a, b in zip(self._saved, self._loaded, strict=True))
        check(same, "other bytes after a copy")
        return sum(part.nbytes for part in self._saved) / took / 1e9

    def _load(self) -> None:
        check(self._linker.finish_layer_wise_loading(self._linker.start_layer_wise_loading()), "a load failed")

    def speed(self) -> dict[str, Any]:
        plain, loads = [], []
        with ThreadPoolExecutor(COPY_THREADS) as threads:
            for number in range(LOADS):
                plain.append(self._timed(lambda: list(threads.map(np.copyto, self._loaded, self._saved))))
                rid = f"l{number}"
                Times().find("lookup", self._linker, rid, self._transfers())
                check(self._linker.load(rid, self._transfers(self._slots)), "a load was refused")
                loads.append(self._timed(self._load))
        about, base = f"a plain copy by {COPY_THREADS} threads", statistics.median(plain)
        return row("sglang.restore_gbps.4k", statistics.median(loads), "GB/s", about, base, LOADS)


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    publish(ServerArgs(model_path="dummy", device="cpu"), role="bench")
    with tempfile.TemporaryDirectory(prefix="okv-") as folder:
        Path(folder).chmod(0o700)
        manager = Manager(Path(folder) / "manager.sock", "512MiB").start()
        try:
            linker, _ = linker_of(manager.socket, SMALL)
            client = linker.connection.client
            bench = Bench(linker, client)
            for measured in (bench.look_up, bench.restore):
                for number in range(rounds):
                    measured(number)
            restored = client.counters()["restored_blocks"]
            check(restored == rounds * PAGES, "not all pages were restored")
            linker.close()
            linker, pool = linker_of(manager.socket, SMOLLM2)
            speed = Loads(linker, pool).speed()
            linker.close()
        finally:
            manager.close()
    if bench.times.silent:
        print(f"sglang linker: {bench.times.silent} look-ups had no answer in time", file=sys.stderr)
    print(json.dumps([*bench.times.rows(), speed]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
