"""Offloads: one publish of ours for each that SGLang hands over, and one result for each, in the same order.

Two threads: one waits for the device and hands blocks to the client, one waits for the ends. The Manager says which
blocks it has already, and their pages are not read. Nothing here waits for a Manager that is away or silent: the client
drops what waits for it, and SGLang offers those pages again.

Threads: `accept`, `finished`, `take_result` and `quiesce` are SGLang's scheduler thread's. Blocks: `quiesce` while a
copy reads pages, within its time limit.
Errors: a copy that does not stop in that time raises `StuckCopyError`. Everything else is a False result.
Invariant: every accepted offload gives exactly one result, unless a `quiesce` came between.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orbitkv
from orbitkv.sglang.jobs import Jobs
from orbitkv.sglang.loads import GRACE_S, StuckCopyError
from orbitkv.sglang.lookups import block_hashes
from orbitkv.sglang.places import BEGIN, Place
from orbitkv.sglang.pools import DevicePoolGroup
from orbitkv.warn_once import WarnOnce

logger = logging.getLogger("orbitkv.sglang")

# A client whose queue is full is tried again after each end, until none has come for so long: then what waits is given
# up without a wait, until one comes. The pages are locked meanwhile.
QUEUE_WAIT_S = 1.0
# Between two looks at whether a wait is still wanted.
LOOK_S = 0.05


@dataclass(frozen=True)
class Part:
    """One pool's part of an offload: the last pages of the node, or all."""

    group: int
    slots: Any
    count: int


@dataclass(frozen=True)
class Offload:
    keys: Sequence[str]  # of all pages of the node
    parts: Sequence[Part]
    place: Place = BEGIN


@dataclass(eq=False)
class Task:
    offload: Offload
    ready: Sequence[Any]
    turn: int
    jobs: Jobs | None = None
    job: int | None = None


class Offloads:
    """`jobs()`: those of the client of the moment, None while there is none."""

    def __init__(
        self,
        group: DevicePoolGroup,
        jobs: Callable[[], Jobs | None],
        timeout_s: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._group = group
        self._jobs = jobs
        self._timeout_s = timeout_s
        self._clock = clock
        self._lock = threading.Lock()
        self._turn = 0  # of the last reset; what was accepted before it gives no result
        self._closed = False
        self._reading: list[Task] = []  # handed to the client and not ended, oldest first
        self._full_since: float | None = None  # the client's queue; no job has ended since
        self._ended = threading.Condition(self._lock)
        self._results: deque[bool] = deque()
        self._warn = WarnOnce(logger)
        self._accepted: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._submitted: queue.SimpleQueue[Task | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._submit_all, name="orbitkv-offloads", daemon=True),
            threading.Thread(target=self._finish_all, name="orbitkv-offload-ends", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def accept(self, offload: Offload, ready: Sequence[Any]) -> None:
        self._accepted.put(Task(offload, ready, self._turn))

    def accept_done(self) -> None:
        """Of a process that has nothing to write. Until a `quiesce` it accepts no other kind."""
        self._results.append(True)

    def finished(self) -> int:
        return len(self._results)

    def take_result(self) -> bool:
        return self._results.popleft()

    def quiesce(self) -> None:
        """Drops everything: no result of what was accepted comes after this, and no page of it is read."""
        with self._lock:
            self._turn += 1
            self._full_since = None
            reading = list(self._reading)
            self._ended.notify_all()
        deadline = time.monotonic() + self._timeout_s
        for task in reading:
            self._stop(task, deadline)
        self._results.clear()

    def _stop(self, task: Task, deadline: float) -> None:
        assert task.jobs is not None and task.job is not None
        try:
            free = task.jobs.client.wait_sources_free([task.job], max(0.0, deadline - time.monotonic()))
        except orbitkv.Error as error:
            logger.debug("OrbitKV: job %d was not waited for: %s", task.job, error)
            return
        if not free:
            raise StuckCopyError(
                f"OrbitKV: a save did not stop within {self._timeout_s:g} s; its pages may still be read, so this "
                "engine must end"
            )

    def close(self) -> None:
        """After `quiesce`. Idempotent."""
        self._closed = True
        self._accepted.put(None)
        for thread in self._threads:
            thread.join(GRACE_S)

    # ---- the submitting thread --------------------------------------------------------------------------------------

    def _submit_all(self) -> None:
        while (task := self._accepted.get()) is not None:
            try:
                for event in task.ready:
                    event.synchronize()
                self._submit(task)
            except Exception as error:
                self._warn(str(error), "OrbitKV: pages were not saved (said once): %s", error)
            self._submitted.put(task)
        self._submitted.put(None)

    def _submit(self, task: Task) -> None:
        hashes = block_hashes(task.offload.keys)
        depth, parent = task.offload.place
        end = depth + len(task.offload.keys)
        runs = [(part.group, end - part.count, part.count) for part in task.offload.parts]
        pages = [page for part in task.offload.parts for page in self._group[part.group].pages(part.slots)]
        with self._lock:
            while task.turn == self._turn:
                jobs = self._jobs()
                if jobs is None or jobs.client.state != "up":
                    return
                job = jobs.client.publish(hashes, pages, runs=runs, first_depth=depth, parent=bytes.fromhex(parent))
                if job is not None:
                    self._full_since = None
                    task.jobs, task.job = jobs, job
                    self._reading.append(task)
                    return
                if self._full_since is None:
                    self._full_since = self._clock()
                if self._clock() - self._full_since >= QUEUE_WAIT_S:
                    return
                self._ended.wait(LOOK_S)

    # ---- the finishing thread ---------------------------------------------------------------------------------------

    def _finish_all(self) -> None:
        while (task := self._submitted.get()) is not None:
            saved = self._wait(task)
            with self._lock:
                if task.job is not None:
                    self._reading.remove(task)
                    self._full_since = None
                    self._ended.notify_all()
                if task.turn == self._turn:
                    self._results.append(saved)

    def _wait(self, task: Task) -> bool:
        if task.jobs is None or task.job is None:
            return False
        try:
            while (completion := task.jobs.wait(task.job, LOOK_S)) is None:
                if self._closed:
                    return False
        except Exception as error:
            self._warn(str(error), "OrbitKV: a save's end is not known (said once): %s", error)
            return False
        return completion.ok
