#!/usr/bin/env python3
"""Every check that runs no product code: ./dev lint. Checks after a failed one still run.

Usage: tools/lint.py [--report FILE]. The last line counts checks; FILE gets {"passed": N, "failed": N}.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv" / "bin" / "python")


def cxx_files() -> list[str]:
    git = ["git", "ls-files", "-co", "--exclude-standard", "*.cc", "*.h"]
    listed = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    return [name for name in listed if (ROOT / name).is_file()]


def checks() -> list[tuple[str, list[str]]]:
    listed = [
        ("tidy", [sys.executable, "tools/tidy.py"]),
        ("tools", [sys.executable, "-m", "unittest", "discover", "-q", "-s", "tools", "-p", "*_test.py"]),
        ("bench", [sys.executable, "-m", "unittest", "discover", "-q", "-s", "bench", "-p", "*_test.py"]),
        ("peers", [sys.executable, "-m", "unittest", "discover", "-q", "-s", "bench/peers", "-p", "*_test.py"]),
        ("clang-format", ["clang-format-19", "--dry-run", "-Werror", *cxx_files()]),
        ("ruff check", [PYTHON, "-m", "ruff", "check", "--quiet", "."]),
        ("ruff format", [PYTHON, "-m", "ruff", "format", "--check", "--quiet", "."]),
    ]
    if (ROOT / "python" / "orbitkv").is_dir():
        listed.append(("mypy", [PYTHON, "-m", "mypy", "--no-error-summary", "python/orbitkv"]))
    listed.append(("clang-tidy", [sys.executable, "tools/clang_tidy.py"]))
    return listed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--report", type=Path)
    arguments = parser.parse_args()
    failed = []
    listed = checks()
    for name, command in listed:
        began = time.monotonic()
        print(f"lint: {name}", flush=True)
        try:
            status = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False).returncode
        except FileNotFoundError as error:
            print(f"lint: {error.filename} is missing; ./dev setup installs it", flush=True)
            status = 127
        word = "ok" if status == 0 else "FAILED"
        print(f"lint: {name}: {word} ({time.monotonic() - began:.1f} s)", flush=True)
        if status != 0:
            failed.append(name)
    passed = len(listed) - len(failed)
    if arguments.report:
        arguments.report.write_text(json.dumps({"passed": passed, "failed": len(failed)}) + "\n")
    print(f"lint: {passed} passed, {len(failed)} failed{': ' + ', '.join(failed) if failed else ''}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
