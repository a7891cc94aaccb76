"""What the connector costs an engine that finds nothing: a model so small that the scheduler's work dominates.

Four engines, each a process with scheduler and worker in it: two without a connector (off, off again), one with a
connector that does nothing (empty), one with ours (on). Every round of measurements gives the same fresh prompts to
each of them, one engine after the other in an order that rotates. The difference of the two engines without a connector
is the noise; that of off and empty is what vLLM spends on having any. Times per step come from a fifth engine.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any

from engine_overhead import bootstrap_interval

from harness.manager import Manager
from harness.processes import kill_session, session_pids, shared_memory
from harness.vllm_environment import ONE_PROCESS, SMALL_ENGINE
from harness.vllm_server import connector_config

HERE = Path(__file__).resolve().parent
CONCURRENCIES = (1, 8, 32)
PROMPT_TOKENS = 200
ANSWER_TOKENS = 24
PAIRS = 30
WARM_UP = 3
STEPS = 200
# What the scheduler's side may take of a step in which so many requests decode.
STEP_AIMS_US = {1: 25.0, 32: 60.0, 256: 300.0}
# The most that the connector may cost: the larger of these, by the upper end of the median's 95 % interval.
LIMIT_SHARE = 0.01
LIMIT_MS = 1.0
EMPTY = {"kv_connector": "EmptyConnector", "kv_connector_module_path": "empty_connector", "kv_role": "kv_both"}


class Engine:
    """A child process that measures; ended with everything that it started when the block ends."""

    def __init__(self, log: Path, settings: dict[str, Any]) -> None:
        env = dict(os.environ) | SMALL_ENGINE | ONE_PROCESS
        path = [str(HERE), str(HERE.parent / "tools"), env.get("PYTHONPATH", "")]
        env["PYTHONPATH"] = os.pathsep.join(part for part in path if part)
        self._log = log
        with log.open("ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, str(HERE / "engine_child.py")],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
                env=env,
                start_new_session=True,
            )
        self._send(settings)

    def _send(self, value: Any) -> dict[str, float]:
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.write(json.dumps(value) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"engine cost: an engine ended:\n{self._log.read_text()[-2000:]}")
        result: dict[str, float] = json.loads(line)
        return result

    def batch(self, concurrency: int, seed: int) -> dict[str, float]:
        arguments = {"concurrency": concurrency, "tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS, "seed": seed}
        return self._send(["batch", arguments])

    def steps(self, running: int, seed: int) -> dict[str, float]:
        return self._send(["steps", {"running": running, "count": STEPS, "seed": seed}])

    def __enter__(self) -> Engine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        kill_session(self._process.pid, shared_memory(session_pids(self._process.pid)))
        self._process.wait(30)


def settings(model: Path, connector: dict[str, Any] | None, *, seats: int) -> dict[str, Any]:
    chosen = {
        "model": str(model),
        "max_model_len": 1024,
        "max_num_seqs": seats,
        "kv_cache_memory_bytes": 128 << 20,
    }
    return chosen | ({"kv_transfer_config": connector} if connector is not None else {})


def compare(model: Path, scratch: Path, socket: Path, pairs: int) -> dict[int, dict[str, list[dict[str, float]]]]:
    """Measurements of each engine by concurrency; entry n of every engine had the same prompts."""
    seats = max(CONCURRENCIES)
    with (
        Engine(scratch / "off.log", settings(model, None, seats=seats)) as off,
        Engine(scratch / "again.log", settings(model, None, seats=seats)) as again,
        Engine(scratch / "empty.log", settings(model, EMPTY, seats=seats)) as empty,
        Engine(scratch / "on.log", settings(model, connector_config(socket), seats=seats)) as on,
    ):
        engines = {"off": off, "again": again, "empty": empty, "on": on}
        names = list(engines)
        result: dict[int, dict[str, list[dict[str, float]]]] = {}
        seed = 1
        for concurrency in CONCURRENCIES:
            taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
            for number in range(-WARM_UP, pairs):
                shift = number % len(names)
                for name in names[shift:] + names[:shift]:
                    measured = engines[name].batch(concurrency, seed)
                    if number >= 0:
                        taken[name].append(measured)
                seed += concurrency
            result[concurrency] = taken
    return result


def more(before: list[float], after: list[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def interval_of_more(before: list[float], after: list[float]) -> list[float]:
    return [round(end, 3) for end in bootstrap_interval(more(before, after))]


def cost_rows(concurrency: int, taken: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Upper ends of the median difference in ms, beside what is allowed.

    `interval`: of on against off. `noise`: of off against off. `any`: of an empty connector against off. `own`: of on
    against an empty connector.
    """
    rows = []
    for what in ("total_ms", "ttft_ms"):
        times = {name: [entry[what] for entry in entries] for name, entries in taken.items()}
        base = statistics.median(times["off"])
        limit = max(LIMIT_MS, LIMIT_SHARE * base)
        on = more(times["off"], times["on"])
        low, high = bootstrap_interval(on)
        rows.append(
            {
                "name": f"engine.cost.{what}.c{concurrency}",
                "value": round(high, 3),
                "unit": "ms",
                "baseline": f"the most allowed, of {base:.1f} ms",
                "baseline_value": round(limit, 3),
                "ratio": round(high / limit, 3),
                "median": round(statistics.median(on), 3),
                "interval": [round(low, 3), round(high, 3)],
                "noise": interval_of_more(times["off"], times["again"]),
                "any": interval_of_more(times["off"], times["empty"]),
                "own": interval_of_more(times["empty"], times["on"]),
                "samples": len(on),
            }
        )
    return rows


def step_rows(model: Path, scratch: Path, socket: Path) -> list[dict[str, Any]]:
    connector = connector_config(socket)
    connector.update(kv_connector="TimedConnector", kv_connector_module_path="timed_connector")
    rows = []
    with Engine(scratch / "steps.log", settings(model, connector, seats=max(STEP_AIMS_US))) as engine:
        for number, (running, aim_us) in enumerate(STEP_AIMS_US.items()):
            measured = engine.steps(running, 100_000 + 1000 * number)
            rows += [
                {
                    "name": f"engine.{side}_us_per_step.r{running}",
                    "value": round(measured[f"{side}_us"], 1),
                    "unit": "us",
                    "baseline": "the aim" if aim else "",
                    "baseline_value": aim,
                    "ratio": aim and round(measured[f"{side}_us"] / aim, 3),
                    "p99": round(measured[f"{side}_p99_us"], 1),
                    "samples": STEPS,
                }
                for side, aim in (("scheduler", aim_us), ("worker", None))
            ]
    return rows


def rows(model: Path, pairs: int = PAIRS) -> list[dict[str, Any]]:
    """Rows for out/bench.json. `model`: the small one with seeded weights."""
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        scratch = Path(folder)
        manager = Manager(scratch / "run" / "manager.sock", "256MiB", scratch / "manager.log").start()
        try:
            measured = compare(model, scratch, manager.socket, pairs)
            if manager.sample("orbitkv_blocks_resident") == 0:
                raise SystemExit("engine cost: the engine with the connector stored nothing; the comparison is void")
            result = [row for concurrency, taken in measured.items() for row in cost_rows(concurrency, taken)]
            return result + step_rows(model, scratch, manager.socket)
        finally:
            manager.terminate()


if __name__ == "__main__":
    print(json.dumps(rows(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else PAIRS), indent=1))
