"""What the connector costs an engine that finds nothing: a model so small that the scheduler's work dominates.

Scheduler and worker are in one process, and the connector is taken out and put back between two batches; see
cost_rows.py. Times per step come from a second engine.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

from cost_rows import ROUNDS, compare

from harness.children import Child
from harness.manager import Manager
from harness.vllm_environment import ONE_PROCESS, SMALL_ENGINE
from harness.vllm_server import connector_config

HERE = Path(__file__).resolve().parent
CONCURRENCIES = (1, 8, 32)
BLOCK_TOKENS = 32
STEPS = 200
# What the scheduler's side may take of a step in which so many requests decode.
STEP_AIMS_US = {1: 25.0, 32: 60.0, 256: 300.0}
CALL_LIMIT_S = 300.0


class Engine(Child):
    """An engine_child.py with this connector."""

    def __init__(self, log: Path, model: Path, connector: dict[str, Any], *, seats: int) -> None:
        path = os.pathsep.join(filter(None, (str(HERE.parent / "tools"), os.environ.get("PYTHONPATH"))))
        environment = SMALL_ENGINE | ONE_PROCESS | {"PYTHONPATH": path}
        super().__init__(Path(sys.executable), HERE / "engine_child.py", environment, log, CALL_LIMIT_S)
        settings = {
            "model": str(model),
            "max_model_len": 1024,
            "max_num_seqs": seats,
            "kv_cache_memory_bytes": 128 << 20,
            "kv_transfer_config": connector,
        }
        self.set_up(settings)


def costs(model: Path, scratch: Path, manager: Manager, rounds: int) -> list[dict[str, Any]]:
    connector = connector_config(manager.socket)
    with Engine(scratch / "engine.log", model, connector, seats=max(CONCURRENCIES)) as engine:
        manager.wait_serving(2)
        return compare("engine.cost", engine, manager, BLOCK_TOKENS, CONCURRENCIES, rounds)


def step_rows(model: Path, scratch: Path, socket: Path) -> list[dict[str, Any]]:
    connector = connector_config(socket)
    connector.update(kv_connector="TimedConnector", kv_connector_module_path="timed_connector")
    rows = []
    with Engine(scratch / "steps.log", model, connector, seats=max(STEP_AIMS_US)) as engine:
        for number, (running, aim_us) in enumerate(STEP_AIMS_US.items()):
            measured = engine.call("steps", running=running, count=STEPS, seed=100_000 + 1000 * number)
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


def rows(model: Path, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Rows for out/bench.json. `model`: the small one with seeded weights."""
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        scratch = Path(folder)
        manager = Manager(scratch / "run" / "manager.sock", "256MiB", scratch / "manager.log").start()
        try:
            return [*costs(model, scratch, manager, rounds), *step_rows(model, scratch, manager.socket)]
        finally:
            manager.close()


if __name__ == "__main__":
    print(json.dumps(rows(Path(sys.argv[1]), int(sys.argv[2]) if len(sys.argv) > 2 else ROUNDS), indent=1))
