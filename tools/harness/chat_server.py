"""A server that answers chat requests as OpenAI's does, and the streamed requests that are sent to it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .processes import ProcessError
from .server import Server


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


class ChatServer(Server):
    """The process of `command`, which listens on `port` and calls its model "model". `more`: fields of each request."""

    def __init__(
        self,
        command: Sequence[str],
        log_path: Path,
        env: Mapping[str, str],
        port: int,
        more: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(command, log_path, env, port)
        self._more = dict(more or {})

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
