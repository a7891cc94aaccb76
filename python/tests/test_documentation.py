"""The program in docs/python.md does what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from conftest import Manager

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


def test_the_documented_program_runs(manager: Manager) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    environment = os.environ | {"ORBITKV_SOCKET": str(manager.socket)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "restored 5 blocks\n"
