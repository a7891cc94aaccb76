"""The worker's side against a fake client: restores, saves, fences, and what is reported to vLLM and the scheduler."""

import os
from types import SimpleNamespace

import pytest
from fakes import HASH_BYTES, ONE_GROUP, FakeClient, FakeLink, block_hash

import orbitkv
from orbitkv.vllm import compat, pages, worker
from orbitkv.vllm.messages import Load, Metadata, Save
from orbitkv.vllm.options import parse
from orbitkv.vllm.worker import FenceTimeoutError, WorkerSide

pytestmark = pytest.mark.usefixtures("fake_hashes")


def make(client, *, ranks=None, rank=0, groups=ONE_GROUP, zeroes=False):
    side = WorkerSide(
        SimpleNamespace(use_v2_model_runner=zeroes),
        SimpleNamespace(needs_kv_cache_zeroing=zeroes),
        parse({"orbitkv.bootstrap_socket": "/x"}),
        groups,
        ranks or compat.Ranks(1, 1, 1),
        HASH_BYTES,
    )
    side._link = FakeLink(client)
    side._rank = rank
    return side


def hashes(name, count):
    return b"".join(block_hash(name, i) for i in range(count))


def load(req_id="r", grant=7, ids=(4, 5, 6)):
    return Load(req_id, grant, b"one".ljust(16, b"."), hashes(req_id, len(ids)), list(ids), runs=[(0, 0, len(ids))])


def save(job=1, ids=(4, 5, 6)):
    return Save(job, 2, block_hash("p", 1), hashes("s", len(ids)), list(ids), 100, 3, first_block=2)


def test_a_restore_is_reported_once_and_without_bad_blocks():
    client = FakeClient()
    side = make(client)
    side.start_loads(Metadata(loads=[load()]))
    ((grant, items, ids, incarnation, job),) = client.named("restore")
    assert (grant, ids, incarnation) == (7, [4, 5, 6], b"one".ljust(16, b"."))
    assert b"".join(items) == hashes("r", 3)
    assert side.take_finished_loads() == set()
    client.complete(job, "restore", [4, 4, 4])
    assert side.take_finished_loads() == {"r"}
    assert side.take_bad_blocks() == set()
    assert side.take_finished_loads() == set()
    assert side.take_report() is None


def test_blocks_that_did_not_match_are_reported_with_their_keys():
    client = FakeClient()
    side = make(client)
    side.start_loads(Metadata(loads=[load()]))
    client.complete(client.named("restore")[0][-1], "restore", [4, 5, 6])
    assert side.take_finished_loads() == {"r"}
    assert side.take_bad_blocks() == {5, 6}
    assert side.take_report().failed_hashes == {block_hash("r", 1), block_hash("r", 2)}
    assert side.take_bad_blocks() == set()


def test_a_load_lost_with_the_manager_fails_without_blaming_the_keys():
    client = FakeClient()
    side = make(client)
    side.start_loads(Metadata(loads=[load()]))
    client.state = "down"
    client.complete(client.named("restore")[0][-1], "restore", [6])
    assert side.take_finished_loads() == {"r"}
    assert side.take_bad_blocks() == {4, 5, 6}, "an outcome list of another length blames every block"
    assert side.take_report() is None


@pytest.mark.parametrize("client", [None, FakeClient()])
def test_a_load_that_cannot_start_fails_in_the_same_step(client):
    side = make(client)
    side.start_loads(Metadata(loads=[load(grant=0)]))
    assert side.take_finished_loads() == {"r"}
    assert side.take_bad_blocks() == {4, 5, 6}


def test_a_refused_restore_fails_the_load(monkeypatch):
    client = FakeClient()

    def refuse(*args, **kwargs):
        raise orbitkv.Error("stale")

    monkeypatch.setattr(client, "restore", refuse)
    side = make(client)
    side.start_loads(Metadata(loads=[load()]))
    assert (side.take_finished_loads(), side.take_bad_blocks()) == ({"r"}, {4, 5, 6})


def test_a_save_is_reported_with_what_was_stored():
    client = FakeClient()
    side = make(client)
    side.start_saves(Metadata(saves=[save(job=9)]))
    ((items, ids, first_depth, parent, job),) = client.named("publish")
    assert (ids, first_depth, parent) == ([4, 5, 6], 2, block_hash("p", 1))
    assert b"".join(items) == hashes("s", 3)
    assert side.take_report() is None
    client.complete(job, "publish", [1, 2, 3])
    side.poll()
    (result,) = side.take_report().saves[9]
    assert (result.stored, result.incarnation) == ([True, True, False], client.incarnation)


def test_a_save_into_a_manager_that_changed_counts_as_lost():
    client = FakeClient()
    side = make(client)
    side.start_saves(Metadata(saves=[save(job=9)]))
    client.complete(client.named("publish")[0][-1], "publish", [1, 1, 1])
    client.incarnation = b"two".ljust(16, b".")
    side.poll()
    (result,) = side.take_report().saves[9]
    assert (result.stored, result.incarnation) == ([False] * 3, b"")


@pytest.mark.parametrize("client", [None, FakeClient(queue_full=True)])
def test_a_save_that_cannot_start_is_reported_as_not_stored(client):
    side = make(client)
    side.start_saves(Metadata(saves=[save(job=9)]))
    (result,) = side.take_report().saves[9]
    assert result.stored == [False] * 3


def test_only_one_rank_of_a_shard_writes():
    ranks = compat.Ranks(4, 2, 2)
    assert [ranks.shard_of(r) for r in range(4)] == [0, 0, 1, 1]
    writer, reader = FakeClient(), FakeClient()
    make(writer, ranks=ranks, rank=2).start_saves(Metadata(saves=[save()]))
    side = make(reader, ranks=ranks, rank=3)
    side.start_saves(Metadata(saves=[save(job=9)]))
    assert len(writer.named("publish")) == 1
    assert reader.named("publish") == []
    assert side.take_report().saves[9][0].stored == [True] * 3


def test_a_fence_drops_queued_saves_and_waits_for_running_ones():
    client = FakeClient()
    side = make(client)
    side.start_saves(Metadata(saves=[save(job=1), save(job=2, ids=(7,)), save(job=3, ids=(8,))]))
    jobs = [entry[-1] for entry in client.named("publish")]
    client.queued = {jobs[0]}
    side.fence(Metadata(taken_jobs=[1, 2, 99]))
    assert client.named("wait") == [((jobs[1],),)]
    assert side.take_report().saves[1][0].stored == [False] * 3
    # The dropped one is over; the running one still reports.
    client.complete(jobs[1], "publish", [1])
    side.poll()
    assert side.take_report().saves[2][0].stored == [True]


def test_a_fence_that_does_not_end_fails_the_step():
    client = FakeClient(sources_free=False)
    side = make(client)
    side.start_saves(Metadata(saves=[save(job=1)]))
    with pytest.raises(FenceTimeoutError, match="fence_timeout_s"):
        side.fence(Metadata(taken_jobs=[1]))


def test_a_fence_without_saves_asks_nothing():
    client = FakeClient()
    make(client).fence(Metadata(taken_jobs=[1]))
    assert client.log == []


class SlowClient(FakeClient):
    """Its saves end when somebody has waited for a completion."""

    def completion_fd(self):
        for entry in self.named("publish"):
            self.complete(entry[-1], "publish", [1] * len(entry[1]))
        return super().completion_fd()


@pytest.fixture
def readable():
    reader, writer = os.pipe()
    os.write(writer, b"x")
    yield reader
    os.close(reader)
    os.close(writer)


@pytest.mark.parametrize("zeroes", [True, False])
def test_a_step_ends_its_saves_where_the_next_one_zeroes_blocks_before_the_fence(readable, zeroes):
    client = SlowClient(fd=readable)
    side = make(client, zeroes=zeroes)
    side.start_saves(Metadata(saves=[save(job=9)]))
    assert len(side._saves) == (0 if zeroes else 1)
    if zeroes:
        assert side.take_report().saves[9][0].stored == [True] * 3
        assert client.named("cancel_publish") == []


def test_a_save_that_takes_too_long_is_dropped_before_its_blocks_are_zeroed(readable, monkeypatch):
    monkeypatch.setattr(worker, "SETTLE_WAIT_S", 0.0)
    client = FakeClient(fd=readable)
    client.queued = {101}  # the first job's id
    side = make(client, zeroes=True)
    side.start_saves(Metadata(saves=[save(job=9), save(job=10, ids=(7,))]))
    first, second = (entry[-1] for entry in client.named("publish"))
    assert client.named("wait") == [((second,),)], "one that reads its pages is waited for"
    assert (first, set(side._saves)) == (101, {second})
    assert side.take_report().saves[9][0].stored == [False] * 3


@pytest.mark.parametrize(
    ("runner", "cache", "late"),
    [
        ({"use_v2_model_runner": True}, {"needs_kv_cache_zeroing": True}, True),
        ({"use_v2_model_runner": True}, {"needs_kv_cache_zeroing": False}, False),
        ({"use_v2_model_runner": False}, {"needs_kv_cache_zeroing": True}, False),
        ({}, {}, False),
    ],
)
def test_only_runner_v2_with_zeroed_blocks_overwrites_before_the_fence(runner, cache, late):
    assert compat.overwrites_before_fence(SimpleNamespace(**runner), SimpleNamespace(**cache)) is late


@pytest.mark.parametrize("idle", [True, False])
def test_only_a_step_that_computes_nothing_waits_for_a_copy(idle):
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x")
        client = FakeClient(fd=reader)
        side = make(client)
        side.start_loads(Metadata(loads=[load()], idle=idle))
        side.take_finished_loads()
        assert len(client.named("completion_fd")) == idle
    finally:
        os.close(reader)
        os.close(writer)


def test_a_reset_ends_everything_in_the_old_namespace():
    reader, writer = os.pipe()
    try:
        os.write(writer, b"x")
        client = FakeClient(fd=reader)
        side = make(client)
        side.start_saves(Metadata(saves=[save(job=9)]))
        side.start_loads(Metadata(loads=[load()]))
        client.complete(client.named("restore")[0][-1], "restore", [4, 4, 4])
        side.fence(Metadata(epoch=b"e"))
        assert side._link.epochs == [b"e"]
        assert len(client.named("wait")) == 1
        assert (side._loads, side._saves) == ({}, {})
        assert side.take_report().saves[9][0].stored == [False] * 3
        side.fence(Metadata(epoch=b"e"))
        assert side._link.epochs == [b"e"]
    finally:
        os.close(reader)
        os.close(writer)


def test_when_the_pages_go_away_nothing_is_owed_any_more():
    client = FakeClient()
    side = make(client)
    side.start_saves(Metadata(saves=[save(job=9)]))
    side.start_loads(Metadata(loads=[load("r"), load("s", grant=8, ids=(7,))]))
    # One restore ends with the client; the other gives no completion.
    client.complete(client.named("restore")[0][-1], "restore", [4, 4, 4])
    side.unregister()
    assert side._link.client is None
    assert (side._loads, side._saves) == ({}, {})
    assert side.take_finished_loads() == {"r", "s"}
    assert side.take_bad_blocks() == {7}
    assert side.take_report().saves[9][0].stored == [False] * 3
    side.unregister()
    assert (side.take_finished_loads(), side.take_report()) == (set(), None)


def test_addresses_are_read_again_when_the_pages_come_back(monkeypatch):
    side = make(FakeClient())
    where = [1000]
    monkeypatch.setattr(pages, "collect_pages", lambda *args: ([where[0]], "format"))
    monkeypatch.setattr("orbitkv.vllm.identity.representation_fields", lambda *args: {})
    side._kv_cache_config = SimpleNamespace(kv_cache_groups=[SimpleNamespace(layer_names=["l"])])
    side.restore_pages()
    where[0] = 2000
    side.restore_pages()
    assert side._layers == [[2000]]
    assert side._link.resumed == 2


def test_shutdown_is_idempotent():
    side = make(FakeClient())
    side.shutdown()
    side.shutdown()
    WorkerSide(SimpleNamespace(), SimpleNamespace(), parse({}), ONE_GROUP, compat.Ranks(1, 1, 1), HASH_BYTES).shutdown()
