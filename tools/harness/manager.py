"""A real orbitkv-manager process for demos, benchmarks and tests."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .processes import Process, ProcessError, wait_until


def binary(name: str) -> str:
    """Path of an OrbitKV program: in the folder TEST_PROGRAMS, else beside this interpreter, else on PATH."""
    folder = os.environ.get("TEST_PROGRAMS")
    found = shutil.which(name, path=folder) if folder else None
    found = found or shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise ProcessError(f"{name} is not installed: run ./dev build, or set TEST_PROGRAMS to the folder of a build")
    return found


# Of a Manager's figures, those that are zero when no request is under way.
HELD = ("leases", "leased_bytes", "grants", "found_pins", "granted_pins", "tickets", "queries_running")


class Manager:
    """A Manager on `socket`; `start` after its end gives the next life on the same socket.

    `program`: another program than orbitkv-manager, with its own first arguments, that takes those of one as well.
    `ready_at` is time.monotonic() of the moment at which the last life was ready. What it says goes to `log_path`.
    """

    def __init__(
        self,
        socket: Path,
        pool: str = "64MiB",
        log_path: Path | None = None,
        extra: Sequence[str] = (),
        program: Sequence[str] = (),
    ) -> None:
        self.socket = socket
        self.log_path = log_path if log_path is not None else socket.with_suffix(".log")
        self._program = list(program)
        self._arguments = ["--socket", str(socket), "--pool-bytes", pool, *extra]
        self._process: Process | None = None
        self.ready_at = 0.0

    @property
    def process(self) -> Process:
        if self._process is None:
            raise ProcessError("this Manager was never started")
        return self._process

    @property
    def pid(self) -> int:
        return self.process.pid

    def start(self) -> Manager:
        """Until the ready line; raises ProcessError with the end of the log when there is none."""
        self.socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = self.log_path.stat().st_size if self.log_path.exists() else 0
        process = Process([*(self._program or [binary("orbitkv-manager")]), *self._arguments], self.log_path)

        def ready() -> bool:
            with self.log_path.open("rb") as log:
                log.seek(before)
                return b"orbitkv-manager ready" in log.read()

        try:
            process.wait_ready(ready, 60)
        except ProcessError:
            process.kill()
            raise
        self._process = process
        self.ready_at = time.monotonic()
        return self

    def status(self) -> dict[str, Any]:
        """The health frame: version, pid, incarnation, uptime and all samples."""
        import orbitkv

        return orbitkv.status(str(self.socket), 20.0)

    def samples(self) -> dict[str, float]:
        """The figures of the health frame; those with labels as name{label="value"}."""
        samples: dict[str, float] = self.status()["samples"]
        return samples

    def sample(self, name: str) -> float:
        """Sum over labels of one sample of the health frame; 0.0 when there is none of that name."""
        return float(sum(value for key, value in self.samples().items() if key.partition("{")[0] == name))

    def held(self) -> dict[str, float]:
        """What it keeps for requests that are under way."""
        samples = self.samples()
        return {name: samples[f"orbitkv_{name}"] for name in HELD if samples[f"orbitkv_{name}"] != 0}

    def wait_serving(self, processes: int, timeout_s: float = 30.0) -> None:
        """Until an engine can be asked for what it has stored.

        That is when so many of its processes have registered in this life, each of which connects again by itself, and
        when the pool has its memory, or the machine has had time to give it. ProcessError when they do not come.
        """
        if not wait_until(lambda: self.sample("orbitkv_registrations_total") >= processes, timeout_s):
            raise ProcessError("the engine did not come back to the new Manager")
        samples = self.samples()
        wait_until(lambda: self.sample("orbitkv_pool_reserved_bytes") >= samples["orbitkv_pool_bytes"], timeout_s)

    def signal(self, number: int) -> None:
        self.process.signal(number)

    def suspend(self) -> None:
        """SIGSTOP; returns when the process has stopped."""
        self.signal(signal.SIGSTOP)
        _, status = os.waitpid(self.pid, os.WUNTRACED)
        if not os.WIFSTOPPED(status):
            raise ProcessError(f"the Manager ended instead of stopping:\n{self.process.log_tail()}")

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> int:
        """SIGTERM, after SIGCONT for one that is suspended; the exit status."""
        self.signal(signal.SIGCONT)
        return self.process.terminate()

    def close(self) -> None:
        """Whatever its state, it has ended after this."""
        if self._process is not None and self._process.running():
            self.terminate()
