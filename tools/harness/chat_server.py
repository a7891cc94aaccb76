"""A real server on loopback that answers chat requests as OpenAI's does, and the streamed requests sent to it."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import Process, ProcessError

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


@dataclass
class Reply:
    """One streamed answer: time to the first token and to the end in ms, text, and (token, logprob) pairs.

    `found`: of an engine that says it, how many tokens of the prompt were where, so that they were not computed.
    """

    ttft_ms: float
    total_ms: float
    text: str
    prompt_tokens: int
    logprobs: list[tuple[str, float]] = field(default_factory=list)
    found: dict[str, int] = field(default_factory=dict)


class ChatServer:
    """The process of `command`, which listens on `port` and calls its model "model". `more`: fields of each request."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str],
        port: int,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        self.port = port
        self.process = Process(command, log_path, env)
        self._more = dict(more or {})

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

    def stream(self, path: str, body: Any) -> Iterator[Any]:
        """The events that answer a request."""
        connection = http.client.HTTPConnection(HOST, self.port, timeout=300)
        try:
            connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            if response.status != 200:
                raise ProcessError(f"{path} answered {response.status}: {response.read()[:300]!r}")
            for raw in response:
                if raw.startswith(b"data: {"):
                    yield json.loads(raw[6:])
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
        body |= self._more
        if logprobs:
            body.update(logprobs=True, top_logprobs=3)
        start = time.perf_counter()
        return self._read(self.stream("/v1/chat/completions", body), start)

    def chat_restored(self, content: str, max_tokens: int = 16) -> tuple[Reply, int]:
        """The reply, and how many tokens of the prompt OrbitKV restored."""
        raise NotImplementedError

    @staticmethod
    def _read(events: Iterator[Any], start: float) -> Reply:
        first_ms = 0.0
        text: list[str] = []
        logprobs: list[tuple[str, float]] = []
        prompt_tokens = 0
        found: dict[str, int] = {}
        for event in events:
            if "error" in event:
                raise ProcessError(f"the engine failed the request: {event['error']}")
            if event.get("usage"):
                prompt_tokens = event["usage"]["prompt_tokens"]
            found |= (event.get("sglext") or {}).get("cached_tokens_details") or {}
            for choice in event["choices"]:
                piece = choice["delta"].get("content")
                if not piece:
                    continue
                if not text:
                    first_ms = (time.perf_counter() - start) * 1e3
                text.append(piece)
                for item in (choice.get("logprobs") or {}).get("content") or []:
                    logprobs += [(top["token"], top["logprob"]) for top in item["top_logprobs"]]
        return Reply(first_ms, (time.perf_counter() - start) * 1e3, "".join(text), prompt_tokens, logprobs, found)

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> int:
        return self.process.terminate(60)
