"""What the linker costs an SGLang that finds nothing, and what a restored prompt takes beside one in its own cache.

Run by bench/run.py in the environment of tools/sglang_rig.py; prints rows as JSON.

Cost: three servers with a model so small that the scheduler's work dominates, two without a linker (off, off again) and
one with it. Every pair of measurements gives the same fresh prompts to each, one after the other in an order that
rotates. The difference of the two without a linker is the noise.

Hits: one server whose own cache is too small for all prompts. A prompt that comes round again is restored, as the
others have taken its place, and is in the engine's own cache when it is asked right after.
"""

from __future__ import annotations

import json
import statistics
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tools")]

from engine_cost import LIMIT_MS, LIMIT_SHARE, interval_of_more, more  # noqa: E402

from harness import answers  # noqa: E402
from harness.demo_stage import copy_gbps  # noqa: E402
from harness.manager import Manager  # noqa: E402
from harness.processes import ProcessError, wait_until  # noqa: E402
from harness.prompts import cut_prompts  # noqa: E402
from harness.sglang_server import PAGE_TOKENS, SglangServer, linker_arguments  # noqa: E402

CONCURRENCIES = (1, 8)
PROMPT_TOKENS = 200
ANSWER_TOKENS = 24
PAIRS = 30
WARM_UP = 3
LENGTHS = (1000, 2000, 4000)
CACHE_TOKENS = 4608  # the longest prompt with its answer, and no other one beside it
ROUNDS = 7


def first_token_ms(server: SglangServer, tokens: list[int], begin: float) -> float:
    """One request, which is read to its end; when its first token came."""
    sampling = {"temperature": 0, "max_new_tokens": ANSWER_TOKENS, "ignore_eos": True}
    body = {"input_ids": tokens, "sampling_params": sampling, "stream": True}
    first = 0.0
    for _ in server.stream("/generate", body):
        first = first or time.perf_counter() - begin
    return 1e3 * first


def batch(server: SglangServer, seeds: list[int], threads: ThreadPoolExecutor) -> dict[str, float]:
    """So many requests at once: time until all have ended, and the median of their times to the first token."""
    prompts = [answers.tokens(PROMPT_TOKENS, seed) for seed in seeds]
    begin = time.perf_counter()
    first = list(threads.map(lambda tokens: first_token_ms(server, tokens, begin), prompts))
    return {"total_ms": 1e3 * (time.perf_counter() - begin), "ttft_ms": statistics.median(first)}


def cost_rows(concurrency: int, taken: dict[str, list[dict[str, float]]]) -> list[dict[str, Any]]:
    """Upper ends of the median difference in ms, beside what is allowed. `noise`: of off against off."""
    rows = []
    for what in ("total_ms", "ttft_ms"):
        off, again, on = ([entry[what] for entry in taken[name]] for name in ("off", "again", "on"))
        base = statistics.median(off)
        interval = interval_of_more(off, on)
        limit = max(LIMIT_MS, LIMIT_SHARE * base)
        about = f"the most allowed, of {base:.1f} ms"
        rows.append(
            row(f"sglang.cost.{what}.c{concurrency}", interval[1], "ms", about, limit, len(on))
            | {
                "median": round(statistics.median(more(off, on)), 3),
                "interval": interval,
                "noise": interval_of_more(off, again),
            }
        )
    return rows


def cost(model: Path, scratch: Path, pairs: int) -> list[dict[str, Any]]:
    manager = Manager(scratch / "run" / "manager.sock", "256MiB", scratch / "manager.log").start()
    servers: dict[str, SglangServer] = {}
    try:
        for name in ("off", "again", "on"):
            linker = linker_arguments(manager.socket) if name == "on" else []
            # An idle scheduler would look for requests without a pause, on a processor that another engine needs.
            arguments = ["--skip-tokenizer-init", "--sleep-on-idle", *linker]
            servers[name] = SglangServer(model, scratch / f"{name}.log", arguments, requests=max(CONCURRENCIES))
            servers[name].wait_ready(300)
        manager.wait_serving(1)
        names = list(servers)
        result: list[dict[str, Any]] = []
        seed = 1
        with ThreadPoolExecutor(max(CONCURRENCIES)) as threads:
            for concurrency in CONCURRENCIES:
                taken: dict[str, list[dict[str, float]]] = {name: [] for name in names}
                for number in range(-WARM_UP, pairs):
                    shift = number % len(names)
                    for name in names[shift:] + names[:shift]:
                        measured = batch(servers[name], list(range(seed, seed + concurrency)), threads)
                        if number >= 0:
                            taken[name].append(measured)
                    seed += concurrency
                result += cost_rows(concurrency, taken)
        if manager.sample("orbitkv_blocks_resident") == 0:
            raise ProcessError("the engine with the linker stored nothing; the comparison is void")
        return result
    finally:
        for server in servers.values():
            server.terminate()
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
    sizes = [0] * len(LENGTHS)
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
                before = manager.sample("orbitkv_restored_bytes_total")
                reply, tokens = server.chat_restored(text)
                again, from_elsewhere = server.chat_restored(text)
                if {reply.text, again.text} != {cold[index].text}:
                    raise ProcessError("another text after a restore")
                # An engine on a busy machine does not wait for an answer that is late.
                if tokens >= reply.prompt_tokens - 2 * PAGE_TOKENS:
                    restored[index].append(reply.ttft_ms)
                    sizes[index] = int(manager.sample("orbitkv_restored_bytes_total") - before)
                if not from_elsewhere:
                    own[index].append(again.ttft_ms)
        limit = copy_gbps()
    finally:
        server.terminate()
        manager.close()
    rows: list[dict[str, Any]] = []
    for index, length in enumerate(LENGTHS):
        if not restored[index] or not own[index]:
            raise ProcessError(f"the prompt of {length} tokens was not restored")
        base, value = statistics.median(own[index]), statistics.median(restored[index])
        rows.append(
            row(f"sglang.ttft_ms.hit.{length // 1000}k", value, "ms", "its own cache", base, len(restored[index]))
        )
    # What the longest one takes longer than from its own cache is the look-up, the copy and the check of its bytes.
    gbps = sizes[-1] / (1e6 * max(value - base, 1e-3))
    return [*rows, row("sglang.restore_gbps.4k", gbps, "GB/s", "a plain copy", limit, len(restored[-1]))]


def row(name: str, value: float, unit: str, baseline: str, base: float, samples: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 2),
        "unit": unit,
        "baseline": baseline,
        "baseline_value": round(base, 2),
        "ratio": round(value / base, 4),
        "samples": samples,
    }


def main() -> None:
    model, small_model = (Path(argument) for argument in sys.argv[1:3])
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        rows = cost(small_model, Path(folder), PAIRS)
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        rows += hits(model, Path(folder), ROUNDS)
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
