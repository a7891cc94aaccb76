"""Brings the native client up in the background, once the weights are identified.

Until then, and whenever the Manager is away, there is no client or it is not up, and the engine runs without cache.
"""

from __future__ import annotations

import logging
import os
import uuid
from collections.abc import Callable, Sequence

import orbitkv
from orbitkv.identity import Fields, describe, representation_digest
from orbitkv.sglang import identity
from orbitkv.sglang.compat import Engine
from orbitkv.sglang.options import Options
from orbitkv.turns import Turns, start

logger = logging.getLogger("orbitkv.sglang")

EPOCH_BYTES = 16
Prepare = Callable[[orbitkv.Client], None]


class Link:
    """Owns the client of one engine process, which is an instance of its own at the Manager.

    Threads: `client` may be read from any; the rest belongs to SGLang's scheduler thread. Only `start` with
    `require_manager`, and `close`, wait.
    """

    def __init__(
        self,
        engine: Engine,
        options: Options,
        representation: Sequence[Fields],
        prepare: Prepare,
        *,
        replicated: bool = False,
    ) -> None:
        """Starts nothing yet.

        Args:
            engine: this process's.
            options: what the linker was told.
            representation: of each pool, in the order of the cache groups.
            prepare: registers the pools with a client that is new.
            replicated: all tensor parallel ranks hold the same bytes.
        """
        self._engine = engine
        self._options = options
        self._representation = representation
        self._prepare = prepare
        self._replicated = replicated
        # Unique in all lives of all engines: the Manager refuses a second live session of a rank that differs.
        self._instance = f"sglang-{uuid.uuid4().hex}-{engine.ranks.tp_rank}"
        self._epoch = b""
        # What the engine began with: files that change later say nothing about weights that are in memory.
        self._weights = ""
        self._adapters: dict[str, str] | None = None
        self._cancel = orbitkv.CancelToken()
        self._turns: Turns[orbitkv.Client] = Turns(self._make, self._cancel.cancel, logger)

    def start(self) -> None:
        """Raises UnavailableError when a Manager is required and does not answer."""
        start(self._turns, self._options, self._options.socket)

    @property
    def client(self) -> orbitkv.Client | None:
        return self._turns.current

    def renew(self) -> None:
        """Leaves the namespace for a new one that nobody else is in: the engine's own cache is empty now.

        Ends what `leave` began. The old client's jobs are finished beside the caller.
        """
        self._turns.renew(self._next_epoch)
        self._turns.resume()

    def leave(self) -> None:
        """There is no client until `renew`: nothing is found and nothing is saved. Idempotent.

        What was queued before belongs to the client of then and must not go to a later one.
        """
        self._turns.pause(None)

    def _next_epoch(self) -> None:
        self._epoch = os.urandom(EPOCH_BYTES)

    def close(self, timeout_s: float = 5.0) -> None:
        """Idempotent. Ends the background work, then the client, which drains its copies."""
        self._turns.close(timeout_s)

    def _make(self) -> orbitkv.Client:
        epoch = self._epoch
        self._weights = self._weights or identity.weights(self._engine, self._options.model_id, self._cancel)
        if self._adapters is None:
            self._adapters = identity.adapters(self._engine, self._cancel)
        # Nobody saves for a rank whose namespace is its own.
        writes = bool(epoch) or self._engine.ranks.writes(self._replicated)
        fields = identity.computation_fields(
            self._engine, self._weights, self._adapters, replicated=self._replicated, epoch=epoch
        )
        name = f"sglang tp{self._engine.ranks.tp_rank}"
        logger.info("OrbitKV identity (%s): %s", name, describe(fields))
        for number, pages in enumerate(self._representation):
            logger.info("OrbitKV pages (%s, pool %d): %s", name, number, describe(pages))
        client = orbitkv.Client(
            orbitkv.ClientOptions(
                socket=self._options.socket,
                instance=self._instance + (f"@{epoch.hex()}" if epoch else ""),
                role="both",
                computation_digest=orbitkv.computation_digest(fields),
                representation_digest=representation_digest(self._representation),
                name=name,
                copy_threads=self._options.copy_threads,
                query_deadline_ms=max(1, self._options.lookup_limit_ms),
                stores=self._options.stores,
                read_only=not self._options.saves or not writes,
            )
        )
        self._prepare(client)
        return client
