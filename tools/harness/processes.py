"""Child processes with a log file, a readiness condition and an end that is certain.

Every process is started in a session of its own, so that its whole family can be found; processes are ended by the pids
of that family only. Nothing here looks at processes that it did not start.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path


class ProcessError(RuntimeError):
    """A child process ended or did not become ready; the message carries the end of its log."""


def wait_until(condition: Callable[[], bool], timeout_s: float, interval_s: float = 0.02) -> bool:
    """Polls `condition` until it is true or `timeout_s` seconds passed; returns its last value."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() >= deadline:
            return condition()
        time.sleep(interval_s)
    return True


def session_pids(session: int) -> list[int]:
    """Pids of all living (not zombie) processes of one session."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        state, process_session = fields[0], int(fields[3])
        if process_session == session and state not in "ZX":
            pids.append(int(entry.name))
    return sorted(pids)


SHARED_MEMORY = Path("/dev/shm")


def shared_memory(pids: list[int]) -> set[Path]:
    """Named shared memory that these processes have mapped.

    Found by inode: a semaphore is mapped under a temporary name before it gets its own.
    """
    inodes: set[int] = set()
    for pid in pids:
        try:
            maps = Path(f"/proc/{pid}/maps").read_text()
        except OSError:
            continue
        for line in maps.splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[5].startswith(f"{SHARED_MEMORY}/"):
                inodes.add(int(fields[4]))
    found: set[Path] = set()
    for path in SHARED_MEMORY.iterdir():
        try:
            if path.stat().st_ino in inodes:
                found.add(path)
        except FileNotFoundError:
            continue
    return found


def abandoned_memory() -> set[Path]:
    """Named shared memory of this user that no process has mapped: whoever had it has ended and left it behind."""
    own: set[Path] = set()
    for path in SHARED_MEMORY.iterdir():
        try:
            if path.is_file() and path.stat().st_uid == os.getuid():
                own.add(path)
        except FileNotFoundError:
            continue
    return own - shared_memory([int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()])


def kill_session(session: int, left: Iterable[Path] = ()) -> None:
    """SIGKILL to every process of the session, then waits until all are gone. The leader's parent reaps it.

    Nobody is left then to remove the shared memory that they had named, so it is removed here. `left`: what processes
    of the session had mapped that may have ended before.
    """
    named = set(left)
    for _ in range(200):
        pids = session_pids(session)
        if not pids:
            break
        named |= shared_memory(pids)
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.02)
    for path in named:
        path.unlink(missing_ok=True)


class Process:
    """One started program and its descendants."""

    def __init__(self, command: Sequence[str], log_path: Path, env: Mapping[str, str] | None = None) -> None:
        self.command = list(command)
        self.log_path = log_path
        log_path.parent.mkdir(parents=True, exist_ok=True)
        with log_path.open("ab") as log:
            self.popen = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=dict(os.environ if env is None else env),
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self.popen.pid

    def running(self) -> bool:
        return self.popen.poll() is None

    def log_tail(self, lines: int = 25) -> str:
        text = self.log_path.read_text(errors="replace")
        return "\n".join(text.splitlines()[-lines:])

    def wait_ready(self, ready: Callable[[], bool], timeout_s: float) -> None:
        """Waits for `ready`; raises ProcessError when the program ends first or the time is over."""
        wait_until(lambda: not self.running() or ready(), timeout_s, 0.05)
        if not self.running():
            raise ProcessError(f"{self.command[0]} ended with status {self.popen.returncode}:\n{self.log_tail()}")
        if not ready():
            raise ProcessError(f"{self.command[0]} was not ready within {timeout_s:.0f} s:\n{self.log_tail()}")

    def signal(self, number: int) -> None:
        if self.running():
            self.popen.send_signal(number)

    def kill(self, left: Iterable[Path] = ()) -> None:
        kill_session(self.pid, left)
        self.popen.wait(timeout=30)

    def terminate(self, timeout_s: float = 20.0) -> int:
        """SIGTERM, then SIGKILL to what is left after `timeout_s`; returns the program's exit status."""
        named = shared_memory(session_pids(self.pid))
        self.signal(signal.SIGTERM)
        try:
            self.popen.wait(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            pass
        wait_until(lambda: not session_pids(self.pid), 5.0)
        self.kill(named)
        return self.popen.returncode
