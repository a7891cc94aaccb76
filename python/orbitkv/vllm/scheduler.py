"""The scheduler's side: which blocks to offer, to restore and to publish. Moves no bytes and never waits long.

One request's life here: a look-up (repeated until answered, bounded), one lease and one grant at most, then runs of
complete blocks handed to the workers as save jobs. Threads: vLLM's scheduler thread only.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Sequence
from itertools import compress
from typing import Any

import orbitkv
from orbitkv.vllm import compat, reasons
from orbitkv.vllm.compute_rate import ComputeRate
from orbitkv.vllm.events import Events
from orbitkv.vllm.groups import Groups, Run
from orbitkv.vllm.key_domains import FOUND_OLD, KeyDomains
from orbitkv.vllm.link import Link
from orbitkv.vllm.messages import Load, Metadata, Save, SaveReport, WorkerMetadata
from orbitkv.vllm.options import Options
from orbitkv.vllm.records import Counters, HashSet, Tracked
from orbitkv.vllm.save_jobs import SaveJobs
from orbitkv.vllm.save_policy import SavePolicy
from orbitkv.vllm.saver import Saver
from orbitkv.vllm.shards import LOADING, NOTHING, Asker, FoundBlocks, ShardClients
from orbitkv.vllm.stats import Meter, OrbitKVStats

logger = logging.getLogger("orbitkv.vllm")

# Hashes remembered as stored or as failed; 64 bytes each with their overhead several times that.
KNOWN_HASHES = 1 << 18
FAILED_HASHES = 1 << 14
# An answer is used again for this long before the Manager is asked anew; leases live 10 s.
ANSWER_AGE_S = 1.0
# A request waits this long for another one that loads the same blocks, then loads them itself. No load takes longer by
# its own deadline, and a second one beside it would only slow both down.
SHARED_LOAD_WAIT_S = 2.0
# An idle engine steps on for saves that are not acknowledged, at most this long after the last one.
PENDING_WORK_S = 5.0
# After so many failed loads a request is computed.
LOAD_ATTEMPTS = 2
# So many requests that wait for their admission may have been asked about before: each holds a lease.
ASKED_AHEAD = 32


class SchedulerSide:
    def __init__(
        self,
        link: Link,
        options: Options,
        groups: Groups,
        ranks: compat.Ranks,
        hash_bytes: int,
        offers: bool,
        block_bytes: Sequence[int] = (),
    ) -> None:
        """`block_bytes`: of a block of each group on one rank; of a layer's page when not given."""
        self._link = link
        self._options = options
        self._saves = options.saves
        self._groups = groups
        self._block = groups.hash_tokens
        self._ranks = ranks
        self._hash_bytes = hash_bytes
        self._offers = offers
        self._requests: dict[str, Tracked] = {}
        self._incarnation = b""
        self._stored = HashSet(KNOWN_HASHES)
        self._failed = HashSet(FAILED_HASHES)
        sizes = block_bytes or [group.page_bytes for group in groups]
        self._jobs = SaveJobs(ranks.world_size, sizes, options.save_queue_bytes)
        self._policy = SavePolicy(options)
        self._last_save_at = 0.0
        self._epoch = b""
        self._pending_loads: list[Load] = []
        self._loading: dict[bytes, int] = {}  # first hash of each load -> loads of it
        self._new: list[Tracked] = []  # since vLLM last asked
        self._ahead: dict[str, float] = {}  # requests asked about before vLLM asks, and when
        self.shares_loads = True  # what one request has loaded, others find in vLLM's own cache
        self._rate = ComputeRate()
        self.domains = KeyDomains(options.trust_mm_uuids)
        self.counters = Counters()
        self.account = reasons.Account(options.log_requests)
        self.events = Events(groups)
        self._saver = Saver(groups, self._policy, self._jobs, self._stored, self.counters, self._saving)
        self._meter = Meter()

    # ---- requests ---------------------------------------------------------------------------------------------------

    def on_new_request(self, request: Any) -> None:
        tracked = self._requests[request.request_id] = self._track(request)
        if len(self._new) < ASKED_AHEAD:
            self._new.append(tracked)

    def _track(self, request: Any) -> Tracked:
        hashes = orbitkv.BlockHashes(b"", self._hash_bytes)
        wishes = self._policy.wishes(getattr(request, "kv_transfer_params", None))
        tracked = Tracked(request, hashes, wishes, saved=[0] * len(self._groups))
        self.domains.track(tracked)
        self._saver.forget(request.request_id)
        return tracked

    def _tracked(self, request: Any) -> Tracked:
        tracked = self._requests.get(request.request_id)
        if tracked is None:
            tracked = self._requests[request.request_id] = self._track(request)
        return tracked

    def _hashes(self, tracked: Tracked) -> orbitkv.BlockHashes:
        current = tracked.block_hashes
        if len(current) > tracked.known:
            tracked.hashes.extend(current[tracked.known :])
            tracked.known = len(current)
        return tracked.hashes

    def _key(self, tracked: Tracked, group: int, block: int) -> bytes:
        return self._groups.key(group, tracked.block_hashes[self._groups.place(group, block)])

    def request_finished(self, request: Any) -> None:
        tracked = self._requests.pop(request.request_id, None)
        self._ahead.pop(request.request_id, None)
        self._saver.forget(request.request_id)
        client = self._link.asker
        if tracked is None:
            return
        load = tracked.load
        if load is not None:
            self._end_load(load)
        if client is None:
            return
        self._release(client, tracked)
        if load is not None and any(pending is load for pending in self._pending_loads):
            # Its metadata has not left: the grant ends here, and the worker only reports the request back to vLLM,
            # which holds the blocks until then.
            client.release_grant(load.grant)
            load.grant = 0

    def _release(self, client: Asker, tracked: Tracked) -> None:
        """Its question, when that has no answer yet, and its lease."""
        if tracked.asked_at is not None:
            client.cancel_query(tracked.request.request_id)
            tracked.asked_at = tracked.loading_since = None
        if tracked.lease:
            client.release_lease(tracked.lease)
            tracked.lease = 0
        tracked.answer = None

    # ---- look-up ----------------------------------------------------------------------------------------------------

    def matched_tokens(self, request: Any, computed_tokens: int) -> tuple[int | None, bool]:
        tracked = self._tracked(request)
        tracked.found = None
        self._saver.forget(request.request_id)
        client = self._link.asker
        if not self.domains.settle(tracked, computed_tokens):
            return None, False
        tracked.why = reasons.before_asking(tracked, client is not None, self._offers)
        if client is None or tracked.why:
            return 0, False
        self._ask_ahead(client, tracked)
        self._forget_if_old(client, tracked)
        tracked.local = computed_tokens // self._block
        limit = self._limit(tracked)
        if limit <= tracked.local:
            tracked.why = reasons.NOT_ASKED
            return 0, False
        if client.state == "up" and self._waits_for_shared_load(tracked):
            return None, False
        answer = self._ask(client, tracked, limit, self._options.lookup_wait_us * 1e-6)
        if answer is None:
            return None, False
        found = self._offered(tracked, answer, limit - tracked.local)
        tracked.why = reasons.after_asking(answer, found)
        if found <= 0:
            return 0, False
        return found * self._block, True

    def _limit(self, tracked: Tracked) -> int:
        """The last boundary that may be offered."""
        known = len(self._hashes(tracked))
        return self._groups.aligned(min(self._groups.last_boundary(tracked.request.num_tokens), known))

    def _ask_ahead(self, client: Asker, asked: Tracked) -> None:
        """Posts the questions about the other new requests beside the first one that vLLM asks about.

        The Manager is woken once for all of them, and their answers are there when vLLM asks.
        """
        new, self._new = self._new, []
        if client.state != "up":
            return
        now = time.monotonic()
        while self._ahead and now - next(iter(self._ahead.values())) >= ANSWER_AGE_S:
            self._forget_if_old(client, self._requests[next(iter(self._ahead))])
        for tracked in new:
            alive = self._requests.get(tracked.request.request_id) is tracked
            if alive and tracked is not asked and len(self._ahead) < ASKED_AHEAD:
                self._ask_about(client, tracked)

    def _ask_about(self, client: Asker, tracked: Tracked) -> None:
        """What vLLM's own cache has is looked up in it; when it has less or more by then, the question is put again."""
        if tracked.answer is not None or tracked.asked_at is not None:
            return
        if reasons.before_asking(tracked, True, self._offers):
            return
        limit = self._limit(tracked)
        pool = self.domains.pool
        local = 0
        if self.shares_loads and pool is not None:
            local = compat.own_blocks(pool, tracked.request.block_hashes[:limit])
        if (local > 0 and not self._groups.plain) or limit <= local:
            return
        tracked.local = local
        if tracked.block_hashes[local] in self._loading:
            return
        self._ahead[tracked.request.request_id] = time.monotonic()
        self._ask(client, tracked, limit, 0.0)

    def _forget_if_old(self, client: Asker, tracked: Tracked) -> None:
        """What was found long before the request's admission may be gone."""
        asked_at = self._ahead.pop(tracked.request.request_id, None)
        if asked_at is not None and time.monotonic() - asked_at >= ANSWER_AGE_S:
            self._release(client, tracked)

    def _waits_for_shared_load(self, tracked: Tracked) -> bool:
        """Two requests with one prefix: the second waits for the first one's load and finds it in vLLM's own cache."""
        if not self.shares_loads or tracked.block_hashes[tracked.local] not in self._loading:
            tracked.shared_wait_since = None
            return False
        now = time.monotonic()
        if tracked.shared_wait_since is None:
            tracked.shared_wait_since = now
        return now - tracked.shared_wait_since < SHARED_LOAD_WAIT_S

    def _ask(self, client: Asker, tracked: Tracked, limit: int, wait_s: float) -> FoundBlocks | None:
        """What was found behind vLLM's own hit, or None while there is no answer and waiting is still allowed.

        `wait_s`: for an answer in this call.
        """
        now = time.monotonic()
        question = (tracked.local, limit)
        fresh = tracked.answered_for == question and now - tracked.answered_at < ANSWER_AGE_S
        if tracked.answer is not None and fresh:
            return tracked.answer
        request_id = tracked.request.request_id
        answer = client.query(
            request_id,
            self._hashes(tracked)[:limit],
            prefix_blocks=tracked.local,
            attempt=tracked.attempt,
            # One that loads is looked at in passing: the Manager says by itself when it is done.
            wait_s=0.0 if tracked.loading_since is not None else wait_s,
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
            return NOTHING
        tracked.asked_at = tracked.loading_since = None
        tracked.answer = answer
        tracked.answered_at = now
        tracked.answered_for = question
        tracked.lease = answer.lease
        self.counters.lookups += 1
        self.counters.lookup_hits += answer.found_blocks > 0
        if answer.found_blocks == 0 and answer.reason in reasons.GONE:
            self.events.gone([self._key(tracked, 0, self._groups.blocks(0, tracked.local))])
        return answer

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

    def _offered(self, tracked: Tracked, answer: FoundBlocks, most: int) -> int:
        """The largest boundary that does not need a key which failed to load and has not been stored anew since."""
        if answer.found_blocks == 0:
            return 0
        groups, local = self._groups, tracked.local
        found = min(int(answer.found_blocks), most) - groups.volatile_blocks
        for number in range(len(groups)) if len(self._failed) else ():
            if number in groups.sparse:
                continue
            for block in range(groups.blocks(number, local), groups.blocks(number, local + found)):
                if self._key(tracked, number, block) in self._failed:
                    found = max(0, groups.chain(number, block, block)[0] - local)
                    break
        if groups.plain:
            return max(0, found)
        for boundary in reversed(answer.boundaries):
            if boundary <= found and not self._needs_failed(tracked, boundary):
                return int(boundary)
        return 0

    def _needs_failed(self, tracked: Tracked, boundary: int) -> bool:
        """Of a sparse group; the others were looked at."""
        if len(self._failed) == 0:
            return False
        return any(
            self._key(tracked, number, block) in self._failed
            for number, first, count in self._groups.demand(tracked.local, tracked.local + boundary)
            if number in self._groups.sparse
            for block in range(first, first + count)
        )

    # ---- allocation -------------------------------------------------------------------------------------------------

    def allocated(self, request: Any, blocks: Any, external_tokens: int) -> None:
        client = self._link.asker
        tracked = self._tracked(request)
        tracked.taken = reasons.taken(tracked.answer, external_tokens // self._block, self._block)
        self.account.admitted(tracked, self._block)
        if external_tokens <= 0:
            if client is not None:
                self._release(client, tracked)
            return
        count = external_tokens // self._block
        begin, end = tracked.local, tracked.local + count
        self.events.found_on_disk(request, end - tracked.taken.disk // self._block, end)
        runs, ids = self._place(tracked, blocks.get_block_ids(), end)
        grant = 0
        if client is not None and tracked.lease and runs:
            grant = client.begin_restore(tracked.lease, count, ranks=range(self._ranks.world_size))
        if client is not None and grant == 0:
            self._release(client, tracked)
        tracked.lease = 0  # the grant has taken its place
        tracked.answer = None
        hashes = tracked.block_hashes[begin:end]
        shards = client.shard_grants(grant) if isinstance(client, ShardClients) else []
        load = Load(
            request.request_id,
            grant,
            client.incarnation if client else b"",
            b"".join(hashes),
            ids,
            self._epoch,
            shards,
            begin,
            runs,
            tracked.adapter,
        )
        tracked.load = load
        self._pending_loads.append(load)
        self._loading[hashes[0]] = self._loading.get(hashes[0], 0) + 1
        self._jobs.take(ids)
        self.counters.loads += 1
        self.counters.offered_tokens += external_tokens

    def _place(self, tracked: Tracked, tables: Sequence[Sequence[int]], end: int) -> tuple[list[Run], list[int]]:
        """What the boundary demands and where vLLM wants it; no runs, and all its blocks, when the two do not agree."""
        try:
            runs = self._groups.demand(tracked.local, end)
        except orbitkv.InvalidArgument:
            runs = []
        ids = [block_id for number, first, count in runs for block_id in tables[number][first : first + count]]
        if 0 not in ids and len(ids) == sum(count for _, _, count in runs) > 0:
            return runs, ids
        logger.warning("OrbitKV: vLLM allocated other blocks than a load up to hash block %d needs; it fails", end)
        return [], [block_id for table in tables for block_id in table if block_id != 0]

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
        self._rate.step(output.total_num_scheduled_tokens, time.monotonic())
        loads, self._pending_loads = self._pending_loads, []
        if len(self._jobs):
            self._take_changed(output)
        saves: list[Save] = []
        if client is not None and self._saves and client.state == "up":
            saves = self._saver.step(output, self._requests, self._epoch)
        taken = self._jobs.pop_taken()
        self.counters.taken_jobs += len(taken)
        return Metadata(loads, saves, taken, self._epoch, not output.num_scheduled_tokens)

    def _saving(self, save: Save, request: Any) -> None:
        self._last_save_at = time.monotonic()
        self.events.saving(save, request)

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

    def _take_changed(self, output: Any) -> None:
        """Blocks that requests got in this step are taken from the saves that still read them."""
        for new in output.scheduled_new_reqs:
            self._take_table(new.req_id, new.block_ids, new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for index in compress(range(len(cached.req_ids)), cached.new_block_ids):  # few have got one
            req_id = cached.req_ids[index]
            tokens = cached.num_computed_tokens[index] if req_id in cached.resumed_req_ids else 0
            self._take_table(req_id, cached.new_block_ids[index], tokens)

    def _take_table(self, req_id: str, tables: Sequence[Sequence[int]], computed_tokens: int) -> None:
        """A block that a request got with its content, by a hit in vLLM's own cache, stays as it is.

        `computed_tokens`: where these are its tables from their start; 0 for blocks appended to them.
        """
        for group, ids in enumerate(tables):
            if not self._jobs.read_any(ids):
                continue
            tracked = self._requests.get(req_id)
            found = 0
            if tracked is not None:
                hashed = min(computed_tokens // self._block, len(tracked.block_hashes))
                found = self._groups.blocks(group, hashed)
            for index, block_id in enumerate(ids):
                if self._jobs.reads(block_id):
                    key = self._key(tracked, group, index) if tracked is not None and index < found else b""
                    self._jobs.take_unless(block_id, key)

    # ---- reports ----------------------------------------------------------------------------------------------------

    def update(self, output: Any) -> None:
        report = output.kv_connector_worker_meta
        if isinstance(report, WorkerMetadata):
            self._take_report(report)
        if output.finished_recving:
            self._loaded(output)

    def _take_report(self, report: WorkerMetadata) -> None:
        if report.adapters:
            self.domains.loaded(report.adapters)
        if report.weights_changed:
            self._leave_weights()
        if report.failed_hashes:
            self._failed.add(report.failed_hashes)
            self._stored.discard(report.failed_hashes)
            self.events.gone(report.failed_hashes)
        for job_id, reports in report.saves.items():
            self._saved(job_id, reports)

    def _loaded(self, output: Any) -> None:
        """Loads that have ended, well or not."""
        invalid = set(output.invalid_block_ids or ())
        failed = output.failed_recving or ()
        for req_id in output.finished_recving:
            tracked = self._requests.get(req_id)
            if tracked is None or tracked.load is None:
                continue  # it was aborted: its load ended with the request
            load, tracked.load = tracked.load, None
            self._end_load(load)
            if req_id in failed or not invalid.isdisjoint(load.block_ids):
                self.counters.loads_failed += 1
                tracked.failures += 1
                tracked.gave_up = tracked.failures >= LOAD_ATTEMPTS
            elif load.incarnation == self._incarnation and load.epoch == self._epoch:
                size = self._hash_bytes
                hashes = [load.hashes[i : i + size] for i in range(0, len(load.hashes), size)]
                self._stored.add(self._groups.keys(hashes, load.prefix, load.runs))
            tracked.attempt += 1

    def _saved(self, job_id: int, reports: list[SaveReport]) -> None:
        job = self._jobs.report(job_id, reports)
        if job is None:
            return
        stored = job.stored()
        self.counters.unsaved_blocks += stored.count(False)
        of_now = job.epoch == self._epoch and all(self._is_of_now(report.incarnation) for report in job.reports)
        self.events.saved(job_id, stored if of_now else [])
        if not of_now:
            return
        done = list(compress(job.keys, stored))
        self._stored.add(done)
        self._failed.discard(done)
        self.counters.saved_blocks += len(done)
        self.counters.republished_tokens += job.block_tokens * sum(stored[: job.found_blocks])

    def has_pending_work(self) -> bool:
        """Keeps an idle engine stepping until its saves are acknowledged, but not for a Manager that is away."""
        client = self._link.asker
        if not len(self._jobs) or client is None or client.state != "up":
            return False
        return time.monotonic() - self._last_save_at < PENDING_WORK_S

    def take_stats(self) -> OrbitKVStats | None:
        return self._meter.take(vars(self.counters), self.account.counts)

    def hit_sources(self, request: Any, tokens: int) -> dict[Any, int]:
        """Of the tokens that vLLM has just allocated blocks for."""
        taken = self._tracked(request).taken.of(tokens)
        sources = {compat.CacheHitSource.HOST: taken.host, compat.CacheHitSource.DISK: taken.disk}
        return {source: count for source, count in sources.items() if count}

    def _leave_weights(self) -> None:
        """The workers have replaced them: what was computed until now, also of running requests, is of the old ones."""
        for tracked in self._requests.values():
            tracked.outside = tracked.outside or FOUND_OLD
        self.domains.weights_changed()
        self._move()

    def reset(self) -> None:
        """Caches are reset when weights may have changed, which no file shows."""
        self.domains.reset()
        self._move()

    def _move(self) -> None:
        """To a namespace of its own. What is shared with other engines stays as it is."""
        self._epoch = os.urandom(8)
        self._incarnation = b""
        self._stored.clear()
        self._failed.clear()
        self._ahead.clear()
        for tracked in self._requests.values():
            tracked.answer = None
            tracked.lease = 0  # ends with the session
            tracked.asked_at = tracked.loading_since = None
        for load in self._pending_loads:
            load.grant = 0
        self._link.renew(self._epoch)
        logger.info("OrbitKV: caches were reset or weights replaced; this engine goes on in a namespace of its own")

    def shutdown(self) -> None:
        self._link.close()
        self.domains.close()
