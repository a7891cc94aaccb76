"""A real `vllm serve` process on loopback."""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

from .chat_server import ChatServer, Reply
from .processes import ProcessError
from .server import HOST, free_port
from .vllm_environment import VLLM


def connector_config(manager_socket: Path, policy: str = "recompute", **extra: Any) -> dict[str, Any]:
    """The value of --kv-transfer-config for OrbitKVConnector."""
    return {
        "kv_connector": "OrbitKVConnector",
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": policy,
        "kv_connector_extra_config": {
            "orbitkv.bootstrap_socket": str(manager_socket),
            "orbitkv.mode": "read_write",
            **extra,
        },
    }


class VllmServer(ChatServer):
    """`vllm serve` with the settings of the demo: float32, block size 32, greedy-friendly and offline."""

    def __init__(
        self,
        model: Path,
        log_path: Path,
        kv_transfer: dict[str, Any] | None,
        *,
        max_model_len: int = 8192,
        kv_cache_bytes: int = 1 << 30,
        arguments: tuple[str, ...] = (),
        launcher: tuple[str, ...] = (),  # what `vllm serve` is an argument of
    ) -> None:
        self.model = model
        port = free_port()
        env = dict(os.environ) | VLLM
        env.update(VLLM_SERVER_DEV_MODE="1", VLLM_LOGGING_COLOR="0")
        # vLLM's scheduler process polls beside the worker's OpenMP threads. On few processors a thread that spins at a
        # barrier keeps the one that it waits for from running: some steps then take several times as long.
        env.setdefault("OMP_WAIT_POLICY", "passive")
        command = [
            *launcher,
            str(Path(sys.executable).parent / "vllm"),
            "serve",
            str(model),
            *("--served-model-name", "model", "--dtype", "float32", "--enforce-eager"),
            *("--block-size", "32", "--max-model-len", str(max_model_len), "--max-num-seqs", "4"),
            *("--kv-cache-memory-bytes", str(kv_cache_bytes)),
            *("--host", HOST, "--port", str(port)),
            *arguments,
        ]
        if kv_transfer is not None:
            command += ["--kv-transfer-config", json.dumps(kv_transfer)]
        super().__init__(command, log_path, env, port)

    def metric(self, name: str) -> float:
        """Sum over labels of one Prometheus sample of the engine; 0.0 when it does not exist yet."""
        _, data = self.request("GET", "/metrics")
        pattern = re.compile(rf"^{re.escape(name)}(?:{{[^}}]*}})? (\S+)$", re.MULTILINE)
        return sum(float(value) for value in pattern.findall(data.decode()))

    def restored_tokens(self) -> int:
        return int(self.metric("vllm:external_prefix_cache_hits_total"))

    def chat_restored(self, content: str, max_tokens: int = 16) -> tuple[Reply, int]:
        """The reply, and how many tokens of the prompt came from a connector."""
        before = self.restored_tokens()
        reply = self.chat(content, max_tokens)
        return reply, self.restored_tokens() - before

    def reset_prefix_cache(self) -> None:
        """Empties the engine's own prefix cache; what a connector stored stays."""
        status, data = self.request("POST", "/reset_prefix_cache")
        if status != 200:
            raise ProcessError(f"/reset_prefix_cache answered {status}: {data[:200]!r}")
