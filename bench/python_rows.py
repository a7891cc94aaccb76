"""Look-up of 256 blocks and restore of one 64 KiB block through the Python client API, hot and asleep.

Hot: this process on cpu 0, the Manager on cpu 1, back to back. Asleep: one call per 300 µs with default waiting. Every
restored block is compared with what was saved, outside the timed region.
"""

from __future__ import annotations

import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import orbitkv
from harness.manager import Manager

BLOCKS = 256
BLOCK_BYTES = 64 << 10
# What the fastest and the slowest peer measured on a machine of this size reached, in microseconds.
PEER_LOOKUP_US = 149.0
PEER_RESTORE_US = 79.0
# A scheduler that asks waits at most this long before it goes on without the answer.
LOOKUP_P99_AIM_US = 200.0


def start_client(socket: Path, pages: np.ndarray) -> orbitkv.Client:
    digest = hashlib.sha256(b"bench").digest()
    client = orbitkv.Client(
        orbitkv.ClientOptions(
            socket=str(socket),
            instance="bench-python",
            role="both",
            computation_digest=digest,
            representation_digest=digest,
            name="bench",
        )
    )
    client.register_layout([orbitkv.Layer.of(pages)], block_tokens=32)
    if not client.wait_up(10):
        raise SystemExit("python rows: the client did not reach the Manager")
    return client


def wait_job(client: orbitkv.Client, job: int) -> orbitkv.Completion:
    deadline = time.perf_counter() + 10
    while True:
        for completion in client.poll():
            if completion.job == job:
                return completion
        if time.perf_counter() > deadline:
            raise SystemExit("python rows: a job did not complete within 10 s")


def timed(call: Callable[[int], None], count: int, gap_s: float) -> list[float]:
    samples = []
    for number in range(-50, count):
        if gap_s:
            time.sleep(gap_s)
        start = time.perf_counter_ns()
        call(number)
        if number >= 0:
            samples.append((time.perf_counter_ns() - start) / 1e3)
    return samples


class Subject:
    def __init__(self, client: orbitkv.Client, pages: np.ndarray) -> None:
        self.client = client
        self.pages = pages
        self.saved = pages.copy()
        self.hashes = orbitkv.BlockHashes(b"".join(hashlib.sha256(bytes([i])).digest() for i in range(BLOCKS)))
        job = client.publish(self.hashes, list(range(BLOCKS)))
        assert job is not None
        if not wait_job(client, job).ok:
            raise SystemExit("python rows: the blocks were not stored")
        self.sequence = 0

    def ask(self, hashes: orbitkv.BlockHashes) -> orbitkv.Answer:
        self.sequence += 1
        answer = self.client.query(f"request-{self.sequence}", hashes, wait_s=1.0)
        if answer is None or answer.found_blocks != len(hashes):
            raise SystemExit("python rows: a resident block was not found")
        return answer

    def lookup(self, number: int) -> None:
        self.client.release_lease(self.ask(self.hashes).lease)

    def restore_one(self, number: int) -> None:
        """The whole path of one block that is not the first of its prompt: look-up, begin, restore, completion."""
        block = number % BLOCKS
        grant = self.client.begin_restore(self.ask(self.hashes[block : block + 1]).lease, 1)
        job = self.client.restore(grant, self.hashes[block : block + 1], [block])
        if not wait_job(self.client, job).ok:
            raise SystemExit("python rows: a restore failed")

    def check_restored(self) -> None:
        """Fills the pages with other bytes, restores each block and compares."""
        self.pages[:] = 0
        for block in range(BLOCKS):
            self.restore_one(block)
        if not np.array_equal(self.pages, self.saved):
            raise SystemExit("python rows: restored bytes differ from the saved ones")


def rows() -> list[dict[str, Any]]:
    """Rows for out/bench.json."""
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        manager = Manager(Path(folder) / "run" / "manager.sock", "256MiB", Path(folder) / "manager.log").start()
        affinity = os.sched_getaffinity(0)
        try:
            for task in Path(f"/proc/{manager.pid}/task").iterdir():
                os.sched_setaffinity(int(task.name), {max(affinity)})
            pages = np.random.default_rng(5).integers(0, 255, (BLOCKS, BLOCK_BYTES), dtype=np.uint8)
            client = start_client(manager.socket, pages)
            try:
                subject = Subject(client, pages)
                os.sched_setaffinity(0, {min(affinity)})
                subject.check_restored()
                asleep = timed(subject.lookup, 3000, 300e-6)
                result = [
                    row("lookup.256_hot_p50_us", timed(subject.lookup, 3000, 0), PEER_LOOKUP_US),
                    row("lookup.256_asleep_p50_us", asleep, PEER_LOOKUP_US),
                    p99_row("lookup.256_asleep_p99_us", asleep),
                    row("restore.one_64KiB_hot_p50_us", timed(subject.restore_one, 3000, 0), PEER_RESTORE_US),
                    row("restore.one_64KiB_asleep_p50_us", timed(subject.restore_one, 1000, 300e-6), PEER_RESTORE_US),
                ]
                subject.check_restored()
                return result
            finally:
                client.close()
        finally:
            os.sched_setaffinity(0, affinity)
            manager.terminate()


def row(name: str, samples: list[float], peer_us: float) -> dict[str, Any]:
    value = statistics.median(samples)
    return {
        "name": name,
        "value": round(value, 2),
        "unit": "us",
        "baseline": "fastest peer, measured apart",
        "baseline_value": peer_us,
        "ratio": round(value / peer_us, 3),
        "samples": len(samples),
    }


def p99_row(name: str, samples: list[float]) -> dict[str, Any]:
    value = sorted(samples)[int(0.99 * len(samples))]
    return {
        "name": name,
        "value": round(value, 2),
        "unit": "us",
        "baseline": "the aim",
        "baseline_value": LOOKUP_P99_AIM_US,
        "ratio": round(value / LOOKUP_P99_AIM_US, 3),
        "samples": len(samples),
    }


if __name__ == "__main__":
    print(json.dumps(rows(), indent=1))
