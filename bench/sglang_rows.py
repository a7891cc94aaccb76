"""What the linker costs an SGLang that finds nothing, and what a restored prompt takes beside one in its own cache.

Run by bench/run.py in the environment of tools/sglang_rig.py; prints rows as JSON.

Cost: an engine with a model so small that the scheduler's work dominates. The linker is taken out of its scheduler and
put back between two batches; see cost_rows.py.

Hits: one server whose own cache is too small for all prompts. A prompt that comes round again is restored, as the
others have taken its place, and is in the engine's own cache when it is asked right after.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]

from cost_rows import ROUNDS, compare, row  # noqa: E402

from harness.children import Child  # noqa: E402
from harness.manager import Manager  # noqa: E402
from harness.processes import ProcessError, wait_until  # noqa: E402
from harness.prompts import cut_prompts  # noqa: E402
from harness.sglang_server import PAGE_TOKENS, SglangServer, linker_arguments, linker_settings  # noqa: E402

CONCURRENCIES = (1, 8)
CALL_LIMIT_S = 300.0
SMALL_ENGINE = {
    "skip_tokenizer_init": True,
    "device": "cpu",
    "dtype": "float32",
    "attention_backend": "torch_native",
    "disable_cuda_graph": True,
    "page_size": PAGE_TOKENS,
    "max_total_tokens": 8192,
    "max_running_requests": max(CONCURRENCIES),
    "context_length": 1024,
    "mem_fraction_static": 0.1,
    "random_seed": 1,
    "skip_server_warmup": True,
    # An idle scheduler would look for requests without a pause.
    "sleep_on_idle": True,
    "log_level": "warning",
}
LENGTHS = (1000, 2000, 4000)
CACHE_TOKENS = 4608  # the longest prompt with its answer, and no other one beside it
HIT_ROUNDS = 7


def costs(model: Path, scratch: Path, rounds: int) -> list[dict[str, Any]]:
    manager = Manager(scratch / "run" / "manager.sock", "256MiB", scratch / "manager.log").start()
    path = os.pathsep.join(filter(None, (os.environ.get("PYTHONPATH"), str(HERE.parent / "tools"))))
    # SGLang leaves the sockets between its processes where temporary files are.
    environment = {"PYTHONPATH": path, "OMP_NUM_THREADS": "1", "TMPDIR": str(scratch)}
    log = scratch / "sglang.log"
    try:
        with Child(Path(sys.executable), HERE / "sglang_child.py", environment, log, CALL_LIMIT_S) as engine:
            engine.set_up({"model_path": str(model)} | SMALL_ENGINE | linker_settings(manager.socket))
            manager.wait_serving(1)
            return compare("sglang.cost", engine, manager, PAGE_TOKENS, CONCURRENCIES, rounds)
    finally:
        manager.close()


def hits(model: Path, scratch: Path, rounds: int) -> list[dict[str, Any]]:
    manager = Manager(scratch / "run" / "manager.sock", "1GiB", scratch / "manager.log").start()
    server = SglangServer(
        model,
        scratch / "sglang.log",
        linker_arguments(manager.socket),
        context_tokens=CACHE_TOKENS,
        cache_tokens=CACHE_TOKENS,
    )
    own: list[list[float]] = [[] for _ in LENGTHS]
    restored: list[list[float]] = [[] for _ in LENGTHS]
    try:
        server.wait_ready(300)
        manager.wait_serving(1)
        prompts = cut_prompts(server, LENGTHS)
        cold = [server.chat(text) for text in prompts]
        blocks = sum((reply.prompt_tokens - 1) // PAGE_TOKENS for reply in cold)
        if not wait_until(lambda: manager.sample("orbitkv_blocks_resident") >= blocks, 60.0):
            raise ProcessError("the prompts were not saved")
        for _ in range(rounds):
            for index, text in enumerate(prompts):
                reply, tokens = server.chat_restored(text)
                again, from_elsewhere = server.chat_restored(text)
                if {reply.text, again.text} != {cold[index].text}:
                    raise ProcessError("another text after a restore")
                # An engine on a busy machine does not wait for an answer that is late.
                if tokens >= reply.prompt_tokens - 2 * PAGE_TOKENS:
                    restored[index].append(reply.ttft_ms)
                if not from_elsewhere:
                    own[index].append(again.ttft_ms)
    finally:
        server.terminate()
        manager.close()
    rows: list[dict[str, Any]] = []
    for index, length in enumerate(LENGTHS):
        if not restored[index] or not own[index]:
            raise ProcessError(f"the prompt of {length} tokens was not restored")
        own_ms, restored_ms = statistics.median(own[index]), statistics.median(restored[index])
        name, samples = f"sglang.ttft_ms.hit.{length // 1000}k", len(restored[index])
        rows.append(row(name, restored_ms, "ms", "its own cache", own_ms, samples))
    return rows


def main() -> None:
    model, small_model = (Path(argument) for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        rows = costs(small_model, Path(folder), int(sys.argv[3]) if len(sys.argv) > 3 else ROUNDS)
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        rows += hits(model, Path(folder), HIT_ROUNDS)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
