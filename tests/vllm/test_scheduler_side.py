"""The scheduler's side against a fake client: what is offered, asked, begun, released and handed to the workers."""

from types import SimpleNamespace

import pytest
from fakes import (
    BLOCK,
    HASH_BYTES,
    ONE_GROUP,
    FakeClient,
    FakeLink,
    block_hash,
    blocks,
    hashes_of,
    report,
    request,
    scheduler_side,
    start,
    step,
)

from orbitkv.vllm import compat
from orbitkv.vllm.compute_rate import DEFAULT_S
from orbitkv.vllm.messages import SaveReport, WorkerMetadata
from orbitkv.vllm.options import parse
from orbitkv.vllm.scheduler import HashSet, SchedulerSide

pytestmark = pytest.mark.usefixtures("fake_hashes")


def split(save):
    return [save.hashes[i : i + HASH_BYTES] for i in range(0, len(save.hashes), HASH_BYTES)]


def acknowledge(side, metadata, incarnation=None, world=1):
    saves = {
        save.job: [SaveReport(incarnation or side._link.client.incarnation, [True] * len(save.block_ids))] * world
        for save in metadata.saves
    }
    side.update(report(WorkerMetadata(saves)))


# ---- look-ups -------------------------------------------------------------------------------------------------------


def test_offers_what_is_there_and_never_the_last_token(clock):
    client = FakeClient(hashes_of("r", 0, 1, 2))
    side = scheduler_side(client)
    # 12 tokens are three full blocks, but the last token is always computed.
    assert start(side, request("r", 12)) == (2 * BLOCK, True)
    assert client.named("query")[0][1] == 2
    assert start(scheduler_side(client), request("r", 13)) == (3 * BLOCK, True)


def test_asks_only_behind_the_engines_own_hit(clock):
    client = FakeClient(hashes_of("r", 0, 1, 2, 3))
    side = scheduler_side(client)
    assert start(side, request("r", 21), local=3) == (BLOCK, True)
    assert client.named("query")[0][:3] == ("r", 5, 3)
    assert start(scheduler_side(client), request("r", 17), local=4) == (0, False)
    assert len(client.named("query")) == 1, "nothing to ask when the engine has it all"


@pytest.mark.parametrize(
    "req",
    [request("r", 20, mm=[SimpleNamespace(identifier="x.png")]), request("r", 20, skip=True)],
    ids=["multimodal", "skip_reading"],
)
def test_requests_that_are_answered_without_asking(clock, req):
    client = FakeClient(hashes_of("r", 0, 1, 2, 3))
    side = scheduler_side(client)
    assert start(side, req) == (0, False)
    assert client.log == []


def test_requests_outside_the_key_are_not_saved_either(clock):
    side = scheduler_side(FakeClient())
    side.on_new_request(request("r", 20, mm=[SimpleNamespace(identifier="x.png")]))
    side.on_new_request(request("s", 20, skip=True))
    metadata = side.build(step(new=[("r", [1, 2, 3, 4, 5], 0, 20), ("s", [6, 7, 8, 9, 10], 0, 20)]))
    assert [save.block_ids for save in metadata.saves] == [[6, 7, 8, 9, 10]]


@pytest.mark.parametrize("client", [None, FakeClient(hashes_of("r", 0, 1, 2), state="down")])
def test_without_a_manager_there_is_no_hit(clock, client):
    assert start(scheduler_side(client), request("r", 20)) == (0, False)


def test_save_only_and_failure_policy_offer_nothing(clock):
    client = FakeClient(hashes_of("r", 0, 1, 2))
    assert start(scheduler_side(client, offers=False), request("r", 20)) == (0, False)
    assert client.log == []


def test_waits_shortly_for_an_answer_then_gives_up_for_this_request(clock):
    client = FakeClient(hashes_of("r", 0), silent=True)
    side = scheduler_side(client)
    req = request("r", 20)
    assert start(side, req) == (None, False)
    assert client.named("query")[0][3] == pytest.approx(200e-6)
    clock.now += 0.049
    assert side.matched_tokens(req, 0) == (None, False)
    clock.now += 0.002
    assert side.matched_tokens(req, 0) == (0, False)
    assert client.named("cancel_query") == [("r",)]
    assert side.counters.lookups_given_up == 1
    client.silent = False
    asked = len(client.named("query"))
    assert side.matched_tokens(req, 0) == (0, False)
    assert len(client.named("query")) == asked


def test_a_late_answer_within_the_limit_is_used(clock):
    client = FakeClient(hashes_of("r", 0, 1), silent=True)
    side = scheduler_side(client)
    req = request("r", 20)
    assert start(side, req) == (None, False)
    client.silent = False
    clock.now += 0.01
    assert side.matched_tokens(req, 0) == (2 * BLOCK, True)


def test_a_load_in_the_manager_is_waited_for_as_long_as_it_may_take(clock):
    client = FakeClient(hashes_of("r", 0, 1), loading=True)
    side = scheduler_side(client, load_wait_ms=2000)
    req = request("r", 20)
    assert start(side, req) == (None, False)
    clock.now += 1.9
    assert side.matched_tokens(req, 0) == (None, False)
    first, second = client.named("query")
    assert (first[3], first[4]) == (pytest.approx(200e-6), pytest.approx(2.0))
    assert (second[3], second[4]) == (0.0, pytest.approx(2.0)), "looked at in passing, with the wait it began with"
    client.loading = False
    assert side.matched_tokens(req, 0) == (2 * BLOCK, True)
    assert client.named("cancel_query") == []
    assert side.counters.lookups_loading == 1


def test_a_load_that_does_not_end_is_given_up(clock):
    client = FakeClient(hashes_of("r", 0, 1), loading=True)
    side = scheduler_side(client, load_wait_ms=100)
    req = request("r", 20)
    assert start(side, req) == (None, False)
    clock.now += 0.149
    assert side.matched_tokens(req, 0) == (None, False)
    clock.now += 0.002
    assert side.matched_tokens(req, 0) == (0, False)
    assert client.named("cancel_query") == [("r",)]
    assert side.counters.lookups_given_up == 1


def test_a_load_may_take_as_long_as_computing_would(clock):
    client = FakeClient(hashes_of("r", 0), loading=True)
    side = scheduler_side(client)
    assert start(side, request("r", 4001)) == (None, False)
    assert client.named("query")[-1][4] == pytest.approx(DEFAULT_S)
    assert not client.measured[-1]
    # Steps of 200 tokens in 0.1 s; a pause and decodes say nothing.
    for tokens, pause in ((200, 0.1), (200, 0.1), (1, 5.0), (200, 100.0), (1, 0.1)):
        side._rate.step(tokens, clock.now)
        clock.now += pause
    assert start(side, request("s", 4001)) == (None, False)
    assert client.named("query")[-1][4] == pytest.approx(2.0)
    assert client.measured[-1]
    side = scheduler_side(client, load_wait_ms=2000)
    side._rate.step(200, clock.now)
    clock.now += 0.1
    side._rate.step(1, clock.now)
    assert start(side, request("t", 4001)) == (None, False)
    assert not client.measured[-1], "a wait that was set says nothing about computing"


def test_repeated_questions_use_one_lease_and_are_renewed(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    assert start(side, req) == (2 * BLOCK, True)
    assert side.matched_tokens(req, 0) == (2 * BLOCK, True)
    assert len(client.named("query")) == 1
    clock.now += 1.5
    assert side.matched_tokens(req, 0) == (2 * BLOCK, True)
    assert len(client.named("query")) == 2
    # Another local hit is another question.
    assert side.matched_tokens(req, BLOCK) == (BLOCK, True)
    assert len(client.named("query")) == 3


# ---- allocation -----------------------------------------------------------------------------------------------------


def test_begins_the_restore_for_all_ranks_and_hands_over_the_right_blocks(clock):
    client = FakeClient(hashes_of("r", 0, 1, 2, 3))
    side = scheduler_side(client, world=2)
    req = request("r", 20)
    assert start(side, req, local=1) == (3 * BLOCK, True)
    side.allocated(req, blocks([50, 51, 52, 53, 54]), 2 * BLOCK)
    ((_, count, ranks, grant),) = client.named("begin")
    assert (count, ranks) == (2, (0, 1))
    (load,) = side.build(step()).loads
    assert (load.req_id, load.grant, load.incarnation, load.block_ids) == ("r", grant, client.incarnation, [51, 52])
    assert load.hashes == block_hash("r", 1) + block_hash("r", 2)
    assert side.build(step()).loads == [], "handed over once"


def test_an_offer_that_is_not_taken_is_released(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    start(side, req)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 0)
    assert client.named("release_lease") == [(101,)]
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 0)
    side.request_finished(req)
    assert len(client.named("release_lease")) == 1


def test_a_request_that_ends_while_queued_leaves_nothing(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    start(side, req)
    side.request_finished(req)
    assert client.named("release_lease") == [(101,)]
    client.silent = True
    other = request("o", 20)
    start(side, other)
    side.request_finished(other)
    assert client.named("cancel_query") == [("o",)]
    side.request_finished(other)  # tolerated
    assert side._requests == {}


def test_a_grant_is_released_while_its_metadata_has_not_left(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    start(side, req)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    side.request_finished(req)
    assert client.named("release_grant") == [(client.named("begin")[0][3],)]
    (load,) = side.build(step()).loads
    assert load.grant == 0, "the worker still reports the request, so that vLLM frees its blocks"


def test_a_grant_is_the_workers_once_its_metadata_left(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    start(side, req)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    side.build(step())
    side.request_finished(req)
    side.update(report(finished={"r"}))
    assert client.named("release_grant") == []
    assert side._loading == {}


def test_a_grant_that_cannot_be_asked_for_becomes_a_failed_load(clock):
    client = FakeClient(hashes_of("r", 0, 1), grants_refused=True)
    side = scheduler_side(client)
    req = request("r", 20)
    start(side, req)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    assert client.named("release_lease") == [(101,)]
    (load,) = side.build(step()).loads
    assert load.grant == 0


def test_a_request_whose_loads_keep_failing_is_computed(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    side.on_new_request(req)
    for attempt in range(2):
        assert side.matched_tokens(req, 0) == (2 * BLOCK, True), attempt
        side.allocated(req, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
        side.build(step())
        side.update(report(finished={"r"}, invalid={1, 2}))
        clock.now += 5
    assert side.matched_tokens(req, 0) == (0, False)


def test_a_failed_key_is_not_offered_until_stored_anew(clock):
    client = FakeClient(hashes_of("r", 0, 1, 2))
    side = scheduler_side(client)
    side._follow_incarnation(client)
    side.update(report(WorkerMetadata(failed_hashes={block_hash("r", 1)})))
    req = request("r", 20)
    assert start(side, req) == (BLOCK, True)
    metadata = side.build(step(new=[("r", [1, 2, 3, 4, 5], 0, 20)]))
    acknowledge(side, metadata)
    clock.now += 5
    assert side.matched_tokens(req, 0) == (3 * BLOCK, True)


# ---- saves ----------------------------------------------------------------------------------------------------------


def test_saves_blocks_in_the_step_that_completes_them(clock):
    side = scheduler_side(FakeClient())
    req = request("r", 10, prompt=10)
    side.on_new_request(req)
    # A chunk of 6 tokens: one complete block.
    (save,) = side.build(step(new=[("r", [5, 6, 7], 0, 6)])).saves
    assert (save.first_depth, save.parent, save.block_ids, split(save)) == (0, b"", [5], [block_hash("r", 0)])
    assert (save.prompt_tokens, save.answer_tokens) == (10, 0)
    # The rest of the prompt: the second block; the third is partial.
    (save,) = side.build(step(cached=[("r", None, 6, 4, False)], tables={"r": [5, 6, 7]})).saves
    assert (save.first_depth, save.parent, save.block_ids) == (1, block_hash("r", 0), [6])
    # Decoding fills the third block; a hash that vLLM has not made yet is not saved.
    assert side.build(step(cached=[("r", None, 10, 2, False)], tables={"r": [5, 6, 7]})).saves == []
    req.block_hashes.append(block_hash("r", 2))
    req.num_tokens = 13
    (save,) = side.build(step(cached=[("r", [8], 12, 1, False)], tables={"r": [5, 6, 7, 8]})).saves
    assert (save.first_depth, save.block_ids, save.answer_tokens) == (2, [7], 3)
    assert side.counters.republished_tokens == 0


def test_restored_blocks_are_known_and_blocks_of_the_engine_that_were_never_stored_are_published(clock):
    client = FakeClient(hashes_of("r", 2, 3))
    side = scheduler_side(client)
    side.build(step())
    req = request("r", 24)
    # The engine has two blocks by itself, two more come from the Manager.
    assert start(side, req, local=2) == (2 * BLOCK, True)
    side.allocated(req, blocks([1, 2, 3, 4, 5, 6]), 2 * BLOCK)
    side.build(step())
    side.update(report(finished={"r"}))
    metadata = side.build(step(new=[("r", [1, 2, 3, 4, 5, 6], 16, 8)]))
    assert [save.block_ids for save in metadata.saves] == [[1, 2], [5, 6]]
    assert metadata.saves[1].parent == block_hash("r", 3)
    acknowledge(side, metadata)
    assert side.counters.republished_tokens == 2 * BLOCK
    # Known now: a second request with the same prefix in the engine's cache publishes nothing of it.
    again = request("q", 24, name="r")
    start(side, again, local=5)
    metadata = side.build(step(new=[("q", [1, 2, 3, 4, 5, 9], 20, 4)]))
    assert [save.block_ids for save in metadata.saves] == [[9]]


def test_a_new_manager_gets_what_the_engine_holds(clock):
    client = FakeClient()
    side = scheduler_side(client)
    first = request("a", 12, name="p")
    side.on_new_request(first)
    acknowledge(side, side.build(step(new=[("a", [1, 2, 3], 0, 12)])))
    side.request_finished(first)
    client.incarnation = b"two".ljust(16, b".")
    second = request("b", 13, name="p")
    start(side, second, local=3)
    metadata = side.build(step(new=[("b", [1, 2, 3, 4], 12, 1)]))
    assert [save.block_ids for save in metadata.saves] == [[1, 2, 3]]
    # An acknowledgement from another life of the Manager says nothing about this one.
    acknowledge(side, metadata, incarnation=b"one".ljust(16, b"."))
    assert side.counters.republished_tokens == 0
    third = request("c", 13, name="p")
    start(side, third, local=3)
    metadata = side.build(step(new=[("c", [1, 2, 3, 5], 12, 1)]))
    assert [save.block_ids for save in metadata.saves] == [[1, 2, 3]]
    acknowledge(side, metadata)
    assert side.counters.republished_tokens == 3 * BLOCK


def test_blocks_computed_again_are_always_published(clock):
    side = scheduler_side(FakeClient())
    req = request("r", 12)
    side.on_new_request(req)
    acknowledge(side, side.build(step(new=[("r", [1, 2, 3], 0, 12)])))
    # Preempted: looked up again, nothing found, computed again into other blocks.
    assert side.matched_tokens(req, 0) == (0, False)
    metadata = side.build(step(cached=[("r", [4, 5, 6], 0, 12, True)], tables={"r": [4, 5, 6]}))
    assert [save.block_ids for save in metadata.saves] == [[4, 5, 6]]


def test_a_block_in_the_making_is_not_saved_twice(clock):
    side = scheduler_side(FakeClient())
    first, second = request("a", 12, name="p"), request("b", 12, name="p")
    for req in (first, second):
        side.on_new_request(req)
    side.build(step(new=[("a", [1, 2, 3], 0, 12)]))
    start(side, second, local=2)
    metadata = side.build(step(new=[("b", [1, 2, 7], 8, 4)]))
    assert [save.block_ids for save in metadata.saves] == [[7]]


def test_saving_pauses_while_the_manager_is_away_and_catches_up(clock):
    client = FakeClient(state="suspect")
    side = scheduler_side(client)
    req = request("r", 16)
    side.on_new_request(req)
    assert side.build(step(new=[("r", [1, 2, 3, 4], 0, 8)])).saves == []
    client.state = "up"
    metadata = side.build(step(cached=[("r", None, 8, 4, False)], tables={"r": [1, 2, 3, 4]}))
    assert [save.block_ids for save in metadata.saves] == [[1, 2, 3]]


def test_restore_only_saves_nothing(clock):
    side = scheduler_side(FakeClient(), mode="restore_only")
    side.on_new_request(request("r", 12))
    assert side.build(step(new=[("r", [1, 2, 3], 0, 12)])).saves == []


def test_null_blocks_are_skipped(clock):
    side = scheduler_side(FakeClient())
    side.on_new_request(request("r", 12))
    metadata = side.build(step(new=[("r", [1, 0, 3], 0, 12)]))
    assert [(save.first_depth, save.block_ids) for save in metadata.saves] == [(0, [1]), (2, [3])]


# ---- fences ---------------------------------------------------------------------------------------------------------


def save_one(side, name="a", ids=(1, 2, 3)):
    req = request(name, 12)
    side.on_new_request(req)
    (save,) = side.build(step(new=[(name, list(ids), 0, 12)])).saves
    return req, save.job


def test_reused_blocks_are_fenced(clock):
    side = scheduler_side(FakeClient())
    first, job = save_one(side)
    side.request_finished(first)
    side.on_new_request(request("b", 12))
    assert side.build(step(new=[("b", [3, 8, 9], 0, 12)])).taken_jobs == [job]
    assert side.build(step()).taken_jobs == [], "told once"


def test_appended_blocks_are_fenced(clock):
    side = scheduler_side(FakeClient())
    first, job = save_one(side)
    side.on_new_request(request("b", 4))
    side.build(step(new=[("b", [9], 0, 4)]))
    side.request_finished(first)
    assert side.build(step(cached=[("b", [2], 4, 1, False)], tables={"b": [9, 2]})).taken_jobs == [job]


def test_a_block_found_with_its_content_is_not_fenced(clock):
    side = scheduler_side(FakeClient())
    first, _ = save_one(side)
    side.request_finished(first)
    side.on_new_request(request("b", 13, name="a"))
    assert side.build(step(new=[("b", [1, 2, 3, 9], 12, 1)])).taken_jobs == []


def test_a_block_computed_again_in_place_is_fenced(clock):
    side = scheduler_side(FakeClient())
    first, job = save_one(side)
    side.request_finished(first)
    side.on_new_request(request("b", 13, name="a"))
    # Block 2 was evicted and is filled again, with the same tokens: the copy must not see it half written.
    metadata = side.build(step(new=[("b", [1, 2, 3, 9], 4, 9)]))
    assert metadata.taken_jobs == [job]
    assert [save.block_ids for save in metadata.saves] == [[1, 2, 3]]


def test_blocks_given_to_a_load_are_fenced(clock):
    client = FakeClient(hashes_of("b", 0, 1))
    side = scheduler_side(client)
    first, job = save_one(side)
    side.request_finished(first)
    req = request("b", 12)
    start(side, req)
    side.allocated(req, blocks([8, 2, 9]), 2 * BLOCK)
    assert side.build(step()).taken_jobs == [job]


def test_finished_jobs_are_not_fenced_and_all_ranks_must_report(clock):
    side = scheduler_side(FakeClient(), world=2)
    first, job = save_one(side)
    side.request_finished(first)
    stored = SaveReport(side._link.client.incarnation, [True] * 3)
    partly = SaveReport(side._link.client.incarnation, [True, False, True])
    side.update(report(WorkerMetadata({job: [stored]})))
    assert side.has_pending_work()
    side.update(report(WorkerMetadata({job: [partly]})))
    assert not side.has_pending_work()
    assert side.counters.saved_blocks == 2
    side.on_new_request(request("b", 12))
    assert side.build(step(new=[("b", [1, 2, 3], 0, 12)])).taken_jobs == []
    assert [side._jobs.reads(block_id) for block_id in range(5)] == [False, True, True, True, False]
    assert side._jobs.watched_blocks == 3, "only the new job's blocks are watched"


def test_an_idle_engine_does_not_step_for_a_manager_that_is_away(clock):
    client = FakeClient()
    side = scheduler_side(client)
    save_one(side)
    assert side.has_pending_work()
    client.state = "suspect"
    assert not side.has_pending_work()
    client.state = "up"
    clock.now += 60
    assert not side.has_pending_work()


# ---- the rest -------------------------------------------------------------------------------------------------------


def test_a_reset_moves_to_a_namespace_of_its_own(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    old, job = save_one(side, "o")
    start(side, request("r", 20))
    side.reset()
    (epoch,) = side._link.epochs
    assert len(epoch) == 8
    metadata = side.build(step())
    assert metadata.epoch == epoch
    # What was on its way into the old namespace says nothing about the new one.
    side.update(report(WorkerMetadata({job: [SaveReport(client.incarnation, [True] * 3)]})))
    side.request_finished(old)
    again = request("q", 13, name="o")
    start(side, again, local=3)
    assert [save.block_ids for save in side.build(step(new=[("q", [1, 2, 3, 4], 12, 1)])).saves] == [[1, 2, 3]]
    asked = len(client.named("query"))
    side.matched_tokens(request("r", 20), 0)
    assert len(client.named("query")) == asked + 1, "an answer from before is not used"


def test_loads_that_have_not_left_fail_at_a_reset(clock):
    client = FakeClient(hashes_of("r", 0, 1))
    side = scheduler_side(client)
    req = request("r", 20)
    start(side, req)
    side.allocated(req, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    side.reset()
    assert [load.grant for load in side.build(step()).loads] == [0]


def test_worker_reports_are_merged_by_job():
    one = WorkerMetadata({1: [SaveReport(b"i", [True])]}, {b"x"})
    two = WorkerMetadata({1: [SaveReport(b"i", [False])], 2: [SaveReport(b"i", [True])]}, {b"y"})
    merged = one.aggregate(two)
    assert [len(merged.saves[1]), len(merged.saves[2])] == [2, 1]
    assert merged.failed_hashes == {b"x", b"y"}
    assert len(one.saves[1]) == 1, "inputs stay as they are"


def test_a_hash_set_forgets_the_oldest():
    known = HashSet(2)
    known.add([b"a", b"b"])
    known.add([b"a"])
    known.add([b"c"])
    assert (b"a" in known, b"b" in known, b"c" in known) == (True, False, True)


def test_shutdown_closes_the_link():
    link = FakeLink(None)
    side = SchedulerSide(
        link, parse({"orbitkv.bootstrap_socket": "/x"}), ONE_GROUP, compat.Ranks(1, 1, 1), HASH_BYTES, True
    )
    side.shutdown()
    assert link.closed == 1
