"""Engines with several cache groups, against a real Manager."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from conftest import Engine, Manager, hashes

import orbitkv

FULL, WINDOW, STATE = 0, 1, 2
# Full attention, a window over two blocks of twice the size, and a state that is kept every four hash blocks.
PAGES = {FULL: (3, 4096), WINDOW: (2, 1024), STATE: (1, 8192)}


class GroupEngine(Engine):
    """Block i of a group lies in its page set i."""

    def __init__(self, client: orbitkv.Client):
        self.client = client
        self.done = {}
        self.groups_pages = {
            group: [np.zeros((32, size), np.uint8) for _ in range(layers)] for group, (layers, size) in PAGES.items()
        }
        self.groups = [
            orbitkv.Group(block_tokens=16, layers=self.layers(FULL)),
            orbitkv.Group(block_tokens=32, kind="sliding_window", span_tokens=40, layers=self.layers(WINDOW)),
            orbitkv.Group(block_tokens=64, kind="recurrent", layers=self.layers(STATE)),
        ]
        self.contract = orbitkv.Contract(self.groups)
        client.register_groups(self.groups)
        assert client.wait_up(20.0)

    def layers(self, group: int) -> list[orbitkv.Layer]:
        return [orbitkv.Layer.of(pages) for pages in self.groups_pages[group]]

    def fill(self, seed: int) -> None:
        random = np.random.default_rng(seed)
        for layers in self.groups_pages.values():
            for pages in layers:
                pages[:] = random.integers(0, 256, pages.shape, np.uint8)

    def clear(self) -> None:
        for layers in self.groups_pages.values():
            for pages in layers:
                pages[:] = 0

    def block_of(self, group: int, index: int) -> bytes:
        return b"".join(pages[index].tobytes() for pages in self.groups_pages[group])

    def publish_runs(self, chain: orbitkv.BlockHashes, runs: list[tuple[int, int, int]]) -> orbitkv.Completion:
        ids = [block for _, first, count in runs for block in range(first, first + count)]
        return self.wait(self.client.publish(chain, ids, runs=runs))


@pytest.fixture
def start(manager: Manager, make_client: Callable[..., orbitkv.Client]) -> Callable[..., GroupEngine]:
    return lambda **options: GroupEngine(make_client(**options))


def test_a_new_engine_goes_on_where_all_groups_have_what_they_need(start: Callable[..., GroupEngine]) -> None:
    engine = start()
    assert (engine.contract.hash_block_tokens, engine.contract.alignment_blocks) == (16, 4)
    chain = hashes(12)
    engine.fill(1)
    # What a prompt of 200 tokens leaves behind, and the tail of an earlier one.
    assert engine.contract.last_boundary(200) == 12
    runs = engine.contract.demand(0, 12)
    assert runs == [(FULL, 0, 12), (WINDOW, 4, 2), (STATE, 2, 1)]
    assert engine.publish_runs(chain, [*runs, (WINDOW, 0, 2), (STATE, 0, 1)]).ok
    kept = {
        (group, i): engine.block_of(group, i)
        for group, count in ((FULL, 12), (WINDOW, 6), (STATE, 3))
        for i in range(count)
    }

    other = start(instance="another engine")
    answer = other.client.query("request", chain, wait_s=20.0)
    assert answer is not None
    assert answer.boundaries == [4, 12]
    grant = other.client.begin_restore(answer.lease, 12)
    ids = [*range(20, 32), 7, 6, 9]
    done = other.wait(other.client.restore(grant, chain, ids, incarnation=other.client.incarnation))
    assert done.ok, done.error
    assert bytes(done.outcomes) == bytes([4] * 15)
    assert [other.block_of(FULL, 20 + i) for i in range(12)] == [kept[FULL, i] for i in range(12)]
    assert other.block_of(WINDOW, 7) == kept[WINDOW, 4]
    assert other.block_of(WINDOW, 6) == kept[WINDOW, 5]
    assert other.block_of(STATE, 9) == kept[STATE, 2]
    assert other.block_of(STATE, 0) == bytes(8192)


def test_an_engine_brings_a_prefix(start: Callable[..., GroupEngine]) -> None:
    engine = start()
    chain = hashes(12)
    engine.fill(1)
    assert engine.publish_runs(chain, engine.contract.demand(0, 12)).ok
    before = [engine.block_of(FULL, i) for i in range(12)]
    state = engine.block_of(STATE, 2)
    engine.clear()
    answer = engine.client.query("request", chain, prefix_blocks=8, wait_s=20.0)
    assert answer is not None
    assert answer.boundaries == [4]
    grant = engine.client.begin_restore(answer.lease, 4)
    demand = engine.contract.demand(8, 12)
    assert demand == [(FULL, 8, 4), (WINDOW, 4, 2), (STATE, 2, 1)]
    ids = [block for _, first, count in demand for block in range(first, first + count)]
    done = engine.wait(engine.client.restore(grant, chain[8:], ids, prefix_blocks=8))
    assert done.ok, done.error
    assert [engine.block_of(FULL, i) for i in range(7, 12)] == [bytes(3 * 4096), *before[8:]]
    assert engine.block_of(STATE, 2) == state


@pytest.mark.parametrize("span", [40, 41])
def test_a_worker_must_have_the_groups_that_its_scheduler_expects(
    start: Callable[..., GroupEngine], make_client: Callable[..., orbitkv.Client], span: int
) -> None:
    groups = start(instance="only for its pages").groups
    expected = [dataclasses.replace(group, layers=()) for group in groups]
    expected[WINDOW] = dataclasses.replace(expected[WINDOW], span_tokens=span)
    scheduler = make_client(role="scheduler", representation_digest=b"", groups=expected, hash_block_tokens=16)
    assert scheduler.wait_up(20.0)
    worker = make_client(role="worker")
    worker.register_groups(groups, hash_block_tokens=16)
    end = time.monotonic() + 20.0
    while not worker.wait_up(0.05) and not worker.counters()["registrations_refused"] and time.monotonic() < end:
        pass
    assert worker.wait_up(0.0) == (span == 40)
    assert (worker.counters()["registrations_refused"] > 0) == (span == 41)


def test_a_chain_may_begin_behind_the_prompts_start(start: Callable[..., GroupEngine]) -> None:
    engine = start()
    chain = hashes(8)
    engine.fill(1)
    assert engine.publish_runs(chain[:4], engine.contract.demand(0, 4)).ok
    job = engine.client.publish(
        chain[4:],
        [4, 5, 6, 7, 2, 3, 1],
        runs=[(FULL, 4, 4), (WINDOW, 2, 2), (STATE, 1, 1)],
        first_depth=4,
        parent=chain[3],
    )
    assert engine.wait(job).ok
    answer = engine.client.query("request", chain, wait_s=20.0)
    assert answer is not None
    assert answer.boundaries == [4, 8]


def test_a_restore_begun_elsewhere_than_at_a_boundary_fails(start: Callable[..., GroupEngine]) -> None:
    engine = start()
    chain = hashes(8)
    engine.fill(1)
    assert engine.publish_runs(chain, engine.contract.demand(0, 8)).ok
    answer = engine.client.query("request", chain, wait_s=20.0)
    assert answer is not None
    assert answer.boundaries == [8]
    grant = engine.client.begin_restore(answer.lease, 4)
    assert not engine.wait(engine.client.restore(grant, chain[:4], [0, 1, 2, 3, 0, 1, 0])).ok


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "sideways"}, "kind must be"),
        ({"kind": "sliding_window"}, "a sliding window of 0 tokens"),
        ({"span_tokens": 5}, "only a window or chunked group has a span"),
        ({"block_tokens": 0}, "have no tokens"),
        ({"block_tokens": "many"}, "block_tokens must be an int"),
    ],
)
def test_a_group_that_cannot_be_is_refused(changes: dict[str, Any], message: str) -> None:
    group: Any = orbitkv.Group(**({"block_tokens": 16} | changes))
    with pytest.raises(orbitkv.InvalidArgument, match=message):
        orbitkv.Contract([group])


def test_blocks_that_the_groups_do_not_have_are_refused(start: Callable[..., GroupEngine]) -> None:
    engine = start()
    client, chain = engine.client, hashes(8)
    with pytest.raises(orbitkv.InvalidArgument, match="no such cache group"):
        client.publish(chain, [0], runs=[(3, 0, 1)])
    with pytest.raises(orbitkv.InvalidArgument, match="do not name all blocks"):
        client.publish(chain, [0], runs=[(STATE, 2, 1)])
    with pytest.raises(orbitkv.InvalidArgument, match="one id for each block"):
        client.publish(chain, [0], runs=[(STATE, 0, 2)])
    with pytest.raises(orbitkv.InvalidArgument, match="tuples"):
        client.publish(chain, [0], runs=[(STATE, -1, 1)])  # type: ignore[list-item, unused-ignore]
    with pytest.raises(orbitkv.InvalidArgument, match="no boundary"):
        client.restore(1, chain[:5], [0])
    with pytest.raises(orbitkv.InvalidArgument, match="no boundary"):
        engine.contract.demand(4, 4)
    with pytest.raises(orbitkv.InvalidArgument, match="no such group"):
        engine.contract.key_position(3, 0)
    assert engine.contract.key_position(STATE, 1) == 7
    with pytest.raises(orbitkv.LayoutError):
        client.register_groups(engine.groups[:2])
