"""The main job on a real model with SGLang: it is killed, starts again and gets its prompts back from OrbitKV.

Run by `./dev demo-sglang`, in the environment of tools/sglang_rig.py. Writes out/demo-sglang.json and prints a table;
exit status 1 when a text differs or nothing was restored.

SGLang's flush makes OrbitKV forget as well what this engine has stored, so nothing is flushed here: the engine's own
cache is too small for all prompts, and when one comes round again, the others have taken its place.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from harness.chat_server import Reply
from harness.demo_report import Run, describe, finish
from harness.demo_stage import Stage, copy_gbps, manager_restart, median, say, survivals
from harness.prompts import cut_prompts
from harness.sglang_server import PAGE_TOKENS, SglangServer, linker_arguments

LENGTHS = (1000, 2000, 4000)
CACHE_TOKENS = 4608  # the longest prompt with its answer, and no other one beside it
# SGLang has no answer that says "ask again": a look-up waits so long for what is on disk only.
LOAD_WAIT_MS = 2000
WARM_BEFORE = 3  # warm requests of each prompt before the engine is killed


class Demo(Stage):
    block_tokens = PAGE_TOKENS
    processes = 1
    server: SglangServer | None

    def __init__(self, model: Path, pool: str, repeats: int, stores: str) -> None:
        super().__init__(pool)
        self.model = model
        self.stores = stores
        self.repeats = repeats

    def start_engine(self) -> SglangServer:
        start = time.monotonic()
        arguments = linker_arguments(self.socket, stores=self.stores, load_wait_ms=LOAD_WAIT_MS)
        log = self.scratch / "sglang.log"
        self.server = SglangServer(self.model, log, arguments, context_tokens=CACHE_TOKENS, cache_tokens=CACHE_TOKENS)
        self.server.wait_ready(300)
        # The first request of an engine pays for warm-up that has nothing to do with the cache.
        self.server.chat("Say hello.", max_tokens=4)
        say(f"engine ready after {time.monotonic() - start:.0f} s")
        return self.server

    def forget(self) -> None:
        """The first prompts have been pushed out by the last one, which they push out in turn."""


def engine_restart(demo: Demo) -> tuple[list[Run], list[str], list[Reply]]:
    """Cold, warm, engine killed, restored."""
    manager = demo.start_manager()
    say(f"manager ready with {demo.pool}; starting SGLang (about 30 s)")
    server = demo.start_engine()
    manager.wait_serving(demo.processes)
    prompts = cut_prompts(server, LENGTHS)
    cold, warm = [], []
    for length, prompt in zip(LENGTHS, prompts, strict=True):
        cold.append(server.chat(prompt))
        replies = [server.chat(prompt) for _ in range(WARM_BEFORE)]
        warm.append(replies)
        say(f"{length:5d} tokens: cold {cold[-1].ttft_ms:7.1f} ms, warm {median(replies):6.1f} ms")
    expected = sum(reply.prompt_tokens // demo.block_tokens for reply in cold)
    say(f"{demo.wait_stored(expected)} blocks stored; killing the engine with SIGKILL and starting it again")
    server.kill()
    server = demo.start_engine()
    manager.wait_serving(2 * demo.processes)
    speed = copy_gbps()
    restored: list[list[Reply]] = [[] for _ in prompts]
    again: list[list[Reply]] = [[] for _ in prompts]
    counts: list[tuple[int, int]] = []
    for number in range(1 + demo.repeats):
        for index, prompt in enumerate(prompts):
            before = manager.sample("orbitkv_restored_bytes_total")
            reply, tokens = server.chat_restored(prompt)
            if number == 0:
                counts.append((tokens, int(manager.sample("orbitkv_restored_bytes_total") - before)))
            restored[index].append(reply)
            # In turn, so that whatever slows the machine down meets both.
            if number > 0:
                again[index].append(server.chat(prompt))
    runs = [
        describe(cold[index], warm[index], again[index], restored[index], *counts[index], speed)
        for index in range(len(prompts))
    ]
    for run in runs:
        say(
            f"{run.prompt_tokens:5d} tokens: restored {run.restored_tokens} tokens in {run.restored_ttft_ms:.1f} ms, "
            f"warm {run.warm_ttft_ms:.1f} ms (medians of {demo.repeats} in turn)"
        )
    return runs, prompts, cold


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where demo-sglang.json and the logs go")
    parser.add_argument("--pool-bytes", default="3GiB")
    parser.add_argument("--repeats", type=int, default=5, help="samples of each warm and each restored time")
    parser.add_argument("--stores", choices=("auto", "ordinary", "nontemporal"), default="auto")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    demo = Demo(options.model, options.pool_bytes, options.repeats, options.stores)
    try:
        runs, prompts, reference = engine_restart(demo)
        restart = manager_restart(demo, prompts, reference)
        survived = survivals(demo, prompts, reference, restart["republished_tokens"])
    finally:
        left = demo.close(options.out, "demo-sglang")
    return finish(options.out / "demo-sglang.json", runs, restart, survived, left)


if __name__ == "__main__":
    sys.exit(main())
