"""Fixtures: a real Manager process and clients of it."""

from __future__ import annotations

import hashlib
import os
import select
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orbitkv

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tools"))

from harness.manager import Manager


class Engine:
    """A client that is an engine of its own: pages in numpy arrays, waits for jobs, hashes of its blocks."""

    def __init__(
        self, client: orbitkv.Client, layers: int = 2, blocks: int = 16, page_shape: tuple[int, ...] = (4, 256)
    ):
        self.client = client
        self.done: dict[int, orbitkv.Completion] = {}
        self.pages = [np.zeros((blocks, *page_shape), np.float32) for _ in range(layers)]
        self.client.register_layout([orbitkv.Layer.of(pages) for pages in self.pages], block_tokens=16)

    def fill(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        for pages in self.pages:
            pages[:] = random.random(pages.shape, np.float32)

    def clear(self) -> None:
        for pages in self.pages:
            pages[:] = 0

    def block(self, index: int) -> bytes:
        return b"".join(pages[index].tobytes() for pages in self.pages)

    def wait(self, job: int | None, timeout_s: float = 20.0) -> orbitkv.Completion:
        assert job is not None
        deadline = time.monotonic() + timeout_s
        while job not in self.done:
            assert time.monotonic() < deadline, f"job {job} gave no completion"
            select.select([self.client.completion_fd()], [], [], 0.2)
            self.done |= {done.job: done for done in self.client.poll()}
        return self.done.pop(job)

    def publish(self, hashes: orbitkv.BlockHashes, ids: Any) -> orbitkv.Completion:
        return self.wait(self.client.publish(hashes, ids))

    def ask(self, hashes: orbitkv.BlockHashes, request_id: str = "request") -> orbitkv.Answer:
        answer = self.client.query(request_id, hashes, wait_s=20.0)
        assert answer is not None
        return answer

    def restore(self, hashes: orbitkv.BlockHashes, ids: Any, request_id: str = "request") -> orbitkv.Completion:
        answer = self.ask(hashes, request_id)
        assert answer.found_blocks == len(hashes), answer
        grant = self.client.begin_restore(answer.lease, answer.found_blocks)
        assert grant != 0
        return self.wait(self.client.restore(grant, hashes, ids, incarnation=self.client.incarnation))


def digest(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def hashes(count: int, salt: str = "") -> orbitkv.BlockHashes:
    return orbitkv.BlockHashes([digest(f"{salt} {index}") for index in range(count)])


def eventually(condition: Callable[[], bool], timeout_s: float = 20.0) -> bool:
    """Looks again until the condition holds; the deadline only ends a test that has failed."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        select.select([], [], [], 0.005)
    return True


@pytest.fixture
def folder() -> Iterator[Path]:
    # Short, because a socket's path has at most 107 bytes.
    with tempfile.TemporaryDirectory(prefix="okv-") as name:
        Path(name).chmod(0o700)
        yield Path(name)


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    started = Manager(folder / "manager.sock").start()
    yield started
    started.close()


@pytest.fixture
def make_client(folder: Path) -> Iterator[Callable[..., orbitkv.Client]]:
    clients: list[orbitkv.Client] = []
    parent = os.getpid()

    def make(**changes: Any) -> orbitkv.Client:
        values: dict[str, Any] = {
            "socket": str(folder / "manager.sock"),
            "instance": "engine",
            "role": "both",
            "computation_digest": digest("computation"),
            "representation_digest": digest("representation"),
            "name": "test",
        }
        client = orbitkv.Client(orbitkv.ClientOptions(**(values | changes)))
        clients.append(client)
        return client

    yield make
    if os.getpid() == parent:
        for client in clients:
            client.close(0.0)


@pytest.fixture
def engine(manager: Manager, make_client: Callable[..., orbitkv.Client]) -> Engine:
    started = Engine(make_client())
    assert started.client.wait_up(20.0)
    return started
