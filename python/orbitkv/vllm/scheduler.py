"""The scheduler's side: which blocks to offer, to restore and to publish. Moves no bytes and never waits long.

One request's life here: a look-up (repeated until answered, bounded), one lease and one grant at most, then runs of
complete blocks handed to the workers as save jobs. Threads: vLLM's scheduler thread only.
"""

from __future__ import annotations

import logging
import os
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orbitkv
from orbitkv.vllm import compat
from orbitkv.vllm.compute_rate import ComputeRate
from orbitkv.vllm.link import Link
from orbitkv.vllm.messages import Load, Metadata, Save, SaveReport, WorkerMetadata
from orbitkv.vllm.options import Options
from orbitkv.vllm.shards import LOADING, Asker, FoundBlocks, ShardClients

logger = logging.getLogger("orbitkv.vllm")

# Hashes remembered as stored or as failed; 64 bytes each with their overhead several times that.
KNOWN_HASHES = 1 << 18
FAILED_HASHES = 1 << 14
# An answer is used again for this long before the Manager is asked anew; leases live 10 s.
ANSWER_AGE_S = 1.0
# A request waits this long for another one that loads the same blocks, then loads them itself.
SHARED_LOAD_WAIT_S = 0.1
# An idle engine steps on for saves that are not acknowledged, at most this long after the last one.
PENDING_WORK_S = 5.0
# After so many failed loads a request is computed.
LOAD_ATTEMPTS = 2


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
        for item in hashes:
            self._entries.pop(item, None)

    def clear(self) -> None:
        self._entries.clear()

    def __contains__(self, item: bytes) -> bool:
        return item in self._entries

    def __len__(self) -> int:
        return len(self._entries)


@dataclass
class Tracked:
    """One request. Depths and counts in blocks."""

    request: Any
    bypass: bool
    hashes: orbitkv.BlockHashes
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
    saved: int = 0  # blocks looked at for saving
    found: int | None = None  # blocks it had when it was admitted; None until then


@dataclass
class Job:
    """A save that workers have not all reported yet."""

    hashes: list[bytes]
    block_ids: list[int]
    republished: int  # leading blocks that the request found, not computed
    epoch: bytes  # of the namespace that it saves into
    reports: list[SaveReport] = field(default_factory=list)

    def hash_of(self, block_id: int) -> bytes:
        return self.hashes[self.block_ids.index(block_id)]


@dataclass(frozen=True)
class FreshBlocks:
    req_id: str
    block_ids: Sequence[int]
    whole_table: bool  # the request's table from its start, else blocks appended to it


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
    taken_jobs: int = 0
    republished_tokens: int = 0


class SchedulerSide:
    def __init__(
        self, link: Link, options: Options, group: compat.Group, ranks: compat.Ranks, hash_bytes: int, offers: bool
    ) -> None:
        self._link = link
        self._options = options
        self._block = group.block_tokens
        self._ranks = ranks
        self._hash_bytes = hash_bytes
        self._offers = offers
        self._requests: dict[str, Tracked] = {}
        self._incarnation = b""
        self._stored = HashSet(KNOWN_HASHES)
        self._failed = HashSet(FAILED_HASHES)
        self._jobs: dict[int, Job] = {}
        self._job_of_block: dict[int, set[int]] = {}
        self._next_job = 1
        self._last_save_at = 0.0
        self._epoch = b""
        self._pending_loads: list[Load] = []
        self._loading: dict[bytes, int] = {}  # first hash of each load -> loads of it
        self._taken: set[int] = set()
        self._rate = ComputeRate()
        self.counters = Counters()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        self._requests[request.request_id] = self._track(request)

    def _track(self, request: Any) -> Tracked:
        return Tracked(request, compat.bypasses(request), orbitkv.BlockHashes(b"", self._hash_bytes))

    def _tracked(self, request: Any) -> Tracked:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = self._requests[request.request_id] = self._track(request)
        return tracked

    def _hashes(self, tracked: Tracked) -> orbitkv.BlockHashes:
        current = tracked.request.block_hashes
        if len(current) > tracked.known:
            tracked.hashes.extend([bytes(item) for item in current[tracked.known :]])
            tracked.known = len(current)
        return tracked.hashes

    def _hash_list(self, tracked: Tracked, begin: int, end: int) -> list[bytes]:
        return [bytes(item) for item in tracked.request.block_hashes[begin:end]]

    def request_finished(self, request: Any) -> None:
        tracked = self._requests.pop(request.request_id, None)
        client = self._link.asker
        if tracked is None or client is None:
            return
        if tracked.asked_at is not None:
            client.cancel_query(request.request_id)
        self._release_lease(client, tracked)
        load = tracked.load
        if load is not None and any(pending is load for pending in self._pending_loads):
            # Its metadata has not left: the grant ends here, and the worker only reports the request back to vLLM,
            # which holds the blocks until then.
            client.release_grant(load.grant)
            load.grant = 0
        if load is not None:
            self._end_load(load)

    def _release_lease(self, client: Asker, tracked: Tracked) -> None:
        if tracked.lease:
            client.release_lease(tracked.lease)
            tracked.lease = 0
        tracked.answer = None

    # ---- look-up ----------------------------------------------------------------------------------------------------

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self._tracked(request)
        tracked.found = None
        client = self._link.asker
        if client is None or not self._offers or compat.skips_reading(request):
            return 0, False
        if tracked.bypass or tracked.gave_up:
            return 0, False
        # The last token is always computed.
        limit = (request.num_tokens - 1) // self._block
        tracked.local = computed_tokens // self._block
        hashes = self._hashes(tracked)
        limit = min(limit, tracked.known)
        if limit <= tracked.local:
            return 0, False
        if self._waits_for_shared_load(tracked):
            return None, False
        found = self._ask(client, tracked, hashes, limit)
        if found is None:
            return None, False
        found = self._without_failed(tracked, min(found, limit - tracked.local))
        if found <= 0:
            return 0, False
        return found * self._block, True

    def _waits_for_shared_load(self, tracked: Tracked) -> bool:
        """Two requests with one prefix: the second waits for the first one's load and finds it in vLLM's own cache."""
        if bytes(tracked.request.block_hashes[tracked.local]) not in self._loading:
            tracked.shared_wait_since = None
            return False
        now = time.monotonic()
        if tracked.shared_wait_since is None:
            tracked.shared_wait_since = now
        return now - tracked.shared_wait_since < SHARED_LOAD_WAIT_S

    def _ask(self, client: Asker, tracked: Tracked, hashes: orbitkv.BlockHashes, limit: int) -> int | None:
        """Blocks found behind vLLM's own hit, or None while there is no answer and waiting is still allowed."""
        now = time.monotonic()
        question = (tracked.local, limit)
        fresh = tracked.answered_for == question and now - tracked.answered_at < ANSWER_AGE_S
        if tracked.answer is not None and fresh:
            return tracked.answer.found_blocks
        request_id = tracked.request.request_id
        answer = client.query(
            request_id,
            hashes[:limit],
            prefix_blocks=tracked.local,
            attempt=tracked.attempt,
            # One that loads is looked at in passing: the Manager says by itself when it is done.
            wait_s=0.0 if tracked.loading_since is not None else self._options.lookup_wait_us * 1e-6,
            load_wait_s=self._load_wait_s(tracked, limit),
            load_wait_is_compute_time=self._options.load_wait_ms < 0 and self._rate.measured,
        )
        if answer is None or answer.reason == LOADING:
            if tracked.asked_at is None:
                tracked.asked_at = now
            if answer is not None and tracked.loading_since is None:
                tracked.loading_since = now
                self.counters.lookups_loading += 1
            if now < self._give_up_at(tracked):
                return None
            client.cancel_query(request_id)
            tracked.asked_at = tracked.loading_since = None
            tracked.gave_up = True
            self.counters.lookups_given_up += 1
            return 0
        tracked.asked_at = tracked.loading_since = None
        tracked.answer = answer
        tracked.answered_at = now
        tracked.answered_for = question
        tracked.lease = answer.lease
        self.counters.lookups += 1
        self.counters.lookup_hits += answer.found_blocks > 0
        return int(answer.found_blocks)

    def _load_wait_s(self, tracked: Tracked, limit: int) -> float:
        """Decided once for each question: a load that takes longer than computing is worth nothing."""
        if tracked.loading_since is None:
            wait = self._options.load_wait_ms
            tokens = (limit - tracked.local) * self._block
            tracked.load_wait_s = self._rate.seconds(tokens) if wait < 0 else wait * 1e-3
        return tracked.load_wait_s

    def _give_up_at(self, tracked: Tracked) -> float:
        """A first word is due within the look-up limit; the end of a load within its wait and as long again."""
        limit = self._options.lookup_limit_ms * 1e-3
        if tracked.loading_since is not None:
            return tracked.loading_since + tracked.load_wait_s + limit
        assert tracked.asked_at is not None
        return tracked.asked_at + limit

    def _without_failed(self, tracked: Tracked, found: int) -> int:
        """A key that failed to load is not offered again until it has been stored anew."""
        if len(self._failed) == 0:
            return found
        for index, item in enumerate(self._hash_list(tracked, tracked.local, tracked.local + found)):
            if item in self._failed:
                return index
        return found

    # ---- allocation -------------------------------------------------------------------------------------------------

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        client = self._link.asker
        tracked = self._tracked(request)
        if external_tokens <= 0:
            if client is not None:
                self._release_lease(client, tracked)
            return
        count = external_tokens // self._block
        begin, end = tracked.local, tracked.local + count
        ids = list(blocks.get_block_ids()[0][begin:end])
        grant = 0
        if client is not None and tracked.lease:
            grant = client.begin_restore(tracked.lease, count, ranks=range(self._ranks.world_size))
        if client is not None and grant == 0:
            self._release_lease(client, tracked)
        tracked.lease = 0  # the grant has taken its place
        tracked.answer = None
        hashes = self._hash_list(tracked, begin, end)
        shards = client.shard_grants(grant) if isinstance(client, ShardClients) else []
        load = Load(
            request.request_id, grant, client.incarnation if client else b"", b"".join(hashes), ids, self._epoch, shards
        )
        tracked.load = load
        self._pending_loads.append(load)
        self._loading[hashes[0]] = self._loading.get(hashes[0], 0) + 1
        self._take(ids)
        self.counters.loads += 1
        self.counters.offered_tokens += external_tokens

    def _end_load(self, load: Load) -> None:
        first = load.hashes[: self._hash_bytes]
        left = self._loading.get(first, 0) - 1
        if left > 0:
            self._loading[first] = left
        else:
            self._loading.pop(first, None)

    # ---- one step ---------------------------------------------------------------------------------------------------

    def build(self, output: Any) -> Metadata:
        client = self._link.asker
        self._follow_incarnation(client)
        self._rate.step(sum(output.num_scheduled_tokens.values()), time.monotonic())
        metadata = Metadata(loads=self._pending_loads, epoch=self._epoch, idle=not output.num_scheduled_tokens)
        self._pending_loads = []
        computed, fresh = self._this_step(output)
        for fresh_blocks in fresh:
            self._take_changed(fresh_blocks, computed[fresh_blocks.req_id])
        if client is not None and self._options.saves and client.state == "up":
            state = output.kv_connector_block_state
            for req_id, scheduled in output.num_scheduled_tokens.items():
                tracked = self._requests.get(req_id)
                if tracked is None or tracked.bypass:
                    continue
                tables = state.get_block_ids(req_id)
                if tables is not None:
                    metadata.saves += self._saves(tracked, tables[0], computed.get(req_id, 0), scheduled)
        metadata.taken_jobs = sorted(self._taken)
        self.counters.taken_jobs += len(self._taken)
        self._taken = set()
        return metadata

    def _follow_incarnation(self, client: Asker | None) -> None:
        """A new Manager knows nothing of what the old one had stored or lost."""
        incarnation = client.incarnation if client is not None else b""
        if incarnation and incarnation != self._incarnation:
            self._incarnation = incarnation
            self._stored.clear()
            self._failed.clear()

    def _is_of_now(self, incarnation: bytes) -> bool:
        """Whether a worker's Manager is one of those that the scheduler talks to."""
        now = self._incarnation
        return any(incarnation == now[at : at + 16] for at in range(0, len(now), 16))

    @staticmethod
    def _this_step(output: Any) -> tuple[dict[str, int], list[FreshBlocks]]:
        """Tokens computed before this step by request, and the blocks that each request got or has in this step."""
        computed: dict[str, int] = {}
        fresh: list[FreshBlocks] = []
        for new in output.scheduled_new_reqs:
            computed[new.req_id] = new.num_computed_tokens
            fresh.append(FreshBlocks(new.req_id, new.block_ids[0], True))
        cached = output.scheduled_cached_reqs
        for req_id, tokens, ids in zip(cached.req_ids, cached.num_computed_tokens, cached.new_block_ids, strict=True):
            computed[req_id] = tokens
            if ids is not None:
                fresh.append(FreshBlocks(req_id, ids[0], req_id in cached.resumed_req_ids))
        return computed, fresh

    def _take_changed(self, fresh: FreshBlocks, computed_tokens: int) -> None:
        """Blocks that a request got in this step are taken from the saves that still read them.

        A block that it got with its content, by a hit in vLLM's own cache, stays as it is.
        """
        if not self._job_of_block:
            return
        tracked = self._requests.get(fresh.req_id)
        found: list[bytes] = []
        if tracked is not None and fresh.whole_table:
            found = self._hash_list(tracked, 0, computed_tokens // self._block)
        for index, block_id in enumerate(fresh.block_ids):
            for job_id in self._job_of_block.get(block_id, ()):
                if index >= len(found) or self._jobs[job_id].hash_of(block_id) != found[index]:
                    self._taken.add(job_id)

    def _take(self, block_ids: Iterable[int]) -> None:
        for block_id in block_ids:
            self._taken |= self._job_of_block.get(block_id, set())

    def _saves(self, tracked: Tracked, table: Sequence[int], computed_tokens: int, scheduled: int) -> list[Save]:
        """Runs of blocks that are complete after this step and that the Manager is not known to have.

        Blocks computed in this step always go: whether the Manager still has an old copy is its own knowledge. Blocks
        that the request found (in vLLM's cache, or restored) go only if this Manager never acknowledged them.
        """
        have = computed_tokens // self._block
        if tracked.found is None:
            tracked.found = have
        end = min((computed_tokens + scheduled) // self._block, len(tracked.request.block_hashes), len(table))
        begin = min(tracked.saved, have)
        tracked.saved = max(begin, end)
        if end <= begin:
            return []
        hashes = self._hash_list(tracked, begin, end)
        saves: list[Save] = []
        run: list[int] = []
        for index in range(begin, end):
            block_id = table[index]
            known = index < have and hashes[index - begin] in self._stored
            if block_id == 0 or known or self._is_being_saved(block_id, hashes[index - begin]):
                if run:
                    saves.append(self._save(tracked, table, run))
                run = []
            else:
                run.append(index)
        if run:
            saves.append(self._save(tracked, table, run))
        return saves

    def _is_being_saved(self, block_id: int, item: bytes) -> bool:
        for job_id in self._job_of_block.get(block_id, ()):
            if job_id not in self._taken and self._jobs[job_id].hash_of(block_id) == item:
                return True
        return False

    def _save(self, tracked: Tracked, table: Sequence[int], run: list[int]) -> Save:
        begin, end = run[0], run[-1] + 1
        hashes = self._hash_list(tracked, begin, end)
        ids = list(table[begin:end])
        parent = self._hash_list(tracked, begin - 1, begin)[0] if begin > 0 else b""
        job_id = self._next_job
        self._next_job += 1
        self._last_save_at = time.monotonic()
        republished = max(0, min(end, tracked.found or 0) - begin)
        self._jobs[job_id] = Job(hashes, ids, republished, self._epoch)
        for block_id in ids:
            self._job_of_block.setdefault(block_id, set()).add(job_id)
        request = tracked.request
        return Save(
            job_id,
            begin,
            parent,
            b"".join(hashes),
            ids,
            int(request.num_prompt_tokens),
            max(0, int(request.num_tokens) - int(request.num_prompt_tokens)),
        )

    # ---- reports ----------------------------------------------------------------------------------------------------

    def update(self, output: Any) -> None:
        report = output.kv_connector_worker_meta
        invalid = set(output.invalid_block_ids or ())
        if isinstance(report, WorkerMetadata):
            if report.failed_hashes:
                self._failed.add(report.failed_hashes)
                self._stored.discard(report.failed_hashes)
            for job_id, reports in report.saves.items():
                self._saved(job_id, reports)
        for req_id in output.finished_recving or ():
            tracked = self._requests.get(req_id)
            if tracked is None or tracked.load is None:
                continue  # it was aborted: its load ended with the request
            load, tracked.load = tracked.load, None
            self._end_load(load)
            if not invalid.isdisjoint(load.block_ids):
                self.counters.loads_failed += 1
                tracked.failures += 1
                tracked.gave_up = tracked.failures >= LOAD_ATTEMPTS
            elif load.incarnation == self._incarnation and load.epoch == self._epoch:
                size = self._hash_bytes
                loaded = [load.hashes[i : i + size] for i in range(0, len(load.hashes), size)]
                self._stored.add(loaded)
            tracked.attempt += 1

    def _saved(self, job_id: int, reports: list[SaveReport]) -> None:
        job = self._jobs.get(job_id)
        if job is None:
            return
        job.reports += reports
        if len(job.reports) < self._ranks.world_size:
            return
        del self._jobs[job_id]
        for block_id in job.block_ids:
            jobs = self._job_of_block[block_id]
            jobs.discard(job_id)
            if not jobs:
                del self._job_of_block[block_id]
        if job.epoch != self._epoch or not all(self._is_of_now(report.incarnation) for report in job.reports):
            return
        stored = [all(report.stored[i] for report in job.reports) for i in range(len(job.hashes))]
        done = [item for item, ok in zip(job.hashes, stored, strict=True) if ok]
        self._stored.add(done)
        self._failed.discard(done)
        self.counters.saved_blocks += len(done)
        self.counters.republished_tokens += sum(stored[: job.republished]) * self._block

    def has_pending_work(self) -> bool:
        """Keeps an idle engine stepping until its saves are acknowledged, but not for a Manager that is away."""
        client = self._link.asker
        if not self._jobs or client is None or client.state != "up":
            return False
        return time.monotonic() - self._last_save_at < PENDING_WORK_S

    def reset(self) -> None:
        """Moves to a namespace of its own: vLLM resets caches when weights may have changed, which no file shows.

        What is shared with other engines stays as it is.
        """
        self._epoch = os.urandom(8)
        self._incarnation = b""
        self._stored.clear()
        self._failed.clear()
        for tracked in self._requests.values():
            tracked.answer = None
            tracked.lease = 0  # ends with the session
            tracked.asked_at = tracked.loading_since = None
        for load in self._pending_loads:
            load.grant = 0
        self._link.renew(self._epoch)
        logger.info("OrbitKV: caches were reset; this engine goes on in a namespace of its own")

    def shutdown(self) -> None:
        self._link.close()
