"""A batch of loads: its layers resolve when nothing of it writes any more, in order, or the engine is told to end."""

import queue
import threading
from types import SimpleNamespace

import pytest
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import LayerWiseLoadCounter
from stand_ins import until

import orbitkv
from orbitkv.sglang import loads
from orbitkv.sglang.lookups import Grant

WAIT_S = 60.0


class Pool:
    name = "kv"

    def pages(self, slots):
        if slots == "none":
            raise ValueError("no pages")
        return slots


class Group(list):
    layer_count = 3
    copied_layers = (2, 4, 6)


class Client:
    def __init__(self):
        self.restored, self.released = [], []
        self.refuses = ()

    def restore(self, grant, hashes, pages, *, prefix_blocks, incarnation):
        assert prefix_blocks == 7
        if grant in self.refuses:
            raise orbitkv.UnavailableError("no room")
        self.restored.append((grant, list(pages), incarnation))
        return grant * 10

    def release_grant(self, grant):
        self.released.append(grant)


class Jobs:
    """Of a client whose copies end when they are told to. `ends` of a job that never does is None."""

    def __init__(self, client):
        self.client = client
        self.ends = {}
        self.gates = {}
        self.waited = []
        self.layers = {}  # of a job, one number after the other; then it has ended

    def gate(self, job):
        return self.gates.setdefault(job, threading.Event())

    def end(self, job, ok=True, error=""):
        self.ends[job] = SimpleNamespace(ok=ok, error=error)
        self.gate(job).set()

    def wait_layers(self, job, known, timeout_s):
        return self.layers[job].get() if job in self.layers else known

    def wait(self, job, timeout_s):
        self.waited.append(job)
        if job in self.ends and self.ends[job] is None:
            return None
        assert self.gate(job).wait(WAIT_S)
        end = self.ends[job]
        if isinstance(end, Exception):
            raise end
        return end


@pytest.fixture
def jobs():
    return Jobs(Client())


@pytest.fixture
def made(jobs):
    counter = LayerWiseLoadCounter(Group.layer_count)
    made = loads.Loads(Group([Pool()]), counter, list, 5.0)
    made.counter = counter
    yield made
    made.close()


def load(jobs, number, pages=(1, 2)):
    grant = Grant(jobs.client, number, b"life", 7, object())
    return loads.Load(f"r{number}", grant, jobs, [list(pages)])


def test_nothing_queued_is_no_batch(made):
    assert made.start() == -1
    assert made.finish(-1) is True


def test_every_request_of_a_batch_is_restored_into_its_pages(made, jobs):
    made.queue(load(jobs, 1, [3, 4]))
    made.queue(load(jobs, 2, [5]))
    jobs.end(10)
    jobs.end(20)
    index = made.start()
    assert made.finish(index) is True
    assert jobs.client.restored == [(1, [3, 4], b"life"), (2, [5], b"life")]
    assert jobs.client.released == []
    assert made.start() == -1


def test_layers_are_complete_in_order_and_only_when_all_requests_are(made, jobs, monkeypatch):
    completed = []
    complete = made.counter.complete
    monkeypatch.setattr(
        made.counter, "complete", lambda index, layer: (completed.append(layer), complete(index, layer))
    )
    made.queue(load(jobs, 1))
    made.queue(load(jobs, 2))
    jobs.end(10)
    index = made.start()
    made.counter.set_consumer(index)
    until(lambda: jobs.waited == [10, 20])
    assert completed == []
    jobs.end(20)
    made.counter.wait_until(2)
    assert completed == [0, 1, 2]
    assert made.finish(index) is True


def test_layers_are_complete_while_later_ones_are_copied(made, jobs):
    jobs.layers[20] = queue.SimpleQueue()
    made.queue(load(jobs, 1))
    made.queue(load(jobs, 2))
    index = made.start()
    futures = made.counter.futures[index]
    jobs.layers[20].put(3)
    # The first one may still write into any layer.
    until(lambda: jobs.waited)
    assert not any(future.done() for future in futures)
    jobs.end(10)
    assert futures[0].result(WAIT_S) is None
    assert not futures[1].done(), "one of its two buffers is missing"
    jobs.layers[20].put(6)
    assert futures[1].result(WAIT_S) is None
    until(lambda: jobs.waited == [10, 20])
    assert not futures[2].done(), "the last one waits for the verdict"
    jobs.end(20)
    assert made.finish(index) is True


def test_a_batch_whose_ends_cannot_be_waited_for_is_stuck(made, jobs, monkeypatch):
    monkeypatch.setattr(jobs, "wait", None)
    made.queue(load(jobs, 1))
    with pytest.raises(loads.StuckCopyError):
        made.finish(made.start())


def test_a_copy_whose_layers_are_not_known_is_waited_for(made, jobs, monkeypatch):
    monkeypatch.setattr(jobs, "wait_layers", None)
    made.queue(load(jobs, 1))
    index = made.start()
    until(lambda: jobs.waited == [10])
    assert not made.counter.futures[index][0].done()
    jobs.end(10)
    assert made.finish(index) is True


def test_layers_that_were_there_do_not_make_a_failed_batch_good(made, jobs):
    jobs.layers[10] = queue.SimpleQueue()
    made.queue(load(jobs, 1))
    index = made.start()
    futures = made.counter.futures[index]
    jobs.layers[10].put(2)
    assert futures[0].result(WAIT_S) is None
    jobs.layers[10].put(2)  # no more: it has ended
    jobs.end(10, ok=False, error="a page differs")
    assert made.finish(index) is False
    assert "a page differs" in str(futures[1].exception())


def test_a_failed_request_fails_the_batch_when_the_others_have_ended(made, jobs):
    made.queue(load(jobs, 1))
    made.queue(load(jobs, 2))
    jobs.end(10, ok=False, error="a page differs")
    index = made.start()
    until(lambda: jobs.waited == [10, 20])
    futures = made.counter.futures[index]
    # The second one still writes.
    assert not any(future.done() for future in futures)
    jobs.end(20)
    assert made.finish(index) is False
    assert all("r1: a page differs" in str(future.exception()) for future in futures)


@pytest.mark.parametrize("why", ["no grant", "no pages", "refused", "no slots"])
def test_a_request_that_cannot_begin_fails_its_batch(made, jobs, why):
    jobs.client.refuses = (2,) if why == "refused" else ()
    bad = load(jobs, 2)
    if why == "no grant":
        bad = loads.Load("r2", None, None, bad.slots)
    elif why == "no slots":
        bad = loads.Load("r2", bad.grant, jobs, [])
    elif why == "no pages":
        bad = loads.Load("r2", bad.grant, jobs, ["none"])
    for one in (load(jobs, 1), bad, load(jobs, 3)):
        made.queue(one)
    index = made.start()
    until(lambda: jobs.waited == [10])
    # The first one had begun: it is waited for.
    assert not made.counter.futures[index][0].done()
    jobs.end(10)
    assert made.finish(index) is False
    # What had not begun gives its grant back, and never begins.
    assert [grant for grant, _, _ in jobs.client.restored] == [1]
    assert jobs.client.released == ([3] if why == "no grant" else [2, 3])
    # The thread goes on.
    made.queue(load(jobs, 4))
    jobs.end(40)
    assert made.finish(made.start()) is True


def test_a_job_whose_end_is_not_known_has_failed(made, jobs):
    made.queue(load(jobs, 1))
    jobs.ends[10] = orbitkv.Error("not a job of this client")
    jobs.gate(10).set()
    assert made.finish(made.start()) is False


def test_a_copy_that_does_not_stop_ends_the_engine(made, jobs):
    jobs.ends[10] = None
    made.queue(load(jobs, 1))
    index = made.start()
    # The forward goes on, and its verdict is the end.
    made.counter.set_consumer(index)
    made.counter.wait_until(2)
    with pytest.raises(loads.StuckCopyError, match="this engine must end"):
        made.finish(index)
    made.queue(load(jobs, 1))
    made.start()
    with pytest.raises(loads.StuckCopyError):
        made.quiesce()


def test_a_cancelled_request_is_not_loaded(made, jobs):
    made.queue(load(jobs, 1))
    made.queue(load(jobs, 2))
    assert made.cancel("r1") is True
    assert made.cancel("r1") is False
    jobs.end(20)
    index = made.start()
    # Too late for the other one.
    assert made.cancel("r2") is False
    assert made.finish(index) is True
    assert [grant for grant, _, _ in jobs.client.restored] == [2]
    assert jobs.client.released == [1]


def test_the_device_is_waited_for_before_its_slots_are_written(jobs):
    restored_by_then = []
    event = SimpleNamespace(synchronize=lambda: restored_by_then.append(len(jobs.client.restored)))
    made = loads.Loads(Group([Pool()]), LayerWiseLoadCounter(Group.layer_count), lambda: [event], 5.0)
    made.queue(load(jobs, 1))
    jobs.end(10)
    assert made.finish(made.start()) is True
    assert restored_by_then == [0]
    made.close()


def test_quiesce_drops_what_is_queued_and_waits_for_what_runs(made, jobs):
    made.queue(load(jobs, 1))
    made.start()
    made.queue(load(jobs, 2))
    ended = threading.Event()

    def quiesce():
        made.quiesce()
        ended.set()

    thread = threading.Thread(target=quiesce)
    thread.start()
    until(lambda: jobs.waited == [10])
    assert not ended.is_set()
    jobs.end(10)
    thread.join(WAIT_S)
    assert ended.is_set()
    assert jobs.client.released == [2]
    assert made.start() == -1
