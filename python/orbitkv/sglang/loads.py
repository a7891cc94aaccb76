"""Loads: queued by the scheduler, started as one batch, brought into their pages by a thread of ours.

The client copies a request layer by layer. When all requests of a batch but its last one are in their pages, the
batch's layers are reported complete in order, each when the last one's is there and verified too, so that the forward
begins while later layers are copied. When a request fails, the whole batch has failed, as SGLang has it, but only after
no byte of any of them moves.

Threads: `run` is the load thread's; the rest is SGLang's scheduler thread's. Blocks: `finish` until the batch has
stopped writing, and `quiesce` until all have, both within the load's time limit.
Errors: a copy that does not stop in that time raises `StuckCopyError`: its pages must not be used again in this
process. Everything else is a failed batch.
Invariant: a batch's layer is complete only when nothing writes into it any more. A batch fails, and is `done`, only
when nothing of it writes any more, or it is stuck.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orbitkv
from orbitkv.sglang.jobs import Jobs
from orbitkv.sglang.lookups import Grant
from orbitkv.sglang.pools import DevicePoolGroup

logger = logging.getLogger("orbitkv.sglang")

# Beyond a load's own limit: for the thread to notice.
GRACE_S = 5.0


class LoadError(RuntimeError):
    """A batch whose pages do not hold what was asked for."""


class StuckCopyError(RuntimeError):
    """A copy still writes into pages that the engine is about to reuse. It ends rather than read other data."""


@dataclass(frozen=True)
class Load:
    """`slots`: of each pool in the group's order, where SGLang wants the boundary's blocks. No grant: it fails."""

    rid: str
    grant: Grant | None
    jobs: Jobs | None  # of the client that has the grant
    slots: Sequence[Any]


@dataclass
class Batch:
    index: int
    loads: Sequence[Load]
    ready: Sequence[Any]  # events: what the device did with these slots before is over
    done: threading.Event = field(default_factory=threading.Event)
    completed: int = 0  # layers
    error: str = ""
    stuck: bool = False


class Loads:
    """`counter` is SGLang's LayerWiseLoadCounter. `ready()`: events of the work that may still use the slots."""

    def __init__(
        self, group: DevicePoolGroup, counter: Any, ready: Callable[[], Sequence[Any]], timeout_s: float
    ) -> None:
        self._group = group
        self._counter = counter
        self._ready = ready
        self._timeout_s = timeout_s
        self._queued: dict[str, Load] = {}
        self._batches: dict[int, Batch] = {}
        self._tasks: queue.SimpleQueue[Batch | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self.run, name="orbitkv-loads", daemon=True)
        self._thread.start()

    def queue(self, load: Load) -> None:
        self._queued[load.rid] = load

    def cancel(self, rid: str) -> bool:
        load = self._queued.pop(rid, None)
        if load is None:
            return False
        _release(load)
        return True

    def start(self) -> int:
        if not self._queued:
            return -1
        loads, self._queued = list(self._queued.values()), {}
        index = int(self._counter.update_producer())
        batch = Batch(index, loads, self._ready())
        self._batches[index] = batch
        self._tasks.put(batch)
        return index

    def finish(self, index: int) -> bool:
        """True when all of the batch is in its pages; it is over either way."""
        batch = self._batches.pop(index, None)
        if batch is not None:
            self._await(batch)
        return bool(self._counter.finish(index))

    def quiesce(self) -> None:
        """Nothing is queued and nothing moves after this."""
        for rid in list(self._queued):
            self.cancel(rid)
        for batch in self._batches.values():
            self._await(batch)
        self._batches.clear()

    def close(self) -> None:
        """After `quiesce`. Idempotent."""
        self._tasks.put(None)
        self._thread.join(GRACE_S)

    def _await(self, batch: Batch) -> None:
        ended = batch.done.wait(self._timeout_s + GRACE_S)
        if not ended or batch.stuck:
            raise StuckCopyError(
                f"OrbitKV: a load did not stop within {self._timeout_s:g} s; its pages may still be written, so this "
                "engine must end"
            )

    # ---- the load thread --------------------------------------------------------------------------------------------

    def run(self) -> None:
        while (batch := self._tasks.get()) is not None:
            try:
                for event in batch.ready:
                    event.synchronize()
                self._load(batch)
            except Exception as error:
                batch.error = batch.error or str(error)
            self._resolve(batch)

    def _load(self, batch: Batch) -> None:
        deadline = time.monotonic() + self._timeout_s
        running: list[tuple[Jobs, int, str]] = []
        for load in batch.loads:
            try:
                if load.grant is None or load.jobs is None:
                    raise LoadError("the Manager that had its blocks is away")
                # Once one has failed, all have.
                if not batch.error:
                    running.append((load.jobs, self._begin(load.grant, load.slots), load.rid))
                    continue
            except Exception as error:
                batch.error = f"request {load.rid}: {error}"
            _release(load)
        try:
            self._await_ends(batch, running, deadline)
        except Exception:
            batch.stuck = True  # what of it has not ended is not known
            raise

    def _await_ends(self, batch: Batch, running: Sequence[tuple[Jobs, int, str]], deadline: float) -> None:
        for number, (jobs, job, rid) in enumerate(running, 1):
            if number == len(running) and not batch.error:
                self._complete_layers(batch, jobs, job, deadline)
            failure = self._end_of(jobs, job, max(0.0, deadline - time.monotonic()))
            if failure is None:
                batch.stuck = True
                failure = "its copy did not end"
            if failure and not batch.error:
                batch.error = f"request {rid}: {failure}"

    def _complete_layers(self, batch: Batch, jobs: Jobs, job: int, deadline: float) -> None:
        """Those of the job that are there, as they come. The last one waits for the end of the whole job."""
        needed = self._group.copied_layers[:-1]
        copied = 0
        while batch.completed < len(needed):
            try:
                now_copied = jobs.wait_layers(job, copied, max(0.0, deadline - time.monotonic()))
            except Exception as error:
                # Its end is waited for all the same, and tells more.
                logger.debug("OrbitKV: the layers of job %d are not known: %s", job, error)
                return
            if now_copied <= copied:
                return  # it has ended, or is late
            copied = now_copied
            while batch.completed < len(needed) and needed[batch.completed] <= copied:
                self._counter.complete(batch.index, batch.completed)
                batch.completed += 1

    def _begin(self, grant: Grant, slots: Sequence[Any]) -> int:
        pages = [page for pool, rows in zip(self._group, slots, strict=True) for page in pool.pages(rows)]
        return grant.client.restore(
            grant.number, grant.hashes, pages, prefix_blocks=grant.depth, incarnation=grant.incarnation
        )

    @staticmethod
    def _end_of(jobs: Jobs, job: int, timeout_s: float) -> str | None:
        """Why it failed, empty when it has not; None while bytes may still move."""
        try:
            completion = jobs.wait(job, timeout_s)
        except orbitkv.Error as error:
            return str(error)
        if completion is None:
            return None
        return "" if completion.ok else completion.error or "it failed"

    def _resolve(self, batch: Batch) -> None:
        if batch.error:
            logger.warning("OrbitKV: a batch of %d loads failed: %s", len(batch.loads), batch.error)
            self._counter.fail(batch.index, LoadError(batch.error))
        else:
            for layer in range(batch.completed, self._group.layer_count):
                self._counter.complete(batch.index, layer)
        batch.done.set()


def _release(load: Load) -> None:
    if load.grant is None:
        return
    try:
        load.grant.client.release_grant(load.grant.number)
    except orbitkv.Error as error:
        logger.debug("OrbitKV: grant %d was not released: %s", load.grant.number, error)
