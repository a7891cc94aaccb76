"""A small round trip from Python: ours beside iceoryx2 and a Unix socket, and what a kill leaves in /dev/shm.

All carry 64 bytes there and some back, called in one loop in turn; this process on cpu 0, the peers on cpu 1. Ours is a
look-up of one block that is not stored: the Python API has no bare ping, and the look-up does more. The peers echo, in
Python; iceoryx2 has both sides poll, which is its fastest way.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

ROUNDS = 20
CALLS = 200
GAP_S = 300e-6
PAYLOAD_BYTES = 64
PREFIX = "orbitkv_bench_"
SHARED_MEMORY = Path("/dev/shm")


class Payload(ctypes.Structure):
    _fields_ = (("sequence", ctypes.c_uint64), ("rest", ctypes.c_uint8 * (PAYLOAD_BYTES - 8)))

    @staticmethod
    def type_name() -> str:
        return "Payload"


# ---- peers ----------------------------------------------------------------------------------------------------------


def iceoryx2_service(root: Path) -> tuple[Any, Any]:
    """A node with files of its own below `root` and the request-response service; both must be kept."""
    import iceoryx2

    iceoryx2.set_log_level(iceoryx2.LogLevel.Error)
    config = iceoryx2.config.default()
    config.global_cfg.root_path = iceoryx2.Path.new(f"{root}/")
    config.global_cfg.prefix = iceoryx2.FileName.new(PREFIX)
    node = iceoryx2.NodeBuilder.new().config(config).create(iceoryx2.ServiceType.Ipc)
    name = iceoryx2.ServiceName.new("orbitkv/bench")
    return node, node.service_builder(name).request_response(Payload, Payload).open_or_create()


def serve_iceoryx2(root: Path) -> None:
    _node, service = iceoryx2_service(root)
    server = service.server_builder().create()
    print("ready", flush=True)
    while True:
        request = server.receive()
        if request is not None:
            request.send_copy(request.payload().contents)


def serve_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(str(path))
        listener.listen(1)
        print("ready", flush=True)
        connection, _ = listener.accept()
        while data := connection.recv(PAYLOAD_BYTES):
            connection.send(data)


class Peer:
    """This file as a program that serves, on the highest cpu."""

    def __init__(self, kind: str, path: Path, cpu: int) -> None:
        self.process = subprocess.Popen(
            [sys.executable, __file__, kind, str(path), str(cpu)], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        if self.process.stdout.readline().strip() != "ready":
            raise SystemExit(f"python ipc: the {kind} peer did not start")

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        assert self.process.stdout is not None
        self.process.stdout.close()


def iceoryx2_call(root: Path) -> Callable[[], None]:
    _node, service = iceoryx2_service(root)
    client = service.client_builder().create()
    payload = Payload()
    keep = (_node, service)

    def call() -> None:
        payload.sequence += 1
        pending = client.send_copy(payload)
        while (answer := pending.receive()) is None:
            pass
        if answer.payload().contents.sequence != payload.sequence or not keep:
            raise SystemExit("python ipc: iceoryx2 gave a wrong answer")

    return call


def socket_call(connection: socket.socket) -> Callable[[], None]:
    message = bytes(PAYLOAD_BYTES)

    def call() -> None:
        connection.send(message)
        if connection.recv(PAYLOAD_BYTES) != message:
            raise SystemExit("python ipc: the Unix socket gave a wrong answer")

    return call


def our_call(client: Any) -> Callable[[], None]:
    import orbitkv

    absent = orbitkv.BlockHashes(hashlib.sha256(b"nobody stored this").digest())

    def call() -> None:
        answer = client.query("round-trip", absent, wait_s=1.0)
        if answer is None or answer.found_blocks != 0:
            raise SystemExit("python ipc: a wrong answer from the Manager")

    return call


# ---- measurement ----------------------------------------------------------------------------------------------------


def in_turn(calls: list[Callable[[], None]], gap_s: float) -> list[list[float]]:
    """Microseconds of each call, rounds of all of them in turn; the first round warms up."""
    samples: list[list[float]] = [[] for _ in calls]
    for number in range(ROUNDS + 1):
        for call, taken in zip(calls, samples, strict=True):
            for _ in range(CALLS):
                if gap_s:
                    time.sleep(gap_s)
                start = time.perf_counter_ns()
                call()
                if number > 0:
                    taken.append((time.perf_counter_ns() - start) / 1e3)
    return samples


def quantile(samples: list[float], q: float) -> float:
    return sorted(samples)[int(q * (len(samples) - 1))]


def row(name: str, value: float, unit: str, baseline: str, other: float, samples: int) -> dict[str, Any]:
    ratio = round(value / other, 3) if other else None
    return {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "baseline": baseline,
        "baseline_value": round(other, 2),
        "ratio": ratio,
        "samples": samples,
    }


def shared_files() -> set[str]:
    return set(os.listdir(SHARED_MEMORY))


def rows() -> list[dict[str, Any]]:
    """Rows for out/bench.json."""
    from python_rows import start_client

    from harness.manager import Manager

    cpus = os.sched_getaffinity(0)
    shared_before = shared_files()
    folder = Path(tempfile.mkdtemp(prefix="orbitkv-bench-"))
    manager = Manager(folder / "run" / "manager.sock", "64MiB", folder / "manager.log").start()
    peers = [Peer("serve-iceoryx2", folder / "iceoryx2", max(cpus)), Peer("serve-socket", folder / "echo", max(cpus))]
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    result = []
    try:
        for task in Path(f"/proc/{manager.pid}/task").iterdir():
            os.sched_setaffinity(int(task.name), {max(cpus)})
        connection.connect(str(folder / "echo"))
        client = start_client(manager.socket, np.zeros((8, 4096), dtype=np.uint8))
        os.sched_setaffinity(0, {min(cpus)})
        ours, plain = our_call(client), socket_call(connection)
        for label, gap_s in (("hot", 0.0), ("asleep", GAP_S)):
            mine, other = in_turn([ours, plain], gap_s)
            for name, q in (("p50", 0.5), ("p99", 0.99)):
                result.append(
                    row(f"python.round_trip_{label}_{name}_us.socket", quantile(mine, q), "us",
                        "Unix socket, both sides in Python", quantile(other, q), len(mine))
                )  # fmt: skip
        mine, other = in_turn([ours, iceoryx2_call(folder / "iceoryx2")], 0.0)
        for name, q in (("p50", 0.5), ("p99", 0.99)):
            result.append(
                row(f"python.round_trip_hot_{name}_us.iceoryx2", quantile(mine, q), "us",
                    "iceoryx2, both sides in Python", quantile(other, q), len(mine))
            )  # fmt: skip
        manager.kill()
        peers[0].kill()
        left = shared_files() - shared_before
        theirs = {name for name in left if name.startswith(PREFIX)}
        result.append(row("shm_files_after_kill", len(left - theirs), "files", "iceoryx2", len(theirs), 1))
        client.close()
        return result
    finally:
        os.sched_setaffinity(0, cpus)
        connection.close()
        for peer in peers:
            peer.kill()
        manager.close()
        for name in shared_files():
            if name.startswith(PREFIX):
                (SHARED_MEMORY / name).unlink(missing_ok=True)
        shutil.rmtree(folder)


if __name__ == "__main__":
    if len(sys.argv) == 4:
        os.sched_setaffinity(0, {int(sys.argv[3])})
        {"serve-iceoryx2": serve_iceoryx2, "serve-socket": serve_socket}[sys.argv[1]](Path(sys.argv[2]))
    else:
        sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tools"))
        print(json.dumps(rows(), indent=1))
