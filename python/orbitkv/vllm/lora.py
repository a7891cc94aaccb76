"""What an adapter is, told by the content of its files, and the names that blocks computed with it have.

vLLM's block hashes name an adapter by its name and path only. The files behind them may change, so each block hash of
such a request goes through a key domain that their content makes.

Threads: `AdapterFiles` reads in a thread of its own, which `close` ends; everything else belongs to the caller's.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import orbitkv
from orbitkv.folders import local_copy

# What vLLM may read of an adapter's folder.
CONFIG = "adapter_config.json"
WEIGHTS = tuple(
    f"{stem}.{suffix}" for stem in ("adapter_model", "new_embeddings") for suffix in ("safetensors", "bin", "pt")
)
PIECE_BYTES = 1 << 20

Adapter = tuple[int, bytes, bool]  # its number, its content, whether it is loaded anew with each request
Stamp = tuple[tuple[str, int, int, int, int, int], ...]


def folder_of(lora_path: str) -> Path:
    """As vLLM resolves it, but without a download: of a hub's name the copy on this host."""
    try:
        path = str(Path(lora_path).expanduser()) if lora_path.startswith("~") else lora_path
    except RuntimeError:  # no such user
        path = lora_path
    return Path(local_copy(path, CONFIG))


def stamp(folder: Path) -> Stamp:
    """Changes when a file of the adapter is replaced or written to; empty when there is none."""
    result = []
    for name in (CONFIG, *WEIGHTS):
        try:
            info = (folder / name).stat()
        except (OSError, ValueError):
            continue
        result.append((name, info.st_dev, info.st_ino, info.st_size, info.st_mtime_ns, info.st_ctime_ns))
    return tuple(result)


def _file_digest(path: Path) -> bytes:
    sha = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(PIECE_BYTES):
            sha.update(piece)
    return sha.digest()


def content_digest(folder: Path) -> bytes:
    """Of names and contents, 32 bytes; empty when the adapter cannot be read or changes meanwhile."""
    before = stamp(folder)
    names = [entry[0] for entry in before]
    if CONFIG not in names or len(names) < 2:
        return b""
    builder = orbitkv.DigestBuilder("adapter")
    try:
        for name in names:
            builder.add(name, _file_digest(folder / name))
    except OSError:
        return b""
    return builder.digest() if stamp(folder) == before else b""


def key_domain(content: bytes, lora_dtype: str, is_3d: bool = False) -> bytes:
    builder = orbitkv.DigestBuilder("key domain")
    return builder.add("adapter", content).add("lora_dtype", lora_dtype).add("is_3d", is_3d).digest()


def derived(domain: bytes, block_hash: bytes) -> bytes:
    """A block's name in a key domain, as long as the one that vLLM gave it."""
    return hashlib.sha256(domain + block_hash).digest()[: len(block_hash)]


class Contents:
    """Digests of adapters by folder. Files that did not change are not read again, unless that is asked for."""

    def __init__(self) -> None:
        self._known: dict[Path, tuple[Stamp, bytes]] = {}

    def digest(self, folder: Path, again: bool = False) -> bytes:
        now = stamp(folder)
        known = self._known.get(folder)
        if known is not None and known[0] == now and not again:
            return known[1]
        content = content_digest(folder)
        if content:
            self._known[folder] = (now, content)
        return content


class AdapterFiles:
    """Reads adapters beside the scheduler."""

    def __init__(self) -> None:
        self._reader: ThreadPoolExecutor | None = None
        self._contents = Contents()

    def start(self, lora: Any) -> Future[bytes]:
        """Its content's digest, empty when it cannot be had."""
        if self._reader is None:
            self._reader = ThreadPoolExecutor(1, "orbitkv-lora")
        return self._reader.submit(self._read, str(lora.path), bool(getattr(lora, "load_inplace", False)))

    def _read(self, path: str, again: bool) -> bytes:
        return self._contents.digest(folder_of(path), again)

    def close(self) -> None:
        if self._reader is not None:
            self._reader.shutdown(cancel_futures=True)
            self._reader = None
