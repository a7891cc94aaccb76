"""What is saved of a request and what is not: the engine's options, a request's own wishes, and too much at a time."""

import logging

import pytest
from fakes import (
    BLOCK,
    FULL,
    ONE_GROUP,
    FakeClient,
    block_hash,
    parsed,
    report,
    request,
    scheduler_side,
    step,
)

from orbitkv import warn_once
from orbitkv.vllm import save_jobs, save_policy
from orbitkv.vllm.groups import Group, Groups
from orbitkv.vllm.messages import SaveReport, WorkerMetadata
from orbitkv.vllm.save_policy import SavePolicy, Wishes

pytestmark = pytest.mark.usefixtures("fake_hashes")


def make(client=None, groups=ONE_GROUP, **more):
    return scheduler_side(client or FakeClient(), groups, **more)


def begin(side, req, params=None):
    req.kv_transfer_params = params
    side.on_new_request(req)
    return req


def saved(side, req, *, before=0, after=None, ids=None, new=True):
    """Ids of the blocks that a step of this request saves."""
    count = (after if after is not None else req.num_tokens) - before
    ids = ids or [10 + i for i in range(-(-req.num_tokens // BLOCK))]
    if new:
        output = step(new=[(req.request_id, ids, before, count)])
    else:
        output = step(cached=[(req.request_id, None, before, count, False)], tables={req.request_id: ids})
    return [block_id for save in side.build(output).saves for block_id in save.block_ids]


def end(side, req):
    """Everything that is on its way arrives, and the request is over."""
    for number, job in list(side._jobs._jobs.items()):
        stored = [True] * len(job.keys)
        side.update(report(WorkerMetadata({number: [SaveReport(side._link.client.incarnation, stored)]})))
    side.request_finished(req)


# ---- policies -------------------------------------------------------------------------------------------------------


def test_all_saves_the_answer_too_and_prompt_does_not():
    for policy, expected in (("all", [10, 11, 12, 13]), ("prompt", [10, 11])):
        side = make(save=policy)
        # Ten tokens of prompt: the third block begins in the prompt and ends in the answer.
        req = begin(side, request("r", 16, prompt=10))
        assert saved(side, req) == expected, policy


def test_seen_twice_saves_what_another_request_has_as_well():
    side = make(save="seen_twice")
    first = begin(side, request("a", 12, name="p"))
    assert saved(side, first) == []
    assert saved(side, first) == [], "the same request again, after a preemption, is not a second one"
    end(side, first)
    # The second has two blocks in the engine's own cache and computes the third.
    second = begin(side, request("b", 16, name="p"))
    assert saved(side, second, before=8) == [10, 11, 12], "the fourth is seen for the first time"
    end(side, second)
    third = begin(side, request("c", 16, name="p"))
    assert saved(side, third, before=12) == [13], "what was acknowledged does not go again"


def test_seen_twice_forgets_the_oldest(monkeypatch):
    monkeypatch.setattr(save_policy, "SEEN_KEYS", 2)
    policy = SavePolicy(parsed(save="seen_twice"))
    wishes = policy.wishes(None)

    def wants(req_id, key):
        return policy.wants(wishes, request(req_id, 4), key, 4)

    assert [wants("a", b"1"), wants("a", b"2"), wants("a", b"3")] == [False] * 3
    assert wants("b", b"3")
    assert not wants("b", b"1")


def test_nothing_is_saved_below_the_least_number_of_tokens():
    side = make(save_min_tokens=14)
    req = begin(side, request("r", 12))
    assert saved(side, req) == []
    # The answer takes it there: then it is saved from its first block on.
    req.block_hashes.append(block_hash("r", 3))
    req.num_tokens = 17
    assert saved(side, req, before=12, after=13, new=False) == []
    assert saved(side, req, before=13, after=16, new=False) == [10, 11, 12, 13]
    assert side.counters.republished_tokens == 0


def test_a_long_prompt_is_saved_from_its_first_chunk_on():
    side = make(save_min_tokens=14)
    req = begin(side, request("r", 16))
    assert saved(side, req, after=8) == [10, 11]
    side = make(save="prompt", save_min_tokens=14)
    assert saved(side, begin(side, request("s", 16, prompt=13))) == [], "of the prompt, which is too short"
    assert saved(side, begin(side, request("t", 16, prompt=14))) == [10, 11, 12]


def test_windows_keep_to_the_policy_as_well():
    window = Group(BLOCK, 1024, "sliding_window", "float32", None, "sliding_window", 2 * BLOCK)
    side = make(groups=Groups([FULL, window]), save="prompt")
    req = begin(side, request("r", 16, prompt=10))
    (full, tail) = side.build(step(new=[("r", ([1, 2, 3, 4], [5, 6, 7, 8]), 0, 16)])).saves
    assert (full.group, full.block_ids, tail.group, tail.block_ids) == (0, [1, 2], 1, [5, 6])
    end(side, req)


# ---- a request's own wishes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (None, [10, 11, 12, 13]),
        ({"orbitkv.save": True}, [10, 11, 12, 13]),
        ({"orbitkv.save": False}, []),
        ({"orbitkv.save": "prompt"}, [10, 11]),
        ({"orbitkv.save": "seen_twice"}, []),
        ({"do_remote_decode": True, "remote_host": "x"}, [10, 11, 12, 13]),
    ],
)
def test_a_request_says_what_is_saved_of_it(params, expected):
    side = make()
    assert saved(side, begin(side, request("r", 16, prompt=10), params)) == expected


def test_a_request_may_save_more_than_the_engine_does_by_itself_but_not_against_its_mode():
    side = make(save="prompt")
    assert saved(side, begin(side, request("r", 16, prompt=10), {"orbitkv.save": "all"})) == [10, 11, 12, 13]
    side = make(mode="restore_only")
    assert saved(side, begin(side, request("r", 16), {"orbitkv.save": "all"})) == []
    assert SavePolicy(parsed(mode="restore_only")).wishes({"orbitkv.save": "all"}) == Wishes("", True)
    assert SavePolicy(parsed(mode="save_only")).wishes({"orbitkv.load": True}) == Wishes("all", False)


def test_a_request_that_must_not_load_is_not_looked_up():
    client = FakeClient({block_hash("r", i) for i in range(4)})
    side = make(client)
    req = begin(side, request("r", 17), {"orbitkv.load": False})
    assert side.matched_tokens(req, 0) == (0, False)
    assert client.log == []
    other = begin(side, request("s", 17, name="r"), {"orbitkv.load": True})
    assert side.matched_tokens(other, 0) == (4 * BLOCK, True)


def test_wishes_that_are_not_understood_change_nothing_and_are_told_once(caplog):
    policy = SavePolicy(parsed())
    with caplog.at_level(logging.WARNING, "orbitkv.vllm"):
        for _ in range(2):
            for params in ({"orbitkv.save": "some"}, {"orbitkv.load": 0}, {"orbitkv.keep": 1}, {"orbitkv.save": [1]}):
                assert policy.wishes(params) == Wishes("all", True)
        assert len(caplog.records) == 4
        for number in range(100):
            policy.wishes({f"orbitkv.{number}": 1})
    assert len(caplog.records) == warn_once.MAX_WARNINGS
    assert "orbitkv.save='some'" in caplog.text


# ---- too much at a time ---------------------------------------------------------------------------------------------


def test_no_more_is_on_its_way_than_the_option_says():
    side = make(save_queue_bytes=3 * 1024 + 512)
    first = begin(side, request("a", 8))
    assert saved(side, first, ids=[1, 2]) == [1, 2]
    second = begin(side, request("b", 12))
    assert saved(side, second, ids=[3, 4, 5]) == [3], "its beginning, which a later request can use"
    assert (side.counters.dropped_blocks, side._jobs.size_bytes) == (2, 3072)
    third = begin(side, request("c", 4))
    assert saved(side, third, ids=[6]) == []
    assert side.counters.dropped_blocks == 3
    end(side, first)
    assert (len(side._jobs), side._jobs.size_bytes) == (0, 0)
    # What was dropped is published when a request finds it in the engine's own cache.
    again = begin(side, request("d", 13, name="b"))
    assert saved(side, again, before=12, ids=[3, 4, 5, 7]) == [4, 5]


def test_no_more_jobs_are_on_their_way_than_a_worker_queues(monkeypatch):
    monkeypatch.setattr(save_jobs, "MAX_JOBS", 2)
    side = make()
    requests = [begin(side, request(name, 4)) for name in "abc"]
    assert [saved(side, req, ids=[1 + i]) for i, req in enumerate(requests)] == [[1], [2], []]
    assert (len(side._jobs), side.counters.dropped_blocks) == (2, 1)


def test_blocks_that_the_manager_has_no_room_for_are_counted():
    side = make()
    req = begin(side, request("r", 12))
    saved(side, req)
    (number,) = side._jobs._jobs
    stored = [True, False, False]
    side.update(report(WorkerMetadata({number: [SaveReport(side._link.client.incarnation, stored)]})))
    assert (side.counters.saved_blocks, side.counters.unsaved_blocks, len(side._jobs)) == (1, 2, 0)
    assert not side.has_pending_work()
