"""The copy jobs of one client, waited for by more than one thread.

A client gives each completion once, to whoever takes it. Here every thread gets those of its own jobs.

Threads: any. Blocks: `wait` and `wait_layers` for their time, without the GIL.
"""

from __future__ import annotations

import threading

import orbitkv

MAX_KEPT = 4096  # completions that nobody came for


class Jobs:
    def __init__(self, client: orbitkv.Client) -> None:
        self.client = client
        self._lock = threading.Lock()
        self._ended: dict[int, orbitkv.Completion] = {}

    def wait_layers(self, job: int, known: int, timeout_s: float) -> int:
        """How many layers of a restore are in their pages.

        Returns when they are more than `known`, it has ended or the time is over.
        """
        return self.client.wait_layers(job, known, timeout_s)

    def wait(self, job: int, timeout_s: float) -> orbitkv.Completion | None:
        """Its completion, or None when the job has not ended in this time: then its pages may be in use.

        Raises:
            orbitkv.Error: not a job of this client, or waited for before.
        """
        if self.client.wait_job(job, timeout_s) in ("pending", "enqueued"):
            return None
        with self._lock:
            for completion in self.client.poll():
                self._ended[completion.job] = completion
            ended = self._ended.pop(job, None)
            while len(self._ended) > MAX_KEPT:
                del self._ended[next(iter(self._ended))]
        if ended is None:
            raise orbitkv.Error(f"job {job} was waited for before")
        return ended
