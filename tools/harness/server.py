"""A real server on loopback, and the requests that are sent to it."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .processes import Process, ProcessError

HOST = "127.0.0.1"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class Server:
    """The process of `command`, which listens on `port`. It is ready when it answers `ready` with 200."""

    def __init__(
        self, command: Sequence[str], log_path: Path, env: Mapping[str, str], port: int, ready: str = "/health"
    ) -> None:
        self.port = port
        self.process = Process(command, log_path, env)
        self._ready = ready

    def wait_ready(self, timeout_s: float = 180.0) -> None:
        try:
            self.process.wait_ready(self.is_ready, timeout_s)
        except ProcessError:
            self.process.kill()
            raise

    def is_ready(self) -> bool:
        try:
            return self.request("GET", self._ready)[0] == 200
        except OSError:
            return False

    def begin(self, method: str, path: str, body: Any = None, timeout_s: float = 120.0) -> http.client.HTTPConnection:
        """Sends a request. Its answer is the caller's to read, who closes the connection, also without having read it.

        No wait for the server is longer than `timeout_s`: OSError then.
        """
        connection = http.client.HTTPConnection(HOST, self.port, timeout=timeout_s)
        data = None if body is None else json.dumps(body)
        try:
            connection.request(method, path, data, {"Content-Type": "application/json"})
        except OSError:
            connection.close()
            raise
        return connection

    def request(self, method: str, path: str, body: Any = None, timeout_s: float = 120.0) -> tuple[int, bytes]:
        with contextlib.closing(self.begin(method, path, body, timeout_s)) as connection:
            response = connection.getresponse()
            return response.status, response.read()

    def stream(self, path: str, body: Any, timeout_s: float = 300.0) -> Iterator[Any]:
        """The events that answer a request. Whoever closes the iterator leaves."""
        with contextlib.closing(self.begin("POST", path, body, timeout_s)) as connection:
            response = connection.getresponse()
            if response.status != 200:
                raise ProcessError(f"{path} answered {response.status}: {response.read()[:300]!r}")
            for raw in response:
                if raw.startswith(b"data: {"):
                    yield json.loads(raw[6:])

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> int:
        return self.process.terminate(60)
