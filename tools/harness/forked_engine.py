"""An engine in a forked process that is driven by JSON lines: a command on its stdin, the answer on its stdout."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from .forks import ForkServer
from .processes import kill_session, session_pids, shared_memory


class EngineError(RuntimeError):
    """The command raised in the engine's process; its traceback is the message."""


class ForkedEngine:
    """A command is called as if it were a function of this object. Everything started here is ended by kill or close.

    `setup` is the first line that the engine reads; its first answer says that it is ready.
    """

    def __init__(self, server: ForkServer, environment: Mapping[str, str], log: Path, setup: Any) -> None:
        self.log = Path(log)
        self._over = False
        with self.log.open("ab") as stream:
            # In a session of its own, so that a kill reaches the engine's own processes too.
            self.process = server.start(environment, stream.fileno())
        try:
            self._send(setup)
            self._receive()
        except (EngineError, BrokenPipeError):
            self.kill()
            raise

    def _send(self, value: Any) -> None:
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def _receive(self) -> Any:
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"the engine ended: {self.log.read_text()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["ok"]

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("_"):
            raise AttributeError(name)

        def call(**arguments: Any) -> Any:
            self.begin(name, **arguments)
            return self.end()

        return call

    def begin(self, name: str, /, **arguments: Any) -> None:
        """Lets the engine work on a command while the caller does something else; end() gives the answer."""
        self._send([name, arguments])

    def end(self) -> Any:
        return self._receive()

    def kill(self) -> None:
        kill_session(self.process.pid)
        self._reap()

    def close(self) -> None:
        """Whatever its state, it has ended after this."""
        if self._over:
            return
        # An engine kills its workers when they take long to end, and then nobody removes what they had named.
        named = shared_memory(session_pids(self.process.pid))
        try:
            self.process.stdin.close()
            self.process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        kill_session(self.process.pid, named)
        self._reap()

    def _reap(self) -> None:
        self._over = True
        self.process.wait(30)
        self.process.stdout.close()
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
