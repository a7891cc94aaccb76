"""A process that has imported an engine and forks it: one starts with 2 s of CPU then, where importing takes 6 s more.

An engine still has a session, an environment and streams of its own, as a new process has. The server never has a
second thread, which a fork would lose. It ends with the process that made it; its engines do not.
"""

from __future__ import annotations

import gc
import json
import os
import select
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

# Of a request: the environment of an engine.
MOST_BYTES = 1 << 20


# ---- the side of the caller -----------------------------------------------------------------------------------------


class ForkServer:
    """`program`: what it runs, which calls run() of this module.

    `environment`: of the server; an engine may have another one, but for what only the start of Python reads.
    """

    def __init__(self, program: Path, environment: Mapping[str, str]) -> None:
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, str(program), str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=self._log,
                env=dict(environment),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )

    def start(self, environment: Mapping[str, str], log: int) -> Fork:
        """An engine, which reads from its stdin and writes to its stdout. `log`: the descriptor that its stderr is."""
        stdin, ours = os.pipe()
        theirs, stdout = os.pipe()
        try:
            socket.send_fds(self._control, [json.dumps({"fork": dict(environment)}).encode()], [stdin, stdout, log])
        finally:
            os.close(stdin)
            os.close(stdout)
        return Fork(self, self._answer(), ours, theirs)

    def status(self, pid: int) -> int:
        """Of one that has ended; once."""
        self._control.send(json.dumps({"status": pid}).encode())
        return self._answer()

    def _answer(self) -> int:
        try:
            answer = self._control.recv(MOST_BYTES)
        except ConnectionResetError:
            answer = b""
        if not answer:
            self._log.seek(0)
            raise RuntimeError(f"the process that forks engines ended: {self._log.read()[-3000:]}")
        return int(json.loads(answer))

    def close(self) -> None:
        self._control.close()
        self._process.wait(30)
        self._log.close()


class Fork:
    """What is needed of subprocess.Popen."""

    def __init__(self, server: ForkServer, pid: int, stdin: int, stdout: int) -> None:
        self.pid = pid
        self.returncode: int | None = None
        self.stdin = os.fdopen(stdin, "w")
        self.stdout = os.fdopen(stdout)
        self._server = server
        self._ended = os.pidfd_open(pid)  # nobody reaps it but status()

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            if not select.select([self._ended], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired("engine", timeout or 0.0)
            self.returncode = self._server.status(self.pid)
            os.close(self._ended)
        return self.returncode


# ---- the server's side ----------------------------------------------------------------------------------------------


def serve(control: socket.socket) -> bool:
    """Forks as it is asked to. True in an engine; False in the server when nobody is left to ask."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MOST_BYTES, 3)
        if not message:
            return False
        request = json.loads(message)
        if "fork" not in request:
            _, status = os.waitpid(request["status"], 0)
            answer = os.waitstatus_to_exitcode(status)
        else:
            threads = os.listdir("/proc/self/task")
            assert len(threads) == 1, f"{len(threads)} threads: a fork would have one of them"
            answer = os.fork()
            if answer == 0:
                become(descriptors, request["fork"])
                return True
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(json.dumps(answer).encode())


def become(descriptors: list[int], environment: dict[str, str]) -> None:
    os.setsid()
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(environment)


def run(load: Callable[[], None], engine: Callable[[], None]) -> None:
    """The whole server: `load` imports what an engine needs, `engine` is one, in a process of its own."""
    control = socket.socket(fileno=int(sys.argv[1]))
    load()
    gc.collect()
    gc.freeze()  # nobody's pages are copied to count references
    is_engine = serve(control)
    control.close()
    if is_engine:
        engine()
