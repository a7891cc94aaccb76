"""What the connector costs a vLLM that reuses nothing: on against off, interleaved, with confidence intervals.

Three `vllm serve` processes run side by side: two without a connector (off, off again) and one with it. Each round
sends one fresh prompt to each of them, in an order that rotates, and never to two at once. The difference of the two
engines without a connector is the noise that the third one is judged against.
"""

from __future__ import annotations

import json
import random
import statistics
import tempfile
from pathlib import Path
from typing import Any

from cost_rows import bootstrap_interval

from harness.manager import Manager
from harness.vllm_server import VllmServer, connector_config


def fresh_prompt(number: int) -> str:
    words = random.Random(number)
    text = " ".join(f"{words.choice(('red', 'green', 'blue', 'grey'))}{words.randrange(10000)}" for _ in range(150))
    return f"Case {number}. {text} Continue."


def measure(model: Path, pairs: int, scratch: Path) -> dict[str, Any]:
    """Total request times in ms for `pairs` rounds, as paired differences in percent of the first engine's time."""
    socket = scratch / "run" / "manager.sock"
    manager = Manager(socket, "1GiB", scratch / "manager.log").start()
    servers: dict[str, VllmServer] = {}
    try:
        for name in ("off", "off_again", "on"):
            kv_transfer = connector_config(socket) if name == "on" else None
            servers[name] = VllmServer(
                model, scratch / f"{name}.log", kv_transfer, max_model_len=4096, kv_cache_bytes=256 << 20
            )
            servers[name].wait_ready()
        times: dict[str, list[float]] = {name: [] for name in servers}
        names = list(servers)
        for round_number in range(-3, pairs):
            prompt = fresh_prompt(round_number + 3)
            shift = round_number % len(names)
            for name in names[shift:] + names[:shift]:
                reply = servers[name].chat(prompt, max_tokens=24, logprobs=False)
                if round_number >= 0:
                    times[name].append(reply.total_ms)
        if manager.sample("orbitkv_blocks_resident") == 0:
            raise SystemExit("engine overhead: the engine with the connector stored nothing; the comparison is void")
    finally:
        for server in servers.values():
            server.terminate()
        manager.terminate()

    def paired(name: str) -> list[float]:
        return [100 * (b - a) / a for a, b in zip(times["off"], times[name], strict=True)]

    return {"off_again": paired("off_again"), "on": paired("on"), "off_ms": statistics.median(times["off"])}


def rows(model: Path, pairs: int = 24) -> list[dict[str, Any]]:
    """Rows for out/bench.json."""
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as scratch:
        result = measure(model, pairs, Path(scratch))
    low, high = bootstrap_interval(result["on"])
    noise_low, noise_high = bootstrap_interval(result["off_again"])
    half_width = (noise_high - noise_low) / 2
    common = {"unit": "%", "samples": pairs, "baseline": "off against off", "ratio": None}
    return [
        {
            "name": "engine.overhead_percent",
            "value": round(statistics.median(result["on"]), 3),
            "baseline_value": round(statistics.median(result["off_again"]), 3),
            "interval": [round(low, 3), round(high, 3)],
            **common,
        },
        {
            "name": "engine.overhead_percent.upper",
            "value": round(high, 3),
            "baseline_value": round(half_width, 3),
            **(common | {"baseline": "half width of off against off"}),
        },
    ]


if __name__ == "__main__":
    import sys

    print(json.dumps(rows(Path(sys.argv[1])), indent=1))
