"""What a client is told at its construction, and what the adapters' options have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from orbitkv.layout import Group


def default_socket() -> str:
    """Where a user's Manager listens when nobody says otherwise."""
    runtime = os.environ.get("XDG_RUNTIME_DIR", "")
    return (runtime if runtime.startswith("/") else "/run") + "/orbitkv/manager.sock"


@dataclass(frozen=True, kw_only=True)
class ClientOptions:
    """Checked by `orbitkv.Client`, which names the first field that is wrong.

    Attributes:
        socket: path of the Manager's bootstrap socket. Nothing there is no error: the client is down and keeps trying.
        instance: the engine's id, equal for all of its processes.
        role: "scheduler" asks and begins restores, "worker" moves bytes, "both" is an engine of one process.
        rank: of a worker, below `world_size`.
        world_size: ranks of the instance.
        shard: of a worker; ranks with identical KV share one.
        shard_count: distinct shards of the instance.
        computation_digest: 32 bytes, equal for all processes of the instance.
        representation_digest: 32 bytes, equal for all workers; empty for a scheduler.
        name: for logs.
        copy_threads: 0 is two, or one on a single cpu.
        query_deadline_ms: without an answer by then a look-up finds nothing, and the Manager is suspect.
        stores: how pages are written by a restore: "ordinary" (through the caches), "nontemporal" (past them), or
            "auto", which is nontemporal.
        read_only: map the pool for reading; such a client publishes nothing.
        groups: of a scheduler, the cache groups that it counts with, without layers. Workers of the instance that come
            later with other rules are refused. Empty is not compared.
        hash_block_tokens: of these groups; 0 is the greatest common divisor of their block sizes.
    """

    socket: str
    instance: str
    role: str
    computation_digest: bytes
    representation_digest: bytes = b""
    rank: int = 0
    world_size: int = 1
    shard: int = 0
    shard_count: int = 1
    name: str = ""
    copy_threads: int = 0
    query_deadline_ms: int = 50
    stores: str = "auto"
    read_only: bool = False
    groups: Sequence[Group] = ()
    hash_block_tokens: int = 0


class OptionError(ValueError):
    """A key or value that OrbitKV does not accept; the message names the remedy."""


def convert(key: str, value: Any, default: Any) -> Any:
    """An option's value as the type of its default."""
    wanted = type(default)
    if wanted is tuple and isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value):
        return tuple(value)
    if wanted is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if not isinstance(value, wanted) or (wanted is int and isinstance(value, bool)):
        raise OptionError(f"{key} must be of type {wanted.__name__}, not {type(value).__name__} ({value!r})")
    return value
