"""The ``orbitkv.*`` keys of vLLM's ``kv_connector_extra_config``, checked once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from orbitkv.options import AdapterOptions, OptionError, check_choice, convert, default_socket

PREFIX = "orbitkv."
ROLES = {"kv_producer": "save_only", "kv_consumer": "restore_only"}  # of vLLM, other than kv_both
SAVES = ("all", "prompt", "seen_twice")


@dataclass(frozen=True)
class Options(AdapterOptions):
    bootstrap_socket: str = ""  # where the Manager listens; empty: the user's default place
    tp_shard_bootstrap_sockets: tuple[str, ...] = ()  # instead: the Manager of each shard's ranks, in shard order
    save: str = "all"  # completed blocks: all, of the prompt only, or those that a second request has
    save_min_tokens: int = 0  # nothing is saved of a request with fewer tokens
    save_queue_bytes: int = 4 << 30  # of one rank, on their way to the Manager; what is more is not saved
    load_with_fail_policy: bool = False  # offer hits although a failed load would fail the request
    lookup_wait_us: int = 200  # one scheduler call waits at most this long
    lookup_limit_ms: int = 50  # without a first answer by then there is no hit
    load_wait_ms: int = -1  # the Manager may load blocks for so long; -1: as long as the engine would compute them
    fence_timeout_s: float = 10.0  # a running copy that does not end in this time fails the step
    log_requests: bool = False  # one line of the log for each request: what it was given, or why nothing

    def socket_of(self, shard: int) -> str:
        return self.tp_shard_bootstrap_sockets[shard] if self.tp_shard_bootstrap_sockets else self.bootstrap_socket

    def check_shards(self, shard_count: int) -> None:
        sockets = len(self.tp_shard_bootstrap_sockets)
        if sockets not in (0, shard_count):
            raise OptionError(
                f"{PREFIX}tp_shard_bootstrap_sockets names {sockets} sockets; this engine has {shard_count} shards of "
                "KV and needs one for each"
            )


# What the client accepts as a wait, and what no engine should wait longer for.
MOST = {
    "require_manager_timeout_s": 3600,
    "lookup_wait_us": 60_000_000,
    "lookup_limit_ms": 60_000,
    "fence_timeout_s": 3600,
}
_FIELDS = Options.__dataclass_fields__
KNOWN_KEYS = tuple(sorted(PREFIX + name for name in _FIELDS))


def _check(options: Options) -> None:
    options.check(PREFIX)
    check_choice(f"{PREFIX}save", options.save, SAVES)
    if not options.bootstrap_socket.startswith("/"):
        raise OptionError(f"{PREFIX}bootstrap_socket must be an absolute path, not {options.bootstrap_socket!r}")
    for socket in options.tp_shard_bootstrap_sockets:
        if not socket.startswith("/"):
            raise OptionError(f"{PREFIX}tp_shard_bootstrap_sockets must be absolute paths, not {socket!r}")
    if not -1 <= options.load_wait_ms <= 60_000:
        raise OptionError(f"{PREFIX}load_wait_ms must be -1 to 60000")
    for name, most in MOST.items():
        if not 0 <= getattr(options, name) <= most:
            raise OptionError(f"{PREFIX}{name} must be 0 to {most}")
    for name in ("save_min_tokens", "save_queue_bytes"):
        if getattr(options, name) < 0:
            raise OptionError(f"{PREFIX}{name} must not be negative")


def _narrowed(mode: str, kv_role: str) -> str:
    """A producer of KV does not restore, a consumer does not save."""
    allowed = ROLES.get(kv_role, mode)
    if mode not in ("read_write", allowed):
        raise OptionError(
            f"{PREFIX}mode {mode} and kv_role {kv_role} leave nothing to do; kv_role kv_both goes with any mode"
        )
    return allowed


def parse(extra_config: Mapping[str, Any], kv_role: str = "kv_both") -> Options:
    """Keys of other owners (without our prefix) are left alone, unless they are ours with the prefix forgotten.

    The mode that comes out is what the role leaves of the one that was asked for.
    """
    values: dict[str, Any] = {}
    for key, value in extra_config.items():
        if not key.startswith(PREFIX):
            if key in _FIELDS:
                raise OptionError(f"option {key!r} needs the prefix: {PREFIX}{key}")
            continue
        name = key[len(PREFIX) :]
        if name not in _FIELDS:
            raise OptionError(f"unknown option {key!r}; known are: {', '.join(KNOWN_KEYS)}")
        values[name] = convert(key, value, _FIELDS[name].default)
    if values.get("bootstrap_socket") and values.get("tp_shard_bootstrap_sockets"):
        raise OptionError(f"give {PREFIX}bootstrap_socket or {PREFIX}tp_shard_bootstrap_sockets, not both")
    values["bootstrap_socket"] = values.get("bootstrap_socket") or default_socket()
    options = Options(**values)
    _check(options)
    return replace(options, mode=_narrowed(options.mode, kv_role))
