"""The client against a real Manager."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from conftest import Engine, Manager, eventually, hashes

import orbitkv


def pool_of(manager: Manager) -> Path:
    """The Manager's pool, as the kernel shows its descriptor: for damaging a stored byte."""
    for fd in Path(f"/proc/{manager.pid}/fd").iterdir():
        if "orbitkv" in str(fd.readlink()) and fd.stat().st_size == 64 << 20:
            return fd
    raise AssertionError("no pool among the Manager's descriptors")


def test_published_blocks_come_back_byte_for_byte(manager: Manager, engine: Engine) -> None:
    engine.fill(1)
    expected = [engine.block(index) for index in range(4)]
    done = engine.publish(hashes(4), [0, 1, 2, 3])
    assert done.ok and done.kind == "publish" and done.outcomes == bytes([1] * 4)
    assert done.bytes == 4 * len(expected[0])
    engine.clear()
    done = engine.restore(hashes(4), np.array([8, 3, 5, 12], np.int32))
    assert done.ok and done.kind == "restore" and done.outcomes == bytes([4] * 4), done
    assert [engine.block(index) for index in (8, 3, 5, 12)] == expected
    assert eventually(lambda: manager.samples().get("orbitkv_grants", 0) == 0)


def test_large_blocks_go_through_the_copy_threads(manager: Manager, make_client: Callable[..., orbitkv.Client]) -> None:
    engine = Engine(make_client(), layers=3, blocks=8, page_shape=(64, 1024))
    assert engine.client.wait_up(20.0)
    engine.fill(2)
    expected = [engine.block(index) for index in range(4)]
    assert engine.publish(hashes(4), range(4)).ok
    engine.clear()
    assert engine.restore(hashes(4), [4, 5, 6, 7]).ok
    assert [engine.block(index) for index in range(4, 8)] == expected


def test_a_second_save_finds_the_blocks_there(engine: Engine) -> None:
    assert engine.publish(hashes(2), [0, 1]).outcomes == bytes([1, 1])
    assert engine.publish(hashes(3), [0, 1, 2]).outcomes == bytes([2, 2, 1])


def test_another_engine_of_the_same_model_finds_the_blocks(
    engine: Engine, make_client: Callable[..., orbitkv.Client]
) -> None:
    engine.fill(3)
    assert engine.publish(hashes(3), [0, 1, 2]).ok
    other = Engine(make_client(instance="other"))
    assert other.client.wait_up(20.0)
    assert other.restore(hashes(3), [5, 6, 7]).ok
    assert other.block(6) == engine.block(1)


def test_another_model_finds_nothing(engine: Engine, make_client: Callable[..., orbitkv.Client]) -> None:
    assert engine.publish(hashes(3), [0, 1, 2]).ok
    other = Engine(make_client(instance="other", computation_digest=b"x" * 32))
    assert other.client.wait_up(20.0)
    assert other.ask(hashes(3)).found_blocks == 0


def test_scheduler_and_worker_are_two_clients(manager: Manager, make_client: Callable[..., orbitkv.Client]) -> None:
    scheduler = make_client(role="scheduler", representation_digest=b"")
    worker = Engine(make_client(role="worker"))
    assert scheduler.wait_up(20.0) and worker.client.wait_up(20.0)
    worker.fill(4)
    expected = worker.block(1)
    assert worker.publish(hashes(2), [0, 1]).ok
    answer = scheduler.query("r", hashes(2), wait_s=20.0)
    assert answer is not None and answer.found_blocks == 2 and answer.reason == "found"
    grant = scheduler.begin_restore(answer.lease, 2, ranks=range(1))
    worker.clear()
    assert worker.wait(worker.client.restore(grant, hashes(2), [2, 3], incarnation=scheduler.incarnation)).ok
    assert worker.block(3) == expected


def test_a_corrupted_byte_is_a_miss_and_counted(manager: Manager, engine: Engine) -> None:
    engine.fill(5)
    block = engine.block(1)
    assert engine.publish(hashes(3), [0, 1, 2]).ok
    with pool_of(manager).open("r+b", buffering=0) as pool:
        content = pool.read(8 << 20)
        at = content.find(block[:64])
        assert at >= 0
        pool.seek(at + 7)
        pool.write(bytes([content[at + 7] ^ 1]))
    done = engine.restore(hashes(3), [4, 5, 6])
    assert not done.ok and done.outcomes == bytes([4, 5, 4])
    assert engine.client.counters()["mismatched_blocks"] == 1
    assert eventually(lambda: engine.ask(hashes(3), "again").found_blocks == 1)


def test_the_prefix_that_the_engine_has_is_not_asked_for(engine: Engine) -> None:
    assert engine.publish(hashes(4), range(4)).ok
    answer = engine.client.query("r", hashes(4), prefix_blocks=1, wait_s=20.0)
    assert answer is not None and answer.found_blocks == 3
    engine.client.release_lease(answer.lease)


def test_a_restarted_manager_is_picked_up_again(manager: Manager, engine: Engine) -> None:
    assert engine.publish(hashes(2), [0, 1]).ok
    first = engine.client.incarnation
    manager.kill()
    assert eventually(lambda: engine.client.state == "down")
    assert engine.client.incarnation == b""
    assert engine.ask(hashes(2)).reason == "down"
    manager.start()
    assert engine.client.wait_up(30.0)
    assert engine.client.incarnation not in (b"", first)
    engine.fill(6)
    assert engine.publish(hashes(2), [0, 1]).ok
    assert engine.restore(hashes(2), [2, 3]).ok


def test_a_stopped_manager_costs_no_call_more_than_its_wait(manager: Manager, engine: Engine) -> None:
    assert engine.publish(hashes(2), [0, 1]).ok
    manager.suspend()
    asked = 0
    answer = None
    began = time.monotonic()
    while answer is None:
        answer = engine.client.query("r", hashes(2), wait_s=200e-6)
        asked += 1
        assert time.monotonic() - began < 20
    assert asked > 1 and answer.found_blocks == 0 and answer.reason == "timed out"
    assert engine.client.state == "suspect"
    assert engine.ask(hashes(2), "another").reason == "down"
    assert engine.client.begin_restore(1, 1) == 0
    job = engine.client.publish(hashes(2, "new"), [0, 1])
    assert job is not None and engine.client.wait_sources_free([job], 5.0)
    manager.signal(signal.SIGCONT)
    assert eventually(lambda: engine.client.state == "up")
    assert eventually(lambda: manager.samples().get("orbitkv_leases", 0) == 0)
    assert engine.restore(hashes(2), [4, 5]).ok


def test_leases_grants_and_slots_return_to_zero(manager: Manager, engine: Engine) -> None:
    assert engine.publish(hashes(4), range(4)).ok
    answer = engine.ask(hashes(4), "a")
    grant = engine.client.begin_restore(answer.lease, 2)
    assert grant != 0
    kept = engine.ask(hashes(4), "b")
    engine.client.release_grant(grant)
    engine.client.release_lease(kept.lease)

    def all_zero() -> bool:
        samples = manager.samples()
        names = ("orbitkv_leases", "orbitkv_grants", "orbitkv_reserved_slots")
        assert all(name in samples for name in names), samples
        return all(samples[name] == 0 for name in names)

    assert eventually(all_zero)


def test_close_saves_what_is_queued(
    manager: Manager, engine: Engine, make_client: Callable[..., orbitkv.Client]
) -> None:
    engine.fill(7)
    jobs = [engine.client.publish(hashes(1, str(index)), [index]) for index in range(8)]
    engine.client.close(20.0)
    engine.client.close()
    done = engine.client.poll()
    assert sorted(item.job for item in done) == jobs and all(item.ok for item in done)
    other = Engine(make_client())
    assert other.client.wait_up(20.0)
    assert other.ask(hashes(1, "7")).found_blocks == 1


def test_status_names_the_manager(manager: Manager, engine: Engine) -> None:
    status = orbitkv.status(str(manager.socket))
    assert status["pid"] == manager.pid
    assert status["incarnation"] == engine.client.incarnation
    assert status["samples"]["orbitkv_sessions"] >= 1
