"""A demo of any engine from its command line to its exit status: killed engines, killed Managers, what came back."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from .chat_server import Reply
from .demo_report import Run, finish
from .demo_stage import Stage, manager_restart, median, say, survivals
from .prompts import cut_prompts

WARM_BEFORE = 3  # warm requests of each prompt before the engine is killed

Demo = TypeVar("Demo", bound=Stage)


def engine_restart(demo: Stage) -> tuple[list[str], list[Reply], list[list[Reply]]]:
    """The prompts with their cold and their warm answers. The engine that gave them is killed, and another one runs."""
    manager = demo.start_manager()
    say(f"manager ready with {demo.pool}; starting the engine (about 30 s)")
    server = demo.start_engine()
    manager.wait_serving(demo.processes)
    prompts = cut_prompts(server, demo.lengths)
    cold, warm = [], []
    for length, prompt in zip(demo.lengths, prompts, strict=True):
        cold.append(server.chat(prompt))
        replies = [server.chat(prompt) for _ in range(WARM_BEFORE)]
        warm.append(replies)
        say(f"{length:5d} tokens: cold {cold[-1].ttft_ms:7.1f} ms, warm {median(replies):6.1f} ms")
    expected = sum(reply.prompt_tokens // demo.block_tokens for reply in cold)
    say(f"{demo.wait_stored(expected)} blocks stored; killing the engine with SIGKILL and starting it again")
    server.kill()
    demo.start_engine()
    manager.wait_serving(2 * demo.processes)
    return prompts, cold, warm


def run(
    kind: type[Demo],
    compare: Callable[[Demo, list[str], list[Reply], list[list[Reply]]], list[Run]],
    description: str,
    repeats: int,
) -> int:
    """The exit status.

    Args:
        kind: the demo's stage.
        compare: what the engine that was started again answers to the prompts, beside the answers of before.
        description: of the program.
        repeats: samples of each time, unless the command line has another number.
    """
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--out", type=Path, default=Path("out"), help=f"where {kind.name}.json and the logs go")
    parser.add_argument("--pool-bytes", default="3GiB")
    parser.add_argument("--repeats", type=int, default=repeats, help="samples of each warm and each restored time")
    parser.add_argument("--stores", choices=("auto", "ordinary", "nontemporal"), default="auto")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    demo = kind(options.model, options.pool_bytes, options.repeats, options.stores)
    try:
        prompts, cold, warm = engine_restart(demo)
        runs = compare(demo, prompts, cold, warm)
        restart = manager_restart(demo, prompts, cold)
        survived = survivals(demo, prompts, cold, restart["republished_tokens"])
    finally:
        left = demo.close(options.out)
    return finish(options.out / f"{kind.name}.json", runs, restart, survived, left)
