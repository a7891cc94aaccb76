"""One answer and one lease for each waiting request, however often SGLang asks."""

from types import SimpleNamespace

import pytest

import orbitkv
from orbitkv.sglang import lookups
from orbitkv.sglang.lookups import COMPLETE_AGE_S, FORGET_AGE_S, HURRY_AGE_S, PARTIAL_AGE_S, SILENCE_S, Lookups, Waits


def keys(name, count):
    return [(f"{name}:{i}".encode().hex() + "00" * 32)[:64] for i in range(count)]


class Client:
    """Has `stored` pages of every prompt. What is asked for is listed in `asked`.

    With a clock an answer comes when the whole wait is over, or after `takes` seconds of it.
    """

    def __init__(self, stored=4):
        self.stored = stored
        self.state = "up"
        self.incarnation = b"i" * 16
        self.asked, self.released, self.begun, self.warmed = [], [], [], []
        self.silent = False
        self.loading = 0  # answers "loading" so many times
        self.reason = "absent"
        self.error = None
        self.grants = True
        self.room = 10**6  # for leases
        self.leases = {}
        self.clock = None
        self.takes = None

    def query(self, rid, hashes, *, prefix_blocks, attempt, wait_s, load_wait_s):
        self.asked.append((rid, len(hashes), attempt, wait_s, load_wait_s))
        hashes = hashes[prefix_blocks:]
        if self.error:
            raise self.error
        if self.clock:
            takes = wait_s if self.takes is None else self.takes
            self.clock.now += min(wait_s, takes)
            if takes > wait_s:
                return None
        if self.silent:
            return None
        if self.loading:
            self.loading -= 1
            return SimpleNamespace(reason="loading", found_blocks=0, lease=0, boundaries=[])
        if rid not in self.leases and len(self.leases) >= self.room:
            return SimpleNamespace(reason="refused", found_blocks=0, lease=0, boundaries=[])
        found = min(self.stored, len(hashes))
        self.leases[rid] = len(self.asked)
        return SimpleNamespace(
            reason="found" if found else self.reason,
            found_blocks=found,
            lease=len(self.asked) if found else 0,
            boundaries=list(range(1, found + 1)),
        )

    def warm_up(self, rid, hashes, *, prefix_blocks):
        self.warmed.append((rid, len(hashes), prefix_blocks))

    def release_lease(self, lease):
        self.released.append(lease)
        self.leases = {rid: one for rid, one in self.leases.items() if one != lease}

    def begin_restore(self, lease, blocks):
        self.begun.append((lease, blocks))
        return 77 if self.grants else 0


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture
def client():
    return Client()


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def asks(clock):
    return Lookups(Waits(), clock)


def test_a_repeated_question_is_answered_from_memory(asks, client, clock):
    prompt = keys("a", 4)
    for _ in range(100):
        assert asks.ask(client, "r", list(prompt)) == [1, 2, 3, 4]
    assert len(client.asked) == 1
    clock.now += COMPLETE_AGE_S
    assert asks.ask(client, "r", prompt) == [1, 2, 3, 4]
    # Asked anew, under the same request and attempt: the lease is renewed, not added.
    assert client.asked[1] == client.asked[0]


def test_what_may_still_grow_is_asked_for_sooner(asks, client, clock):
    prompt = keys("a", 6)
    assert asks.ask(client, "r", prompt) == [1, 2, 3, 4]
    client.stored = 6
    assert asks.ask(client, "r", prompt) == [1, 2, 3, 4]
    clock.now += PARTIAL_AGE_S
    assert asks.ask(client, "r", prompt) == [1, 2, 3, 4, 5, 6]
    assert asks.ask(client, "new", keys("b", 2)) == [1, 2]


def test_what_does_not_grow_is_asked_for_ever_more_seldom(asks, client, clock):
    """The scheduler asks about all that wait in each of its passes."""
    prompt = keys("a", 6)

    def questions(seconds):
        before, end = len(client.asked), clock.now + seconds
        while clock.now < end:
            assert len(asks.ask(client, "r", prompt)) == client.stored
            clock.now += PARTIAL_AGE_S / 2
        return len(client.asked) - before

    assert questions(COMPLETE_AGE_S) <= 7
    assert questions(4 * COMPLETE_AGE_S) in (4, 5)
    client.stored = 5
    clock.now += COMPLETE_AGE_S
    assert questions(3 * PARTIAL_AGE_S) >= 2, "one that has grown may grow again soon"
    client.stored, client.reason = 0, "down"
    clock.now += COMPLETE_AGE_S
    assert questions(10 * PARTIAL_AGE_S) > 5, "a Manager that has not looked may be back soon"


def test_another_tail_of_the_same_request_is_another_question(asks, client):
    prompt = keys("a", 4)
    assert asks.ask(client, "r", prompt) == [1, 2, 3, 4]
    assert asks.ask(client, "r", prompt[1:]) == [1, 2, 3]
    assert asks.ask(client, "r", keys("b", 3)) == [1, 2, 3]
    assert [(count, attempt) for _, count, attempt, _, _ in client.asked] == [(4, 0), (3, 1), (3, 2)]
    assert len(asks) == 1


def test_pages_that_the_engine_has_are_counted_and_not_asked_for(asks, client):
    prompt = keys("a", 6)
    assert asks.ask(client, "r", prompt[:5], 10) == [1, 2, 3, 4]
    assert client.asked[0][1] == 15
    assert client.warmed == [("r", 15, 14)]
    grant = asks.begin(client, "r", prompt[:3])
    assert (grant.depth, len(grant.hashes)) == (10, 3)
    assert [grant.hashes[i] for i in range(3)] == [bytes.fromhex(key) for key in prompt[:3]]
    assert client.begun == [(1, 3)]


def test_a_silent_manager_is_waited_for_once(asks, client, clock):
    client.clock, client.silent = clock, True

    def ask(rid):
        asks.begin_pass()
        return asks.ask(client, rid, keys("a", 4))

    for i in range(20):
        assert ask(f"r{i}") == []
    waits = [wait for _, _, _, wait, _ in client.asked]
    assert waits == [Waits().first_s] + [0.0] * 19
    # Nobody may look for its late answer: it is asked again after a while.
    for _ in range(2):
        clock.now += SILENCE_S
        client.asked.clear()
        for i in range(20):
            assert ask(f"s{i}") == []
        assert [wait for _, _, _, wait, _ in client.asked] == waits
    # The late answer is taken on a later pass, and then waiting is worth it again.
    client.silent = False
    assert ask("r0") == [1, 2, 3, 4]
    client.silent = True
    assert ask("new") == []
    assert client.asked[-1][3] == Waits().first_s


def test_the_look_ups_of_one_pass_wait_so_long_in_all(asks, client, clock):
    first_s = Waits().first_s
    client.clock, client.takes = clock, 0.35 * first_s

    def ask_all():
        asks.begin_pass()
        began = clock.now
        found = [bool(asks.ask(client, f"r{i}", keys(f"{i}", 4))) for i in range(20)]
        assert clock.now - began <= first_s + 1e-9
        return found

    # That the third one's wait was cut short is no silence: the Manager is waited for in the next pass.
    for count in range(2, 21, 2):
        assert ask_all() == [True] * count + [False] * (20 - count)


def test_a_manager_that_answers_at_once_answers_every_look_up_of_a_pass(asks, client, clock):
    client.clock, client.takes = clock, lookups.PROMPT_PART * Waits().first_s / 2
    assert all(asks.ask(client, f"r{i}", keys(f"{i}", 4)) for i in range(100))


def test_a_manager_that_loads_is_waited_for_as_long_as_was_said(client, clock):
    client.clock, client.loading = clock, 3
    asks = Lookups(Waits(0.002, 1.0), clock)
    assert asks.ask(client, "r", keys("a", 4)) == [1, 2, 3, 4]
    assert all(load == 1.0 for _, _, _, _, load in client.asked)
    client.loading = 10**6
    assert asks.ask(client, "s", keys("b", 4)) == []
    assert clock.now == pytest.approx(1.002), "with the others of its pass"
    assert asks.ask(client, "t", keys("c", 4)) == []
    assert clock.now == pytest.approx(1.002)
    asks.begin_pass()
    assert asks.ask(client, "t", keys("c", 4)) == []
    assert clock.now == pytest.approx(2.004)
    # Without that wait the first word is the last.
    asks, client.loading = Lookups(Waits(), clock), 10**6
    began = clock.now
    assert asks.ask(client, "u", keys("d", 4)) == []
    assert clock.now - began == pytest.approx(0.002)


def test_the_rest_is_wished_for_once(asks, client, clock):
    prompt = keys("a", 6)
    for _ in range(3):
        asks.ask(client, "r", prompt)
        clock.now += PARTIAL_AGE_S
    assert client.warmed == [("r", 6, 4)]
    # Not of what is there, nor where the Manager has not looked.
    asks.ask(client, "s", keys("b", 4))
    client.stored = 0
    for reason in ("down", "timed out", "refused", "no namespace"):
        client.reason = reason
        asks.ask(client, reason, keys("c", 4))
    assert client.warmed == [("r", 6, 4)]
    client.reason = "evicted"
    asks.ask(client, "t", keys("d", 4))
    assert client.warmed[1:] == [("t", 4, 0)]


@pytest.mark.parametrize("error", [orbitkv.InvalidArgument("no"), orbitkv.ForkedError("no"), RuntimeError("no")])
def test_a_look_up_never_raises(asks, client, error):
    client.error = error
    assert asks.ask(client, "r", keys("a", 4)) == []
    client.error = None
    assert asks.ask(client, "r", ["no hex"]) == []
    assert asks.ask(client, "r", keys("a", 4)) == [1, 2, 3, 4]


def test_nothing_is_offered_of_a_client_that_went_down(asks, client):
    assert asks.ask(client, "r", keys("a", 4))
    client.state = "down"
    assert asks.ask(client, "r", keys("a", 4)) == []
    # A later client is asked, whatever its predecessor said.
    later = Client(stored=2)
    assert asks.ask(later, "r", keys("a", 4)) == [1, 2]
    assert asks.begin(client, "r", keys("a", 2)) is None


def test_a_load_takes_the_lease_for_its_boundary(asks, client):
    prompt = keys("a", 4)
    asks.ask(client, "r", prompt)
    grant = asks.begin(client, "r", prompt[:3])
    assert (grant.number, grant.incarnation, len(grant.hashes)) == (77, client.incarnation, 3)
    assert grant.hashes[2] == bytes.fromhex(prompt[2])
    assert client.begun == [(1, 3)]
    assert client.released == []
    # The lease is taken: the next load of this request has to ask.
    assert asks.begin(client, "r", prompt) is None


@pytest.mark.parametrize("case", ["never asked", "another prompt", "beyond what was found", "not begun"])
def test_a_load_without_its_lease_gets_no_grant(asks, client, case):
    if case != "never asked":
        asks.ask(client, "r", keys("a", 6))
    wanted = {"another prompt": keys("b", 3), "beyond what was found": keys("a", 5)}.get(case, keys("a", 3))
    client.grants = case != "not begun"
    assert asks.begin(client, "r", wanted) is None
    assert client.released == ([] if case == "never asked" else [1])


def test_requests_that_have_left_are_forgotten(asks, client, clock):
    for i in range(10):
        asks.ask(client, f"r{i}", keys(f"{i}", 2))
    clock.now += FORGET_AGE_S
    asks.ask(client, "new", keys("a", 2))
    assert len(asks) == 1
    assert client.released == list(range(1, 11))
    for i in range(lookups.MAX_REQUESTS + 10):
        asks.ask(client, f"s{i}", keys("a", 1))
    assert len(asks) == lookups.MAX_REQUESTS


def test_without_room_for_a_lease_those_that_seem_to_have_left_give_theirs_back(asks, client, clock):
    client.room = 3
    for i in range(3):
        asks.ask(client, f"r{i}", keys(f"{i}", 2))
    assert asks.ask(client, "new", keys("new", 2)) == []
    # They wait still; a request that waits in vain is asked for again.
    assert client.released == []
    clock.now += HURRY_AGE_S
    assert asks.ask(client, "r2", keys("2", 2)) == [1, 2]
    assert asks.ask(client, "new", keys("new", 2)) == [1, 2]
    assert client.released == [1, 2]
    assert asks.begin(client, "r2", keys("2", 2)) is not None


def test_after_a_reset_every_lease_is_given_back(asks, client):
    asks.ask(client, "r", keys("a", 2))
    asks.ask(client, "s", keys("b", 2))
    asks.clear()
    assert client.released == [1, 2]
    assert asks.begin(client, "r", keys("a", 2)) is None


def test_leases_of_a_client_that_has_ended_are_no_error(asks, client):
    """It has ended when the weights were replaced, before the flush that follows."""
    asks.ask(client, "r", keys("a", 2))
    asks.ask(client, "s", keys("b", 2))

    def refuse(lease):
        raise orbitkv.UnavailableError("the client is closed")

    client.release_lease = refuse
    client.grants = False
    assert asks.begin(client, "r", keys("a", 2)) is None
    asks.clear()
    assert len(asks) == 0
