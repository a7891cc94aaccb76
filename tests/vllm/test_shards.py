"""Several Managers behind one scheduler: fake clients, one for each shard."""

from types import SimpleNamespace
from typing import ClassVar

import pytest
from fakes import (
    BLOCK,
    HASH_BYTES,
    ONE_GROUP,
    FakeClient,
    FakeHashes,
    FakeLink,
    block_hash,
    blocks,
    report,
    request,
    step,
)

from orbitkv.vllm import compat
from orbitkv.vllm import link as link_module
from orbitkv.vllm.link import Link, Part
from orbitkv.vllm.messages import Load, Metadata, SaveReport, WorkerMetadata
from orbitkv.vllm.options import OptionError, parse
from orbitkv.vllm.scheduler import SchedulerSide
from orbitkv.vllm.shards import ShardClients, ShardGrant
from orbitkv.vllm.worker import WorkerSide

pytestmark = pytest.mark.usefixtures("fake_hashes")

RANKS = compat.Ranks(4, 2, 2)  # two shards of two ranks with equal KV
SOCKETS = {"orbitkv.tp_shard_bootstrap_sockets": ["/a", "/b"]}


def keys(count):
    return FakeHashes([block_hash("r", i) for i in range(count)])


def shard(found, name="a", **changes):
    present = {block_hash("r", i) for i in range(found)}
    return FakeClient(present, incarnation=name.encode().ljust(16, b"."), **changes)


def pair(first=3, second=2):
    clients = [shard(first, "a"), shard(second, "b", next_id=500)]
    return ShardClients(clients, 2), clients


def test_what_every_shard_has_is_found():
    both, clients = pair(3, 2)
    answer = both.query("r", keys(4))
    assert (answer.found_blocks, answer.reason) == (2, "found")
    assert answer.lease
    grant = both.begin_restore(answer.lease, 2, ranks=range(4))
    assert [client.named("begin") for client in clients] == [[(101, 2, (0, 1), 102)], [(501, 2, (0, 1), 502)]]
    assert both.shard_grants(grant) == [
        ShardGrant(102, clients[0].incarnation),
        ShardGrant(502, clients[1].incarnation),
    ]
    both.release_grant(grant)
    both.release_grant(grant)
    assert [client.named("release_grant") for client in clients] == [[(102,)], [(502,)]]
    both.release_lease(answer.lease)
    assert [client.named("release_lease") for client in clients] == [[], []], "the grants took its place"


def test_a_lease_is_released_at_each():
    both, clients = pair()
    answer = both.query("r", keys(4))
    both.release_lease(answer.lease)
    assert [client.named("release_lease") for client in clients] == [[(101,)], [(501,)]]
    assert both.begin_restore(answer.lease, 1) == 0


@pytest.mark.parametrize("missing", [0, 1])
def test_a_shard_without_the_first_block_settles_it(missing):
    both, clients = pair(*((0, 3) if missing == 0 else (3, 0)))
    answer = both.query("r", keys(4))
    assert (answer.found_blocks, answer.lease) == (0, 0)
    assert clients[missing].named("release_lease") == []
    other = clients[1 - missing]
    assert len(other.named("release_lease")) + len(other.named("cancel_query")) == 1


def test_an_answer_waits_for_the_slowest_and_asks_nobody_twice():
    both, clients = pair(3, 3)
    clients[1].silent = True
    assert both.query("r", keys(4), wait_s=0.0) is None
    assert both.query("r", keys(4), wait_s=0.0) is None
    assert len(clients[0].named("query")) == 1
    clients[1].silent = False
    assert both.query("r", keys(4), wait_s=0.0).found_blocks == 3
    assert len(clients[0].named("query")) == 1


def test_loading_is_what_all_that_have_not_answered_say():
    both, clients = pair(3, 3)
    clients[1].loading = True
    assert both.query("r", keys(4), wait_s=0.0, load_wait_s=1.5).reason == "loading"
    assert clients[1].named("query")[0][4] == 1.5
    clients[1].loading, clients[1].silent = False, True
    assert both.query("r", keys(4), wait_s=0.0) is None
    clients[1].silent = False
    assert both.query("r", keys(4), wait_s=0.0).found_blocks == 3
    assert len(clients[0].named("query")) == 1


def test_another_question_drops_the_answers_of_the_one_before():
    both, clients = pair(3, 3)
    clients[1].silent = True
    assert both.query("r", keys(4), wait_s=0.0) is None
    assert both.query("r", keys(4), prefix_blocks=1, wait_s=0.0) is None
    assert clients[0].named("release_lease") == [(101,)]
    assert [entry[2] for entry in clients[0].named("query")] == [0, 1]


def test_a_cancelled_look_up_leaves_nothing():
    both, clients = pair(3, 3)
    clients[1].silent = True
    assert both.query("r", keys(4), wait_s=0.0) is None
    both.cancel_query("r")
    both.cancel_query("r")
    assert clients[0].named("release_lease") == [(101,)]
    assert clients[1].named("cancel_query") == [("r",)]


def test_a_begin_that_fails_at_one_is_taken_back_at_the_other():
    both, clients = pair()
    clients[1].grants_refused = True
    answer = both.query("r", keys(4))
    assert both.begin_restore(answer.lease, 1) == 0
    assert clients[0].named("release_grant") == [(102,)]
    both.release_lease(answer.lease)
    assert clients[1].named("release_lease") == [(501,)]


def test_up_is_when_all_are_up():
    both, clients = pair()
    assert both.state == "up"
    assert both.incarnation == clients[0].incarnation + clients[1].incarnation
    clients[1].state = "suspect"
    assert both.state == "suspect"
    clients[0].state, clients[0].incarnation = "down", b""
    assert both.state == "down" and both.incarnation == b""


# ---- the connector's two sides --------------------------------------------------------------------------------------


def scheduler(both):
    return SchedulerSide(FakeLink(both), parse(SOCKETS), ONE_GROUP, RANKS, HASH_BYTES, True)


def test_each_rank_restores_under_the_grant_of_its_own_manager():
    both, clients = pair(3, 2)
    side = scheduler(both)
    req = request("r", 20)
    side.on_new_request(req)
    assert side.matched_tokens(req, 0) == (2 * BLOCK, True)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    (load,) = side.build(step()).loads
    for rank, (grant, client) in enumerate(
        [(102, clients[0]), (102, clients[0]), (502, clients[1]), (502, clients[1])]
    ):
        own = FakeClient()
        worker = WorkerSide(None, None, parse(SOCKETS), ONE_GROUP, RANKS, HASH_BYTES)
        worker._link, worker._rank = FakeLink(own), rank
        worker.start_loads(Metadata(loads=[load]))
        ((began, _, ids, incarnation, _),) = own.named("restore")
        assert (began, ids, incarnation) == (grant, [1, 2], client.incarnation)


def test_a_load_without_a_grant_fails_on_every_rank():
    assert Load("r", 0, b"", b"", [], shards=[ShardGrant(5, b"x")]).grant_of(0).grant == 0


def test_saves_count_when_each_rank_reports_a_manager_of_now():
    both, clients = pair(0, 0)
    side = scheduler(both)
    side.on_new_request(request("r", 12))
    (save,) = side.build(step(new=[("r", [1, 2, 3], 0, 12)])).saves
    reports = [SaveReport(clients[rank // 2].incarnation, [True] * 3) for rank in range(4)]
    side.update(report(WorkerMetadata({save.job: reports})))
    assert side.counters.saved_blocks == 3
    side.on_new_request(request("s", 12))
    (save,) = side.build(step(new=[("s", [4, 5, 6], 0, 12)])).saves
    reports[3] = SaveReport(b"gone".ljust(16, b"."), [True] * 3)
    side.update(report(WorkerMetadata({save.job: reports})))
    assert side.counters.saved_blocks == 3


def test_the_option_is_checked():
    options = parse(SOCKETS)
    assert [options.socket_of(0), options.socket_of(1)] == ["/a", "/b"]
    options.check_shards(2)
    with pytest.raises(OptionError, match="names 2 sockets; this engine has 4 shards"):
        options.check_shards(4)
    parse({"orbitkv.bootstrap_socket": "/x"}).check_shards(4)
    for bad, words in (
        ({"orbitkv.tp_shard_bootstrap_sockets": "/a"}, "type tuple"),
        ({"orbitkv.tp_shard_bootstrap_sockets": ["/a", 3]}, "type tuple"),
        ({"orbitkv.tp_shard_bootstrap_sockets": ["a"]}, "absolute"),
        (SOCKETS | {"orbitkv.bootstrap_socket": "/x"}, "not both"),
    ):
        with pytest.raises(OptionError, match=words):
            parse(bad)


# ---- who connects where ---------------------------------------------------------------------------------------------


class RecordedClient:
    made: ClassVar[list] = []

    def __init__(self, options):
        self.options = options
        self.closed = False
        RecordedClient.made.append(self)

    def close(self, timeout_s=5.0):
        self.closed = True


@pytest.fixture
def connect(monkeypatch):
    """Brings a link up with recorded clients; what they would compute is named by their weights alone."""
    monkeypatch.setattr(link_module.orbitkv, "Client", RecordedClient)
    monkeypatch.setattr(link_module.orbitkv, "identify_weights", lambda *args, **more: "weights")
    monkeypatch.setattr(link_module.orbitkv, "computation_digest", lambda fields: fields["weights"].encode())
    monkeypatch.setattr(link_module.orbitkv, "representation_digest", lambda fields: b"pages")
    monkeypatch.setattr(
        link_module.identity, "computation_fields", lambda config, group, weights, drafter: {"weights": weights}
    )
    monkeypatch.setattr(link_module.compat, "model_folder", lambda config: "")
    monkeypatch.setattr(link_module.compat, "load_format", lambda config: "")
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id="engine"))

    def bring_up(role, rank, options):
        RecordedClient.made = []
        part = Part(role, rank, RANKS, "name")
        link = Link(config, ONE_GROUP, parse(options), part, [{}] if role == "worker" else ())
        link._turns.make_now()
        return link, [client.options for client in RecordedClient.made]

    return bring_up


def test_a_scheduler_is_one_client_of_each_shard(connect):
    link, made = connect("scheduler", 0, SOCKETS)
    assert [(o.socket, o.instance, o.world_size, o.shard_count) for o in made] == [
        ("/a", "engine/0", 2, 1),
        ("/b", "engine/1", 2, 1),
    ]
    assert [o.computation_digest for o in made] == [b"weights shard:0/2", b"weights shard:1/2"]
    assert all(o.groups == ONE_GROUP.declared() for o in made), "workers must come with the same"
    assert isinstance(link.asker, ShardClients) and link.client is None
    link.close()
    assert all(client.closed for client in RecordedClient.made) and link.asker is None


@pytest.mark.parametrize(("rank", "shard", "local"), [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)])
def test_a_worker_is_a_rank_of_its_own_shard(connect, rank, shard, local):
    link, (made,) = connect("worker", rank, SOCKETS)
    assert (made.socket, made.instance) == (f"/{'ab'[shard]}", f"engine/{shard}")
    assert (made.rank, made.world_size, made.shard, made.shard_count) == (local, 2, 0, 1)
    assert made.computation_digest == f"weights shard:{shard}/2".encode()
    assert link.client is link.asker


def test_with_one_manager_nothing_of_that_changes(connect):
    _, (made,) = connect("worker", 3, {"orbitkv.bootstrap_socket": "/x"})
    assert (made.socket, made.instance, made.rank, made.world_size) == ("/x", "engine", 3, 4)
    assert (made.shard, made.shard_count, made.computation_digest) == (1, 2, b"weights")
