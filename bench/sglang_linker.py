"""What the linker's calls cost SGLang's scheduler thread: microseconds of look-up, load, start and offload.

The pages of a prompt are stored once in a real Manager, then asked for, loaded and offered again and again. No model
and no tree: the transfers are those that SGLang's tree makes. Beside the look-up stands the client's own question with
hashes that are prepared, which is what the Manager and the rings need of it.

Run by bench/run.py in the environment of tools/sglang_rig.py; prints rows as JSON. An argument is the number of rounds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
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
LAYERS = 2
RETRY_S = 0.03  # longer than the linker keeps an answer that may change
ASLEEP_S = 0.002  # without work for so long the Manager sleeps, and a look-up has to wake it
# What a look-up of so many pages may take at the median.
AIMS_US = {"lookup": 50.0}


class Connected:
    """A client at once, in a namespace of its own."""

    def __init__(self, socket: Path, group: Any) -> None:
        self.client = orbitkv.Client(
            orbitkv.ClientOptions(
                socket=str(socket),
                instance="bench",
                role="both",
                computation_digest=digest("computation"),
                representation_digest=digest("representation"),
                name="bench",
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


def linker_of(socket: Path) -> OrbitKVLinker:
    slots = (PAGES + 1) * PAGE_TOKENS
    publish(ServerArgs(model_path="dummy", device="cpu"), role="bench")
    pool = MHATokenToKVPool(
        size=slots,
        page_size=PAGE_TOKENS,
        dtype=torch.bfloat16,
        head_num=2,
        head_dim=64,
        layer_num=LAYERS,
        device="cpu",
        enable_memory_saver=False,
    )
    params = CacheInitParams(
        disable=False,
        req_to_token_pool=ReqToTokenPool(size=1, max_context_len=slots, device="cpu", enable_memory_saver=False),
        token_to_kv_pool_allocator=PagedTokenToKVPoolAllocator(
            slots, page_size=PAGE_TOKENS, dtype=torch.bfloat16, device="cpu", kvcache=pool, need_sort=False
        ),
        page_size=PAGE_TOKENS,
        tree_components=(ComponentType.FULL,),
    )
    return OrbitKVLinker(
        None,
        params,
        components={ComponentType.FULL},
        extra_config={"endpoint": f"unix://{socket}"},
        connect=lambda params, group, options: Connected(socket, group),
    )


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
        while not self._linker.num_completed_offloads():
            time.sleep(0.0001)
        check(self._linker.pop_completed_offload(), "an offload failed")

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


def main() -> int:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    with tempfile.TemporaryDirectory(prefix="okv-") as folder:
        Path(folder).chmod(0o700)
        manager = Manager(Path(folder) / "manager.sock", "256MiB").start()
        try:
            linker = linker_of(manager.socket)
            client = linker.connection.client
            check(client.wait_up(30.0), "no Manager")
            bench = Bench(linker, client)
            for measured in (bench.look_up, bench.restore):
                for number in range(rounds):
                    measured(number)
            restored = client.counters()["restored_blocks"]
            check(restored == rounds * PAGES, "not all pages were restored")
            linker.close()
        finally:
            manager.close()
    if bench.times.silent:
        print(f"sglang linker: {bench.times.silent} look-ups had no answer in time", file=sys.stderr)
    print(json.dumps(bench.times.rows()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
