"""One vLLM engine in a process of its own that measures itself, with whichever connector it is given.

Takes a JSON line with the engine's settings, then a JSON line for each command, and answers each by one. The engine
runs in this process: what a request takes is the time of the engine's own steps, without a server around it.
"""

from __future__ import annotations

import random
import time
from typing import Any

from harness.json_lines import JsonLines

VOCABULARY = range(3, 512)
SETTLE_LIMIT_S = 15.0


def prompt(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(VOCABULARY, k=tokens)


def pass_over_foreign_globals() -> None:
    """Lets vLLM look for its kernels in all modules: it assumes that vars() gives a dict, and llvmlite has others."""
    from vllm.triton_utils import dispatcher

    def safe_vars(value: Any) -> dict[str, Any]:
        found = vars(value)
        return found if isinstance(found, dict) else {}

    dispatcher.vars = safe_vars


class Child:
    def __init__(self, settings: dict[str, Any]) -> None:
        pass_over_foreign_globals()
        from vllm import LLM

        self._llm = LLM(**settings)
        self._next = 0

    @property
    def _core(self) -> Any:
        return self._llm.llm_engine.engine_core.engine_core

    def _add(self, tokens: list[int], answer_tokens: int) -> str:
        from vllm import SamplingParams

        self._next += 1
        name = f"r{self._next}"
        sampling = SamplingParams(temperature=0, max_tokens=answer_tokens, detokenize=False, ignore_eos=True)
        self._llm.llm_engine.add_request(name, {"prompt_token_ids": tokens}, sampling)
        return name

    def _run(self, tokens: list[int], answer_tokens: int) -> dict[str, Any]:
        engine = self._llm.llm_engine
        begin = time.perf_counter()
        self._add(tokens, answer_tokens)
        first = 0.0
        last: Any = None
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs and output.outputs[0].token_ids:
                    first = first or time.perf_counter() - begin
                    last = output
        total = time.perf_counter() - begin
        return {
            "first_ms": 1e3 * first,
            "total_ms": 1e3 * total,
            "cached": last.num_cached_tokens or 0,
            "tokens": list(last.outputs[0].token_ids),
        }

    def serve(self, seeds: list[int], tokens: int, answer_tokens: int) -> list[dict[str, Any]]:
        """Prompts one after the other, each alone in the engine."""
        return [self._run(prompt(seed, tokens), answer_tokens) for seed in seeds]

    def settle(self, seconds: float) -> bool:
        """Steps until nothing is owed, and on for so long: saves in the background end before what follows."""
        begin = time.monotonic()
        while self._core.scheduler.has_requests() and time.monotonic() - begin < SETTLE_LIMIT_S:
            self._core.step_fn()
        done = not self._core.scheduler.has_requests()
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            time.sleep(0.02)
            if self._core.scheduler.has_requests():
                self._core.step_fn()
        return done

    def reset(self) -> bool:
        """Empties the engine's own prefix cache; the connector's stays."""
        return bool(self._llm.reset_prefix_cache())

    def converse(
        self, conversations: int, turns: int, first_tokens: int, more_tokens: int, answer_tokens: int, at_once: int
    ) -> dict[str, Any]:
        """Every conversation has a turn, then each the next one, `at_once` of them at a time.

        Seconds of each round of turns, its tokens, and the answers.
        """
        histories = [prompt(5000 + number, first_tokens) for number in range(conversations)]
        rounds = []
        for turn in range(turns):
            if turn > 0:
                for number, history in enumerate(histories):
                    history += prompt(6000 + 100 * turn + number, more_tokens)
            prompt_tokens = sum(map(len, histories))
            tokens = prompt_tokens + conversations * answer_tokens
            begin = time.perf_counter()
            answers, cached = self._round(histories, answer_tokens, at_once)
            rounds.append(
                {"seconds": time.perf_counter() - begin, "tokens": tokens, "prompt": prompt_tokens, "cached": cached}
            )
            for history, answer in zip(histories, answers, strict=True):
                history += answer
        return {"rounds": rounds, "answers": [history[first_tokens:] for history in histories]}

    def _round(self, histories: list[list[int]], answer_tokens: int, at_once: int) -> tuple[list[list[int]], int]:
        engine = self._llm.llm_engine
        waiting = list(enumerate(histories))
        running: dict[str, int] = {}
        answers: list[list[int]] = [[] for _ in histories]
        cached = 0
        while waiting or running:
            while waiting and len(running) < at_once:
                number, history = waiting.pop(0)
                running[self._add(list(history), answer_tokens)] = number
            for output in engine.step():
                if output.finished:
                    answers[running.pop(output.request_id)] = list(output.outputs[0].token_ids)
                    cached += output.num_cached_tokens or 0
        return answers, cached


def main() -> None:
    lines = JsonLines()
    child = Child(lines.setup)
    lines.serve({"serve": child.serve, "settle": child.settle, "reset": child.reset, "converse": child.converse})


if __name__ == "__main__":
    main()
