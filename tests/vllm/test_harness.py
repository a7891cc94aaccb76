"""What the harness promises about ending processes."""

import sys

from harness.processes import Process, session_pids, shared_memory

LEAVER = """
import multiprocessing, subprocess, sys, time
from multiprocessing import shared_memory
lock = multiprocessing.get_context("spawn").Lock()
segment = shared_memory.SharedMemory(create=True, size=4096)
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(100)"])
print("up", flush=True)
time.sleep(100)
"""


def test_a_killed_process_leaves_no_child_and_no_shared_memory(tmp_path):
    process = Process([sys.executable, "-c", LEAVER], tmp_path / "log")
    process.wait_ready(lambda: "up" in process.log_path.read_text(), 30)
    named = shared_memory(session_pids(process.pid))
    assert len(named) == 2
    process.kill()
    assert session_pids(process.pid) == []
    assert not any(path.exists() for path in named)
