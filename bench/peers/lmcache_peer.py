"""LMCache's multi-process server, and vLLM's connector for it."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from dataclasses import replace
from typing import Any

import environments
from harness.processes import Process
from harness.server import free_port
from peer import HOST, Config, Peer

START_LIMIT_S = 60
SECOND_LEVEL = {"type": "fs_native", "use_odirect": True}


def answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=1) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


class LMCache(Peer):
    name = "lmcache_mp"
    label = "LMCache MP"
    environment_name = "lmcache"
    choices = (
        "--supported-transfer-mode auto: its engine-driven transfer, the fast one without a GPU",
        "--no-l1-use-lazy: its pool has its memory before anything is timed",
        "--disable-observability, LMCACHE_TRACK_USAGE=false",
        "suite C: --l2-adapter fs_native with use_odirect, its fastest one in the wheel",
    )

    def __init__(self) -> None:
        super().__init__()
        self._port = free_port()
        self._http_port = free_port()

    def check(self) -> None:
        environments.check_import(self.environment_name, "lmcache.integration.vllm.vllm_multi_process_adapter")

    def start(self, config: Config) -> None:
        command = [str(self.python), str(self.python.parent / "lmcache"), "server"]
        command += ["--host", HOST, "--port", str(self._port), "--http-host", HOST, "--http-port", str(self._http_port)]
        command += ["--l1-size-gb", str(config.pool_bytes / (1 << 30)), "--no-l1-use-lazy", "--eviction-policy", "LRU"]
        command += ["--supported-transfer-mode", "auto"]
        command += ["--shm-name", f"orbitkv_peers_{self._port}", "--disable-observability"]
        if config.block_tokens:
            command += ["--chunk-size", str(config.block_tokens)]
        if config.ssd is not None:
            command += ["--l2-adapter", json.dumps(SECOND_LEVEL | {"base_path": str(config.ssd)})]
        self.server = Process(command, config.folder / "lmcache.log", os.environ | self.variables())
        self.server.wait_ready(lambda: answers(f"http://{HOST}:{self._http_port}/healthcheck"), START_LIMIT_S)

    def variables(self) -> dict[str, str]:
        return {"LMCACHE_TRACK_USAGE": "false", "LMCACHE_DISABLE_BANNER": "1", "LMCACHE_LOG_LEVEL": "WARNING"}

    def connector(self) -> dict[str, Any]:
        return {
            "kv_connector": "LMCacheMPConnector",
            "kv_role": "kv_both",
            "kv_connector_extra_config": {"lmcache.mp.host": f"tcp://{HOST}", "lmcache.mp.port": self._port},
        }

    def client_settings(self) -> dict[str, Any]:
        return {"url": f"tcp://{HOST}:{self._port}", "http_url": f"http://{HOST}:{self._http_port}"}


class LMCacheDefault(LMCache):
    """With its own choice of 256 tokens for the unit that it stores and finds."""

    name = "lmcache_mp_256"
    label = "LMCache MP, 256 tokens"
    choices = LMCache.choices

    def start(self, config: Config) -> None:
        super().start(replace(config, block_tokens=0))

    def client_settings(self) -> dict[str, Any]:
        return super().client_settings() | {"chunk_tokens": 256}
