#!/usr/bin/env python3
"""Lets a released SGLang run without a GPU, to test the linker with it and to show it. No supported build.

    tools/sglang_rig.py     makes .venv-sglang-<version>/ under the repository, or leaves it alone when it is complete

An environment of its own with the unmodified wheel, which declares CUDA packages, and what it needs on a CPU instead.
What stands for the rest is in tests/sglang/shims, which comes first on PYTHONPATH.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "sglang.txt"
TEST_REQUIREMENTS = ROOT / "requirements" / "develop.txt"
SHIMS = ROOT / "tests" / "sglang" / "shims"
STAMP = ".orbitkv-rig"
BASE_PYTHON = "/usr/bin/python3"
INSTALL_LIMIT_S = 1500
COMPILE_LIMIT_S = 300

# SGLang compiles the hash of its pages when it is first called. Two pages of two tokens, as it must hash them.
WARM_UP = """
import array, hashlib
from sglang.srt.mem_cache.utils import get_storage_hash_str
pages = get_storage_hash_str(array.array("I", range(4)), page_size=2)
first = hashlib.sha256(array.array("I", [0, 1]).tobytes()).digest()
assert pages == [first.hex(), hashlib.sha256(first + array.array("I", [2, 3]).tobytes()).hexdigest()], pages
"""


def pinned(name: str) -> str:
    """The version of `name` in the list."""
    for line in REQUIREMENTS.read_text().splitlines():
        if line.startswith(f"{name}=="):
            return line.partition("==")[2]
    sys.exit(f"sglang_rig: {REQUIREMENTS.relative_to(ROOT)} has no line for {name}")


def folder() -> Path:
    return ROOT / f".venv-sglang-{pinned('sglang')}"


def python() -> Path:
    """The interpreter that has SGLang."""
    return folder() / "bin" / "python"


def environment(made: Path | None = None) -> dict[str, str]:
    """What a process that imports SGLang needs, and those that it starts. `made`: the environment, if not folder()."""
    path = [str(SHIMS), os.environ.get("PYTHONPATH", "")]
    return {
        "PYTHONPATH": os.pathsep.join(part for part in path if part),
        "SGLANG_USE_CPU_ENGINE": "1",
        "SGLANG_HOST_IP": "127.0.0.1",
        "HF_HUB_OFFLINE": "1",
        "TORCH_EXTENSIONS_DIR": str((made or folder()) / "extensions"),
    }


def stamp_text() -> str:
    """What a complete environment was made from."""
    digest = hashlib.sha256()
    for path in (REQUIREMENTS, TEST_REQUIREMENTS, Path(__file__)):
        digest.update(path.read_bytes())
    version = subprocess.run([BASE_PYTHON, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    return f"{version}\n{digest.hexdigest()}\n"


def complete(made: Path) -> bool:
    marker = made / STAMP
    return marker.is_file() and marker.read_text() == stamp_text()


def run(what: str, command: list[str], limit_s: int, more: dict[str, str] | None = None) -> None:
    """Ends the program with a word about `what` when the command fails."""
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, timeout=limit_s, check=False, env=os.environ | (more or {})
        )
        failed = f"exit status {done.returncode}" if done.returncode != 0 else ""
    except subprocess.TimeoutExpired:
        failed = f"no end after {limit_s} s"
    if failed:
        sys.exit(f"sglang_rig: {what}: {failed}")


def make() -> Path:
    """The stamp is written last, and an environment without it is begun anew: whatever was killed leaves no trace."""
    made = folder()
    if complete(made):
        return made
    about = f"sglang_rig: making {made.name} with the packages of {REQUIREMENTS.relative_to(ROOT)}"
    print(about, file=sys.stderr, flush=True)
    shutil.rmtree(made, ignore_errors=True)
    run("making the environment", [BASE_PYTHON, "-m", "venv", str(made)], INSTALL_LIMIT_S)
    pip = [str(made / "bin" / "python"), "-m", "pip", "-qq", "--disable-pip-version-check", "--no-input", "install"]
    # What torch depends on differs between its CPU and its CUDA build; all the rest is listed.
    run("installing torch", [*pip, f"torch=={pinned('torch')}"], INSTALL_LIMIT_S)
    lists = ["-r", str(REQUIREMENTS), "-r", str(TEST_REQUIREMENTS)]
    run("installing SGLang", [*pip, "--no-deps", *lists], INSTALL_LIMIT_S)
    run(
        "compiling SGLang's page hash",
        [str(made / "bin" / "python"), "-c", WARM_UP],
        COMPILE_LIMIT_S,
        environment(made),
    )
    (made / STAMP).write_text(stamp_text())
    return made


def main() -> int:
    print(make())
    return 0


if __name__ == "__main__":
    sys.exit(main())
