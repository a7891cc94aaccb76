"""What is brought up beside its owner: one at a time, and nothing of a turn that is over."""

import logging
import threading

import pytest

from orbitkv.turns import Turns

logger = logging.getLogger("orbitkv.tests")


class Thing:
    def __init__(self, number):
        self.number = number
        self.ends = []

    def close(self, timeout_s=5.0):
        self.ends.append(timeout_s)


class Made:
    """Makes things when it is let, one after the other."""

    def __init__(self):
        self.things = []
        self.may = threading.Event()
        self.may.set()
        self.asked = threading.Semaphore(0)
        self.at_once = 0
        self.most = 0
        self.stopped = 0

    def make(self):
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        self.asked.release()
        assert self.may.wait(10)
        self.things.append(Thing(len(self.things)))
        self.at_once -= 1
        return self.things[-1]

    def stop(self):
        self.stopped += 1


@pytest.fixture
def made():
    return Made()


@pytest.fixture
def turns(made):
    turns = Turns(made.make, made.stop, logger)
    yield turns
    made.may.set()
    turns.close(10)


def test_there_is_nothing_until_it_is_made(made, turns):
    assert turns.current is None
    turns.start()
    assert turns.join(10) and turns.current is made.things[0]


def test_in_the_callers_thread_what_is_raised_is_the_callers(made):
    turns = Turns(made.make, made.stop, logger)
    assert turns.make_now() is made.things[0] is turns.current
    failing = Turns(lambda: 1 / 0, made.stop, logger)
    with pytest.raises(ZeroDivisionError):
        failing.make_now()


def test_turns_follow_one_another_and_only_the_last_one_counts(made, turns):
    made.may.clear()
    turns.start()
    assert made.asked.acquire(timeout=10)
    turns.renew()
    turns.renew()
    assert turns.current is None
    made.may.set()
    assert turns.join(10)
    assert made.most == 1, "a turn begins when the one before has ended"
    first, last = made.things
    assert turns.current is last, "the turn between them was over before it began"
    assert first.ends and not last.ends


def test_a_change_is_made_before_what_reads_it(made):
    seen, value = [], [0]
    turns = Turns(lambda: seen.append(value[0]) or made.make(), made.stop, logger)
    turns.start()
    turns.renew(lambda: value.__setitem__(0, 1))
    assert turns.join(10)
    turns.pause(1.0)
    turns.renew(lambda: value.__setitem__(0, 2))
    assert turns.join(10) and turns.current is None
    turns.resume()
    assert turns.join(10)
    assert (seen[-2:], turns.current is made.things[-1]) == ([1, 2], True)
    turns.close(1.0)


@pytest.mark.parametrize("timeout_s", [3.0, None])
def test_a_pause_ends_what_there_is_once(made, turns, timeout_s):
    turns.start()
    assert turns.join(10)
    (thing,) = made.things
    assert turns.pause(timeout_s) is (thing if timeout_s else None)
    assert turns.current is None
    assert turns.pause(timeout_s) is None
    assert turns.join(10)
    assert len(thing.ends) == 1 and (timeout_s is None or thing.ends == [3.0])
    turns.resume()
    turns.resume()
    assert turns.join(10)
    assert turns.current is made.things[1] and len(made.things) == 2


def test_a_pause_before_anything_is_there_drops_what_comes(made, turns):
    made.may.clear()
    turns.start()
    assert made.asked.acquire(timeout=10)
    assert turns.pause(None) is None
    made.may.set()
    assert turns.join(10)
    assert turns.current is None and made.things[0].ends


def test_the_end_comes_once_and_nothing_after_it(made, turns):
    turns.start()
    assert turns.join(10)
    for _ in range(2):
        turns.close(2.0)
    turns.renew()
    turns.resume()
    assert turns.pause(1.0) is None
    assert (made.things[0].ends, made.stopped, len(made.things), turns.current) == ([2.0], 1, 1, None)


def test_what_is_being_made_at_the_end_is_told_to_stop_and_ended(made):
    turns = Turns(made.make, made.may.set, logger)
    made.may.clear()
    turns.start()
    assert made.asked.acquire(timeout=10)
    turns.close(10)
    assert turns.current is None and made.things[0].ends == [0.0]


def test_what_fails_because_it_was_told_to_stop_is_no_failure(caplog):
    asked, stop = threading.Event(), threading.Event()

    def make():
        asked.set()
        assert stop.wait(10)
        raise ValueError("cancelled")

    turns = Turns(make, stop.set, logger)
    turns.start()
    assert asked.wait(10)
    turns.close(10)
    assert turns.join(0) and caplog.text == ""


def test_what_fails_is_told_and_the_next_turn_is_made(made, caplog):
    results = [None]

    def make():
        if results:
            results.pop()
            raise ValueError("no pages")
        return made.make()

    turns = Turns(make, made.stop, logger)
    turns.start()
    assert turns.join(10) and turns.current is None
    assert "OrbitKV stays off in this engine: no pages" in caplog.text
    turns.renew()
    assert turns.join(10) and turns.current is made.things[0]
    turns.close(1.0)


def test_one_that_does_not_end_well_is_followed_by_the_next(made, turns, caplog):
    def fail(timeout_s=5.0):
        raise OSError("still copying")

    turns.start()
    assert turns.join(10)
    turns.current.close = fail
    turns.renew()
    assert turns.join(10) and turns.current is made.things[1]
    turns.current.close = fail
    turns.pause(None)
    turns.resume()
    assert turns.join(10) and turns.current is made.things[2]
    assert caplog.text.count("did not end as it should: still copying") == 2
    assert "stays off" not in caplog.text
