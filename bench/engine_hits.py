"""Time to the first token of a prompt that is restored, beside one that is still in the engine's own prefix cache.

One `vllm serve`. Each prompt is computed once; then, in turn, it is answered from the engine's own cache, that cache is
emptied, and it is answered from the Manager's RAM. All answers to a prompt are the same text.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

from harness.manager import Manager
from harness.processes import ProcessError, wait_until
from harness.prompts import cut_prompts
from harness.vllm_server import VllmServer, connector_config

LENGTHS = (1000, 2000, 4000, 7000)
BLOCK_TOKENS = 32
ROUNDS = 7


def measure_prompt(server: VllmServer, manager: Manager, prompt: str, rounds: int) -> dict[str, list[float]]:
    """Milliseconds to the first token, by where the prompt came from."""
    stored = manager.sample("orbitkv_blocks_resident")
    cold, restored = server.chat_restored(prompt)
    if restored:
        raise ProcessError(f"{restored} tokens of a prompt that nobody had computed were restored")
    whole = (cold.prompt_tokens - 1) // BLOCK_TOKENS
    if not wait_until(lambda: manager.sample("orbitkv_blocks_resident") >= stored + whole, 60.0):
        raise ProcessError("the prompt was not saved")
    times: dict[str, list[float]] = {"cold": [cold.ttft_ms], "own": [], "restored": []}
    for _ in range(rounds):
        own, from_elsewhere = server.chat_restored(prompt)
        server.reset_prefix_cache()
        again, restored = server.chat_restored(prompt)
        if {own.text, again.text} != {cold.text}:
            raise ProcessError("another text after a restore")
        if not from_elsewhere:
            times["own"].append(own.ttft_ms)
        # An engine on a busy machine does not wait for an answer that is late.
        if restored >= again.prompt_tokens - 2 * BLOCK_TOKENS:
            times["restored"].append(again.ttft_ms)
    return times


def rows(model: Path, lengths: tuple[int, ...] = LENGTHS, rounds: int = ROUNDS) -> list[dict[str, Any]]:
    """Rows for out/bench.json."""
    result = []
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        scratch = Path(folder)
        manager = Manager(scratch / "run" / "manager.sock", "1GiB", scratch / "manager.log").start()
        server = VllmServer(model, scratch / "vllm.log", connector_config(manager.socket))
        try:
            server.wait_ready()
            server.chat("Say hello.", max_tokens=4)
            for length, prompt in zip(lengths, cut_prompts(server, lengths), strict=True):
                times = measure_prompt(server, manager, prompt, rounds)
                if 2 * min(len(times["own"]), len(times["restored"])) < rounds:
                    raise ProcessError(f"too few hits of {length} tokens: {times}")
                own, restored = (statistics.median(times[source]) for source in ("own", "restored"))
                result.append(
                    {
                        "name": f"engine.ttft_ms.hit.{length // 1000}k",
                        "value": round(restored, 1),
                        "unit": "ms",
                        "baseline": f"vLLM's own prefix cache (computed: {times['cold'][0]:.0f})",
                        "baseline_value": round(own, 1),
                        "ratio": round(restored / own, 3),
                        "samples": len(times["restored"]),
                    }
                )
        finally:
            server.terminate()
            manager.close()
    return result


if __name__ == "__main__":
    chosen = tuple(map(int, sys.argv[2].split(","))) if len(sys.argv) > 2 else LENGTHS
    print(json.dumps(rows(Path(sys.argv[1]), chosen, int(sys.argv[3]) if len(sys.argv) > 3 else ROUNDS), indent=1))
