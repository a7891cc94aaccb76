"""The main job on a real model with SGLang: it is killed, starts again and gets its prompts back from OrbitKV.

Run by `./dev demo-sglang`, in the environment of tools/sglang_rig.py. Writes out/demo-sglang.json and prints a table;
exit status 1 when a text differs or nothing was restored.

SGLang's flush makes OrbitKV forget as well what this engine has stored, so nothing is flushed here: the engine's own
cache is too small for all prompts, and when one comes round again, the others have taken its place.
"""

from __future__ import annotations

import sys

from harness.chat_server import Reply
from harness.demo_course import run
from harness.demo_report import Run, describe
from harness.demo_stage import Stage, copy_gbps, say
from harness.sglang_server import PAGE_TOKENS, SglangServer, linker_arguments

CACHE_TOKENS = 4608  # the longest prompt with its answer, and no other one beside it
# SGLang has no answer that says "ask again": a look-up waits so long for what is on disk only.
LOAD_WAIT_MS = 2000


class Demo(Stage):
    name = "demo-sglang"
    lengths = (1000, 2000, 4000)
    block_tokens = PAGE_TOKENS
    processes = 1
    server: SglangServer | None

    def make_server(self) -> SglangServer:
        arguments = linker_arguments(self.socket, stores=self.stores, load_wait_ms=LOAD_WAIT_MS)
        log = self.scratch / "sglang.log"
        self.server = SglangServer(self.model, log, arguments, context_tokens=CACHE_TOKENS, cache_tokens=CACHE_TOKENS)
        return self.server

    def forget(self) -> None:
        """The first prompts have been pushed out by the last one, which they push out in turn."""


def compare(demo: Demo, prompts: list[str], cold: list[Reply], warm: list[list[Reply]]) -> list[Run]:
    assert demo.server is not None and demo.manager is not None
    server, manager, speed = demo.server, demo.manager, copy_gbps()
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
    for one in runs:
        say(
            f"{one.prompt_tokens:5d} tokens: restored {one.restored_tokens} tokens in {one.restored_ttft_ms:.1f} ms, "
            f"warm {one.warm_ttft_ms:.1f} ms (medians of {demo.repeats} in turn)"
        )
    return runs


if __name__ == "__main__":
    sys.exit(run(Demo, compare, __doc__, repeats=5))
