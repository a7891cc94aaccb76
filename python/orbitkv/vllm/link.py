"""Brings the native client up in the background, once the weights are identified.

Until then, and whenever the Manager is away, there is no client or it is not up, and the engine runs without cache.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import orbitkv
from orbitkv.identity import Fields, describe, representation_digest
from orbitkv.turns import Turns, start
from orbitkv.vllm import compat, identity
from orbitkv.vllm.groups import Groups
from orbitkv.vllm.options import PREFIX, Options
from orbitkv.vllm.shards import Asker, ShardClients

logger = logging.getLogger("orbitkv.vllm")


@dataclass(frozen=True)
class Part:
    """Which process of the engine this is."""

    role: str  # "scheduler" or "worker"
    rank: int
    ranks: compat.Ranks
    name: str


Prepare = Callable[[orbitkv.Client], None]
Made = orbitkv.Client | ShardClients


class Link:
    """Owns the client of one process. Threads: `client` may be read from any; the rest belongs to the owner."""

    def __init__(
        self,
        vllm_config: Any,
        groups: Groups,
        options: Options,
        part: Part,
        representation: Sequence[Fields] = (),
        prepare: Prepare | None = None,
    ) -> None:
        self._vllm_config = vllm_config
        self._groups = groups
        self._options = options
        self._part = part
        self._representation = representation
        self._prepare = prepare
        self._epoch = b""
        # What the engine began with. A worker that reloads its weights has another folder in its configuration then,
        # and the scheduler has not.
        self._weights = ""
        self._fields: Fields = {}
        self._cancel = orbitkv.CancelToken()
        self._turns: Turns[Made] = Turns(self._make, self._cancel.cancel, logger)

    def start(self) -> None:
        """Raises UnavailableError when a Manager is required and does not answer."""
        sockets = self._options.tp_shard_bootstrap_sockets or (self._options.bootstrap_socket,)
        start(self._turns, self._options, " or ".join(sockets), PREFIX)

    @property
    def client(self) -> orbitkv.Client | None:
        """A worker's."""
        made = self._turns.current
        return None if made is None or isinstance(made, ShardClients) else made

    @property
    def asker(self) -> Asker | None:
        """A scheduler's: one client, or one that stands for several."""
        return self._turns.current

    def renew(self, epoch: bytes) -> None:
        """Leaves the namespace for a new one that nobody else is in. The old client has no jobs of ours any more."""

        def change() -> None:
            self._epoch = epoch

        self._turns.renew(change)

    def suspend(self, timeout_s: float) -> orbitkv.Client | None:
        """Ends a worker's client because its pages go away; there is none until `resume`. Idempotent.

        Saves what is queued within the timeout and waits for all copies. The client that ended still gives its
        completions. Raises when a copy does not end: the pages must stay.
        """
        ended = self._turns.pause(timeout_s)
        assert not isinstance(ended, ShardClients)
        return ended

    def resume(self) -> None:
        """Brings a client up for the pages as they are now."""
        self._turns.resume()

    def close(self, timeout_s: float = 5.0) -> None:
        """Idempotent. Ends the background work, then the client, which drains its copies."""
        self._turns.close(timeout_s)

    def _make(self) -> Made:
        epoch = self._epoch
        self._weights = weights = self._weights or orbitkv.identify_weights(
            compat.model_folder(self._vllm_config),
            load_format=compat.load_format(self._vllm_config),
            model_id=self._options.model_id,
            cancel=self._cancel,
        )
        if not self._fields:
            folder = identity.drafter_folder(self._vllm_config)
            drafter = orbitkv.identify_weights(folder, cancel=self._cancel) if folder else ""
            self._fields = identity.computation_fields(self._vllm_config, self._groups, weights, drafter)
        instance = str(self._vllm_config.kv_transfer_config.engine_id)
        if epoch:
            # What the weights are now is not known from files: nobody shares this namespace.
            weights += f" epoch:{epoch.hex()}"
            instance += f"@{epoch.hex()}"
        if not self._options.tp_shard_bootstrap_sockets:
            return self._connect(weights, instance, None)
        if self._part.role == "worker":
            return self._connect(weights, instance, self._part.ranks.shard_of(self._part.rank))
        count = self._part.ranks.shard_count
        clients = [self._connect(weights, instance, shard) for shard in range(count)]
        return ShardClients(clients, self._part.ranks.replicas)

    def _connect(self, weights: str, instance: str, shard: int | None) -> orbitkv.Client:
        """A client of the engine's one Manager, or of the Manager of one shard.

        The ranks of such a shard are an instance of their own there: one shard, ranks counted from 0, and a namespace
        that says which part of the state it holds.
        """
        ranks = self._part.ranks
        rank, own = self._part.rank, ranks.shard_of(self._part.rank)
        if shard is not None:
            weights += f" shard:{shard}/{ranks.shard_count}"
            instance += f"/{shard}"
            ranks = compat.Ranks(ranks.replicas, 1, ranks.replicas)
            rank, own = rank % ranks.replicas, 0
        fields = self._fields | {"weights": weights}
        logger.info("OrbitKV identity (%s): %s", self._part.name, describe(fields))
        representation = b""
        if self._representation:
            representation = representation_digest(self._representation)
        client = orbitkv.Client(
            orbitkv.ClientOptions(
                socket=self._options.socket_of(shard or 0),
                instance=instance,
                role=self._part.role,
                rank=rank,
                world_size=ranks.world_size,
                shard=own,
                shard_count=ranks.shard_count,
                computation_digest=orbitkv.computation_digest(fields),
                representation_digest=representation,
                name=self._part.name,
                copy_threads=self._options.copy_threads,
                query_deadline_ms=max(1, self._options.lookup_limit_ms),
                stores=self._options.stores,
                read_only=not self._options.saves,
                groups=self._groups.declared() if self._part.role == "scheduler" else (),
                hash_block_tokens=self._groups.hash_tokens,
            )
        )
        if self._prepare is not None:
            self._prepare(client)
        return client
