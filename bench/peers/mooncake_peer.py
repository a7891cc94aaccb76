"""Mooncake Store: a master, and the segment inside the engine (embedded) or in a process of its own (standalone)."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import environments
from harness.processes import Process, session_pids
from harness.server import free_port
from peer import BLOCKS, HOST, Config, NotRunError, Peer

START_LIMIT_S = 30
SSD_BLOCKS_AT_ONCE = 16


def listens(port: int) -> bool:
    try:
        with socket.create_connection((HOST, port), timeout=1):
            return True
    except OSError:
        return False


class Mooncake(Peer):
    """`stop` and `start` are about the master, which has the index; the segment's owner stays as it is."""

    name = "mooncake_store"
    label = "Mooncake Store"
    environment_name = "mooncake"
    choices: Sequence[str] = (
        "--eviction_high_watermark_ratio 0.99: the whole segment may be used",
        "--rpc_thread_num 2: as many threads as processors",
        "protocol tcp, metadata P2PHANDSHAKE: the machine has no RDMA",
        "mode embedded: the segment is the engine's and ends with it",
    )

    def __init__(self) -> None:
        super().__init__()
        self._port = free_port()
        self._metrics_port = free_port()
        self._settings = Path()

    def _program(self, name: str) -> str:
        found = sorted(environments.folder(self.environment_name).glob(f"lib/*/site-packages/mooncake/{name}"))
        if not found:
            raise NotRunError(f"its package has no program {name}")
        return str(found[0])

    def check(self) -> None:
        environments.check_import(self.environment_name, "mooncake.store")

    def start(self, config: Config) -> None:
        if self.server is not None and self.server.running():
            return
        command = [self._program("mooncake_master"), "--rpc_address", HOST, "--rpc_port", str(self._port)]
        command += ["--metrics_host", HOST, "--metrics_port", str(self._metrics_port), "--rpc_thread_num", "2"]
        command += ["--eviction_high_watermark_ratio", "0.99"]
        if config.ssd is not None:
            command += ["--enable_offload=true"]
        self.server = Process(command, config.folder / "mooncake-master.log", os.environ | self.variables())
        self.server.wait_ready(lambda: listens(self._port), START_LIMIT_S)
        self._settings = config.folder / "mooncake.json"
        self._settings.write_text(json.dumps(self._store(config)))

    def _store(self, config: Config) -> dict[str, Any]:
        return {
            "metadata_server": "P2PHANDSHAKE",
            "protocol": "tcp",
            "device_name": "",
            "master_server_address": f"{HOST}:{self._port}",
            "mode": "embedded",
            "global_segment_size": config.pool_bytes,
            "local_buffer_size": 256 << 20,
        }

    def variables(self) -> dict[str, str]:
        return {"MOONCAKE_CONFIG_PATH": str(self._settings), "MC_LOG_LEVEL": "WARNING"}

    def connector(self) -> dict[str, Any]:
        return {"kv_connector": "MooncakeStoreConnector", "kv_role": "kv_both"}

    def client_settings(self) -> dict[str, Any]:
        return {"master": f"{HOST}:{self._port}"}


class MooncakeStandalone(Mooncake):
    """The segment in a process of its own on the host: it stays when an engine ends, and has the second level."""

    name = "mooncake_standalone"
    label = "Mooncake Store, standalone"
    choices = (
        *Mooncake.choices[:3],
        "mode standalone-store: mooncake_client owns the segment; --threads 2",
        "suite C: --enable_offload=true; the segment's owner is killed, the master is not",
        "suite C: loads of 16 blocks at a time: from the SSD its TCP transport has no room for the pieces of more",
    )

    def __init__(self) -> None:
        super().__init__()
        self._owner: Process | None = None
        self._owner_port = free_port()
        self._on_ssd = False

    def start(self, config: Config) -> None:
        super().start(config)
        self._on_ssd = config.ssd is not None
        if self._owner is not None and self._owner.running():
            return
        command = [self._program("mooncake_client"), "--host", HOST, "--port", str(self._owner_port)]
        command += ["--master_server_address", f"{HOST}:{self._port}", "--metadata_server", "P2PHANDSHAKE"]
        command += ["--global_segment_size", f"{config.pool_bytes >> 20} MB", "--threads", "2"]
        variables = os.environ | self.variables()
        if config.ssd is not None:
            command += ["--enable_offload=true"]
            variables = variables | {"MOONCAKE_OFFLOAD_FILE_STORAGE_PATH": str(config.ssd)}
        self._owner = Process(command, config.folder / "mooncake-owner.log", variables)
        self._owner.wait_ready(lambda: listens(self._owner_port), START_LIMIT_S)

    def pids(self) -> list[int]:
        running = self._owner is not None and self._owner.running()
        return super().pids() + (session_pids(self._owner.pid) if self._owner is not None and running else [])

    def crash(self) -> None:
        """The master is another process, and may be on another host."""
        assert self._owner is not None
        self._owner.kill()

    def _store(self, config: Config) -> dict[str, Any]:
        return super()._store(config) | {"mode": "standalone-store", "global_segment_size": 0}

    def close(self) -> None:
        if self._owner is not None and self._owner.running():
            self._owner.terminate()
        super().close()

    def client_settings(self) -> dict[str, Any]:
        at_once = SSD_BLOCKS_AT_ONCE if self._on_ssd else BLOCKS
        return super().client_settings() | {"daemon": f"{HOST}:{self._owner_port}", "loads_at_once": at_once}
