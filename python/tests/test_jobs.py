"""Jobs as handles, and the generations of their pages."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest
from conftest import Engine, Manager, eventually, hashes

import orbitkv

MakeClient = Callable[..., orbitkv.Client]


def test_a_job_tells_its_state(manager: Manager, engine: Engine, make_client: MakeClient) -> None:
    client = engine.client
    job = client.publish(hashes(2), [0, 1])
    assert job is not None
    assert client.wait_job(job, 20.0) == "drained-ok" == client.job_state(job)
    assert engine.wait(job).ok
    assert client.job_state(job) == "drained-ok"
    failed = client.restore(77, hashes(2), [0, 1])  # no such grant
    assert client.job_state(failed) == client.wait_job(failed, 0.0) == "pending"
    assert client.wait_job(failed, 20.0) == "drained-failed"
    with pytest.raises(orbitkv.Error, match="no job of this client"):
        make_client().job_state(job)


def test_a_restore_tells_its_layers(manager: Manager, engine: Engine, make_client: MakeClient) -> None:
    client = engine.client
    assert engine.publish(hashes(2), [0, 1]).ok
    grant = client.begin_restore(engine.ask(hashes(2)).lease, 2)
    job = client.restore(grant, hashes(2), [4, 5])
    layers = 0
    while (more := client.wait_layers(job, layers, 20.0)) > layers:
        layers = more
    assert layers == len(engine.pages)
    assert engine.wait(job).ok
    with pytest.raises(orbitkv.Error, match="no job of this client"):
        make_client().wait_layers(job, 0, 0.0)


def test_a_wait_that_times_out_changes_nothing(manager: Manager, engine: Engine) -> None:
    client = engine.client
    assert engine.publish(hashes(1), [0]).ok
    manager.suspend()
    job = client.publish(hashes(2, "new"), [2, 3])
    assert job is not None
    assert client.wait_job(job, 0.001) == "pending"
    manager.signal(signal.SIGCONT)
    assert client.wait_job(job, 20.0) == "drained-ok"


def test_a_handle_is_refused_after_fork(engine: Engine) -> None:
    job = engine.client.publish(hashes(1), [0])
    assert job is not None
    engine.wait(job)
    child = os.fork()
    if child == 0:
        try:
            engine.client.job_state(job)
        except orbitkv.ForkedError:
            os._exit(0)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def test_jobs_of_renewed_pages_copy_nothing(engine: Engine) -> None:
    client = engine.client
    engine.fill(1)
    client.renew_pages([0, 1], 5)
    assert engine.wait(client.publish(hashes(2), [0, 1], generations=5)).ok
    assert engine.wait(client.publish(hashes(2, "mixed"), [1, 2], generations=[5, 0])).ok
    done = engine.wait(client.publish(hashes(2, "old"), [0, 1], generations=[5, 4]))
    assert done.outcomes == bytes([7, 7]) and "generation" in done.error
    assert engine.ask(hashes(2, "old")).found_blocks == 0
    answer = engine.ask(hashes(2))
    grant = client.begin_restore(answer.lease, 2)
    client.renew_pages([9], 1)
    before = [engine.block(8), engine.block(9)]
    done = engine.wait(client.restore(grant, hashes(2), [8, 9], generations=0))
    assert done.outcomes == bytes([7, 7]) and not done.ok
    assert [engine.block(8), engine.block(9)] == before
    assert client.counters()["jobs_with_stale_pages"] == 2


def test_generations_are_checked(engine: Engine) -> None:
    client = engine.client
    client.renew_pages([0], 2)
    for ids, generation in (([0], 2), ([99], 3)):
        with pytest.raises(orbitkv.InvalidArgument):
            client.renew_pages(ids, generation)
    for generations in ([1, 2, 3], "x", -1, 1.5):
        with pytest.raises(orbitkv.InvalidArgument, match="generation"):
            client.publish(hashes(2), [0, 1], generations=generations)  # type: ignore[arg-type]
    assert eventually(lambda: client.counters()["publish_jobs"] == 0)
