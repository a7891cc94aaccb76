"""Requests that leave at every stage: queued after a look-up, in a load, between parts of a prompt, in a save."""

import pytest
from engine import details, near, tokens

from harness.manager import Manager
from harness.processes import wait_until

LONG = tokens(500, 4)
CACHED = 496


@pytest.fixture(scope="module")
def manager(folder):
    """It keeps what it has promised for two seconds."""
    started = Manager(folder / "run" / "manager.sock", extra=["--lease-ms", "2000"]).start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def expected(plain):
    plain.one(LONG)
    return plain.one(LONG)


@pytest.fixture(scope="module")
def engine(start_engine, linker):
    """It runs one request at a time, computes a prompt in parts, and looks up all that wait to choose the next one."""
    started = start_engine(linker, max_running_requests=1, chunked_prefill_size=64, schedule_policy="lpm")
    assert started.wait_up()
    started.one(LONG)
    return started


@pytest.fixture
def clean(engine, expected):
    """After each test the engine has all its pages, and restores what it should."""
    engine.evict()
    before = engine.settle()
    yield engine
    engine.evict()
    assert engine.settle()["available"] == before["available"]
    restored = engine.one(LONG)
    assert details([restored]) == [(0, CACHED)]
    assert near([restored], [expected])


def ends_as(engine, rid, kind):
    (answer,) = engine.answers(rids=[rid])
    return answer["reason"]["type"] == kind


def test_while_it_waits_after_a_hit(clean, manager, tmp_path):
    """What the Manager keeps for it is kept no longer. SGLang tells a linker nothing of it."""

    def leases():
        return manager.sample("orbitkv_leases")

    assert wait_until(lambda: leases() == 0, 60)
    clean.probe(name="calls")
    computing, found = tmp_path / "computing", tmp_path / "found"
    clean.plan(call="start_layer_wise_loading", when="after", hold=str(computing))
    clean.plan(call="lookup", when="after", hold=str(found), rid="waits")
    # The prompt's parts take many passes, each of which has no room for more.
    clean.add(rid="runs", prompt=tokens(900, 6))
    assert clean.wait_for(path=str(computing))
    clean.add(rid="waits", prompt=LONG)
    computing.unlink()
    assert clean.wait_for(path=str(found))
    assert leases() == 1
    clean.abort(rid="waits")
    found.unlink()
    assert ends_as(clean, "waits", "abort")
    clean.abort(rid="runs")
    clean.answers(rids=["runs"])
    (calls,) = clean.probe(name="calls")
    assert calls.get("load") is None, "it was never admitted"
    assert wait_until(lambda: leases() == 0, 60)
    assert manager.sample("orbitkv_grants") == 0


@pytest.mark.parametrize(
    ("name", "when"),
    [
        ("lookup", "after"),
        ("load", "after"),
        ("start_layer_wise_loading", "after"),
        ("finish_layer_wise_loading", "before"),
        ("offload", "after"),
    ],
)
def test_while_the_scheduler_is_in(clean, tmp_path, name, when):
    held = tmp_path / "held"
    clean.plan(call=name, when=when, hold=str(held))
    prompt = LONG + tokens(300, 7)
    clean.add(rid="leaves", prompt=prompt, n=64)
    assert clean.wait_for(path=str(held))
    clean.abort(rid="leaves")
    held.unlink()
    assert ends_as(clean, "leaves", "abort")
    assert clean.probe(name="planned") == [[]]


def test_all_at_once(clean):
    for number in range(6):
        clean.add(rid=f"r{number}", prompt=LONG[: 80 * (number + 1)] + tokens(30, number), n=32)
    for number in range(6):
        clean.abort(rid=f"r{number}")
    answers = clean.answers(rids=[f"r{number}" for number in range(6)])
    assert {answer["reason"]["type"] for answer in answers} <= {"abort", "length"}
