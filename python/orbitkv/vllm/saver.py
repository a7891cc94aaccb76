"""What a step completes, handed to the workers to be saved.

Most steps complete nothing for most requests: a decode fills a block once in so many steps. After each look at a
request it is known between which token counts there is nothing to do for it, and steps that stay between them pass it
over. A request is looked at when a block of it is complete (or has got its name late), when it falls back behind what
was looked at, and once after each admission.

Threads: the scheduler's only. Units: tokens; blocks of a group. Nothing here waits.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any

from orbitkv.vllm import compat
from orbitkv.vllm.groups import Groups
from orbitkv.vllm.messages import Save
from orbitkv.vllm.records import Counters, HashSet, Tracked
from orbitkv.vllm.save_jobs import Job, SaveJobs
from orbitkv.vllm.save_policy import NEVER, SavePolicy

# Of a request that was not looked at since it was admitted: nothing is between these.
UNKNOWN = (0, 0)


class Saver:
    """`stored`: keys that the Manager is known to have. `saving`: told of each save and its request."""

    def __init__(
        self,
        groups: Groups,
        policy: SavePolicy,
        jobs: SaveJobs,
        stored: HashSet,
        counters: Counters,
        saving: Callable[[Save, Any], None],
    ) -> None:
        self._groups = groups
        self._sizes = [group.block_tokens for group in groups]
        self._policy = policy
        self._jobs = jobs
        self._stored = stored
        self._counters = counters
        self._saving = saving
        # By request: a step with no fewer tokens before it than the first, and fewer after it than the second, has
        # nothing to save of it.
        self._quiet: dict[str, tuple[int, int]] = {}

    def forget(self, req_id: str) -> None:
        """It has ended, or is admitted anew."""
        self._quiet.pop(req_id, None)

    def step(self, output: Any, requests: Mapping[str, Tracked], epoch: bytes) -> list[Save]:
        """The saves of a step. It computes what they read."""
        saves: list[Save] = []
        for req_id, before in self.due(output):
            tracked = requests.get(req_id)
            if tracked is None:
                continue
            if tracked.bypass or not tracked.wishes.save:
                self._quiet[req_id] = (0, NEVER)
                continue
            state = output.kv_connector_block_state
            tables = state.get_block_ids(req_id)
            if tables is not None:
                tokens = (before, before + output.num_scheduled_tokens[req_id])
                saves += self._look(tracked, tables, tokens, compat.handed_states(state, req_id), epoch)
        return saves

    def due(self, output: Any) -> list[tuple[str, int]]:
        """The requests of a step to look at, each with its tokens before the step."""
        scheduled, quiet, cached = output.num_scheduled_tokens, self._quiet, output.scheduled_cached_reqs
        due = []
        for req_id, before in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            first, end = quiet.get(req_id, UNKNOWN)
            if before < first or before + scheduled[req_id] >= end:
                due.append((req_id, before))
        due += [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]
        return due

    def _look(
        self,
        tracked: Tracked,
        tables: Sequence[Sequence[int]],
        tokens: tuple[int, int],
        handed: Container[tuple[int, int]],
        epoch: bytes,
    ) -> list[Save]:
        """`tokens`, `handed`: as `Groups.holds`."""
        before, after = tokens
        if tracked.found is None:
            tracked.found = before
        req_id = tracked.request.request_id
        start = self._policy.saves_from(tracked.wishes, int(tracked.request.num_prompt_tokens))
        if after < start:
            self._quiet[req_id] = (0, start)
            return []
        saves: list[Save] = []
        first, end = 0, NEVER
        for number, table in enumerate(tables):
            size = self._sizes[number]
            begin, stop = self._range(tracked, number, len(table), tokens)
            if begin < stop:
                keys = self._groups.names(number, tracked.block_hashes, begin, stop)
                ids = table[begin:stop]
                for run in self._runs(tracked, number, begin, ids, keys, tokens, handed):
                    offsets = slice(run[0] - begin, run[1] - begin)
                    saves += self._save(tracked, number, run[0], ids[offsets], keys[offsets], epoch)
            looked_at = tracked.saved[number] * size
            first, end = max(first, looked_at), min(end, looked_at + size)
        self._quiet[req_id] = (first, end)
        return saves

    def _range(self, tracked: Tracked, number: int, table_blocks: int, tokens: tuple[int, int]) -> tuple[int, int]:
        """The blocks of a group that are complete after this step and were not looked at, marked as looked at."""
        before, after = tokens
        size = self._sizes[number]
        hashed = self._groups.blocks(number, len(tracked.block_hashes))
        end = min(after // size, hashed, table_blocks)
        begin = min(tracked.saved[number], before // size)
        tracked.saved[number] = max(begin, end)
        return begin, end

    def _runs(
        self,
        tracked: Tracked,
        number: int,
        begin: int,
        ids: Sequence[int],
        keys: Sequence[bytes],
        tokens: tuple[int, int],
        handed: Container[tuple[int, int]],
    ) -> list[tuple[int, int]]:
        """Runs of a group's complete blocks that the Manager is not known to have, each by its first block and its end.

        `ids`, `keys`: of the blocks from `begin` on. Blocks computed in this step always go: whether the Manager
        still has an old copy is its own knowledge. Blocks that the request found (in vLLM's cache, or restored) go only
        if this Manager never acknowledged them. Of sparse groups goes what a boundary may need; of all that, what the
        policy wants.
        """
        groups, request, size = self._groups, tracked.request, self._sizes[number]
        prompt = int(request.num_prompt_tokens)
        found = min(max(0, tokens[0] // size - begin), len(keys))
        whole = number not in groups.sparse and not groups[number].exact
        most = self._policy.wanted_tokens(tracked.wishes, prompt)
        simple = whole and 0 not in ids and not self._jobs.read_any(ids)
        if simple and most is not None and self._stored.has_all(keys[:found]):
            run = (begin + found, min(begin + len(keys), most // size))
            return [run] if run[0] < run[1] else []
        junction = int(getattr(request, "shared_prefix_boundary", 0) or 0)
        runs: list[tuple[int, int]] = []
        for index, (block_id, key) in enumerate(zip(ids, keys, strict=True), begin):
            if (
                block_id != 0
                and not (index - begin < found and key in self._stored)
                and not self._jobs.is_saving(block_id, key)
                and groups.holds(number, index, tokens, handed)
                and groups.keeps(number, index, prompt, junction)
                and self._policy.wants(tracked.wishes, request, key, (index + 1) * size)
            ):
                joins = bool(runs) and runs[-1][1] == index
                first = runs.pop()[0] if joins else index
                runs.append((first, index + 1))
        return runs

    def _save(
        self, tracked: Tracked, number: int, begin: int, ids: Sequence[int], keys: Sequence[bytes], epoch: bytes
    ) -> list[Save]:
        """At most one job for the run, with as many of its blocks as may be on their way; the rest is not saved."""
        count = min(len(ids), self._jobs.room(number))
        self._counters.dropped_blocks += len(ids) - count
        if count == 0:
            return []
        request, size = tracked.request, self._sizes[number]
        first, last = self._groups.chain(number, begin, begin + count)
        hashes = tracked.block_hashes
        ids = list(ids[:count])
        found = min(max(0, (tracked.found or 0) // size - begin), count)
        prompt = int(request.num_prompt_tokens)
        save = Save(
            self._jobs.add(number, Job(list(keys[:count]), ids, found, size, epoch)),
            first,
            hashes[first - 1] if first > 0 else b"",
            b"".join(hashes[first:last]),
            ids,
            prompt,
            max(0, int(request.num_tokens) - prompt),
            number,
            begin,
            tracked.adapter,
        )
        self._saving(save, request)
        return [save]
