"""What one process orders and another one takes, while it is still being read from behind the pool."""

from __future__ import annotations

import json
import os
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from conftest import Engine, digest, eventually, hashes

import orbitkv
from harness.manager import Manager

MakeClient = Callable[..., orbitkv.Client]
LAYERS, PAGE_BYTES, BLOCKS = 2, 4096, 3
READ_MS = 2000

# A scheduler of the same engine: claims when it is told to, and says what it was told first and last.
CONSUMER = """
import json, sys
import orbitkv
socket, computation = sys.argv[1], bytes.fromhex(sys.argv[2])
client = orbitkv.Client(orbitkv.ClientOptions(
    socket=socket, instance="engine", role="scheduler", computation_digest=computation, name="consumer"))
assert client.wait_up(20.0)
print("up", flush=True)
sys.stdin.readline()
answer = client.claim("consumer", most_blocks=3, wait_s=5.0)
print(json.dumps(answer and answer.reason), flush=True)
sys.stdin.readline()
while answer is None or answer.reason == "loading":
    answer = client.claim("consumer", most_blocks=3, wait_s=0.05)
grant = client.begin_restore(answer.lease, answer.found_blocks) if answer.lease else 0
print(json.dumps([answer.found_blocks, answer.reason, grant]), flush=True)
sys.stdin.readline()
client.close(5.0)
"""


def backed_manager() -> str | None:
    """The test program that a native build makes; not part of an installation."""
    build = Path(__file__).resolve().parents[2] / "build" / "dev" / "tests" / "integration"
    return shutil.which("backed_manager", path=os.environ.get("TEST_PROGRAMS", str(build)))


def block(index: int) -> bytes:
    return bytes(np.random.default_rng(100 + index).bytes(LAYERS * PAGE_BYTES))


@pytest.fixture
def manager(folder: Path) -> Iterator[Manager]:
    program = backed_manager()
    if program is None:
        pytest.skip("build/dev has no backed_manager: build it with ./dev build, or set TEST_PROGRAMS")
    behind = folder / "blocks"
    content = struct.pack(
        "<32s32sIIQII", digest("computation"), digest("representation"), 16, LAYERS, PAGE_BYTES, BLOCKS, 0
    )
    content += b"".join(digest(f" {index}") + block(index) for index in range(BLOCKS))
    behind.write_bytes(content)
    started = Manager(folder / "manager.sock", program=[program, str(behind), str(READ_MS)]).start()
    yield started
    started.close()


def test_a_preparation_is_claimed_by_another_process_while_it_loads(manager: Manager, make_client: MakeClient) -> None:
    engine = Engine(make_client(), layers=LAYERS)
    assert engine.client.wait_up(20.0)
    consumer = subprocess.Popen(
        [sys.executable, "-c", CONSUMER, str(manager.socket), digest("computation").hex()],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert consumer.stdin is not None and consumer.stdout is not None

    def say_and_hear() -> str:
        assert consumer.stdin is not None and consumer.stdout is not None
        consumer.stdin.write("\n")
        consumer.stdin.flush()
        return consumer.stdout.readline()

    try:
        assert consumer.stdout.readline() == "up\n"
        engine.client.prepare("request", hashes(BLOCKS), consumer="consumer", load_wait_s=30.0)
        assert eventually(lambda: manager.samples()["orbitkv_loads"] == BLOCKS)
        assert json.loads(say_and_hear()) == "loading"
        assert manager.samples()["orbitkv_loads"] == BLOCKS, "it was claimed while every block was still being read"
        found, reason, grant = json.loads(say_and_hear())
        assert (found, reason) == (BLOCKS, "found") and grant != 0
        job = engine.client.restore(grant, hashes(BLOCKS), [8, 9, 10], incarnation=engine.client.incarnation)
        assert engine.wait(job).ok
        assert [engine.block(8 + index) for index in range(BLOCKS)] == [block(index) for index in range(BLOCKS)]
        assert manager.samples()["orbitkv_claims_total"] == 1
        say_and_hear()
        assert consumer.wait(20) == 0
        again = engine.client.claim("consumer", most_blocks=BLOCKS, wait_s=20.0)
        assert again is not None and again.reason == "not admitted", "what was claimed is nobody else's"
    finally:
        consumer.kill()
        consumer.wait()
