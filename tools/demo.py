"""The main job on a real model: an engine is killed, starts again and gets its prompts back from OrbitKV.

Run by `./dev demo`. Writes out/demo.json and prints a table; exit status 1 when a text differs or nothing was restored.
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
from harness.vllm_server import VllmServer, connector_config

LENGTHS = (1000, 2000, 4000, 7000)
WARM_BEFORE = 3  # warm requests of each prompt before the engine is killed


class Demo(Stage):
    block_tokens = 32
    processes = 2  # the scheduler, which asks, and the worker, which copies
    server: VllmServer | None

    def __init__(self, model: Path, pool: str, repeats: int, stores: str) -> None:
        super().__init__(pool)
        self.model = model
        self.stores = stores
        self.repeats = repeats

    def start_engine(self) -> VllmServer:
        start = time.monotonic()
        connector = connector_config(self.socket, **{"orbitkv.stores": self.stores})
        self.server = VllmServer(self.model, self.scratch / "vllm.log", connector)
        self.server.wait_ready()
        # The first request of an engine pays for warm-up that has nothing to do with the cache.
        self.server.chat("Say hello.", max_tokens=4)
        say(f"engine ready after {time.monotonic() - start:.0f} s")
        return self.server

    def forget(self) -> None:
        assert self.server is not None
        self.server.reset_prefix_cache()


def engine_restart(demo: Demo) -> tuple[list[Run], list[str], list[Reply]]:
    """Cold, warm, engine killed, restored."""
    manager = demo.start_manager()
    say(f"manager ready with {demo.pool}; starting vllm serve (about 30 s)")
    server = demo.start_engine()
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
    speed = copy_gbps()
    runs = []
    for prompt, first, again in zip(prompts, cold, warm, strict=True):
        bytes_before = manager.sample("orbitkv_restored_bytes_total")
        first_restored, tokens = server.chat_restored(prompt)
        restored_bytes = int(manager.sample("orbitkv_restored_bytes_total") - bytes_before)
        # In turn, so that whatever slows the machine down meets both.
        replies, warm_again = [], []
        for _ in range(demo.repeats):
            demo.forget()
            replies.append(server.chat_restored(prompt)[0])
            warm_again.append(server.chat(prompt))
        restored = [first_restored, *replies]
        runs.append(describe(first, again, warm_again, restored, tokens, restored_bytes, speed))
        say(
            f"{first.prompt_tokens:5d} tokens: restored {tokens} tokens in {median(replies):.1f} ms, "
            f"warm {median(warm_again):.1f} ms (medians of {demo.repeats} in turn)"
        )
    return runs, prompts, cold


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where demo.json and the logs go")
    parser.add_argument("--pool-bytes", default="3GiB")
    parser.add_argument("--repeats", type=int, default=7, help="samples of each warm and each restored time")
    parser.add_argument("--stores", choices=("auto", "ordinary", "nontemporal"), default="auto")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    demo = Demo(options.model, options.pool_bytes, options.repeats, options.stores)
    try:
        runs, prompts, reference = engine_restart(demo)
        restart = manager_restart(demo, prompts, reference)
        survived = survivals(demo, prompts, reference, restart["republished_tokens"])
    finally:
        left = demo.close(options.out, "demo")
    return finish(options.out / "demo.json", runs, restart, survived, left)


if __name__ == "__main__":
    sys.exit(main())
