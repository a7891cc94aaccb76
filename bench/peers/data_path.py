"""Suite A: blocks of paged KV saved by one process and loaded by another, through each peer's client in Python.

Every peer does the whole job: it takes pages of several layers and ends in such pages, in mixed order. A load includes
its look-up. Bytes are compared after each load, outside of what is timed; a block that is missing or wrong fails the
pass.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from children import Child, ChildError
from peer import BLOCKS, HOST, Config, Geometry, Peer, cpu_seconds, failure_text
from report import CEILING, Record, RowKind

POOL_BYTES = 2 << 30
GIB = 1 << 30
SIZES = {
    "64K": Geometry(64 << 10, layers=8, kv_heads=1),
    "256K": Geometry(256 << 10, layers=16, kv_heads=2),
    "1M": Geometry(1 << 20, layers=16, kv_heads=8),
}
ROUNDS = {"64K": 5, "256K": 5, "1M": 3}
TIMES = 100
# Of 256 MiB each: more than all that is saved, and less than the pool.
TOUCHING = list(range(8000, 8007))
BLOCK_TOKENS = Geometry(1, 1, 1).block_tokens
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
        RowKind("A", "lookup.miss", "µs", "lower", f"look-up of {BLOCKS} blocks, none there, p50"),
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
        super().__init__(peer.python, "client_child.py", ENVIRONMENT | peer.variables(), log, CALL_LIMIT_S)
        self.send({"peer": peer.name, "settings": peer.client_settings(), "servers": peer.pids()})


def gbps(geometry: Geometry, seconds: list[float]) -> float:
    return BLOCKS * geometry.block_bytes / statistics.median(seconds) / 1e9


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
            if set(hit["found"]) != {BLOCKS} or set(miss["found"]) != {0}:
                raise ChildError("a look-up found what is not there, or not what is")
            values["lookup.hit"] = statistics.median(hit["us"])
            values["lookup.miss"] = statistics.median(miss["us"])


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


# ---- what the machine can do right now -----------------------------------------------------------------------------


def copy_gbps(geometry: Geometry) -> float:
    """The same pages copied by one thread from one process's memory to itself, in mixed order."""
    import numpy as np

    source = np.ones((BLOCKS, geometry.block_bytes), dtype=np.uint8)
    target = np.zeros_like(source)
    order = np.random.default_rng(3).permutation(BLOCKS)
    seconds = []
    for _ in range(3):
        begin = time.perf_counter()
        for number, page in enumerate(order):
            target[number] = source[page]
        seconds.append(time.perf_counter() - begin)
    return gbps(geometry, seconds[1:])


def loopback_gbps(size: int = 512 << 20) -> float:
    """One stream over TCP from one thread to another."""
    with socket.create_server((HOST, 0)) as listener:
        port = listener.getsockname()[1]

        def send() -> None:
            piece = bytes(1 << 20)
            with socket.create_connection((HOST, port)) as stream:
                for _ in range(size // len(piece)):
                    stream.sendall(piece)

        sender = threading.Thread(target=send)
        sender.start()
        connection, _ = listener.accept()
        buffer = bytearray(1 << 20)
        begin = time.perf_counter()
        with connection:
            while connection.recv_into(buffer):
                pass
        seconds = time.perf_counter() - begin
        sender.join()
    return size / seconds / 1e9


def ceilings(number: int) -> Iterator[Record]:
    for size, geometry in SIZES.items():
        rate = copy_gbps(geometry)
        yield Record(f"save.{size}", CEILING, number, rate)
        yield Record(f"load.{size}", CEILING, number, rate)
    yield Record("loopback", CEILING, number, loopback_gbps())
