#!/usr/bin/env python3
"""Runs clang-tidy over every C++ source of the tidy preset, and only where something has changed.

A source is clean once it passed with the same command, configuration and contents, those of every header of ours that
it includes counted in; build/tidy-cache/ holds one empty file per such state. Usage: tools/clang_tidy.py [FILE...].
"""

from __future__ import annotations

import concurrent.futures
import functools
import hashlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "tidy"
CACHE = ROOT / "build" / "tidy-cache"
TOOL = "clang-tidy-19"
INCLUDE = re.compile(r'^\s*#\s*include\s*["<]([^">]+)[">]', re.MULTILINE)
OURS = ("src", "apps", "tests", "bench")
SECONDS_PER_FILE = 600


@functools.cache
def content(path: Path) -> bytes:
    return path.read_bytes()


@functools.cache
def headers(path: Path) -> frozenset[Path]:
    """Our headers that the file includes, directly or not; generated ones lie under the build folder."""
    found: set[Path] = set()
    pending = [path]
    while pending:
        for name in INCLUDE.findall(content(pending.pop()).decode(errors="replace")):
            for base in (ROOT / "src", ROOT, BUILD / "generated"):
                header = base / name
                if header.is_file() and header not in found:
                    found.add(header)
                    pending.append(header)
                    break
    return frozenset(found)


def state_of(entry: dict[str, str], version: bytes) -> str:
    digest = hashlib.sha256(version + content(ROOT / ".clang-tidy") + entry["command"].encode())
    source = Path(entry["file"])
    for path in [source, *sorted(headers(source))]:
        digest.update(str(path).encode() + b"\0" + hashlib.sha256(content(path)).digest())
    return digest.hexdigest()


def configure() -> None:
    """Makes the compilation database and the headers that protobuf generates."""
    subprocess.run(["cmake", "--preset", "tidy"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    listed = subprocess.run(["ninja", "-C", BUILD, "-t", "targets", "all"], check=True, capture_output=True, text=True)
    generated = sorted({line.split(":")[0] for line in listed.stdout.splitlines() if ".pb.h:" in line})
    if generated:
        subprocess.run(["ninja", "-C", BUILD, *generated], check=True, stdout=subprocess.DEVNULL)


def sources(wanted: list[str]) -> list[dict[str, str]]:
    entries = json.loads((BUILD / "compile_commands.json").read_text())
    chosen = {}
    for entry in entries:
        path = Path(entry["file"])
        if path.is_relative_to(BUILD) or path.relative_to(ROOT).parts[0] not in OURS:
            continue
        if not wanted or any(str(path).endswith(name) for name in wanted):
            chosen[str(path)] = entry
    return [chosen[name] for name in sorted(chosen)]


def tidy(path: str) -> tuple[bool, str, float]:
    began = time.monotonic()
    command = [TOOL, "--quiet", "-p", str(BUILD), path]
    try:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=SECONDS_PER_FILE, check=False)
    except subprocess.TimeoutExpired:
        return False, f"{path}: clang-tidy took more than {SECONDS_PER_FILE} s", time.monotonic() - began
    noise = re.compile(r"^\d+ warnings? (generated|treated as errors).*$|^$")
    lines = [line for line in (done.stdout + done.stderr).splitlines() if not noise.match(line)]
    return done.returncode == 0, "\n".join(lines), time.monotonic() - began


def main(wanted: list[str]) -> int:
    configure()
    CACHE.mkdir(parents=True, exist_ok=True)
    version = subprocess.run([TOOL, "--version"], check=True, capture_output=True).stdout
    states = {entry["file"]: state_of(entry, version) for entry in sources(wanted)}
    # The largest first, so that no long one is left for the end.
    stale = sorted((f for f, s in states.items() if not (CACHE / s).exists()), key=lambda f: -len(headers(Path(f))))
    print(f"clang-tidy: {len(states)} files, {len(stale)} to check", flush=True)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
        running = {pool.submit(tidy, path): path for path in stale}
        for number, future in enumerate(concurrent.futures.as_completed(running), 1):
            path = running[future]
            clean, text, seconds = future.result()
            print(f"[{number}/{len(stale)}] {Path(path).relative_to(ROOT)} {seconds:.1f} s", flush=True)
            if clean:
                (CACHE / states[path]).touch()
            else:
                failed += 1
                print(text, flush=True)
    print(f"clang-tidy: {len(states) - failed} clean, {failed} with findings")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
