"""What vLLM is told of each request: reasons, tiers, counters, events. Against fakes."""

import logging
from types import SimpleNamespace

import pytest
from fakes import (
    BLOCK,
    ONE_GROUP,
    FakeClient,
    block_hash,
    blocks,
    hashes_of,
    report,
    request,
    scheduler_side,
    step,
)
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

from orbitkv.vllm import compat, reasons
from orbitkv.vllm.events import Events
from orbitkv.vllm.messages import SaveReport, WorkerMetadata
from orbitkv.vllm.records import Counters
from orbitkv.vllm.stats import COUNTERS, Meter, OrbitKVPromMetrics, OrbitKVStats, Transfers

pytestmark = pytest.mark.usefixtures("fake_hashes", "registered")

HOST, DISK = compat.CacheHitSource.HOST, compat.CacheHitSource.DISK


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setattr("orbitkv.vllm.stats.is_registered", lambda: True)


def make(client, *, offers=True, **options):
    side = scheduler_side(client, offers=offers, **options)
    side.events = Events(ONE_GROUP, True, stored, removed)
    return side


def stored(hashes, parent, tokens, size, medium, group, lora):
    return ("stored", hashes, parent, tokens, size, medium, group)


def removed(hashes, medium, group):
    return ("removed", hashes, medium, group)


def admit(side, req, *, local=0):
    """As vLLM does: asks, and allocates what it was told."""
    if req.request_id not in side._requests:
        side.on_new_request(req)
    offered, _ = side.matched_tokens(req, local * BLOCK)
    assert offered is not None
    count = local + offered // BLOCK
    side.allocated(req, blocks(list(range(1, count + 1))), offered)
    return offered


def misses(side):
    return {key.removeprefix("misses."): count for key, count in side.account.counts.items() if "misses." in key}


# ---- reasons --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("absent", "never seen"),
        ("evicted", "evicted"),
        ("no namespace", "rank missing"),
        ("incomplete", "incomplete"),
        ("over budget", "not admitted"),
        ("refused", "not admitted"),
        ("too late", "timed out"),
        ("recompute", "slower than computing"),
    ],
)
def test_the_managers_reason_in_a_readers_words(answer, reason):
    side = make(FakeClient(reason=answer))
    assert admit(side, request("r", 20)) == 0
    assert misses(side) == {reason: 1}


@pytest.mark.parametrize(
    ("req", "reason"),
    [
        (request("r", 20, mm=[SimpleNamespace(identifier="x.png")]), "multimodal identifier"),
        (request("r", 20, skip=True), "engine reads no cache"),
        (request("r", 3), "nothing to ask"),
    ],
)
def test_requests_that_are_not_asked_for(req, reason):
    side = make(FakeClient(hashes_of("r", 0, 1, 2, 3)))
    assert admit(side, req) == 0
    assert misses(side) == {reason: 1}


def test_without_a_client_with_hits_off_or_with_the_manager_away():
    for side, reason in [
        (make(None), "not registered"),
        (make(FakeClient(state="down")), "Manager away"),
        (make(FakeClient(hashes_of("r", 0)), offers=False), "hits are off"),
    ]:
        assert admit(side, request("r", 20)) == 0
        assert misses(side) == {reason: 1}


def test_a_request_that_waited_in_vain_has_timed_out(monkeypatch):
    side = make(FakeClient(hashes_of("r", 0), silent=True), lookup_limit_ms=0)
    assert admit(side, request("r", 20)) == 0
    assert misses(side) == {"timed out": 1}


def test_a_look_up_waits_as_long_as_the_options_say():
    for options, wait_s in (({}, 200e-6), ({"lookup_wait_us": 350}, 350e-6)):
        client = FakeClient(hashes_of("r", 0))
        admit(make(client, **options), request("r", 20))
        (asked,) = [entry for entry in client.log if entry[0] == "query"]
        assert asked[4] == pytest.approx(wait_s)


def test_a_block_that_failed_before_is_named_so_and_a_load_that_failed_twice():
    side = make(FakeClient(hashes_of("r", 0, 1)))
    side._failed.add([block_hash("r", 0)])
    assert admit(side, request("r", 20)) == 0
    assert misses(side) == {"failed before": 1}
    side = make(FakeClient(hashes_of("r", 0, 1)))
    req = request("r", 20)
    assert admit(side, req) == 2 * BLOCK
    side._requests["r"].gave_up, side._requests["r"].failures = True, 2
    side._requests["r"].accounted = False
    assert admit(side, req) == 0
    assert misses(side) == {"load failed": 1}


def test_what_another_connector_loads_was_not_taken():
    side = make(FakeClient(hashes_of("r", 0, 1)))
    req = request("r", 20)
    side.on_new_request(req)
    assert side.matched_tokens(req, 0) == (2 * BLOCK, True)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 0)
    assert misses(side) == {"not taken": 1}


def test_a_request_counts_once_however_often_it_is_admitted():
    side = make(FakeClient(hashes_of("r", 0, 1), loaded=1))
    req = request("r", 20)
    admit(side, req)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 0)  # after its load
    assert side.account.counts == {"restored_tokens.host": BLOCK, "restored_tokens.disk": BLOCK}


# ---- the log --------------------------------------------------------------------------------------------------------


def test_a_line_for_each_request_when_wanted(caplog):
    caplog.set_level(logging.INFO, "orbitkv.vllm")
    admit(make(FakeClient(reason="evicted")), request("quiet", 20))
    assert caplog.messages == []
    side = make(FakeClient(hashes_of("r", 0, 1, 2), loaded=1, reason="evicted"), log_requests=True)
    admit(side, request("r", 20))
    admit(side, request("s", 20))
    assert caplog.messages == [
        "OrbitKV: request r, 20 tokens, 0 in the engine's cache, restores 12 (host 8, disk 4)",
        "OrbitKV: request s, 20 tokens, 0 in the engine's cache, restores none: evicted",
    ]


def test_the_log_is_bounded_and_says_what_it_left_out(caplog):
    caplog.set_level(logging.INFO, "orbitkv.vllm")
    now = [100.0]
    account = reasons.Account(log_requests=True, clock=lambda: now[0])
    for number in range(50):
        account.miss(request(f"r{number}", 20), 0, "evicted")
    assert len(caplog.messages) == reasons.LINES_PER_S
    assert account.counts == {"misses.evicted": 50}
    now[0] += 1
    account.miss(request("late", 20), 0, "evicted")
    assert caplog.messages[-1].endswith("(30 requests before it are not shown)")


# ---- tiers ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("loaded", "sources"),
    [(0, {HOST: 12}), (1, {HOST: 8, DISK: 4}), (3, {DISK: 12})],
)
def test_the_tiers_of_a_hit_add_up_to_it(loaded, sources):
    side = make(FakeClient(hashes_of("r", 0, 1, 2), loaded=loaded))
    req = request("r", 20)
    assert admit(side, req) == 12
    assert side.hit_sources(req, 12) == sources


def test_of_a_hit_that_vllm_shortens_the_last_blocks_go():
    side = make(FakeClient(hashes_of("r", 0, 1, 2), loaded=2))
    req = request("r", 20)
    side.on_new_request(req)
    assert side.matched_tokens(req, 0)[0] == 12
    side.allocated(req, blocks([1, 2]), 8)
    assert side.hit_sources(req, 8) == {HOST: 4, DISK: 4}


# ---- statistics -----------------------------------------------------------------------------------------------------


def test_every_counter_is_exported():
    assert set(vars(Counters())) <= set(COUNTERS)


def test_an_interval_is_told_once_and_intervals_add_up():
    meter = Meter()
    assert meter.take({"loads": 0}) is None
    first = meter.take({"loads": 2, "misses.evicted": 1})
    assert first.data == {"loads": 2, "misses.evicted": 1}
    assert meter.take({"loads": 2, "misses.evicted": 1}) is None
    second = meter.take({"loads": 5, "misses.evicted": 1})
    assert second.data == {"loads": 3}
    assert OrbitKVStats(data=dict(first.data)).aggregate(second).data == {"loads": 5, "misses.evicted": 1}
    assert OrbitKVStats().is_empty()
    first.reset()
    assert first.is_empty()


def test_nothing_is_told_where_the_front_end_would_not_know_the_name(monkeypatch):
    monkeypatch.setattr("orbitkv.vllm.stats.is_registered", lambda: False)
    assert Meter().take({"loads": 2}) is None


def test_the_scheduler_and_the_workers_count():
    side = make(FakeClient(hashes_of("r", 0, 1), loaded=1))
    admit(side, request("r", 20))
    stats = side.take_stats()
    assert stats.data["lookup_hits"] == stats.data["loads"] == 1
    assert stats.data["restored_tokens.disk"] == BLOCK
    assert side.take_stats() is None
    transfers = Transfers()
    transfers.began(7, 100.0)
    transfers.ended(SimpleNamespace(job=7, kind="restore", bytes=4_000_000_000), 102.0)
    transfers.ended(SimpleNamespace(job=8, kind="publish", bytes=500), 102.0)
    told = transfers.take_stats()
    assert told.data == {"restored_bytes": 4e9, "restore_seconds": 2.0, "saved_bytes": 500}
    line = stats.aggregate(told).reduce()
    assert (line["OrbitKV look-ups"], line["hits"], line["tokens from disk"]) == (1, 1, BLOCK)
    assert line["restore GB/s"] == 2.0


def test_prometheus_has_each_counter_with_the_engines_labels():
    registry = CollectorRegistry()

    def counter(**settings):
        return Counter(registry=registry, **settings)

    metrics = OrbitKVPromMetrics(
        SimpleNamespace(kv_transfer_config=None),
        {Counter: counter, Gauge: None, Histogram: None},
        ["model_name", "engine"],
        {0: ["m", "0"], 1: ["m", "1"]},
    )
    metrics.observe({"loads": 3, "misses.evicted": 2, "restored_tokens.disk": 64, "of.another": 1, "version": 2}, 1)
    metrics.observe({"loads": 1}, 1)
    text = generate_latest(registry).decode()
    assert 'vllm:orbitkv_loads_total{engine="1",model_name="m"} 4.0' in text
    assert 'vllm:orbitkv_loads_total{engine="0",model_name="m"} 0.0' in text
    assert 'vllm:orbitkv_misses_total{engine="1",model_name="m",reason="evicted"} 2.0' in text
    assert 'vllm:orbitkv_restored_tokens_total{engine="1",model_name="m",source="disk"} 64.0' in text
    assert "another" not in text


# ---- events ---------------------------------------------------------------------------------------------------------


def save(side, req, *, fails=()):
    side.on_new_request(req)
    ids = list(range(1, req.num_tokens // BLOCK + 1))
    metadata = side.build(step(new=[(req.request_id, ids, 0, req.num_tokens)]))
    incarnation = side._link.client.incarnation
    saves = {
        one.job: [SaveReport(incarnation, [at not in fails for at in range(len(one.block_ids))])]
        for one in metadata.saves
    }
    side.update(report(WorkerMetadata(saves)))


def test_what_is_stored_is_reported_with_its_tokens_and_once():
    side = make(FakeClient())
    hashes = [block_hash("r", at) for at in range(5)]
    save(side, request("r", 20), fails={2})
    assert side.events.take() == [
        ("stored", hashes[:2], None, list(range(8)), BLOCK, "CPU", 0),
        ("stored", hashes[3:], hashes[2], list(range(12, 20)), BLOCK, "CPU", 0),
    ]
    assert list(side.events.take()) == []
    again = request("again", 20, name="r")
    save(side, again)
    assert side.events.take() == [("stored", [hashes[2]], hashes[1], list(range(8, 12)), BLOCK, "CPU", 0)]


def test_what_was_read_from_disk_is_there_and_in_memory():
    side = make(FakeClient(hashes_of("r", 0, 1, 2), loaded=1))
    admit(side, request("r", 20))
    third = [block_hash("r", 2)], block_hash("r", 1), list(range(8, 12)), BLOCK
    assert side.events.take() == [("stored", *third, "STORAGE", 0), ("stored", *third, "CPU", 0)]


@pytest.mark.parametrize("reason", ["evicted", "absent"])
def test_a_block_that_a_look_up_misses_is_reported_gone(reason):
    side = make(FakeClient(reason=reason))
    save(side, request("r", 20))
    side.events.take()
    admit(side, request("s", 20, name="r"))
    assert side.events.take() == [("removed", [block_hash("r", 0)], "CPU", 0)]
    admit(side, request("t", 20, name="r"))
    assert list(side.events.take()) == [], "once"


def test_a_look_up_without_a_word_about_the_block_reports_nothing():
    side = make(FakeClient(reason="recompute"))
    save(side, request("r", 20))
    side.events.take()
    admit(side, request("s", 20, name="r"))
    assert list(side.events.take()) == []


def test_a_block_that_failed_to_load_is_reported_gone():
    side = make(FakeClient())
    save(side, request("r", 20))
    side.events.take()
    side.update(report(WorkerMetadata({}, {block_hash("r", 1), block_hash("x", 1)})))
    assert side.events.take() == [("removed", [block_hash("r", 1)], "CPU", 0)]


def test_events_are_off_by_default():
    side = make(FakeClient())
    side.events = Events(ONE_GROUP)
    save(side, request("r", 20))
    assert list(side.events.take()) == []


def test_events_as_vllm_publishes_them():
    own = [maybe_convert_block_hash(b"h" * 32)]
    event = compat.block_stored_event([b"h" * 32], None, [1, 2], 2, "CPU", 0, None)
    assert (event.block_hashes, event.medium, event.group_idx) == (own, "CPU", 0)
    gone = compat.block_removed_event([b"h" * 32], "STORAGE", 0)
    assert (gone.block_hashes, gone.medium) == (own, "STORAGE")
