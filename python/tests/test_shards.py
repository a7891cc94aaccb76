"""A scheduler whose shards use two real Managers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from conftest import Engine, digest, eventually, hashes

import orbitkv
from harness.manager import Manager
from orbitkv.vllm.shards import CombinedAnswer, ShardClients

MakeClient = Callable[..., orbitkv.Client]


@pytest.fixture
def managers(folder: Path) -> Iterator[list[Manager]]:
    started = [Manager(folder / f"{name}.sock").start() for name in ("first", "second")]
    yield started
    for manager in started:
        manager.close()


def test_a_restore_takes_each_shard_from_its_own_manager(managers: list[Manager], make_client: MakeClient) -> None:
    def client(shard: int, role: str) -> orbitkv.Client:
        return make_client(
            socket=str(managers[shard].socket),
            instance=f"engine/{shard}",
            role=role,
            computation_digest=digest(f"shard {shard}"),
            representation_digest=digest("pages") if role == "worker" else b"",
        )

    workers = [Engine(client(shard, "worker")) for shard in (0, 1)]
    both = ShardClients([client(shard, "scheduler") for shard in (0, 1)], 1)
    assert both.wait_up(20.0) and all(worker.client.wait_up(20.0) for worker in workers)

    def ask(count: int) -> CombinedAnswer:
        answer = both.query("request", hashes(count), wait_s=20.0)
        assert answer is not None
        return answer

    for shard, worker in enumerate(workers):
        worker.fill(10 + shard)
    expected = [worker.block(1) for worker in workers]
    assert workers[0].publish(hashes(4), range(4)).ok
    assert ask(4).found_blocks == 0, "the second shard has nothing"
    assert workers[1].publish(hashes(2), range(2)).ok
    answer = ask(4)
    assert answer.found_blocks == 2
    grant = both.begin_restore(answer.lease, 2)
    for worker, granted in zip(workers, both.shard_grants(grant), strict=True):
        worker.clear()
        job = worker.client.restore(granted.grant, hashes(2), [8, 9], incarnation=granted.incarnation)
        assert worker.wait(job).ok
    assert [worker.block(9) for worker in workers] == expected
    unused = both.begin_restore(ask(4).lease, 1)
    both.release_grant(unused)
    both.release_lease(ask(4).lease)
    for manager in managers:
        assert eventually(lambda m=manager: m.sample("orbitkv_grants") + m.sample("orbitkv_leases") == 0)  # type: ignore[misc]
    managers[1].kill()
    assert eventually(lambda: both.state == "down")
    assert both.incarnation == b"" and ask(2).reason == "down"
