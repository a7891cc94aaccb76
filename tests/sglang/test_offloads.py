"""One result for each offload, in the order in which SGLang handed them over."""

import threading
from types import SimpleNamespace

import pytest
from stand_ins import until

import orbitkv
from orbitkv.sglang import offloads
from orbitkv.sglang.loads import StuckCopyError
from orbitkv.sglang.offloads import Offload, Part
from orbitkv.sglang.places import Place

WAIT_S = 60.0


def key(name):
    return (name.encode().hex() + "00" * 32)[:64]


class Pool:
    def pages(self, slots):
        if slots == "none":
            raise ValueError("no pages")
        return slots


class Client:
    """`full`: it takes so many jobs at a time. `tried`: the first hash of what it was asked to save."""

    def __init__(self):
        self.state = "up"
        self.published = []
        self.places = []
        self.stopped = []
        self.running = set()
        self.full = 10**6
        self.refused = 0
        self.tried = []
        self.stops = True
        self.error = None

    def publish(self, hashes, pages, *, runs, first_depth, parent):
        if self.error:
            raise self.error
        self.tried.append(hashes[0])
        if len(self.running) >= self.full:
            self.refused += 1
            return None
        self.published.append(([hashes[i] for i in range(len(hashes))], list(pages), list(runs)))
        self.places.append((first_depth, parent))
        self.running.add(len(self.published))
        return len(self.published)

    def wait_sources_free(self, jobs, timeout_s):
        self.stopped += jobs
        return self.stops


class Jobs:
    def __init__(self):
        self.client = Client()
        self.ends = {}
        self.gates = {}

    def gate(self, job):
        return self.gates.setdefault(job, threading.Event())

    def end(self, *numbers, ok=True):
        for job in numbers:
            self.ends[job] = ok
            self.gate(job).set()

    def wait(self, job, timeout_s):
        if not self.gate(job).wait(timeout_s):
            return None
        if isinstance(self.ends[job], Exception):
            raise self.ends[job]
        self.client.running.discard(job)
        return SimpleNamespace(ok=self.ends[job])


@pytest.fixture
def jobs():
    return Jobs()


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def made(jobs, clock):
    made = offloads.Offloads([Pool(), Pool()], lambda: made.current, 5.0, clock)
    made.current = jobs
    yield made
    jobs.end(*range(1, 100))
    made.close()


def accept(made, name, pages=(1,), ready=()):
    made.accept(Offload([key(f"{name}{i}") for i in range(len(pages))], [Part(0, list(pages), len(pages))]), ready)


def results(made, count):
    until(lambda: made.finished() >= count)
    return [made.take_result() for _ in range(count)]


def test_results_come_in_the_order_of_the_offloads(made, jobs):
    for name in "abcd":
        accept(made, name)
    until(lambda: len(jobs.client.published) == 4)
    # They are all on their way at once; ends that come early wait for those before.
    jobs.end(3, 4)
    jobs.end(2, ok=False)
    assert made.finished() == 0
    jobs.end(1)
    assert results(made, 4) == [True, False, True, True]


def test_a_node_is_one_job_with_a_run_for_each_pool(made, jobs):
    keys = [key(f"k{i}") for i in range(4)]
    parts = [Part(0, [5, 6, 7, 8], 4), Part(1, [2, 3], 2)]
    made.accept(Offload(keys, parts), [])
    made.accept(Offload(keys, parts, Place(10, key("before"))), [])
    jobs.end(1, 2)
    assert results(made, 2) == [True, True]
    first, second = jobs.client.published
    hashes = [bytes.fromhex(one) for one in keys]
    assert first == (hashes, [5, 6, 7, 8, 2, 3], [(0, 0, 4), (1, 2, 2)])
    # Counted from the prompt's start.
    assert second == (hashes, [5, 6, 7, 8, 2, 3], [(0, 10, 4), (1, 12, 2)])
    assert jobs.client.places == [(0, b""), (10, bytes.fromhex(key("before")))]


@pytest.mark.parametrize("why", ["no client", "down", "suspect", "error", "no pages", "end not known"])
def test_what_cannot_be_saved_is_a_result_too(made, jobs, why):
    accept(made, "before")
    until(lambda: len(jobs.client.published) == 1)
    made.current = None if why == "no client" else jobs
    if why in ("down", "suspect"):
        jobs.client.state = why
    jobs.client.error = orbitkv.InvalidArgument("no") if why == "error" else None
    if why == "no pages":
        made.accept(Offload([key("x")], [Part(0, "none", 1)]), [])
    else:
        accept(made, "x")
    if why == "end not known":
        until(lambda: len(jobs.client.published) == 2)
        jobs.ends[2] = orbitkv.Error("not a job of this client")
        jobs.gate(2).set()
    jobs.end(1)
    assert results(made, 2) == [True, False]
    made.current, jobs.client.state, jobs.client.error = jobs, "up", None
    before = len(jobs.client.published)
    accept(made, "after")
    until(lambda: len(jobs.client.published) > before)
    jobs.end(before + 1)
    assert results(made, 1) == [True]


def test_a_full_client_is_tried_again_after_an_end(made, jobs):
    jobs.client.full = 1
    for name in "abc":
        accept(made, name)
    until(lambda: jobs.client.refused > 0)
    assert len(jobs.client.published) == 1
    jobs.end(1, 2, 3)
    assert results(made, 3) == [True, True, True]


def test_a_client_that_stays_full_is_waited_for_once(made, jobs, clock):
    tried = jobs.client.tried
    jobs.client.full = 1
    for name in "abcd":
        accept(made, name)
    until(lambda: jobs.client.refused > 1)
    assert set(tried) == {bytes.fromhex(key("a0")), bytes.fromhex(key("b0"))}
    clock.now += offloads.QUEUE_WAIT_S
    until(lambda: tried[-1] == bytes.fromhex(key("d0")))
    assert [tried.count(bytes.fromhex(key(name))) for name in ("c0", "d0")] == [1, 1], "given up at once"
    jobs.end(1)
    assert results(made, 4) == [True, False, False, False]
    # One has ended: a client that is still full is waited for again.
    jobs.client.full = 0
    accept(made, "e")
    until(lambda: tried.count(bytes.fromhex(key("e0"))) > 1)
    jobs.client.full = 1
    jobs.end(2)
    assert results(made, 1) == [True]


def test_the_device_is_waited_for_before_its_pages_are_read(made, jobs):
    published_by_then = []
    accept(made, "a", ready=[SimpleNamespace(synchronize=lambda: published_by_then.append(len(jobs.client.published)))])
    jobs.end(1)
    assert results(made, 1) == [True]
    assert published_by_then == [0]


def test_after_a_reset_nothing_older_has_a_result(made, jobs):
    accept(made, "a")
    until(lambda: len(jobs.client.published) == 1)
    jobs.end(1)
    until(lambda: made.finished() == 1)
    gate = threading.Event()
    accept(made, "b")
    until(lambda: len(jobs.client.published) == 2)
    accept(made, "c", ready=[SimpleNamespace(synchronize=lambda: gate.wait(WAIT_S))])
    made.quiesce()
    assert jobs.client.stopped == [2]
    assert made.finished() == 0
    gate.set()
    jobs.end(2, 3)
    # The next one is the first again; what waited for the device was not handed over any more.
    accept(made, "d")
    assert results(made, 1) == [True]
    assert made.finished() == 0
    assert [hashes for hashes, _, _ in jobs.client.published][2:] == [[bytes.fromhex(key("d0"))]]


def test_a_reset_wakes_what_waits_for_room(made, jobs):
    jobs.client.full = 0
    accept(made, "a")
    until(lambda: jobs.client.refused > 0)
    made.quiesce()
    jobs.client.full = 1
    accept(made, "b")
    jobs.end(1)
    assert results(made, 1) == [True]
    assert len(jobs.client.published) == 1


def test_a_copy_that_does_not_stop_ends_the_engine(made, jobs):
    jobs.client.stops = False
    accept(made, "a")
    until(lambda: len(jobs.client.published) == 1)
    with pytest.raises(StuckCopyError, match="this engine must end"):
        made.quiesce()


def test_a_process_that_writes_nothing_agrees_at_once(made, jobs):
    for _ in range(3):
        made.accept_done()
    assert [made.take_result() for _ in range(made.finished())] == [True] * 3
    assert jobs.client.published == []
