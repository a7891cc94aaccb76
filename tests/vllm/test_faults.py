"""The Manager is absent, dies, stops or comes back under a running engine: requests go on and give the same text."""

import signal

import pytest
from engine import Manager, same, tokens, wait_for

SLACK_S = 0.1


@pytest.fixture(scope="module")
def late_manager(folder):
    manager = Manager(folder / "late")
    yield manager
    manager.stop()


@pytest.fixture(scope="module")
def plain(start_engine):
    return start_engine(None)


@pytest.fixture(scope="module")
def engine(start_engine, late_manager):
    """Started while there is no Manager."""
    return start_engine({"orbitkv.bootstrap_socket": str(late_manager.socket)})


def stall(engine, plain, seeds):
    """The most that one request took longer than the same request in a plain engine. Both compute everything."""
    worst = 0.0
    for seed in seeds:
        prompt = tokens(500, seed)
        ours = engine.generate(prompts=[prompt], n=4)
        theirs = plain.generate(prompts=[prompt], n=4)
        assert same(ours["outputs"], theirs["outputs"], logprobs=False)
        worst = max(worst, ours["seconds"] - theirs["seconds"])
    return worst


def up(engine):
    return wait_for(lambda: engine.state()["client"] == "up")


def test_absent_killed_stopped_and_back(engine, plain, late_manager):
    for warm_up in (engine, plain):
        warm_up.run([tokens(500, 1000)], n=4)
    assert engine.state()["client"] in ("none", "down")
    assert stall(engine, plain, range(100, 105)) < SLACK_S, "absent"

    late_manager.start()
    assert engine.wait_up()
    prompt = tokens(300, 7)
    (reference,) = engine.run([prompt])
    engine.settle()
    assert engine.reset()
    (restored,) = engine.run([prompt])
    assert restored["cached"] == 288, "picked up without a restart"

    # Stopped: the first request may wait for its look-up's limit, the others do not wait at all.
    late_manager.signal(signal.SIGSTOP)
    try:
        assert engine.reset()
        assert stall(engine, plain, range(200, 206)) < SLACK_S, "stopped"
        (output,) = engine.run([prompt])
        assert same([output], [reference], logprobs=False)
    finally:
        late_manager.signal(signal.SIGCONT)
    assert up(engine)
    engine.settle()

    # Killed: what the engine holds goes to the next Manager, and is served from there.
    late_manager.kill()
    assert stall(engine, plain, range(300, 306)) < SLACK_S, "killed"
    (output,) = engine.run([prompt])
    assert same([output], [reference], logprobs=False)
    late_manager.start()
    assert engine.wait_up()
    assert up(engine)
    before = engine.state()["counters"]["republished_tokens"]
    (warm,) = engine.run([prompt])
    assert engine.settle()["counters"]["republished_tokens"] - before >= 288
    assert engine.reset()
    (restored,) = engine.run([prompt])
    assert restored["cached"] == 288
    assert same([restored], [warm])
    log = engine.log.read_text()
    assert "Traceback" not in log
