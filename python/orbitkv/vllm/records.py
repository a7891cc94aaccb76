"""What the scheduler's side remembers: hashes, requests, counts. Plain records, one thread."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import orbitkv
from orbitkv.vllm.lora import Adapter, derived
from orbitkv.vllm.messages import Load
from orbitkv.vllm.reasons import Taken
from orbitkv.vllm.save_policy import Wishes
from orbitkv.vllm.shards import FoundBlocks


class HashSet:
    """A bounded set; the oldest entries are forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._entries: OrderedDict[bytes, None] = OrderedDict()

    def add(self, hashes: Iterable[bytes]) -> None:
        for item in hashes:
            self._entries[item] = None
            self._entries.move_to_end(item)
        while len(self._entries) > self._limit:
            self._entries.popitem(last=False)

    def discard(self, hashes: Iterable[bytes]) -> None:
        for item in hashes if self._entries else ():
            self._entries.pop(item, None)

    def clear(self) -> None:
        self._entries.clear()

    def __contains__(self, item: bytes) -> bool:
        return item in self._entries

    def has_all(self, hashes: Iterable[bytes]) -> bool:
        return all(map(self._entries.__contains__, hashes))

    def __len__(self) -> int:
        return len(self._entries)


@dataclass
class Tracked:
    """One request. Depths and counts in hash blocks."""

    request: Any
    hashes: orbitkv.BlockHashes
    wishes: Wishes = field(default_factory=Wishes)
    known: int = 0  # hashes copied into `hashes`
    local: int = 0  # blocks of vLLM's own hit, from the last look-up
    attempt: int = 0  # raised when a preempted request is looked up again
    asked_at: float | None = None  # first unanswered question
    loading_since: float | None = None  # the Manager has said that it loads
    load_wait_s: float = 0.0  # and may do so for this long
    gave_up: bool = False  # no answer in time: computed without us
    answer: FoundBlocks | None = None
    answered_at: float = 0.0
    answered_for: tuple[int, int] = (-1, -1)
    lease: int = 0
    shared_wait_since: float | None = None
    load: Load | None = None  # handed to vLLM and not reported back yet
    failures: int = 0  # loads of this request that failed
    saved: list[int] = field(default_factory=list)  # of each group, its blocks looked at for saving
    found: int | None = None  # tokens it had when it was admitted; None until then
    why: str = ""  # it would be admitted without blocks of ours now (reasons.py)
    accounted: bool = False  # it was admitted once
    taken: Taken = field(default_factory=Taken)  # what the load under way brings, by tier
    outside: str = ""  # why it is in no key; empty when it is
    reading: Future[bytes] | None = None  # its adapter's content, until it was looked at
    reading_since: float = 0.0
    domain: bytes = b""  # of the keys of its blocks, with an adapter
    adapter: Adapter | None = None
    derived: list[bytes] = field(default_factory=list)

    @property
    def bypass(self) -> bool:
        """Neither looked up nor saved."""
        return bool(self.outside) or self.reading is not None

    @property
    def block_hashes(self) -> Sequence[bytes]:
        """Names of its hash blocks: vLLM's, or those in its key domain."""
        hashes: Sequence[bytes] = self.request.block_hashes
        if not self.domain:
            return hashes
        self.derived += [derived(self.domain, item) for item in hashes[len(self.derived) :]]
        return self.derived


@dataclass
class Counters:
    lookups: int = 0
    lookup_hits: int = 0
    lookups_given_up: int = 0
    lookups_loading: int = 0
    loads: int = 0
    loads_failed: int = 0
    offered_tokens: int = 0
    saved_blocks: int = 0
    unsaved_blocks: int = 0  # the Manager had no room, or their pages were reused first
    dropped_blocks: int = 0  # too much was on its way already
    taken_jobs: int = 0
    republished_tokens: int = 0
