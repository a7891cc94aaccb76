"""Takes the linker out of SGLang's scheduler, in the process of which this runs, and puts it or an empty one back.

What a scheduler and what belongs to it keep because of a linker is listed here, so that without it runs what an engine
runs that was made without. Checked with SGLang 0.5.23.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang.srt.managers.scheduler import Scheduler
from sglang.srt.mem_cache.unified_cache.unified_cache_linker import UnifiedCacheLinker, UnifiedCacheLinkerWrapper

SETTLE_LIMIT_S = 10
LOOK_S = 0.0005


class EmptyLinker(UnifiedCacheLinker):  # type: ignore[misc]
    """Does nothing: what SGLang itself spends on having one."""

    def __init__(self, pools: Any, counter: Any) -> None:
        self.pools = pools
        self.layer_done_counter = counter
        self._accepted = 0

    def lookup(self, rid: str, transfers: Any) -> list[int]:
        return []

    def load(self, rid: str, transfers: Any) -> bool:
        return False

    def start_layer_wise_loading(self) -> int:
        return -1

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return True

    def cancel_queued_load(self, rid: str) -> bool:
        return False

    def offload(self, transfers: Any, session_id: str | None = None) -> bool:
        self._accepted += 1
        return True

    def num_completed_offloads(self) -> int:
        return self._accepted

    def pop_completed_offload(self) -> bool:
        self._accepted -= 1
        return True

    def reset(self) -> None:
        self._accepted = 0

    def close(self) -> None:
        pass


class Switch:
    """Of a scheduler that was made with a linker. Called between two passes of its loop while it is idle."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._cache = cache = scheduler.tree_cache
        self._places = (
            (scheduler, "enable_unified_cache_external_linker", False),
            (scheduler.tp_worker, "hicache_layer_transfer_counter", None),
            (scheduler.token_to_kv_pool_allocator.get_kvcache(), "layer_transfer_counter", None),
            (cache.tree_core, "enable_external_cache_linker", False),
            (cache.tree_core, "write_through_threshold", 256),
            (cache, "linker", None),
        )
        on = [getattr(owner, name) for owner, name, _ in self._places]
        off = [value for _, _, value in self._places]
        ours = cache.linker.cache_linker
        empty = UnifiedCacheLinkerWrapper(cache, EmptyLinker(ours.pools, ours.layer_done_counter))
        self._states = {"off": off, "again": off, "empty": [*on[:-1], empty], "on": on}
        self._spent = 0.0

    def _set(self, values: Sequence[Any]) -> None:
        for (owner, name, _), value in zip(self._places, values, strict=True):
            setattr(owner, name, value)

    # ---- commands ---------------------------------------------------------------------------------------------------

    def put(self, state: str) -> str:
        """One of cost_rows.STATES, with nothing in the engine's own cache.

        That is emptied without a linker, which would forget what it has stored.
        """
        self._set(self._states["off"])
        if not self._scheduler.flush_cache(empty_cache=False):
            raise RuntimeError("the engine's cache could not be emptied")
        self._set(self._states[state])
        self._spent = time.process_time()
        return state

    def spent(self) -> float:
        """Processor seconds of this process from `put` until no offload is on its way any more."""
        end = time.monotonic() + SETTLE_LIMIT_S
        while self._cache.linker is not None and self._cache.linker.pending_offloads:
            if time.monotonic() > end:
                raise TimeoutError("the offloads did not end")
            self._cache.check_hicache_events()
            time.sleep(LOOK_S)
        return time.process_time() - self._spent


def install() -> None:
    """Lets each scheduler of this process be told what its switch is to do.

    The answer goes into the file `path`; it is null while the scheduler is not idle.
    """

    def orbitkv_switch(self: Scheduler, path: str, command: str, arguments: dict[str, Any]) -> None:
        if not hasattr(self, "orbitkv_switch_of"):
            self.orbitkv_switch_of = Switch(self)
        answer = getattr(self.orbitkv_switch_of, command)(**arguments) if self.is_fully_idle() else None
        Path(path).write_text(json.dumps(answer))

    Scheduler.orbitkv_switch = orbitkv_switch
