"""The main job on a real model: an engine is killed, starts again and gets its prompts back from OrbitKV.

Run by `./dev demo`. Writes out/demo.json and prints a table; exit status 1 when a text differs or nothing was restored.
"""

from __future__ import annotations

import sys

from harness.chat_server import Reply
from harness.demo_course import run
from harness.demo_report import Run, describe
from harness.demo_stage import Stage, copy_gbps, median, say
from harness.vllm_server import VllmServer, connector_config


class Demo(Stage):
    name = "demo"
    lengths = (1000, 2000, 4000, 7000)
    block_tokens = 32
    processes = 2  # the scheduler, which asks, and the worker, which copies
    server: VllmServer | None

    def make_server(self) -> VllmServer:
        self.server = VllmServer(
            self.model, self.scratch / "vllm.log", connector_config(self.socket, **{"orbitkv.stores": self.stores})
        )
        return self.server

    def forget(self) -> None:
        assert self.server is not None
        self.server.reset_prefix_cache()


def compare(demo: Demo, prompts: list[str], cold: list[Reply], warm: list[list[Reply]]) -> list[Run]:
    assert demo.server is not None and demo.manager is not None
    server, manager, speed = demo.server, demo.manager, copy_gbps()
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
    return runs


if __name__ == "__main__":
    sys.exit(run(Demo, compare, __doc__, repeats=7))
