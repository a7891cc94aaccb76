"""What every peer looks like to the suites: a server that starts and stops, and a client that saves, finds and loads.

The server's side runs in the process of run.py, the client's side in a process of the peer's own environment; so
nothing here needs more than the standard library, and adapters import their peers where a client is made.
"""

from __future__ import annotations

import abc
import hashlib
import os
import signal
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent.parent
HOST = "127.0.0.1"
BLOCKS = 256  # of a save, a load and a look-up


class NotRunError(RuntimeError):
    """The peer cannot be measured here; the message is the reason that the report gives."""


def failure_text(error: Exception) -> str:
    """One line for the report."""
    return "failed: " + " ".join(str(error).split())[:300]


@dataclass(frozen=True)
class Config:
    """`folder`: of this start alone, for sockets, logs and files. `block_tokens`: 0 leaves the peer its default.

    `ssd`: a folder for a second level behind the pool, on a file system with O_DIRECT.
    """

    folder: Path
    pool_bytes: int
    block_tokens: int = 0
    ssd: Path | None = None


@dataclass(frozen=True)
class Geometry:
    """Paged KV as an engine has it: `layers` arrays of `blocks` pages; a block is a page of each of them."""

    block_bytes: int
    layers: int
    kv_heads: int
    blocks: int = 512
    block_tokens: int = 16
    head_dim: int = 128
    value_bytes: int = 2

    @property
    def page_bytes(self) -> int:
        return self.block_bytes // self.layers


class Peer(abc.ABC):
    """The server of one peer, and how an engine reaches it.

    `label` is for tables; `environment_name` that of its own packages, none for what runs in the project's;
    `choices` the settings that differ from the peer's defaults, for the report.
    """

    name: str
    label: str
    environment_name = ""
    choices: Sequence[str] = ()

    def __init__(self) -> None:
        self.server: Any = None

    def check(self) -> None:  # noqa: B027
        """NotRunError when the peer cannot run here; its environment exists by now."""

    @property
    def python(self) -> Path:
        """The interpreter that sees the peer's packages and those of vLLM."""
        if not self.environment_name:
            return Path(sys.executable)
        return ROOT / f".venv-peer-{self.environment_name}" / "bin" / "python"

    @abc.abstractmethod
    def start(self, config: Config) -> None:
        """Until the server serves. The same config again after its end is its next life. ProcessError, NotRunError."""

    def stop(self, number: int = signal.SIGTERM) -> None:
        """By SIGTERM, or at once by SIGKILL. What it named in shared memory is removed after a SIGTERM's end."""
        if self.server is None:
            return
        if number == signal.SIGKILL:
            self.server.kill()
        else:
            self.server.terminate()

    def crash(self) -> None:
        """SIGKILL to the process that has the data; `start` gives its next life."""
        self.server.kill()

    def ssd_bytes(self, config: Config) -> int:
        """How much of what was saved is in the second level by now."""
        assert config.ssd is not None
        return sum(path.stat().st_size for path in config.ssd.rglob("*") if path.is_file())

    def close(self) -> None:
        """Whatever its state, nothing of it is left after this."""
        if self.server is not None and self.server.running():
            self.stop()

    def pids(self) -> list[int]:
        """Of all processes that serve."""
        from harness.processes import session_pids

        return [] if self.server is None or not self.server.running() else session_pids(self.server.pid)

    def connector(self) -> dict[str, Any] | None:
        """What vLLM takes as kv_transfer_config; None for an engine without a connector."""
        return None

    def variables(self) -> dict[str, str]:
        """Environment variables of the processes that use the peer."""
        return {}

    def client_settings(self) -> dict[str, Any]:
        """What the client's side needs to reach the server, as JSON."""
        return {}


class Client(abc.ABC):
    """A process that moves blocks between its paged KV and the peer.

    Keys are numbers, each of which names a block and all before it in its prompt. `views`: one array per layer whose
    first axis is the block, over the memory that the peer reads and writes.
    """

    views: Sequence[Any]
    unit_blocks = 1  # fewer are never loaded

    @abc.abstractmethod
    def prepare(self, keys: Sequence[int]) -> Any:
        """What the calls below take for these keys; not timed. Whether hashing is part of it, the report says."""

    @abc.abstractmethod
    def save(self, keys: Any, pages: Sequence[int]) -> int:
        """Stores these pages under these keys; returns how many are stored when it returns."""

    @abc.abstractmethod
    def lookup(self, keys: Any) -> int:
        """How many of the first keys are there. Nothing stays held."""

    @abc.abstractmethod
    def load(self, keys: Any, pages: Sequence[int]) -> int:
        """Looks up and fills these pages; returns how many of the first ones hold their blocks now."""

    def empty(self) -> bool:
        """Forgets all that is stored. False: not needed, the pool has its memory from the start on."""
        return False

    def rest(self) -> None:  # noqa: B027
        """What is owed after a call and keeps nobody waiting, such as the end of a request; not timed."""

    @abc.abstractmethod
    def close(self) -> None: ...


SIZES = {
    "64K": Geometry(64 << 10, layers=8, kv_heads=1),
    "256K": Geometry(256 << 10, layers=16, kv_heads=2),
    "1M": Geometry(1 << 20, layers=16, kv_heads=8),
}
BLOCK_TOKENS = Geometry(1, 1, 1).block_tokens


def gbps(geometry: Geometry, seconds: Sequence[float]) -> float:
    """Of saves or loads of BLOCKS blocks that took so long each: the median."""
    return BLOCKS * geometry.block_bytes / statistics.median(seconds) / 1e9


def key_bytes(key: int) -> bytes:
    """The 32 bytes that name a block where the peer takes ready hashes."""
    return hashlib.sha256(b"block %d" % key).digest()


def cpu_seconds(pid: int) -> float:
    """User and system time of all threads of a process."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def plain_pages(geometry: Geometry) -> list[Any]:
    """Layers [blocks, page bytes] in ordinary memory."""
    import numpy as np

    return [np.zeros((geometry.blocks, geometry.page_bytes), dtype=np.uint8) for _ in range(geometry.layers)]
