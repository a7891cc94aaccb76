#!/usr/bin/env python3
"""Runs the test groups one after the other; ./dev test calls it after set-up. A failed group does not stop the next.

Every group writes out/test/GROUP.log. Counts come from the JUnit files of ctest and pytest and from the lint report; a
step that ran no test counts as one failure. The last line is "N passed, N failed"; exit status 1 when anything failed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import sglang_rig
import vllm_rig

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "out" / "test"
PYTHON = str(ROOT / ".venv" / "bin" / "python")
TAIL_LINES = 60
BEAT_S = 30
JOBS = str(len(os.sched_getaffinity(0)))
# The hour of mixed traffic runs on one vLLM; on the others it is as long as this.
OTHER_VLLM_SOAK_S = "600"


@dataclass
class Step:
    """One command of a group. With a report it must have run a test; without, only its exit status counts."""

    name: str
    command: list[str]
    report: Path | None = None
    timeout_s: int = 1800
    environment: dict[str, str] = field(default_factory=dict)


@dataclass
class Outcome:
    passed: int = 0
    failed: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def lint_steps(_long: bool) -> list[Step]:
    report = OUT / "lint.json"
    return [Step("lint", [sys.executable, "tools/lint.py", "--report", str(report)], report)]


def build_steps(preset: str, target: str = "all") -> list[Step]:
    build = ["nice", "-n", "5", "cmake", "--build", f"build/{preset}", "--target", target]
    return [
        Step(f"configure {preset}", ["cmake", "--preset", preset], timeout_s=300),
        Step(f"build {preset}", build, timeout_s=3600),
    ]


def ctest_step(name: str, preset: str, *selection: str, timeout_s: int = 3600) -> Step:
    report = OUT / f"{name.replace(' ', '-')}.xml"
    command = ["ctest", "--test-dir", f"build/{preset}", "--output-on-failure", "--no-tests=error", "-j", JOBS]
    # A sanitizer's report ends the program; leaked descriptors and threads are errors like any other.
    environment = {
        "ASAN_OPTIONS": "detect_stack_use_after_return=1:strict_string_checks=1",
        "UBSAN_OPTIONS": "print_stacktrace=1",
        "TSAN_OPTIONS": "second_deadlock_stack=1",
    }
    return Step(name, [*command, "--output-junit", str(report), *selection], report, timeout_s, environment)


def pytest_step(
    name: str,
    folder: str,
    marked: str,
    timeout_s: int,
    environment: dict[str, str] | None = None,
    python: str = PYTHON,
) -> Step:
    """`marked`: which tests by their markers, as pytest's -m has it; all when empty."""
    report = OUT / f"{name.replace(' ', '-')}.xml"
    command = [python, "-m", "pytest", "-q", "-ra", "-p", "no:cacheprovider", f"--junitxml={report}", folder]
    return Step(name, [*command, "-m", marked] if marked else command, report, timeout_s, environment or {})


def native_steps(long: bool) -> list[Step]:
    without = "process" if long else "process|long"
    steps = [*build_steps("dev"), ctest_step("native", "dev", "-LE", f"^({without})$")]
    if long:
        report = OUT / "mutations.json"
        mutations = [sys.executable, "tools/mutations.py", "--report", str(report)]
        steps.append(Step("mutations", mutations, report, 3600))
    return steps


def sanitizer_steps(long: bool) -> list[Step]:
    # The long sweeps of tests run once, in the dev build; those of the fuzz targets exist only here.
    return [
        *build_steps("asan"),
        ctest_step("asan", "asan", "-LE", "^(fuzz|long)$"),
        *build_steps("tsan", "race_tests"),
        ctest_step("tsan", "tsan", "-L", "^race$", "-LE", "^(process|long)$"),
        *build_steps("fuzz", "fuzz_targets"),
        ctest_step("fuzz", "fuzz", "-L", "^fuzz$", *([] if long else ["-LE", "^long$"])),
    ]


def process_steps(long: bool) -> list[Step]:
    return [
        *build_steps("dev"),
        Step("install package", ["tools/install-python"], timeout_s=1800),
        ctest_step("process", "dev", "-L", "^process$", *([] if long else ["-LE", "^long$"]), timeout_s=7200),
        pytest_step("python", "python/tests", "" if long else "not long", 1800),
    ]


def vllm_steps(long: bool) -> list[Step]:
    steps = [
        Step("install package", ["tools/install-python"], timeout_s=1800),
        pytest_step("vllm", "tests/vllm", "" if long else "not long", 9000 if long else 3600),
        Step("make the other vLLMs", [PYTHON, "tools/vllm_rig.py"], timeout_s=1200),
    ]
    for name in vllm_rig.VARIANTS:
        environment = {vllm_rig.SWITCH: name} | ({"ORBITKV_SOAK_SECONDS": OTHER_VLLM_SOAK_S} if long else {})
        marked = "" if long else "each_vllm and not long"
        steps.append(pytest_step(f"vllm {name}", "tests/vllm", marked, 7200 if long else 1800, environment))
    return steps


def sglang_steps(long: bool) -> list[Step]:
    python = str(sglang_rig.python())
    return [
        Step("make SGLang's environment", [sys.executable, "tools/sglang_rig.py"], timeout_s=3600),
        Step("install package", ["tools/install-python"], timeout_s=1800),
        pytest_step("sglang", "tests/sglang", "" if long else "not long", 7200 if long else 1800, python=python),
    ]


GROUPS: dict[str, Callable[[bool], list[Step]]] = {
    "lint": lint_steps,
    "native": native_steps,
    "sanitizers": sanitizer_steps,
    "processes": process_steps,
    "vllm": vllm_steps,
    "sglang": sglang_steps,
}


def run_step(step: Step, log_path: Path) -> int:
    """Runs the command in a process group of its own, says every BEAT_S that it is alive, kills it at its deadline."""
    with log_path.open("ab") as log:
        log.write(f"\n$ {' '.join(step.command)}\n".encode())
        log.flush()
        try:
            process = subprocess.Popen(
                step.command,
                cwd=ROOT,
                env={**os.environ, **step.environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            log.write(f"{error.filename} is missing\n".encode())
            return 127
        began = time.monotonic()
        while True:
            try:
                return process.wait(timeout=BEAT_S)
            except subprocess.TimeoutExpired:
                elapsed = time.monotonic() - began
                if elapsed > step.timeout_s:
                    log.write(f"\nkilled: it ran for more than {step.timeout_s} s\n".encode())
                    end_group(process)
                    return 124
                print(f"   {step.name}: {elapsed:.0f} s: {last_line(log_path)}", flush=True)
            except BaseException:
                end_group(process)
                raise


def end_group(process: subprocess.Popen[bytes]) -> None:
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def last_line(path: Path) -> str:
    with path.open("rb") as file:
        file.seek(max(0, path.stat().st_size - 4096))
        lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    return lines[-1].strip()[:100] if lines else ""


def tail(path: Path) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-TAIL_LINES:])


def count(report: Path) -> tuple[int, int, int]:
    """Passed, failed and skipped tests of a JUnit file or a lint report; none when it is missing or damaged."""
    try:
        if report.suffix == ".json":
            counts = json.loads(report.read_text())
            return counts["passed"], counts["failed"], 0
        cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    except (OSError, ValueError, KeyError, ElementTree.ParseError):
        return 0, 0, 0
    failed = sum(1 for case in cases if case.find("failure") is not None or case.find("error") is not None)
    skipped = sum(1 for case in cases if case.find("skipped") is not None)
    return len(cases) - failed - skipped, failed, skipped


def judge(step: Step, status: int, outcome: Outcome) -> bool:
    """Adds the step's counts to the outcome and says whether it went well."""
    passed, failed, skipped = count(step.report) if step.report else (0, 0, 0)
    if step.report and passed + failed == 0:
        outcome.notes.append(f"{step.name}: no test ran")
        failed = 1
    elif status != 0 and failed == 0:
        outcome.notes.append(f"{step.name}: exit status {status}")
        failed = 1
    if skipped:
        outcome.notes.append(f"{step.name}: {skipped} skipped")
    outcome.passed += passed
    outcome.failed += failed
    return failed == 0


def run_group(name: str, long: bool) -> Outcome:
    outcome = Outcome()
    log = OUT / f"{name}.log"
    log.write_bytes(b"")
    began = time.monotonic()
    broken = ""  # a preset whose build failed: its tests would be those of an earlier build
    for step in GROUPS[name](long):
        if broken and (step.report or step.name.endswith(broken)) and f"build/{broken}" in " ".join(step.command):
            outcome.notes.append(f"{step.name}: not run")
            continue
        print(f"-- {name}: {step.name}", flush=True)
        if step.report:
            step.report.unlink(missing_ok=True)
        step_began = time.monotonic()
        status = run_step(step, log)
        before = outcome.passed
        if judge(step, status, outcome):
            ran = f", {outcome.passed - before} passed" if step.report else ""
            print(f"   {step.name}: ok ({time.monotonic() - step_began:.0f} s{ran})", flush=True)
            continue
        print(f"   {step.name}: FAILED ({time.monotonic() - step_began:.0f} s); the end of {log.relative_to(ROOT)}:")
        print(tail(log), flush=True)
        if not step.report and step.name.startswith(("configure ", "build ")):
            broken = step.name.split()[-1]
    outcome.seconds = time.monotonic() - began
    return outcome


def main() -> int:
    parser = argparse.ArgumentParser(description="Runs the test groups: " + ", ".join(GROUPS))
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="default: all")
    parser.add_argument("--long", action="store_true", help="with the long sweeps")
    parser.add_argument("--setup-status", type=int)
    parser.add_argument("--setup-seconds", type=float, default=0.0)
    arguments = parser.parse_args()
    unknown = [name for name in arguments.groups if name not in GROUPS]
    if unknown:
        parser.error(f"no group '{unknown[0]}'; there are {', '.join(GROUPS)}")
    OUT.mkdir(parents=True, exist_ok=True)
    outcomes: dict[str, Outcome] = {}
    if arguments.setup_status is not None:
        good = arguments.setup_status == 0
        outcomes["setup"] = Outcome(int(good), int(not good), arguments.setup_seconds)
    for name in arguments.groups or GROUPS:
        print(f"\n== {name}", flush=True)
        outcomes[name] = run_group(name, arguments.long)
    print(f"\n{'group':<12}{'seconds':>9}{'passed':>8}{'failed':>8}")
    for name, outcome in outcomes.items():
        notes = f"  {'; '.join(outcome.notes)}" if outcome.notes else ""
        print(f"{name:<12}{outcome.seconds:>9.0f}{outcome.passed:>8}{outcome.failed:>8}{notes}")
    total = sum(outcome.seconds for outcome in outcomes.values())
    passed = sum(outcome.passed for outcome in outcomes.values())
    failed = sum(outcome.failed for outcome in outcomes.values())
    print(f"{'total':<12}{total:>9.0f}\n{passed} passed, {failed} failed")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
