"""The Manager is absent, dies, stops or answers with damaged pages under a running engine: requests go on.

A request is answered as an engine without a linker answers it, or it fails as SGLang lets requests fail whose pages did
not come. Never is there another answer, and the next request is answered in any case.
"""

import shutil
import signal
import tempfile
from pathlib import Path

import pytest
from engine import details, fails_or_is_right, near, tokens
from patience import TRIES, patient

from harness.manager import Manager

PROMPT = tokens(300, 4)
CACHED = 288
OTHER = tokens(200, 11)
# The calls that SGLang makes of a linker for a request that finds pages, and for one that brings some.
CALLS = ("lookup", "load", "start_layer_wise_loading", "finish_layer_wise_loading", "offload")
LOAD_LIMIT_S = 3.0
# The options let the scheduler wait in one call for a part of this. The rest is for a machine that does not run it.
CALL_LIMIT_S = 10 * LOAD_LIMIT_S


@pytest.fixture(scope="module")
def pool():
    """A folder for a pool that tests may damage."""
    path = Path(tempfile.mkdtemp(prefix="orbitkv-test-", dir="/dev/shm"))
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def manager(folder, pool):
    started = Manager(folder / "run" / "manager.sock", "64MiB", extra=["--pool-path", str(pool)]).start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def right(plain):
    answers = {}

    def answer(prompt):
        key = tuple(prompt)
        if key not in answers:
            plain.flush()
            answers[key] = plain.one(prompt)
        return answers[key]

    return answer


@pytest.fixture(scope="module")
def engine(start_engine, manager):
    started = start_engine(patient(manager, load_timeout_s=LOAD_LIMIT_S, reset_timeout_s=LOAD_LIMIT_S))
    assert started.wait_up()
    return started


@pytest.fixture
def stored(engine, manager, right):
    """The Manager has the prompt's pages, and the engine's own cache is empty. After the test all goes well again."""
    prepare(engine, manager)
    yield engine
    engine.probe(name="planned", forget=True)
    manager.signal(signal.SIGCONT)
    if not manager.process.running():
        manager.start()
    prepare(engine, manager)
    restored = engine.one(PROMPT)
    assert details([restored]) == [(0, CACHED)]
    assert near([restored], [right(PROMPT)])
    engine.evict()
    assert engine.settle()["available"] == 2048


def prepare(engine, manager):
    manager.wait_serving(1)
    assert engine.wait_up()
    engine.evict()
    until_served(engine)
    engine.probe(name="calls")


def until_served(engine):
    """The prompt's pages are saved and come back; the engine's own cache is empty then.

    A save or a look-up that a busy machine delays for too long is given up, and the next request brings it again.
    """
    for _ in range(TRIES):
        engine.one(PROMPT)
        engine.evict()
        found = details([engine.one(PROMPT)])
        engine.evict()
        if found == [(0, CACHED)]:
            return
    raise AssertionError(f"{found} of the prompt came back")


def test_refused_load_is_computed(stored, right):
    stored.plan(call="load", when="instead", answer=False)
    answer = stored.one(PROMPT)
    assert details([answer]) == [(0, 0)]
    assert near([answer], [right(PROMPT)])


def test_damaged_pages_fail_their_request_alone(stored, pool, right):
    # The prompt lies in the pages that an empty engine gives out; each is damaged wherever the pool has it.
    stored.one(PROMPT)
    pages = [bytes.fromhex(page) for number in range(1, 20) for page in stored.probe(name="page", number=number)]
    stored.evict()
    damaged = 0
    for file in (path for path in pool.rglob("*") if path.is_file()):
        with file.open("r+b") as pages_file:
            content = pages_file.read()
            for page in pages:
                at = content.find(page) if any(page) else -1
                if at >= 0:
                    pages_file.seek(at + 17)
                    pages_file.write(bytes([content[at + 17] ^ 1]))
                    damaged += 1
    assert damaged > 0
    failed = stored.one(PROMPT)
    assert failed["status"] == 503, failed
    assert "External KV cache load failed" in failed["error"]
    computed = stored.one(PROMPT)
    assert computed["host"] < CACHED, "what is damaged is not offered again"
    assert near([computed], [right(PROMPT)])
    assert near([stored.one(OTHER)], [right(OTHER)])


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("call", CALLS)
def test_the_manager_is_killed(stored, manager, right, call, when):
    stored.plan(call=call, when=when, kill=manager.pid)
    answer = stored.one(PROMPT + OTHER)
    assert fails_or_is_right(answer, right(PROMPT + OTHER))
    assert stored.probe(name="planned") == [[]], "it was killed there"
    assert near([stored.one(OTHER)], [right(OTHER)])
    manager.process.popen.wait(30)


@pytest.mark.parametrize("call", CALLS)
def test_the_manager_stops(stored, manager, right, call):
    stored.plan(call=call, when="before", stop=manager.pid)
    answer = stored.one(PROMPT + OTHER)
    assert fails_or_is_right(answer, right(PROMPT + OTHER))
    assert near([stored.one(OTHER)], [right(OTHER)]), "while it stands still"
    assert stored.probe(name="planned") == [[]], "it was stopped there"
    (calls,) = stored.probe(name="calls")
    assert max(entry["longest_s"] for entry in calls.values()) < CALL_LIMIT_S, calls


def test_a_flush_while_pages_are_saved(stored, manager, right):
    stored.plan(call="offload", when="after", stop=manager.pid)
    stored.one(OTHER)
    assert stored.flush()
    assert stored.probe(name="state")[0]["available"] == 2048
    assert near([stored.one(OTHER)], [right(OTHER)])
    manager.signal(signal.SIGCONT)
    assert stored.wait_up()
    stored.evict()
    assert details([stored.one(PROMPT)]) == [(0, 0)], "of what was stored before the flush nothing is served"
    stored.evict()
    assert details([stored.one(PROMPT)]) == [(0, CACHED)]


def test_a_manager_that_comes_later_is_taken(start_engine, folder, right):
    manager = Manager(folder / "late" / "manager.sock", "64MiB")
    engine = start_engine(patient(manager))
    try:
        assert near([engine.one(PROMPT)], [right(PROMPT)])
        engine.evict()
        manager.start()
        assert engine.wait_up()
        until_served(engine)
        assert "/orbitkv/sglang/" not in engine.log.read_text(), "no traceback of ours"
    finally:
        engine.close()
        manager.close()
