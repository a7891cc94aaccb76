"""Redis as a bare store of blocks, over a Unix socket."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import environments
from harness.processes import Process
from peer import Client, Config, Geometry, NotRunError, Peer, key_bytes, plain_pages

START_LIMIT_S = 20
GROUP = 32  # keys of one MGET, so that not all values are in memory twice


class Redis(Peer):
    name = "redis"
    label = "Redis"
    environment_name = "redis"
    choices = ('--save "": nothing is written to disk', "--maxmemory-policy allkeys-lru, a Unix socket")

    def __init__(self) -> None:
        super().__init__()
        self._socket = Path()

    def check(self) -> None:
        if shutil.which("redis-server") is None:
            raise NotRunError("redis-server is not installed")
        environments.check_import(self.environment_name, "redis")

    def start(self, config: Config) -> None:
        self._socket = config.folder / "redis.sock"
        command = [
            "redis-server",
            "--port",
            "0",
            "--unixsocket",
            str(self._socket),
            "--save",
            "",
            "--dir",
            str(config.folder),
        ]
        command += ["--maxmemory", str(config.pool_bytes), "--maxmemory-policy", "allkeys-lru"]
        self.server = Process(command, config.folder / "redis.log", os.environ)
        self.server.wait_ready(lambda: "eady to accept" in self.server.log_tail(), START_LIMIT_S)

    def client_settings(self) -> dict[str, Any]:
        return {"socket": str(self._socket)}


class RedisClient(Client):
    """A block is one value: its pages are put together for a save and taken apart after a load."""

    def __init__(self, settings: dict[str, Any], geometry: Geometry) -> None:
        import redis

        self.views = plain_pages(geometry)
        self._redis = redis.Redis(unix_socket_path=settings["socket"])
        self._geometry = geometry

    def prepare(self, keys: Sequence[int]) -> list[bytes]:
        return [b"%d" % self._geometry.block_bytes + key_bytes(key) for key in keys]

    def save(self, keys: list[bytes], pages: Sequence[int]) -> int:
        with self._redis.pipeline(transaction=False) as pipeline:
            for key, page in zip(keys, pages, strict=True):
                pipeline.set(key, b"".join(view[page].data for view in self.views))
            return sum(map(bool, pipeline.execute()))

    def lookup(self, keys: list[bytes]) -> int:
        with self._redis.pipeline(transaction=False) as pipeline:
            for key in keys:
                pipeline.exists(key)
            found = pipeline.execute()
        return next((number for number, there in enumerate(found) if not there), len(found))

    def load(self, keys: list[bytes], pages: Sequence[int]) -> int:
        size = self._geometry.page_bytes
        for first in range(0, len(keys), GROUP):
            values = self._redis.mget(keys[first : first + GROUP])
            for number, value in enumerate(values, first):
                if value is None:
                    return number
                source = memoryview(value)
                for layer, view in enumerate(self.views):
                    view[pages[number]].data[:] = source[layer * size : (layer + 1) * size]
        return len(keys)

    def empty(self) -> bool:
        return bool(self._redis.flushall())

    def close(self) -> None:
        self._redis.close()
