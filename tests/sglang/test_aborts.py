"""Requests that leave at every stage: queued after a look-up, in a load, between parts of a prompt, in a save."""

import pytest
from engine import details, near, tokens

LONG = tokens(500, 4)
CACHED = 496


@pytest.fixture(scope="module")
def expected(plain):
    plain.one(LONG)
    return plain.one(LONG)


@pytest.fixture(scope="module")
def engine(start_engine, linker):
    """It runs one request at a time and computes a prompt in parts."""
    started = start_engine(linker, max_running_requests=1, chunked_prefill_size=64)
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


def test_while_it_waits_after_a_hit(clean):
    clean.add(rid="runs", prompt=tokens(40, 6), n=300)
    clean.probe(name="calls")
    clean.add(rid="waits", prompt=LONG)
    for _ in range(3):
        clean.probe(name="state")
    (calls,) = clean.probe(name="calls")
    assert calls.get("load") is None, "no load before it is admitted"
    clean.abort(rid="waits")
    assert ends_as(clean, "waits", "abort")
    clean.abort(rid="runs")
    assert ends_as(clean, "runs", "abort")


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
