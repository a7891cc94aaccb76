"""The class that SGLang's UnifiedRadixCache drives. It only translates SGLang's calls to look-ups, loads and offloads.

Every rank's scheduler process has one, and is an engine of its own at the Manager. Ranks agree through SGLang alone: it
intersects their look-ups and takes the worst verdict of loads and offloads. `load` and `offload` are not compared, so
with more than one rank their answers depend on their arguments only.

Threads: SGLang calls from its scheduler thread. Blocks: `lookup` as lookups.py says, `finish_layer_wise_loading` until
the batch has stopped writing, `reset` and `close` while a copy runs; each within the limits of the options.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Protocol

from sglang.srt.mem_cache.unified_cache.unified_cache_linker import (
    LayerWiseLoadCounter,
    UnifiedCacheLinker,
    UnifiedCacheLinkerWrapper,
)

import orbitkv
from orbitkv.sglang import compat, decoding, identity, places, pools, updates
from orbitkv.sglang.jobs import Jobs
from orbitkv.sglang.link import Link
from orbitkv.sglang.loads import Load, Loads
from orbitkv.sglang.lookups import Lookups, Waits
from orbitkv.sglang.offloads import Offload, Offloads, Part
from orbitkv.sglang.options import Options, parse
from orbitkv.sglang.pools import DevicePoolGroup

logger = logging.getLogger("orbitkv.sglang")

# What is queued when the engine ends may take so long.
FLUSH_S = 3.0


class Connection(Protocol):
    """What keeps the client: it may not be there yet, or be another one after a renewal."""

    @property
    def client(self) -> orbitkv.Client | None: ...
    def renew(self) -> None:
        """Leaves the namespace for one that nobody else is in. Nothing of the old client runs any more."""

    def close(self, timeout_s: float) -> None: ...


def connect(params: Any, group: DevicePoolGroup, options: Options) -> Connection:
    """The connection of a real engine."""
    compat.check_supported(params, options.trust_mm_uuids)
    engine = compat.describe(params)
    representation = [identity.representation_fields(engine, pool) for pool in group]
    link = Link(engine, options, representation, group.register, replicated=group.rank_replicated)
    updates.watch(
        link,
        adapter_ids=compat.adapter_ids(),
        version=compat.weight_version(),
        keeps_released_weights=compat.keeps_released_weights(),
    )
    link.start()
    return link


class OrbitKVLinker(UnifiedCacheLinker):  # type: ignore[misc]
    """Publishes finished pages to the host's Cache Manager and restores them.

    Args:
        server_args: SGLang's.
        params: of the radix cache.
        components: of its tree.
        extra_config: the options.
        forward_stream: the one that the forward writes pages on, or None.
        connect: makes the connection, once the pools are known.
    """

    def __init__(
        self,
        server_args: Any,
        params: Any,
        *,
        components: Iterable[Any],
        extra_config: Mapping[str, Any] | None = None,
        forward_stream: Any = None,
        connect: Callable[[Any, DevicePoolGroup, Options], Connection] = connect,
    ) -> None:
        self.forward_stream = forward_stream
        compat.log_as_sglang()
        self._options = parse(extra_config)
        self.group = pools.resolve(params, components)
        self.place = places.BEGIN  # of the pages that the next call is about
        places.follow(UnifiedCacheLinkerWrapper)
        only_decodes = compat.only_decodes()
        if only_decodes:
            decoding.follow()
        self._pool_names = [pool.name for pool in self.group]
        self._ranks = ranks_that_agree(params)
        self._writes = self._options.saves and compat.ranks().writes(self.group.rank_replicated)
        # SGLang looks which of its components are in it.
        self.pools = {pool_name(pool.name): pool for pool in self.group}
        self.layer_done_counter = LayerWiseLoadCounter(self.group.layer_count)
        if pools.MAMBA in self.group.by_name:
            params.req_to_token_pool.register_layer_transfer_counter(self.layer_done_counter)
        self._lock = threading.Lock()
        self._jobs: Jobs | None = None
        self._closed = False
        waits = Waits(self._options.lookup_wait_us * 1e-6, self._options.load_wait_ms * 1e-3)
        self._lookups = Lookups(waits)
        self.connection = connect(params, self.group, self._options)
        self._loads = Loads(
            self.group, self.layer_done_counter, self.record_offload_ready, self._options.load_timeout_s
        )
        self._offloads = Offloads(self.group, self._current_jobs, self._options.reset_timeout_s)
        logger.info(
            "OrbitKV: Cache Manager at %s, saves %s, hits %s, pools %s",
            self._options.socket,
            "on" if self._writes else "off",
            "on" if self._options.loads and not only_decodes else "off",
            ", ".join(f"{pool.name} ({pool.pool_class})" for pool in self.group),
        )

    def _current_jobs(self) -> Jobs | None:
        client = self.connection.client
        if client is None:
            return None
        with self._lock:
            if self._jobs is None or self._jobs.client is not client:
                self._jobs = Jobs(client)
            return self._jobs

    # ---- look-ups and loads -----------------------------------------------------------------------------------------

    def lookup(self, rid: str, transfers: Sequence[Any]) -> list[int]:
        client = self.connection.client
        if client is None or not self._options.loads:
            return []
        for transfer in transfers:
            if transfer.name == pools.KV and transfer.keys:
                found = self._lookups.ask(client, rid, transfer.keys, self.place.depth)
                # What several ranks have in common may be any of them. One rank takes the longest, and SGLang needs
                # about a microsecond for each that it is told.
                return found[-1:] if self._ranks == 1 else found
        return []

    def load(self, rid: str, transfers: Sequence[Any]) -> bool:
        by_name = {str(transfer.name.value): transfer for transfer in transfers}
        slots = [by_name[name].device_indices for name in self._pool_names if name in by_name]
        full = by_name.get(pools.KV)
        if full is None or not full.keys or len(slots) != len(self.group) or any(rows is None for rows in slots):
            return False
        jobs = self._current_jobs()
        grant = self._lookups.begin(jobs.client, rid, full.keys) if jobs is not None else None
        if grant is None and self._ranks == 1:
            # Computing is better than a failed batch; several ranks can agree on that only by its failure.
            return False
        self._loads.queue(Load(rid, grant, jobs, slots))
        return True

    def start_layer_wise_loading(self) -> int:
        return self._loads.start()

    def finish_layer_wise_loading(self, counter_index: int) -> bool:
        return self._loads.finish(counter_index)

    def cancel_queued_load(self, rid: str) -> bool:
        return self._loads.cancel(rid)

    # ---- offloads ---------------------------------------------------------------------------------------------------

    def offload(self, transfers: Sequence[Any], session_id: str | None = None) -> bool:
        by_name = {str(transfer.name.value): transfer for transfer in transfers if transfer.keys}
        full = by_name.get(pools.KV)
        if full is None:
            return False
        if not self._writes:
            self._offloads.accept_done()
            return True
        parts = [
            Part(number, by_name[name].device_indices, len(by_name[name].keys))
            for number, name in enumerate(self._pool_names)
            if name in by_name
        ]
        self._offloads.accept(Offload(full.keys, parts, self.place), self.record_offload_ready())
        return True

    def num_completed_offloads(self) -> int:
        # SGLang asks once in each scheduling pass, before its look-ups.
        self._lookups.begin_pass()
        return self._offloads.finished()

    def pop_completed_offload(self) -> bool:
        return self._offloads.take_result()

    # ---- the end of things ------------------------------------------------------------------------------------------

    def renew(self) -> None:
        """What was stored or found before is of other weights, or not wanted any more: it is not served again."""
        self._loads.quiesce()
        self._offloads.quiesce()
        self._lookups.clear()
        self.connection.renew()
        self._writes = self._options.saves  # no other rank is in the new namespace

    def reset(self) -> None:
        self.renew()
        self.layer_done_counter.reset()

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._loads.quiesce()
        self._offloads.quiesce()
        self._lookups.clear()
        self._loads.close()
        self._offloads.close()
        self.connection.close(FLUSH_S)


def pool_name(name: str) -> Any:
    from sglang.srt.mem_cache.hicache_storage import PoolName

    return PoolName(name)


def ranks_that_agree(params: Any) -> int:
    """The ranks over which SGLang compares what this one answers, where it compares."""
    import torch.distributed

    sizes = [
        1 if group is None else int(torch.distributed.get_world_size(group=group))
        for group in (params.attn_cp_cache_group, params.attn_tp_cache_group, params.tp_cache_group)
    ]
    inner = sizes[0] * sizes[1]
    return inner if inner > 1 else sizes[2]
