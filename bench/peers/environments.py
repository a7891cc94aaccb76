"""An environment for each peer, beside the project's own and on top of it: .venv-peer-NAME under the repository.

It sees everything that the running environment has (torch and vLLM above all) and adds the packages of
requirements/NAME.txt, which is a complete list with pinned versions: nothing is resolved, nothing there is replaced.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

from peer import ROOT, NotRunError

REQUIREMENTS = Path(__file__).resolve().parent / "requirements"
INSTALL_LIMIT_S = 600
IMPORT_LIMIT_S = 120
STAMP = ".orbitkv-peer"


def folder(name: str) -> Path:
    return ROOT / f".venv-peer-{name}"


def base_packages() -> str:
    return sysconfig.get_paths()["purelib"]


def stamp_text(name: str) -> str:
    """What a complete environment was made from."""
    listed = (REQUIREMENTS / f"{name}.txt").read_bytes()
    return f"{sys.version}\n{base_packages()}\n{hashlib.sha256(listed).hexdigest()}\n"


def complete(name: str) -> bool:
    marker = folder(name) / STAMP
    return marker.is_file() and marker.read_text() == stamp_text(name)


def make(name: str) -> None:
    """Makes the environment, or leaves a complete one alone. NotRunError says why it could not be made."""
    if complete(name):
        return
    target = folder(name)
    print(f"peers: making {target.name}", flush=True)
    shutil.rmtree(target, ignore_errors=True)
    venv.create(target, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    (target / "lib" / version / "site-packages" / "base.pth").write_text(base_packages() + "\n")
    command = [sys.executable, "-m", "pip", "--python", str(target / "bin" / "python"), "--disable-pip-version-check"]
    command += ["--no-input", "-qq", "install", "--no-deps", "--only-binary", ":all:", "--ignore-installed"]
    command += ["-r", str(REQUIREMENTS / f"{name}.txt")]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotRunError(f"installing its packages took more than {INSTALL_LIMIT_S} s") from None
    if done.returncode != 0:
        raise NotRunError(f"its packages could not be installed: {last_line(done.stderr)}")
    (target / STAMP).write_text(stamp_text(name))


def check_import(name: str, module: str) -> None:
    """NotRunError with what the import says, such as a library that is missing."""
    command = [str(folder(name) / "bin" / "python"), "-c", f"import {module}"]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=IMPORT_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise NotRunError(f"its import took more than {IMPORT_LIMIT_S} s") from None
    if done.returncode != 0:
        raise NotRunError(f"it cannot be imported: {last_line(done.stderr)}")


def last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "it said nothing"
