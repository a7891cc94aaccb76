"""A real orbitkv-manager process for demos, benchmarks and tests."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .processes import Process, ProcessError


def binary(name: str) -> str:
    """Path of an installed OrbitKV program: beside this interpreter first, then on PATH."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        raise ProcessError(f"{name} is not installed in this environment; run ./dev build")
    return found


class Manager:
    """Starts a Manager on `socket` and waits for its ready line. `ready_at` is time.monotonic() of that moment."""

    def __init__(self, socket: Path, pool: str, log_path: Path, extra: Sequence[str] = ()) -> None:
        self.socket = socket
        socket.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        before = log_path.stat().st_size if log_path.exists() else 0
        command = [binary("orbitkv-manager"), "--socket", str(socket), "--pool-bytes", pool, *extra]
        self.process = Process(command, log_path)

        def ready() -> bool:
            with log_path.open("rb") as log:
                log.seek(before)
                return b"orbitkv-manager ready" in log.read()

        try:
            self.process.wait_ready(ready, 60)
        except ProcessError:
            self.process.kill()
            raise
        self.ready_at = time.monotonic()

    def status(self) -> dict[str, Any]:
        """The health frame: version, pid, incarnation, uptime and all samples."""
        command = [binary("orbitkv"), "status", "--socket", str(self.socket), "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
        if done.returncode != 0:
            raise ProcessError(f"orbitkv status failed: {done.stderr.strip()}")
        result: dict[str, Any] = json.loads(done.stdout)
        return result

    def sample(self, name: str) -> float:
        """Sum over labels of one sample of the health frame; 0.0 when there is none of that name."""
        return float(sum(item["value"] for item in self.status()["samples"] if item["name"] == name))

    def kill(self) -> None:
        self.process.kill()

    def terminate(self) -> int:
        return self.process.terminate()
