"""What the linker's calls cost SGLang's scheduler thread: microseconds of look-up, load, start and offload.

The pages of a prompt are stored once in a real Manager, then asked for, loaded and offered again and again. No model
and no tree: the transfers are those that SGLang's tree makes. Beside the look-up stands the client's own question with
hashes that are prepared, which is what the Manager and the rings need of it. Runs in SGLang's environment.
"""

from __future__ import annotations

import argparse
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
ASLEEP_S = 0.002  # without work for so long the Manager sleeps, and a look-up has to wake it
# What a look-up of so many pages may take at most at the median.
LOOKUP_AIM_US = 50.0


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
        raise SystemExit("sglang linker: the pages were not found")

    def rows(self) -> dict[str, dict[str, float]]:
        rows = {}
        for name, times in self._times.items():
            times.sort()
            rows[name] = {"p50_us": times[len(times) // 2], "p99_us": times[len(times) * 99 // 100]}
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
        self.offload("offload, new")

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
        self.times.take("lookup, repeated", lambda: self._linker.lookup(rid, again))
        awake()
        answer = self.times.take("client's query", lambda: self._client.query(other, prepared, wait_s=1.0))
        self._client.release_lease(answer.lease)
        awake()
        self.times.take("lookup, miss", lambda: self._linker.lookup(unknown, miss))
        # The lease goes: a session has 128.
        self._linker.load(rid, self._transfers(indices=self._slots))
        self._linker.cancel_queued_load(rid)

    def restore(self, number: int) -> None:
        """A request's whole way, in the midst of its copies."""
        rid = f"s{number}"
        time.sleep(ASLEEP_S)
        self.times.find("lookup, asleep", self._linker, rid, self._transfers())
        transfers = self._transfers(indices=self._slots)
        check(self.times.take("load", lambda: self._linker.load(rid, transfers)), "a load was refused")
        index = self.times.take("start", self._linker.start_layer_wise_loading)
        check(self._linker.finish_layer_wise_loading(index), "a load failed")
        self.offload("offload")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=Path, default=Path("out/sglang-linker.json"))
    parser.add_argument("--rounds", type=int, default=2000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="okv-") as folder:
        Path(folder).chmod(0o700)
        manager = Manager(Path(folder) / "manager.sock", "256MiB").start()
        try:
            linker = linker_of(manager.socket)
            client = linker.connection.client
            check(client.wait_up(30.0), "no Manager")
            bench = Bench(linker, client)
            for measured in (bench.look_up, bench.restore):
                for number in range(arguments.rounds):
                    measured(number)
            restored = client.counters()["restored_blocks"]
            check(restored == arguments.rounds * PAGES, "not all pages were restored")
            linker.close()
        finally:
            manager.close()
    rows = bench.times.rows()
    met = rows["lookup"]["p50_us"] <= LOOKUP_AIM_US
    report = {
        "pages": PAGES,
        "rounds": arguments.rounds,
        "calls": rows,
        "silent_lookups": bench.times.silent,
        "lookup_aim_us": LOOKUP_AIM_US,
        "aim_met": met,
    }
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    arguments.output.write_text(json.dumps(report, indent=2) + "\n")
    for name, row in rows.items():
        print(f"{name:20} p50 {row['p50_us']:8.1f} us   p99 {row['p99_us']:8.1f} us")
    print(f"look-up of {PAGES} pages: aim {LOOKUP_AIM_US:g} us {'met' if met else 'MISSED'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
