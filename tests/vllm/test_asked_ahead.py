"""Look-ups of new requests before vLLM asks about each of them, against a fake client."""

import pytest
from fakes import BLOCK, FakeClient, hashes_of, request, scheduler_side

from orbitkv.vllm.scheduler import ASKED_AHEAD

pytestmark = pytest.mark.usefixtures("fake_hashes")


class OwnCache:
    """vLLM's pool of blocks, as far as it is asked about what it has."""

    def __init__(self, *hashes):
        self.hashes = set(hashes)

    def get_cached_block(self, block_hash, groups):
        assert groups == [0]
        return [0] if block_hash in self.hashes else None


def new_requests(side, *named, tokens=13):
    made = [request(name, tokens) for name in named]
    for each in made:
        side.on_new_request(each)
    return made


def test_new_requests_are_asked_about_together(clock):
    client = FakeClient(hashes_of("b", 0, 1))
    side = scheduler_side(client)
    first, second, third = new_requests(side, "a", "b", "c")
    assert side.matched_tokens(first, 0) == (0, False)
    assert [(entry[0], entry[3] > 0) for entry in client.named("query")] == [("b", False), ("c", False), ("a", True)]
    assert side.matched_tokens(second, 0) == (2 * BLOCK, True)
    assert side.matched_tokens(third, 0) == (0, False)
    assert len(client.named("query")) == 3, "their answers were there"


def test_what_is_asked_ahead_begins_behind_the_engines_own_hit(clock):
    client = FakeClient(hashes_of("b", 0, 1, 2))
    side = scheduler_side(client)
    side.domains.pool = OwnCache(*hashes_of("b", 0, 1))
    first, second = new_requests(side, "a", "b")
    side.matched_tokens(first, 0)
    assert client.named("query")[0][:3] == ("b", 3, 2)
    assert side.matched_tokens(second, 2 * BLOCK) == (BLOCK, True)
    assert len(client.named("query")) == 2
    # vLLM has lost a block since.
    (third,) = new_requests(side, "b")
    side.matched_tokens(*new_requests(side, "d"), 0)
    assert side.matched_tokens(third, BLOCK) == (2 * BLOCK, True)
    assert client.named("query")[-1][:3] == ("b", 3, 1)


def test_an_answer_from_long_before_the_admission_is_not_used(clock):
    client = FakeClient(hashes_of("b", 0, 1))
    side = scheduler_side(client)
    first, second = new_requests(side, "a", "b")
    side.matched_tokens(first, 0)
    lease = side._requests["b"].lease
    clock.now += 1.1
    assert side.matched_tokens(second, 0) == (2 * BLOCK, True)
    assert client.named("release_lease") == [(lease,)]
    assert [entry[0] for entry in client.named("query")] == ["b", "a", "b"]
    client.silent = True
    third, fourth = new_requests(side, "c", "d")
    side.matched_tokens(third, 0)
    clock.now += 1.1
    client.silent = False
    assert side.matched_tokens(fourth, 0) == (0, False)
    assert client.named("cancel_query") == [("d",)]


def test_questions_ahead_are_limited_and_leave_nothing(clock):
    names = [f"r{number}" for number in range(2 * ASKED_AHEAD)]
    client = FakeClient({block for name in names for block in hashes_of(name, 0)})
    side = scheduler_side(client)
    made = new_requests(side, *names)
    side.matched_tokens(made[0], 0)
    assert len(client.named("query")) == ASKED_AHEAD
    for each in made:
        side.request_finished(each)
    assert len(client.named("release_lease")) == ASKED_AHEAD
    assert not side._ahead


def test_a_request_that_ended_is_not_asked_about(clock):
    client = FakeClient()
    side = scheduler_side(client)
    first, second = new_requests(side, "a", "b")
    side.request_finished(second)
    side.matched_tokens(first, 0)
    assert [entry[0] for entry in client.named("query")] == ["a"]


def test_requests_that_wait_long_do_not_end_the_asking(clock):
    client = FakeClient(hashes_of("late", 0))
    side = scheduler_side(client)
    first, *_ = new_requests(side, *[f"r{number}" for number in range(2 * ASKED_AHEAD)])
    side.matched_tokens(first, 0)
    clock.now += 1.1
    second, _ = new_requests(side, "b", "late")
    side.matched_tokens(second, 0)
    assert "late" in [entry[0] for entry in client.named("query")]
    assert len(side._ahead) == 1
