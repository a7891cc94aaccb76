"""Saves on their way to the Manager: the blocks that they read, and how much may be out at a time.

A save reads its blocks some time after the step that filled them. What the engine gives to somebody else meanwhile is
*taken*: the workers are told, and end the save before the block changes. Threads: the scheduler's only. Limits: a job
that does not fit is not added; nothing waits here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from orbitkv.vllm.messages import SaveReport

# A worker's client queues as many.
MAX_JOBS = 1024


@dataclass(slots=True)
class Job:
    """A save that workers have not all reported yet."""

    keys: list[bytes]
    block_ids: list[int]  # each once
    found_blocks: int  # so many of the first ones the request had found, not computed
    block_tokens: int
    epoch: bytes  # of the namespace that it saves into
    size_bytes: int = 0  # on one rank
    reports: list[SaveReport] = field(default_factory=list)
    _key_of: dict[int, bytes] = field(default_factory=dict)  # made when it is first needed

    def key_of(self, block_id: int) -> bytes:
        if not self._key_of:
            self._key_of = dict(zip(self.block_ids, self.keys, strict=True))
        return self._key_of[block_id]

    def stored(self) -> list[bool]:
        """Of each block: every rank has it in the Manager."""
        if len(self.reports) == 1:
            return list(self.reports[0].stored)
        return [all(ranks) for ranks in zip(*(report.stored for report in self.reports), strict=True)]


class SaveJobs:
    """`block_bytes`: of a block of each group, on one rank; `max_bytes`: of all blocks that may be out at a time."""

    def __init__(self, world_size: int, block_bytes: Sequence[int], max_bytes: int) -> None:
        self._world_size = world_size
        self._block_bytes = list(block_bytes)
        self._max_bytes = max_bytes
        self._jobs: dict[int, Job] = {}
        self._of_block: dict[int, tuple[int, ...]] = {}
        self._taken: set[int] = set()
        self._bytes = 0
        self._next = 1

    def __len__(self) -> int:
        return len(self._jobs)

    @property
    def watched_blocks(self) -> int:
        return len(self._of_block)

    @property
    def size_bytes(self) -> int:
        return self._bytes

    def reads(self, block_id: int) -> bool:
        return block_id in self._of_block

    def read_any(self, block_ids: Sequence[int]) -> bool:
        return bool(self._of_block) and not self._of_block.keys().isdisjoint(block_ids)

    def room(self, group: int) -> int:
        """Blocks of a group that one more job may have."""
        if len(self._jobs) >= MAX_JOBS:
            return 0
        return max(0, (self._max_bytes - self._bytes) // max(1, self._block_bytes[group]))

    def add(self, group: int, job: Job) -> int:
        """Its number. Fits: see `room`."""
        number = self._next
        self._next += 1
        job.size_bytes = len(job.block_ids) * self._block_bytes[group]
        self._bytes += job.size_bytes
        self._jobs[number] = job
        if self.read_any(job.block_ids):
            for block_id in job.block_ids:
                self._of_block[block_id] = (*self._of_block.get(block_id, ()), number)
        else:
            self._of_block.update(dict.fromkeys(job.block_ids, (number,)))
        return number

    def is_saving(self, block_id: int, key: bytes) -> bool:
        """Whether a save that nobody ends reads this block with this content."""
        return any(
            number not in self._taken and self._jobs[number].key_of(block_id) == key
            for number in self._of_block.get(block_id, ())
        )

    def take(self, block_ids: Sequence[int]) -> None:
        if self.read_any(block_ids):
            for block_id in block_ids:
                self._taken.update(self._of_block.get(block_id, ()))

    def take_unless(self, block_id: int, key: bytes) -> None:
        """The block is given to somebody who finds this content in it (none: b""); saves of other content end."""
        for number in self._of_block.get(block_id, ()):
            if self._jobs[number].key_of(block_id) != key:
                self._taken.add(number)

    def pop_taken(self) -> list[int]:
        if not self._taken:
            return []
        taken, self._taken = sorted(self._taken), set()
        return taken

    def report(self, number: int, reports: list[SaveReport]) -> Job | None:
        """The job when it is over: all ranks have reported."""
        job = self._jobs.get(number)
        if job is None:
            return None
        job.reports += reports
        if len(job.reports) < self._world_size:
            return None
        del self._jobs[number]
        self._bytes -= job.size_bytes
        for block_id in job.block_ids:
            numbers = self._of_block[block_id]
            if len(numbers) == 1:
                del self._of_block[block_id]
            else:
                self._of_block[block_id] = tuple(other for other in numbers if other != number)
        return job
