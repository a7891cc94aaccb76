"""Suite A: blocks of paged KV saved by one process and loaded by another, through each peer's client in Python.

Every peer does the whole job: it takes pages of several layers and ends in such pages, in mixed order. A load includes
its look-up. Bytes are compared after each load, outside of what is timed; a block that is missing or wrong fails the
pass.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from harness.children import Child, ChildError
from peer import BLOCK_TOKENS, BLOCKS, SIZES, Config, Peer, cpu_seconds, failure_text, gbps
from report import Record, RowKind

SCRIPT = Path(__file__).resolve().parent / "client_child.py"
POOL_BYTES = 4 << 30
GIB = 1 << 30
ROUNDS = {"64K": 5, "256K": 5, "1M": 3}
TIMES = 100
# Of 256 MiB each: more than all that is saved, and less than the pool.
TOUCHING = list(range(8000, 8015))
HALF = BLOCKS // 2
# For two processes at once: what the one loads is there, what the other one saves is not.
BESIDE_SIZE = "256K"
BESIDE_SAVES = list(range(400, 416))
BESIDE_START_S = 3.0  # until both have made their pages and keys
CALL_LIMIT_S = 120.0
IDLE_S = 2.0
# What the clients' own threads may use: one for each processor.
ENVIRONMENT = {"OMP_NUM_THREADS": "2", "PYTHONHASHSEED": "0"}


def kinds() -> list[RowKind]:
    made = []
    for size in SIZES:
        made.append(RowKind("A", f"save.{size}", "GB/s", "higher", f"save {BLOCKS} x {size}"))
        made.append(RowKind("A", f"load.{size}", "GB/s", "higher", f"load {BLOCKS} x {size}, in another process"))
    for size in SIZES:
        made.append(RowKind("A", f"load_one.{size}", "µs", "lower", f"load one block of {size}, p50"))
    made += [
        RowKind("A", "lookup.hit", "µs", "lower", f"look-up of {BLOCKS} blocks, all there, p50"),
        RowKind("A", "lookup.half", "µs", "lower", f"look-up of {BLOCKS} blocks, the first {HALF} there, p50"),
        RowKind("A", "lookup.miss", "µs", "lower", f"look-up of {BLOCKS} blocks, none there, p50"),
        RowKind("A", "beside.save", "GB/s", "higher", f"save {BLOCKS} x {BESIDE_SIZE} while another process loads"),
        RowKind("A", "beside.load", "GB/s", "higher", f"load {BLOCKS} x {BESIDE_SIZE} while another process saves"),
        RowKind("A", "beside.longest_load", "ms", "lower", "the longest of these loads"),
        RowKind("A", "cpu.load_1M", "s/GiB", "lower", "processor time to load 1 GiB, client and server"),
        RowKind("A", "idle.cpu", "%", "lower", "server without work, of one processor"),
        RowKind("A", "idle.threads", "threads", "", "threads of the server"),
        RowKind("A", "loopback", "GB/s", "", "TCP over loopback, one stream"),
        RowKind("A", "idle.private_mib", "MiB", "", "server's private memory, with the data where these are private"),
    ]
    return made


KINDS = kinds()


class Client(Child):
    def __init__(self, peer: Peer, log: Path) -> None:
        super().__init__(peer.python, SCRIPT, ENVIRONMENT | peer.variables(), log, CALL_LIMIT_S)
        self.set_up({"peer": peer.name, "settings": peer.client_settings(), "servers": peer.pids()})


def prompts_of(size: str) -> list[int]:
    """The first one is not timed: it touches what is touched first."""
    base = 100 * (1 + list(SIZES).index(size))
    return list(range(base, base + ROUNDS[size] + 1))


def save_all(saver: Child, values: dict[str, float]) -> None:
    saver.call("open", geometry=asdict(SIZES["1M"]))
    saver.call("touch", prompts=TOUCHING)
    for size, geometry in SIZES.items():
        saver.call("open", geometry=asdict(geometry))
        saved = saver.call("save", prompts=prompts_of(size))
        if set(saved["stored"]) != {BLOCKS}:
            raise ChildError(f"of {BLOCKS} blocks of {size} it stored {min(saved['stored'])}")
        values[f"save.{size}"] = gbps(geometry, saved["seconds"][1:])


def load_all(loader: Child, values: dict[str, float], whys: dict[str, str]) -> None:
    for size, geometry in SIZES.items():
        prompts = prompts_of(size)
        loader.call("open", geometry=asdict(geometry))
        loader.call("load", prompts=prompts[:1])
        loaded = loader.call("load", prompts=prompts[1:])
        if set(loaded["loaded"]) != {BLOCKS} or not all(loaded["right"]):
            raise ChildError(f"of {BLOCKS} blocks of {size} {min(loaded['loaded'])} came, right: {loaded['right']}")
        values[f"load.{size}"] = gbps(geometry, loaded["seconds"])
        if size == "1M":
            values["cpu.load_1M"] = loaded["spent_s"] / (len(prompts[1:]) * BLOCKS * geometry.block_bytes / GIB)
        one = loader.call("load_one", prompts=prompts[1:], times=TIMES)
        if one["missed"] or not one["right"]:
            raise ChildError(f"{one['missed']} of {TIMES} loads of one block of {size} missed, right: {one['right']}")
        values[f"load_one.{size}"] = statistics.median(one["us"])
        if one["blocks"] > 1:
            whys[f"load_one.{size}"] = f"{one['blocks']} blocks, as it has no smaller unit"
        if size == "64K":
            hit = loader.call("lookups", prompts=prompts, times=TIMES)
            miss = loader.call("lookups", prompts=list(range(9000, 9000 + TIMES)), times=TIMES)
            half = loader.call("lookups", prompts=prompts, times=TIMES, known=HALF)
            if (set(hit["found"]), set(half["found"]), set(miss["found"])) != ({BLOCKS}, {HALF}, {0}):
                raise ChildError("a look-up found what is not there, or not what is")
            values["lookup.hit"] = statistics.median(hit["us"])
            values["lookup.half"] = statistics.median(half["us"])
            values["lookup.miss"] = statistics.median(miss["us"])


def beside(saver: Child, loader: Child, folder: Path, values: dict[str, float]) -> None:
    """One process saves while another one loads; a save or load counts where both were at it."""
    geometry = SIZES[BESIDE_SIZE]
    for child in (saver, loader):
        child.call("open", geometry=asdict(geometry))
    until = folder / "saved"
    begin_at = time.monotonic() + BESIDE_START_S
    loader.send(["load_beside", {"prompts": prompts_of(BESIDE_SIZE), "begin_at": begin_at, "until": str(until)}])
    try:
        saved = saver.call("save_beside", prompts=BESIDE_SAVES, begin_at=begin_at)
    finally:
        until.touch()
    loaded = loader.receive()
    if set(saved["stored"]) != {BLOCKS} or set(loaded["loaded"]) != {BLOCKS} or not loaded["right"]:
        raise ChildError(f"of {BLOCKS} blocks {min(saved['stored'])} were stored and {min(loaded['loaded'])} came")
    again = loader.call("load", prompts=BESIDE_SAVES[-1:], content=BESIDE_SAVES[0])
    if again["loaded"] != [BLOCKS] or not again["right"][0]:
        raise ChildError("what was saved while another process loaded is not there, or wrong")
    if saved["late"] or loaded["late"]:
        raise ChildError(f"two processes were not ready within {BESIDE_START_S:.0f} s")
    saves, loads = together(saved["spans"], loaded["spans"])
    values["beside.save"] = gbps(geometry, saves)
    values["beside.load"] = gbps(geometry, loads)
    values["beside.longest_load"] = 1e3 * max(loads)


def together(first: list[list[float]], second: list[list[float]]) -> tuple[list[float], list[float]]:
    """Seconds of the spans of each of two processes that lie where both were at work."""
    begin = max(first[0][0], second[0][0])
    end = min(first[-1][1], second[-1][1])
    both = tuple([b - a for a, b in spans if begin <= a and b <= end] for spans in (first, second))
    if not all(both):
        raise ChildError("two processes were not at work at the same time")
    return both[0], both[1]


def idle(peer: Peer, values: dict[str, float]) -> None:
    """Of all of the server's processes, while a client is connected and does nothing."""
    pids = peer.pids()
    before = sum(map(cpu_seconds, pids))
    begin = time.monotonic()
    time.sleep(IDLE_S)
    values["idle.cpu"] = 100 * (sum(map(cpu_seconds, pids)) - before) / (time.monotonic() - begin)
    values["idle.threads"] = sum(len(os.listdir(f"/proc/{pid}/task")) for pid in pids)
    values["idle.private_mib"] = sum(private_kib(pid) for pid in pids) / 1024


def private_kib(pid: int) -> int:
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    fields = {line.split(":")[0]: line.split()[1] for line in status if line.startswith("Rss")}
    return int(fields["RssAnon"])


def measure(peer: Peer, folder: Path) -> tuple[dict[str, float], dict[str, str], str]:
    """One pass over one peer: values, remarks on rows, and the text of what failed, if anything did."""
    values: dict[str, float] = {}
    whys: dict[str, str] = {}
    try:
        peer.start(Config(folder, POOL_BYTES, block_tokens=BLOCK_TOKENS))
        with Client(peer, folder / "saver.log") as saver:
            save_all(saver, values)
        with Client(peer, folder / "loader.log") as loader:
            load_all(loader, values, whys)
            idle(peer, values)
            with Client(peer, folder / "beside.log") as saver:
                beside(saver, loader, folder, values)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return values, whys, failure_text(error)
    finally:
        peer.close()
    return values, whys, ""


def records(peer: str, number: int, values: dict[str, float], whys: dict[str, str], failure: str) -> Iterator[Record]:
    for kind in KINDS:
        value = values.get(kind.name)
        why = whys.get(kind.name, "") if value is not None else failure
        if value is not None or why:
            yield Record(kind.name, peer, number, value, why)
