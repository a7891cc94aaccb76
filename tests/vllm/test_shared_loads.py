"""Requests that need the same blocks at once: one of them loads, the others wait for it, within bounds."""

import pytest
from fakes import (
    BLOCK,
    FakeClient,
    blocks,
    hashes_of,
    report,
    request,
    scheduler_side,
    start,
)

pytestmark = pytest.mark.usefixtures("fake_hashes")


def test_the_same_prefix_is_loaded_once(clock):
    client = FakeClient(hashes_of("p", 0, 1))
    side = scheduler_side(client)
    first, second = request("a", 20, name="p"), request("b", 20, name="p")
    start(side, first)
    side.allocated(first, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    assert start(side, second) == (None, False)
    side.update(report(finished={"a"}))
    assert side.matched_tokens(second, 0) == (2 * BLOCK, True)
    # It does not wait for ever.
    side.allocated(second, blocks([6, 7, 8, 9, 10]), 2 * BLOCK)
    third = request("c", 20, name="p")
    assert start(side, third) == (None, False)
    clock.now += 1.9
    assert side.matched_tokens(third, 0) == (None, False)
    clock.now += 0.2
    assert side.matched_tokens(third, 0) == (2 * BLOCK, True)


def loading(client):
    """A side on which a request loads the blocks that another one with the same prompt needs."""
    side = scheduler_side(client)
    first = request("a", 20, name="p")
    start(side, first)
    side.allocated(first, blocks([1, 2, 3, 4, 5]), 2 * BLOCK)
    return side


def test_a_load_whose_request_ends_while_there_is_no_client_is_not_waited_for(clock):
    client = FakeClient(hashes_of("p", 0, 1))
    side = loading(client)
    side._link.client = None
    side.request_finished(side._requests["a"].request)
    side._link.client = client
    assert start(side, request("b", 20, name="p")) == (2 * BLOCK, True)


def test_nobody_waits_for_a_load_of_a_manager_that_is_away(clock):
    client = FakeClient(hashes_of("p", 0, 1))
    side = loading(client)
    client.state = "suspect"
    assert start(side, request("b", 20, name="p")) == (0, False)


def test_without_a_cache_of_the_engines_own_each_request_loads_for_itself(clock):
    side = loading(FakeClient(hashes_of("p", 0, 1)))
    side.shares_loads = False
    assert start(side, request("b", 20, name="p")) == (2 * BLOCK, True)
