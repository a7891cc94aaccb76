"""A worker's side: starts restores and saves of its own shard and reports how they ended. The native client copies.

Threads: vLLM's worker thread only. Nothing here waits, except for a running copy out of pages that the step is about
to give to someone else.
"""

from __future__ import annotations

import logging
import select
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import orbitkv
from orbitkv.identity import Fields, describe
from orbitkv.vllm import compat, identity, pages
from orbitkv.vllm.changes import Changes
from orbitkv.vllm.groups import Groups
from orbitkv.vllm.link import Link, Part
from orbitkv.vllm.messages import Load, Metadata, Save, SaveReport, WorkerMetadata
from orbitkv.vllm.options import Options
from orbitkv.vllm.stats import Transfers

logger = logging.getLogger("orbitkv.vllm")

# A step that computes nothing waits this long for a copy instead of spinning beside it.
IDLE_WAIT_S = 0.002

# Where the engine overwrites pages before it lets us fence, a step waits this long for its own saves, then drops them.
SETTLE_WAIT_S = 0.25
# Saves that are queued when the engine ends, or its pages go away, may take so long. vLLM kills workers that need more
# than some seconds to end.
FLUSH_S = 3.0

# Outcomes of a block in a completion.
STORED, ALREADY_THERE, RESTORED = 1, 2, 4


@dataclass
class RunningSave:
    save: Save
    incarnation: bytes


class FenceTimeoutError(RuntimeError):
    """A copy still reads pages that the engine must reuse. The step fails rather than let it read other data."""


class WorkerSide:
    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        options: Options,
        groups: Groups,
        ranks: compat.Ranks,
        hash_bytes: int,
    ) -> None:
        self._vllm_config = vllm_config
        self._kv_cache_config = kv_cache_config
        self._options = options
        self._groups = groups
        self._ranks = ranks
        self._hash_bytes = hash_bytes
        self._link: Link | None = None
        self._kv_caches: dict[str, Any] = {}
        self._layers: list[list[pages.LayerPages]] = []  # of each group
        self._rank = 0
        self._loads: dict[int, Load] = {}  # by the client's job
        self._saves: dict[int, RunningSave] = {}  # by the client's job
        self._client_job: dict[int, int] = {}  # the scheduler's save job -> the client's
        self._finished: set[str] = set()
        self._bad_blocks: set[int] = set()
        self._failed: set[str] = set()  # loads that failed, of several groups
        self._report = WorkerMetadata()
        self._changes = Changes()
        self._epoch = b""
        self._idle = False
        self.transfers = Transfers()
        self._fence_comes_late = compat.overwrites_before_fence(vllm_config, kv_cache_config)

    # ---- start and stop ---------------------------------------------------------------------------------------------

    def register(self, kv_caches: dict[str, Any]) -> None:
        self._rank = compat.rank_of_this_worker(self._vllm_config)
        self._changes.watch(compat.model_class(self._vllm_config))
        self._kv_caches = kv_caches
        representations = self._read_pages()
        for number, fields in enumerate(representations):
            logger.info("OrbitKV pages (rank %d, group %d): %s", self._rank, number, describe(fields))
        part = Part("worker", self._rank, self._ranks, f"vllm worker {self._rank}")
        self._link = Link(self._vllm_config, self._groups, self._options, part, representations, self._register_groups)
        self._link.start()

    def _read_pages(self) -> list[Fields]:
        """Takes the addresses of all pages from the tensors as they are now."""
        every: list[list[pages.LayerPages]] = []
        representations: list[Fields] = []
        for number, group in enumerate(self._groups):
            layers, page_format = pages.collect_pages(self._kv_caches, self._kv_cache_config, self._groups, number)
            every.append(layers)
            names = list(self._kv_cache_config.kv_cache_groups[number].layer_names)
            representations.append(
                identity.representation_fields(self._vllm_config, group, names, page_format, len(layers))
            )
        self._layers = every
        return representations

    def _register_groups(self, client: orbitkv.Client) -> None:
        client.register_groups(
            [
                group.declared([self._layer(layer) for layer in layers])
                for group, layers in zip(self._groups, self._layers, strict=True)
            ],
            hash_block_tokens=self._groups.hash_tokens,
        )

    @staticmethod
    def _layer(layer: pages.LayerPages) -> orbitkv.Layer:
        return orbitkv.Layer(
            address=layer.address,
            block_stride_bytes=layer.block_stride,
            page_bytes=layer.page_bytes,
            block_count=layer.block_count,
            keepalive=layer.tensor,
        )

    def unregister(self) -> None:
        """The pages' memory goes away, and nothing may touch it when this returns. Raises when a copy does not end."""
        if self._link is None:
            return
        client = self._link.suspend(FLUSH_S)
        if client is not None:
            self._take_completions(client, client.poll())
        for job in list(self._saves):
            self._end_save(job, None)
        for load in self._loads.values():
            self._end_load(load, set(range(len(load.block_ids))), failed_keys=False)
        self._loads.clear()

    def restore_pages(self) -> None:
        """The pages have memory again, perhaps elsewhere."""
        if self._link is not None:
            self._read_pages()
            self._link.resume()

    def shutdown(self) -> None:
        if self._link is None:
            return
        if self._saves:
            logger.info("OrbitKV: %d saves are on their way; they have %s s", len(self._saves), FLUSH_S)
        self._link.close(FLUSH_S)

    @property
    def _client(self) -> orbitkv.Client | None:
        return self._link.client if self._link is not None else None

    def _hashes(self, data: bytes) -> orbitkv.BlockHashes:
        return orbitkv.BlockHashes(data, self._hash_bytes)

    # ---- fences -----------------------------------------------------------------------------------------------------

    def fence(self, metadata: Metadata) -> None:
        """Saves whose blocks this step reuses: a queued one is dropped, a running one is waited for."""
        if metadata.epoch != self._epoch:
            self._change_epoch(metadata.epoch)
        if metadata.taken_jobs:
            self._fence_jobs([self._client_job[job] for job in metadata.taken_jobs if job in self._client_job])

    def _fence_jobs(self, jobs: list[int]) -> None:
        client = self._client
        if not jobs or client is None:
            return
        running = [job for job in jobs if not client.cancel_publish(job)]
        for job in jobs:
            if job not in running:
                self._end_save(job, None)
        if running and not client.wait_sources_free(running, self._options.fence_timeout_s):
            raise FenceTimeoutError(
                f"OrbitKV: {len(running)} saves still read KV pages after {self._options.fence_timeout_s} s "
                "(orbitkv.fence_timeout_s); the engine must not reuse them"
            )

    def _settle_saves(self) -> None:
        """Ends all saves in the step that starts them: the next one may overwrite their pages before its fence."""
        end = time.monotonic() + SETTLE_WAIT_S
        self.poll()
        while self._saves and time.monotonic() < end:
            self._await_completion()
            self.poll()
        self._fence_jobs(list(self._saves))

    def _change_epoch(self, epoch: bytes) -> None:
        """Ends what runs in the old namespace before the client is replaced. Rare, so it may wait."""
        self._epoch = epoch
        self._fence_jobs(list(self._saves))
        end = time.monotonic() + self._options.fence_timeout_s
        self.poll()
        while self._loads and time.monotonic() < end:
            self._await_completion()
            self.poll()
        if self._loads:
            raise FenceTimeoutError(f"OrbitKV: {len(self._loads)} loads did not end before a reset")
        for job in list(self._saves):
            self._end_save(job, None)
        self._changes.epoch_began()
        if self._link is not None:
            self._link.renew(epoch)

    # ---- loads ------------------------------------------------------------------------------------------------------

    def start_loads(self, metadata: Metadata) -> None:
        self._idle = metadata.idle
        for load in metadata.loads:
            began = time.monotonic()
            job = self._start_load(load)
            if job is None:
                self._end_load(load, set(range(len(load.block_ids))), failed_keys=False)
            else:
                self._loads[job] = load
                self.transfers.began(job, began)

    def _start_load(self, load: Load) -> int | None:
        client = self._client
        granted = load.grant_of(self._ranks.shard_of(self._rank))
        if client is None or granted.grant == 0 or not self._changes.may_load(load.adapter):
            return None
        try:
            return client.restore(
                granted.grant,
                self._hashes(load.hashes),
                load.block_ids,
                prefix_blocks=load.prefix,
                incarnation=granted.incarnation,
            )
        except orbitkv.Error as error:
            logger.warning("OrbitKV: a restore could not start, its tokens are computed: %s", error)
            return None

    def _end_load(self, load: Load, bad: set[int], failed_keys: bool) -> None:
        """Reports the request back to vLLM, with the blocks that it has to compute.

        With several groups vLLM computes the whole request again. Keys are remembered as failed only when their bytes
        were wrong or gone, not when the Manager was away.
        """
        self._finished.add(load.req_id)
        if bad and len(self._groups) > 1:
            self._failed.add(load.req_id)
        else:
            self._bad_blocks |= {load.block_ids[index] for index in bad}
        if failed_keys and bad:
            size = self._hash_bytes
            hashes = [load.hashes[i : i + size] for i in range(0, len(load.hashes), size)]
            keys = self._groups.keys(hashes, load.prefix, load.runs)
            self._report.failed_hashes |= {keys[index] for index in bad}

    # ---- saves ------------------------------------------------------------------------------------------------------

    def start_saves(self, metadata: Metadata) -> None:
        for save in metadata.saves:
            client_job = self._start_save(save)
            if client_job is None:
                self._report.saves.setdefault(save.job, []).append(SaveReport(b"", [False] * len(save.block_ids)))
        if self._fence_comes_late:
            self._settle_saves()

    def _start_save(self, save: Save) -> int | None:
        client = self._client
        if client is None or not self._changes.may_save(save.adapter):
            return None
        incarnation = client.incarnation
        if not self._ranks.writes(self._rank):
            # Another rank of this shard writes; this one only agrees.
            self._report.saves.setdefault(save.job, []).append(SaveReport(incarnation, [True] * len(save.block_ids)))
            return 0
        try:
            job = client.publish(
                self._hashes(save.hashes),
                save.block_ids,
                runs=[(save.group, save.first_block, len(save.block_ids))],
                first_depth=save.first_depth,
                parent=save.parent,
                prompt_tokens=save.prompt_tokens,
                answer_tokens=save.answer_tokens,
            )
        except orbitkv.Error as error:
            logger.warning("OrbitKV: blocks were not saved: %s", error)
            return None
        if job is not None:
            self._saves[job] = RunningSave(save, incarnation)
            self._client_job[save.job] = job
        return job

    def _end_save(self, job: int, outcomes: bytes | None) -> None:
        running = self._saves.pop(job, None)
        if running is None:
            return
        self._client_job.pop(running.save.job, None)
        count = len(running.save.block_ids)
        client = self._client
        incarnation = client.incarnation if client is not None else b""
        stored = [False] * count
        if outcomes is not None:
            stored = [outcome in (STORED, ALREADY_THERE) for outcome in outcomes]
        if incarnation != running.incarnation:
            incarnation, stored = b"", [False] * count
        self._report.saves.setdefault(running.save.job, []).append(SaveReport(incarnation, stored))

    # ---- results ----------------------------------------------------------------------------------------------------

    def poll(self) -> None:
        client = self._link.client if self._link is not None else None
        completions = client.poll() if client is not None else ()
        if client is not None and completions:
            self._take_completions(client, completions)

    def _take_completions(self, client: orbitkv.Client, completions: Iterable[orbitkv.Completion]) -> None:
        for completion in completions:
            self.transfers.ended(completion, time.monotonic())
            if completion.kind == "publish":
                self._end_save(completion.job, bytes(completion.outcomes))
                continue
            load = self._loads.pop(completion.job, None)
            if load is None:
                continue
            outcomes = bytes(completion.outcomes)
            if completion.ok:
                bad: set[int] = set()
            elif len(outcomes) == len(load.block_ids):
                bad = {index for index, outcome in enumerate(outcomes) if outcome != RESTORED}
            else:
                bad = set(range(len(load.block_ids)))
            self._end_load(load, bad, failed_keys=client.state == "up")

    def _await_completion(self) -> None:
        client = self._client
        if client is not None:
            select.select([client.completion_fd()], [], [], IDLE_WAIT_S)

    def take_finished_loads(self) -> set[str]:
        self.poll()
        if self._idle and not self._finished and (self._loads or self._saves):
            self._await_completion()
            self.poll()
        finished, self._finished = self._finished, set()
        return finished

    def take_bad_blocks(self) -> set[int]:
        bad, self._bad_blocks = self._bad_blocks, set()
        return bad

    def take_failed_loads(self) -> set[str]:
        failed, self._failed = self._failed, set()
        return failed

    def take_report(self) -> WorkerMetadata | None:
        report = self._report
        if not (report.saves or report.failed_hashes or self._changes.has_news):
            return None
        self._report = WorkerMetadata()
        report.weights_changed, report.adapters = self._changes.take_news()
        return report or None
