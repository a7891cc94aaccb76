"""Kills under load: whatever dies, a restored page holds the right bytes or the job says that it failed."""

from __future__ import annotations

import random
import select
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from conftest import Engine, Manager, digest, eventually, hashes

import orbitkv


def content(name: str, engine: Engine, block: int) -> None:
    """Fills a block with bytes that its name decides."""
    for layer, pages in enumerate(engine.pages):
        seed = digest(f"{name} {layer}")
        page = pages[block].reshape(-1).view("u1")
        page[:] = list(seed) * (page.size // len(seed))


def few_or(many: int) -> pytest.MarkDecorator:
    """A handful of kills in an ordinary run, `many` in a long one."""
    return pytest.mark.parametrize(
        "kills", [3, pytest.param(many, marks=[pytest.mark.long, pytest.mark.timeout(1800)])]
    )


@few_or(100)
def test_the_manager_is_killed_under_load(manager: Manager, engine: Engine, kills: int) -> None:
    choose = random.Random(7)
    client = engine.client
    restored = 0
    for life in range(kills + 1):
        assert client.wait_up(30.0)
        kill_at = choose.randrange(20, 60)
        for step in range(60):
            names = [f"{life} {choose.randrange(6)}" for _ in range(3)]
            names = list(dict.fromkeys(names))
            keys = orbitkv.BlockHashes([digest(name) for name in names])
            # The root of each chain is its own: every block is published as a first one.
            for index, name in enumerate(names):
                content(name, engine, index)
            jobs = [client.publish(keys[index : index + 1], [index]) for index in range(len(names))]
            if step == kill_at and life < kills:
                manager.kill()
            for job in jobs:
                engine.wait(job)
            expected = [engine.block(index) for index in range(len(names))]
            for index in range(len(names)):
                answer = client.query(f"{life} {step} {index}", keys[index : index + 1], wait_s=5.0)
                if answer is None or answer.found_blocks == 0:
                    continue
                grant = client.begin_restore(answer.lease, 1)
                if grant == 0:
                    continue
                done = engine.wait(client.restore(grant, keys[index : index + 1], [8], incarnation=client.incarnation))
                if done.ok:
                    restored += 1
                    assert engine.block(8) == expected[index]
            if step == kill_at and life < kills:
                assert eventually(lambda: client.state == "down")
                manager.start()
                break
    assert restored > 20
    assert client.counters()["losses"] == kills
    assert client.counters()["mismatched_blocks"] == 0


CHILD = """
    import sys
    sys.path.insert(0, sys.argv[2])
    import orbitkv
    from conftest import Engine, digest, hashes

    client = orbitkv.Client(orbitkv.ClientOptions(
        socket=sys.argv[1], instance="child", role="both", computation_digest=digest("computation"),
        representation_digest=digest("representation"), name="child"))
    engine = Engine(client)
    assert client.wait_up(20.0)
    print("up", flush=True)
    round = 0
    while True:
        jobs = [client.publish(hashes(16, f"child {round}"), range(16)) for _ in range(4)]
        answer = client.query("r", hashes(16, f"child {round}"), wait_s=1.0)
        if answer is not None and answer.lease:
            grant = client.begin_restore(answer.lease, answer.found_blocks)
            client.restore(grant, hashes(16, f"child {round}")[: answer.found_blocks], range(answer.found_blocks))
        client.poll()
        round += 1
"""


@few_or(100)
def test_an_engine_killed_under_load_leaves_nothing_held(manager: Manager, engine: Engine, kills: int) -> None:
    here = str(Path(__file__).parent)

    def stored() -> float:
        return manager.samples()["orbitkv_blocks_stored_total"]

    for _ in range(kills):
        before = stored()
        command = [sys.executable, "-c", textwrap.dedent(CHILD), str(manager.socket), here]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        ready, _, _ = select.select([child.stdout], [], [], 30)
        assert ready and child.stdout.readline() == "up\n"
        # In the middle of its work: some blocks are stored, others are on their way.
        assert eventually(lambda least=before + 16: stored() > least)
        child.send_signal(signal.SIGKILL)
        child.wait(30)
        child.stdout.close()
        assert eventually(lambda: manager.samples()["orbitkv_sessions"] <= 3)
    held = ("orbitkv_leases", "orbitkv_grants", "orbitkv_armed_ranks", "orbitkv_reserved_slots")

    def nothing_held() -> bool:
        samples = manager.samples()
        return all(samples[name] == 0 for name in held)

    assert eventually(nothing_held), {name: manager.samples()[name] for name in held}
    assert engine.publish(hashes(2, "after"), [0, 1]).ok
    assert engine.restore(hashes(2, "after"), [2, 3]).ok
