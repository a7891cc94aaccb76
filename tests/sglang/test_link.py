"""How an engine process's client comes up, leaves a namespace, and ends."""

import threading

import pytest
from stand_ins import ENGINE, Pool, engine

import orbitkv
from harness.client_stand_in import settled, stand_in
from orbitkv.sglang import identity
from orbitkv.sglang.compat import Ranks
from orbitkv.sglang.link import Link
from orbitkv.sglang.options import parse


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(orbitkv, "identify_weights", lambda folder, **more: f"weights of {folder}")
    return stand_in(monkeypatch)


def make_link(prepare=lambda client: None, engine=ENGINE, replicated=False, **options):
    representation = [identity.representation_fields(engine, Pool())]
    given = parse({"endpoint": "unix:///x"} | options, {})
    return Link(engine, given, representation, prepare, replicated=replicated)


def started(*args, **more):
    link = make_link(*args, **more)
    link.start()
    assert settled(link) is not None
    return link


def test_what_the_options_say_of_the_client_reaches_it(made, monkeypatch):
    named = []
    monkeypatch.setattr(orbitkv, "identify_weights", lambda *_, **more: named.append(more) or "weights")
    link = started(copy_threads=3, stores="ordinary", lookup_limit_ms=70, mode="restore_only", model_id="m")
    options = link.client.options
    assert (options.socket, options.copy_threads, options.stores) == ("/x", 3, "ordinary")
    assert (options.query_deadline_ms, options.read_only, options.role) == (70, True, "both")
    assert (named[0]["model_id"], named[0]["load_format"]) == ("m", "auto")
    options = started().client.options
    assert (options.copy_threads, options.stores, options.query_deadline_ms) == (0, "auto", 50)
    assert not options.read_only


def test_each_process_is_an_instance_of_its_own_with_one_shard(made):
    first, second = started().client.options, started().client.options
    assert first.instance != second.instance, "the Manager refuses a second life of a rank that differs"
    assert first.instance.endswith("-0")
    ranks = Ranks(tp_rank=3, tp_size=4, attn_tp_rank=3, attn_tp_size=4)
    assert started(engine=engine(ranks=ranks)).client.options.instance.endswith("-3")
    assert first.computation_digest == second.computation_digest, "equal engines share"
    assert (first.rank, first.world_size, first.shard_count) == (0, 1, 1)


def test_ranks_share_only_when_they_hold_the_same_bytes(made):
    def options(rank, replicated):
        ranks = Ranks(tp_rank=rank, tp_size=2, attn_tp_rank=rank, attn_tp_size=2)
        return started(engine=engine(ranks=ranks), replicated=replicated).client.options

    one, other = options(0, False), options(1, False)
    assert one.computation_digest != other.computation_digest
    assert not one.read_only and not other.read_only
    one, other = options(0, True), options(1, True)
    assert one.computation_digest == other.computation_digest
    assert not one.read_only and other.read_only, "one of them saves"


def test_a_rank_saves_for_itself_in_a_namespace_that_no_other_one_is_in(made):
    ranks = Ranks(tp_rank=1, tp_size=2, attn_tp_rank=1, attn_tp_size=2)
    link = started(engine=engine(ranks=ranks), replicated=True)
    link.renew()
    assert not settled(link).options.read_only
    link = started(engine=engine(ranks=ranks), replicated=True, mode="restore_only")
    link.renew()
    assert settled(link).options.read_only


def test_the_pools_are_registered_before_anybody_has_the_client(made):
    link = make_link(lambda client: setattr(client, "pages", "registered"))
    assert link.client is None
    link.start()
    assert settled(link).pages == "registered"


def test_pools_that_the_client_refuses_leave_the_engine_without_it(made, caplog):
    def refuse(client):
        raise orbitkv.LayoutError("no")

    link = make_link(refuse)
    link.start()
    assert settled(link) is None
    assert "OrbitKV stays off in this engine: no" in caplog.text


def test_a_manager_that_is_required_and_does_not_answer_is_named(made):
    link = make_link(require_manager=True, require_manager_timeout_s=2)
    with pytest.raises(orbitkv.UnavailableError, match="no Cache Manager at /x: start orbitkv-manager"):
        link.start()
    assert made[0].waited == 2.0
    assert made[0].closed is not None


def test_a_renewed_link_is_in_a_namespace_of_its_own(made):
    link = started()
    seen = [link.client]
    for _ in range(2):
        link.renew()
        seen.append(settled(link))
    assert len({client.options.computation_digest for client in seen}) == 3
    assert len({client.options.instance for client in seen}) == 3
    assert [client.closed is None for client in seen] == [False, False, True]
    again = started().client
    assert again.options.computation_digest == seen[0].options.computation_digest, "a restarted engine is back"


def test_a_link_that_left_has_no_client_until_it_is_renewed(made):
    link = started()
    first = link.client
    link.leave()
    assert link.client is None
    link.leave()
    assert settled(link) is None and first.closed is not None
    link.renew()
    second = settled(link)
    assert second.options.computation_digest != first.options.computation_digest
    assert len(made) == 2


def test_leaving_waits_for_nobody(made):
    """Its caller is the scheduler's thread, in the middle of an update of the weights."""
    let_go, ended = threading.Event(), threading.Event()
    link = started()

    def close(timeout_s=5.0):
        assert let_go.wait(10)
        ended.set()

    link.client.close = close
    link.leave()
    assert link.client is None and not ended.is_set()
    link.renew()
    assert link.client is None, "the new one comes after the end of the old one"
    let_go.set()
    assert settled(link) is made[1] and ended.is_set()


def test_a_client_that_comes_up_after_the_weights_were_replaced_is_ended(made, monkeypatch):
    reached, go_on = threading.Event(), threading.Event()

    def identify(*args, **more):
        if not reached.is_set():
            reached.set()
            assert go_on.wait(10)
        return "weights"

    monkeypatch.setattr(orbitkv, "identify_weights", identify)
    link = make_link()
    link.start()
    assert reached.wait(10)
    link.leave()
    go_on.set()
    assert link._turns.join(10)
    link.renew()
    current = settled(link)
    late, last = made
    assert current is last and last.closed is None
    assert late.closed is not None


def test_a_closed_link_stays_so(made):
    link = started()
    client = link.client
    link.close(3.0)
    link.close(4.0)
    assert (client.closed, link.client) == (3.0, None)
    link.renew()
    link.leave()
    assert len(made) == 1


def test_closing_ends_a_long_identification(made, monkeypatch, caplog):
    reached = threading.Event()

    def identify(folder, *, cancel, **more):
        reached.set()
        for _ in range(1000):
            if cancel.cancelled:
                raise orbitkv.UnavailableError("cancelled")
            threading.Event().wait(0.01)
        raise AssertionError("nobody cancelled")

    monkeypatch.setattr(orbitkv, "identify_weights", identify)
    link = make_link()
    link.start()
    assert reached.wait(10)
    link.close(10.0)
    assert link._turns.join(0.0)
    assert "stays off" not in caplog.text


def test_the_adapters_of_the_start_are_read_once(made, monkeypatch):
    read = []
    monkeypatch.setattr(orbitkv, "identify_weights", lambda folder, **more: read.append(folder) or "content")
    link = started(engine=engine(adapters=(("a", "/adapter"),)))
    link.renew()
    settled(link)
    assert read == ["/model", "/adapter"]
