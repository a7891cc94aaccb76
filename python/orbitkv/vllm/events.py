"""vLLM's KV events for what is in OrbitKV: which blocks a router may send a request after, and in which tier they lie.

A block is reported stored on ``CPU`` when all ranks have stored it in the pool, and on ``STORAGE`` when a look-up found
it there. It is reported removed when a look-up or a load says that it is gone: nobody tells an engine of evictions as
they happen. Only with vLLM's ``kv_events_config``; groups whose blocks are larger than a hash block are left out, as
their blocks have no hash of vLLM's own. Threads: the scheduler's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from orbitkv.vllm import compat
from orbitkv.vllm.groups import Groups
from orbitkv.vllm.messages import Save
from orbitkv.vllm.records import HashSet

# Blocks of each tier that are remembered as reported.
REPORTED = 1 << 16


@dataclass(frozen=True)
class Tiers:
    """The media of vLLM's events."""

    host: str = "CPU"
    disk: str = "STORAGE"


@dataclass(frozen=True)
class Origin:
    """What a save's blocks were computed from."""

    request: Any
    group: int
    first_block: int


class Events:
    """Collects what `take` hands over once per step. Does nothing unless enabled."""

    def __init__(
        self,
        groups: Groups,
        enabled: bool = False,
        stored: Callable[..., Any] = compat.block_stored_event,
        removed: Callable[..., Any] = compat.block_removed_event,
    ) -> None:
        self._groups = groups
        self._enabled = enabled
        self._make_stored = stored
        self._make_removed = removed
        self._media = Tiers()
        self._origins: dict[int, Origin] = {}  # by save job
        self._reported = {medium: HashSet(REPORTED) for medium in (self._media.host, self._media.disk)}
        self._events: list[Any] = []

    def take(self) -> Sequence[Any]:
        if not self._events:
            return ()
        taken, self._events = self._events, []
        return taken

    # ---- what happened ----------------------------------------------------------------------------------------------

    def saving(self, save: Save, request: Any) -> None:
        if self._enabled and self._is_named(save.group):
            self._origins[save.job] = Origin(request, save.group, save.first_block)

    def saved(self, job: int, stored: Sequence[bool]) -> None:
        """A save has ended; `stored` says of which of its blocks all ranks have their part."""
        origin = self._origins.pop(job, None)
        if origin is None:
            return
        begin = origin.first_block
        while begin < origin.first_block + len(stored):
            end = begin
            while end < origin.first_block + len(stored) and stored[end - origin.first_block]:
                end += 1
            if end > begin:
                self._report(origin.request, origin.group, range(begin, end), self._media.host)
            begin = end + 1

    def found_on_disk(self, request: Any, begin: int, end: int) -> None:
        """Hash blocks that were read from there for this request, and are in the pool now."""
        if not self._enabled or begin >= end:
            return
        for group in range(len(self._groups)):
            if self._is_named(group) and group not in self._groups.sparse:
                for medium in (self._media.disk, self._media.host):
                    self._report(request, group, range(begin, end), medium)

    def gone(self, keys: Iterable[bytes]) -> None:
        """Of groups' blocks (Groups.key)."""
        if not self._enabled:
            return
        for medium, reported in self._reported.items():
            for group in range(len(self._groups)):
                hashes = [self._hash(key) for key in keys if key in reported and self._group(key) == group]
                if hashes:
                    self._events.append(self._make_removed(hashes, medium, group))
            reported.discard(keys)

    # ---- events -----------------------------------------------------------------------------------------------------

    def _is_named(self, group: int) -> bool:
        """Its blocks have a hash that vLLM's own events use for them."""
        return self._groups[group].block_tokens == self._groups.hash_tokens

    def _report(self, request: Any, group: int, blocks: range, medium: str) -> None:
        """Runs of blocks that are not known to be reported there."""
        reported = self._reported[medium]
        run: list[int] = []
        for block in blocks:
            if self._groups.key(group, bytes(request.block_hashes[block])) in reported:
                self._end_run(request, group, run, medium)
                run = []
            else:
                run.append(block)
        self._end_run(request, group, run, medium)

    def _end_run(self, request: Any, group: int, run: list[int], medium: str) -> None:
        if not run:
            return
        first, end, size = run[0], run[-1] + 1, self._groups.hash_tokens
        hashes = [bytes(item) for item in request.block_hashes[first:end]]
        parent = bytes(request.block_hashes[first - 1]) if first > 0 else None
        tokens = list(request.all_token_ids[first * size : end * size])
        lora = getattr(request, "lora_request", None)
        self._events.append(self._make_stored(hashes, parent, tokens, size, medium, group, lora))
        self._reported[medium].add(self._groups.key(group, item) for item in hashes)

    def _hash(self, key: bytes) -> bytes:
        return key[:-1] if self._group(key) else key

    @staticmethod
    def _group(key: bytes) -> int:
        """Keys of other groups than the first end with its number; hashes have an even length."""
        return key[-1] if len(key) % 2 else 0
