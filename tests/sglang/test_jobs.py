"""Jobs of one client that several threads wait for: each gets its own completion, once."""

from types import SimpleNamespace

import pytest

import orbitkv
from orbitkv.sglang import jobs as module
from orbitkv.sglang.jobs import Jobs


class Client:
    """All its jobs have ended, and what ended is handed out by the next poll."""

    def __init__(self, *ended):
        self._ended = [SimpleNamespace(job=job) for job in ended]

    def wait_job(self, job, timeout_s):
        return "drained_ok"

    def poll(self):
        ended, self._ended = self._ended, []
        return ended


@pytest.mark.parametrize("state", ["pending", "enqueued"])
def test_a_job_that_has_not_ended_has_no_completion(state):
    client = SimpleNamespace(wait_job=lambda job, timeout_s: state, poll=list)
    assert Jobs(client).wait(1, 0.0) is None


def test_what_another_thread_waits_for_is_kept_for_it():
    jobs = Jobs(Client(1, 2, 3))
    assert [jobs.wait(job, 0.0).job for job in (2, 1, 3)] == [2, 1, 3]
    with pytest.raises(orbitkv.Error, match="was waited for before"):
        jobs.wait(2, 0.0)


def test_of_what_nobody_comes_for_the_latest_are_kept(monkeypatch):
    monkeypatch.setattr(module, "MAX_KEPT", 2)
    jobs = Jobs(Client(1, 2, 3, 4))
    assert jobs.wait(4, 0.0).job == 4
    with pytest.raises(orbitkv.Error):
        jobs.wait(1, 0.0)
    assert jobs.wait(2, 0.0).job == 2
