#!/usr/bin/env python3
"""Shows that the simulator finds bugs: breaks the core in one place at a time and runs simulated lives on it.

Usage: tools/mutations.py [--seeds N] [--report FILE] [NAME...]. The mutations are in tests/sim/mutations.toml: each
names a file, a text that occurs in it once, and what to put there. They are applied to a copy of the tree below
out/mutations, never to the tree itself. The last line is "mutations N, caught M"; exit status 1 unless all are caught.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).resolve().parent.parent
LIST = ROOT / "tests" / "sim" / "mutations.toml"
SCRATCH = ROOT / "out" / "mutations"
TREE = SCRATCH / "tree"
BUILD = SCRATCH / "build"
PROGRAM = BUILD / "tests" / "sim" / "orbitkv-sim"
COPIED = ("CMakeLists.txt", "cmake", "src", "tests", "apps")
# A mutant that makes no progress is stopped, and that is caught too: the lives have a bound of their own.
LIVES_TIMEOUT_S = 120


@dataclass(frozen=True)
class Mutation:
    """One place to break: the text `find`, which is in `file` once, becomes `replace`."""

    name: str
    file: str
    find: str
    replace: str

    def apply(self, text: str) -> str:
        return text.replace(self.find, self.replace)


def load(path: Path = LIST) -> list[Mutation]:
    with path.open("rb") as file:
        return [Mutation(**entry) for entry in tomllib.load(file)["mutation"]]


def copy_tree() -> None:
    """Makes the copy equal to the tree; a file that has not changed keeps its time, so that it is not built again."""
    git = ["git", "ls-files", "-co", "--exclude-standard", *COPIED]
    names = subprocess.run(git, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    wanted = {name for name in names if name and (ROOT / name).is_file()}
    for name in sorted(wanted):
        target = TREE / name
        if target.is_file() and target.read_bytes() == (ROOT / name).read_bytes():
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, target)
    for path in sorted(TREE.rglob("*")):
        if path.is_file() and str(path.relative_to(TREE)) not in wanted:
            path.unlink()


def build() -> str:
    """Builds the simulator of the copy; the compiler's words when it does not build."""
    if not (BUILD / "build.ninja").is_file():
        configure = ["cmake", "-S", str(TREE), "-B", str(BUILD), "-G", "Ninja", "-DCMAKE_BUILD_TYPE=RelWithDebInfo"]
        subprocess.run(configure, check=True, stdout=subprocess.DEVNULL)
    command = ["nice", "-n", "5", "cmake", "--build", str(BUILD), "--target", "orbitkv-sim"]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    return "" if built.returncode == 0 else built.stdout[-2000:]


def run_lives(seeds: int) -> str:
    """What is wrong with the lives; empty when nothing is."""
    try:
        run = subprocess.run(
            [str(PROGRAM), str(seeds), "1", "first"],
            capture_output=True,
            text=True,
            check=False,
            timeout=LIVES_TIMEOUT_S,
            errors="replace",
        )
    except subprocess.TimeoutExpired:
        return "a life does not end"
    if run.returncode == 0:
        return ""
    said = [line for line in (run.stdout + run.stderr).splitlines() if line.startswith("seed ")]
    return said[0] if said else f"exit status {run.returncode}"


def judge(mutation: Mutation, seeds: int) -> bool:
    """Whether the lives show the mutation. The copy is whole again afterwards."""
    target = TREE / mutation.file
    text = target.read_text()
    if text.count(mutation.find) != 1:
        print(f"{mutation.name}: its text occurs {text.count(mutation.find)} times in {mutation.file}", flush=True)
        return False
    began = time.monotonic()
    target.write_text(mutation.apply(text))
    try:
        if failed := build():
            print(f"{mutation.name}: does not build\n{failed}", flush=True)
            return False
        wrong = run_lives(seeds)
    finally:
        target.write_text(text)
    seconds = time.monotonic() - began
    print(f"{mutation.name}: {f'caught: {wrong}' if wrong else 'NOT CAUGHT'} ({seconds:.0f} s)", flush=True)
    return bool(wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=500, help="lives for each mutation (default 500)")
    parser.add_argument("--report", type=Path)
    parser.add_argument("names", nargs="*", metavar="NAME", help="default: all")
    arguments = parser.parse_args()
    chosen = [one for one in load() if not arguments.names or one.name in arguments.names]
    unknown = set(arguments.names) - {one.name for one in chosen}
    if unknown:
        parser.error(f"no mutation {sorted(unknown)[0]}")
    copy_tree()
    if failed := build():
        print(f"the tree does not build\n{failed}")
        return 1
    if wrong := run_lives(arguments.seeds):
        print(f"the tree is wrong without any mutation: {wrong}")
        return 1
    caught = sum(judge(one, arguments.seeds) for one in chosen)
    if arguments.report:
        arguments.report.write_text(json.dumps({"passed": caught, "failed": len(chosen) - caught}) + "\n")
    print(f"mutations {len(chosen)}, caught {caught}")
    return 0 if caught == len(chosen) else 1


if __name__ == "__main__":
    sys.exit(main())
