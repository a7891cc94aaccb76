"""Processes that answer JSON lines (json_lines.py), each in an environment of its own: engines and clients."""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from .processes import SHARED_MEMORY, session_pids, shared_memory, wait_until

END_LIMIT_S = 30
T = TypeVar("T", bound="Child")


class ChildError(RuntimeError):
    """The process ended or did not answer; the message has the end of its log."""


class NoAnswerError(ChildError):
    """The process is there and gave no answer within its limit."""


class Child:
    """The process of a script. Its commands are calls; one at a time."""

    def __init__(self, python: Path, script: Path, variables: Mapping[str, str], log: Path, limit_s: float) -> None:
        self._log = log
        self._limit_s = limit_s
        # Names that it may map, but that are not its own: the server's.
        self._foreign = set(SHARED_MEMORY.iterdir())
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [str(python), str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=dict(os.environ) | variables,
                start_new_session=True,  # so that its own processes are found
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def set_up(self, setup: Any) -> None:
        """Sends what the process reads first and waits until it is ready; it has ended when that fails."""
        try:
            self.send(setup)
            self.receive()
        except BaseException:
            self.close(0)
            raise

    def send(self, value: Any) -> None:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(value).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise ChildError(f"the process ended: {self._tail()}") from None

    def receive(self) -> Any:
        assert self._process.stdout is not None
        # One answer at a time, so nothing is left in the stream's buffer when this waits.
        ready, _, _ = select.select([self._process.stdout], [], [], self._limit_s)
        if not ready:
            raise NoAnswerError(f"the process did not answer within {self._limit_s:g} s: {self._tail()}")
        line = self._process.stdout.readline()
        if not line:
            raise ChildError(f"the process ended: {self._tail()}")
        return json.loads(line)

    def call(self, name: str, **arguments: Any) -> Any:
        self.send([name, arguments])
        return self.receive()

    def _tail(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return " | ".join(lines[-3:])[-400:]

    def kill(self) -> None:
        """SIGKILL to it alone, as to a process that crashes."""
        self._process.send_signal(signal.SIGKILL)
        self._process.wait(END_LIMIT_S)

    def __enter__(self: T) -> T:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        """After a failure, or when this process is told to end, nobody waits for it."""
        self.close(END_LIMIT_S if kind is None else 0)

    def close(self, patience_s: float = END_LIMIT_S) -> None:
        """Ends it, at once when it does not end by itself in this time. The server's shared memory stays."""
        named = shared_memory(session_pids(self._process.pid))
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.close()
            self._process.wait(patience_s)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        finally:  # also when this process is told to end
            for pid in session_pids(self._process.pid):
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    continue
            self._process.wait(END_LIMIT_S)
            wait_until(lambda: not session_pids(self._process.pid), END_LIMIT_S)
            self._process.stdout.close()
            for path in named - self._foreign:
                path.unlink(missing_ok=True)
