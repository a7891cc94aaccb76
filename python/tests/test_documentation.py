"""The programs in docs/python.md do what the page says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Manager

PAGE = Path(__file__).resolve().parents[2] / "docs" / "python.md"


@pytest.mark.parametrize(("number", "restored"), [(0, 5), (1, 10)])
def test_a_documented_program_runs(manager: Manager, number: int, restored: int) -> None:
    programs = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(programs) == 2
    program = programs[number]
    environment = os.environ | {"ORBITKV_SOCKET": str(manager.socket)}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"restored {restored} blocks\n"
