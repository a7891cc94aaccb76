"""A real `vllm serve` process on loopback and the streamed chat requests sent to it."""

from __future__ import annotations

import http.client
import json
import os
import re
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import Process, ProcessError
from .vllm_environment import VLLM

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


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


@dataclass
class Reply:
    """One streamed answer: time to the first token and to the end in ms, text, and (token, logprob) pairs."""

    ttft_ms: float
    total_ms: float
    text: str
    prompt_tokens: int
    logprobs: list[tuple[str, float]] = field(default_factory=list)


class VllmServer:
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
        self.port = free_port()
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
            *("--host", HOST, "--port", str(self.port)),
            *arguments,
        ]
        if kv_transfer is not None:
            command += ["--kv-transfer-config", json.dumps(kv_transfer)]
        self.process = Process(command, log_path, env)

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        try:
            self.process.wait_ready(self._healthy, timeout_s)
        except ProcessError:
            self.process.kill()
            raise

    def _healthy(self) -> bool:
        try:
            return self.request("GET", "/health")[0] == 200
        except OSError:
            return False

    def request(self, method: str, path: str, body: Any = None) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(HOST, self.port, timeout=120)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"})
            response = connection.getresponse()
            return response.status, response.read()
        finally:
            connection.close()

    def count_tokens(self, content: str) -> int:
        body = {"model": "model", "messages": [{"role": "user", "content": content}]}
        status, data = self.request("POST", "/tokenize", body)
        if status != 200:
            raise ProcessError(f"/tokenize answered {status}: {data[:200]!r}")
        return int(json.loads(data)["count"])

    def chat(self, content: str, max_tokens: int = 16, logprobs: bool = True) -> Reply:
        """Sends one greedy streamed chat request and reads it to the end."""
        body: dict[str, Any] = {
            "model": "model",
            "messages": [{"role": "user", "content": content}],
            "max_tokens": max_tokens,
            "temperature": 0,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        if logprobs:
            body.update(logprobs=True, top_logprobs=3)
        connection = http.client.HTTPConnection(HOST, self.port, timeout=300)
        try:
            start = time.perf_counter()
            connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise ProcessError(f"chat answered {response.status}: {response.read()[:300]!r}")
            return self._read_stream(response, start)
        finally:
            connection.close()

    @staticmethod
    def _read_stream(response: http.client.HTTPResponse, start: float) -> Reply:
        first_ms = 0.0
        text: list[str] = []
        logprobs: list[tuple[str, float]] = []
        prompt_tokens = 0
        for raw in response:
            if not raw.startswith(b"data: {"):
                continue
            event = json.loads(raw[6:])
            if "error" in event:
                raise ProcessError(f"the engine failed the request: {event['error']}")
            if event.get("usage"):
                prompt_tokens = event["usage"]["prompt_tokens"]
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if not piece:
                    continue
                if not text:
                    first_ms = (time.perf_counter() - start) * 1e3
                text.append(piece)
                for item in (choice.get("logprobs") or {}).get("content") or []:
                    logprobs += [(top["token"], top["logprob"]) for top in item["top_logprobs"]]
        return Reply(first_ms, (time.perf_counter() - start) * 1e3, "".join(text), prompt_tokens, logprobs)

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

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> int:
        return self.process.terminate(30)
