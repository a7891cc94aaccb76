"""What a client is told at its construction, and what the adapters' options have in common."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orbitkv.layout import Group

MODES = ("read_write", "save_only", "restore_only")
STORES = ("auto", "ordinary", "nontemporal")


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


def check_choice(key: str, value: str, choices: Sequence[str]) -> None:
    if value not in choices:
        raise OptionError(f"{key} must be one of {', '.join(choices)}, not {value!r}")


@dataclass(frozen=True)
class AdapterOptions:
    """What every adapter can be told."""

    mode: str = "read_write"  # read_write, save_only or restore_only
    require_manager: bool = False  # do not start without a Manager
    require_manager_timeout_s: float = 30.0
    model_id: str = ""  # names the weights instead of their content
    trust_mm_uuids: bool = False  # believe callers that equal identifiers of images and sounds mean equal content
    copy_threads: int = 0  # 0: chosen by the client
    stores: Literal["auto", "ordinary", "nontemporal"] = "auto"  # how bytes are written into the engine's pages

    @property
    def saves(self) -> bool:
        return self.mode != "restore_only"

    @property
    def loads(self) -> bool:
        return self.mode != "save_only"

    def check(self, prefix: str = "") -> None:
        """Raises OptionError; `prefix` is of the keys."""
        check_choice(f"{prefix}mode", self.mode, MODES)
        check_choice(f"{prefix}stores", self.stores, STORES)
        if self.copy_threads < 0:
            raise OptionError(f"{prefix}copy_threads must not be negative")
