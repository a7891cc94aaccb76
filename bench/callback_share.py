"""Time inside the connector's hooks as a share of the engine's step time, in one process, without any reuse."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.manager import Manager
from harness.vllm_environment import ONE_PROCESS, VLLM

REQUESTS = 24
PROMPT_TOKENS = 600
ANSWER_TOKENS = 32


def inside(model: str, socket: str) -> None:
    """Runs the engine in this process and prints {"share_percent", "steps"}."""
    import time

    import timed_connector
    from vllm import LLM, SamplingParams

    from harness.vllm_server import connector_config

    config = connector_config(Path(socket))
    config.update(kv_connector="TimedConnector", kv_connector_module_path="timed_connector")
    engine = LLM(
        model=model,
        dtype="float32",
        enforce_eager=True,
        block_size=32,
        max_model_len=2048,
        max_num_seqs=8,
        kv_cache_memory_bytes=256 << 20,
        kv_transfer_config=config,
    )
    core = engine.llm_engine.engine_core.engine_core
    step = core.step_fn
    total_ns, steps = 0, 0

    def clocked_step() -> Any:
        nonlocal total_ns, steps
        start = time.perf_counter_ns()
        result = step()
        total_ns += time.perf_counter_ns() - start
        steps += 1
        return result

    core.step_fn = clocked_step
    prompts = [
        {"prompt_token_ids": [(i * i * 7 + i * n * 13 + n * 29) % 900 + 3 for i in range(PROMPT_TOKENS)]}
        for n in range(REQUESTS)
    ]
    timed_connector.spent_ns = 0
    engine.generate(prompts, SamplingParams(temperature=0, max_tokens=ANSWER_TOKENS, ignore_eos=True), use_tqdm=False)
    spent_ns = timed_connector.spent_ns
    core.step_fn = step
    print(json.dumps({"share_percent": 100 * spent_ns / total_ns, "steps": steps}), flush=True)


def rows(model: Path) -> list[dict[str, Any]]:
    """Rows for out/bench.json."""
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        manager = Manager(Path(folder) / "run" / "manager.sock", "1GiB", Path(folder) / "manager.log").start()
        env = dict(os.environ) | VLLM | ONE_PROCESS
        here = Path(__file__).resolve().parent
        env.update(PYTHONPATH=os.pathsep.join([str(here), str(here.parent / "tools")]), VLLM_CPU_CI_ENV="1")
        command = [sys.executable, str(here / "callback_share.py"), str(model), str(manager.socket)]
        try:
            done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=300, check=False)
            if done.returncode != 0:
                raise SystemExit(f"callback share: the engine failed:\n{done.stderr[-2000:]}")
        finally:
            manager.terminate()
    result = json.loads(done.stdout.strip().splitlines()[-1])
    return [
        {
            "name": "engine.callback_share_percent",
            "value": round(result["share_percent"], 3),
            "unit": "%",
            "baseline": "target",
            "baseline_value": 1.0,
            "ratio": round(result["share_percent"], 3),
            "samples": result["steps"],
        }
    ]


if __name__ == "__main__":
    inside(sys.argv[1], sys.argv[2])
