"""Time to the first token of long prompts through a real vLLM: computed, restored from RAM, restored from SSD.

One engine computes each prompt once. Then, in turn: its own prefix cache is emptied and the prompts come back from the
Manager's RAM; the Manager is killed and started again without its RAM, the engine's cache is emptied again, and they
come back from its SSD.
"""

from __future__ import annotations

import statistics
import tempfile
from pathlib import Path
from typing import Any

from harness.manager import Manager
from harness.processes import ProcessError, wait_until
from harness.prompts import cut_prompts
from harness.vllm_server import VllmServer, connector_config

PROMPT_TOKENS = 4000
BLOCK_TOKENS = 32
PROMPTS = 3
ROUNDS = 3
ENGINE_PROCESSES = 2  # scheduler and worker


def measure(model: Path, scratch: Path) -> dict[str, list[float]]:
    """Milliseconds to the first token, by where the prompt came from."""
    socket = scratch / "run" / "manager.sock"
    manager = Manager(
        socket, "1GiB", scratch / "manager.log", ["--ssd-path", str(scratch / "store"), "--ssd-bytes", "2GiB"]
    ).start()
    server = VllmServer(model, scratch / "vllm.log", connector_config(socket))
    times: dict[str, list[float]] = {"cold": [], "ram": [], "ssd": []}
    try:
        server.wait_ready()
        server.chat("Say hello.", max_tokens=4)
        prompts = cut_prompts(server, (PROMPT_TOKENS,) * PROMPTS)
        texts = []
        blocks = 0
        for prompt in prompts:
            reply, restored = server.chat_restored(prompt)
            if restored:
                raise ProcessError(f"{restored} tokens of a prompt that nobody had computed were restored")
            times["cold"].append(reply.ttft_ms)
            texts.append(reply.text)
            blocks += reply.prompt_tokens // BLOCK_TOKENS
        if not wait_until(lambda: manager.sample("orbitkv_ssd_records") >= blocks, 60.0):
            raise ProcessError("the prompts were not saved")

        def restore(source: str) -> None:
            server.reset_prefix_cache()
            loads = manager.sample("orbitkv_loads_ok_total")
            for prompt, text in zip(prompts, texts, strict=True):
                reply, restored = server.chat_restored(prompt)
                if reply.text != text:
                    raise ProcessError(f"another text after a restore from {source}")
                # An engine on a busy machine does not wait for an answer that is late.
                if restored >= reply.prompt_tokens - 2 * BLOCK_TOKENS:
                    times[source].append(reply.ttft_ms)
            loaded = manager.sample("orbitkv_loads_ok_total") - loads
            if source == "ram" and loaded > 0:
                raise ProcessError(f"{loaded:.0f} blocks were read from the SSD for restores from RAM")

        for _ in range(ROUNDS):
            restore("ram")
            manager.kill()
            manager.start()
            manager.wait_serving(ENGINE_PROCESSES)
            restore("ssd")
    finally:
        server.terminate()
        manager.close()
    for source, samples in times.items():
        if 2 * len(samples) < PROMPTS:
            raise ProcessError(f"the prompts were not restored from {source}")
    return times


def rows(model: Path) -> list[dict[str, Any]]:
    """Rows for out/bench.json."""
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as scratch:
        times = measure(model, Path(scratch))
    medians = {source: statistics.median(samples) for source, samples in times.items()}

    def row(source: str, baseline: str, name: str) -> dict[str, Any]:
        base = medians[baseline] if baseline else None
        return {
            "name": f"engine.ttft_ms.{source}.4k",
            "value": round(medians[source], 1),
            "unit": "ms",
            "baseline": name,
            "baseline_value": None if base is None else round(base, 1),
            "ratio": None if base is None else round(medians[source] / base, 4),
            "samples": len(times[source]),
        }

    return [row("cold", "", ""), row("ram", "cold", "computed"), row("ssd", "ram", "from RAM")]
