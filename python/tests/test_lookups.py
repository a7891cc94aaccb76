"""The modes of a look-up, against a real Manager that has everything in memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from conftest import Engine, eventually, hashes

import orbitkv
from harness.manager import Manager

MakeClient = Callable[..., orbitkv.Client]


def ask(engine: Engine, count: int, request_id: str = "r", **more: object) -> orbitkv.Answer:
    answer = engine.client.query(request_id, hashes(count), wait_s=20.0, **more)  # type: ignore[arg-type]
    assert answer is not None
    return answer


def test_boundaries_are_the_counts_that_may_be_taken(engine: Engine) -> None:
    assert engine.publish(hashes(3), range(3)).ok
    assert ask(engine, 5).boundaries == [1, 2, 3]
    assert ask(engine, 1, "absent", prefix_blocks=1).boundaries == []


def test_all_or_nothing(engine: Engine) -> None:
    assert engine.publish(hashes(3), range(3)).ok
    answer = ask(engine, 4, mode="all")
    assert (answer.found_blocks, answer.lease, answer.reason) == (0, 0, "incomplete")
    answer = ask(engine, 3, mode="all")
    assert answer.found_blocks == 3 and answer.lease != 0


def test_a_discovery_leases_nothing(manager: Manager, engine: Engine) -> None:
    assert engine.publish(hashes(3), range(3)).ok
    answer = ask(engine, 4, mode="discovery")
    assert (answer.found_blocks, answer.lease, answer.reason) == (3, 0, "found")
    assert answer.tiers == ["pool", "pool", "pool", "absent"]
    assert manager.samples()["orbitkv_leases"] == 0


def test_selected_blocks_are_restored_alone(engine: Engine) -> None:
    engine.fill(3)
    expected = [engine.block(index) for index in (1, 2)]
    assert engine.publish(hashes(4), range(4)).ok
    answer = ask(engine, 4, mode="selected", views=[(0, 1, 2)])
    assert answer.lease != 0
    assert ask(engine, 4, "other", mode="selected", views=[(0, 3, 1)]).lease != 0
    assert ask(engine, 6, "more", mode="selected", views=[(0, 3, 2)]).reason == "incomplete"
    assert [engine.block(index) for index in (1, 2)] == expected


def test_a_wait_for_loading_ends_with_what_is_there(engine: Engine) -> None:
    assert engine.publish(hashes(2), range(2)).ok
    found = 0

    def answered() -> bool:
        nonlocal found
        answer = ask(engine, 4, load_wait_s=0.05)
        found = answer.found_blocks
        return answer.reason != "loading"

    assert eventually(answered)
    assert found == 2


def test_a_warm_up_is_only_a_wish(manager: Manager, engine: Engine) -> None:
    assert engine.publish(hashes(2), range(2)).ok
    engine.client.warm_up("r", hashes(4))
    assert ask(engine, 4).found_blocks == 2
    with pytest.raises(orbitkv.InvalidArgument, match="hashes"):
        engine.client.warm_up("r", hashes(2), prefix_blocks=2)


def test_a_claim_of_nothing_is_not_admitted(engine: Engine) -> None:
    answer = engine.client.claim("nobody", most_blocks=4, wait_s=20.0)
    assert answer is not None
    assert (answer.found_blocks, answer.lease, answer.reason) == (0, 0, "not admitted")


def test_wrong_questions_are_named(engine: Engine) -> None:
    for more, words in (
        ({"mode": "some"}, "longest, all, discovery or selected"),
        ({"mode": "selected"}, "views"),
        ({"views": [(0, 1, 2)]}, "views"),
        ({"mode": "selected", "views": [(0, 1)]}, "tuples"),
        ({"load_wait_s": 61}, "load_wait_s"),
        ({"load_wait_s": -1}, "load_wait_s"),
    ):
        with pytest.raises(orbitkv.InvalidArgument, match=words):
            ask(engine, 2, **more)  # type: ignore[arg-type]
    with pytest.raises(orbitkv.InvalidArgument, match="most_blocks"):
        engine.client.claim("c", most_blocks=0)


def test_without_a_manager_nothing_is_ordered(make_client: MakeClient) -> None:
    client = make_client()
    with pytest.raises(orbitkv.UnavailableError):
        client.warm_up("r", hashes(1))
    with pytest.raises(orbitkv.UnavailableError):
        client.prepare("r", hashes(1), consumer="c")
    answer = client.claim("c", most_blocks=1)
    assert answer is not None and answer.reason == "down"
    client.cancel_prepared(5)
