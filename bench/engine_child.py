"""One vLLM engine in a process of its own that measures itself; for bench/engine_cost.py.

Takes a JSON line with the engine's settings, then a JSON line for each measurement, and answers each by one.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from harness import answers
from harness.json_lines import JsonLines

BLOCK_TOKENS = 32


class Child:
    def __init__(self, settings: dict[str, Any]) -> None:
        from vllm import LLM

        self._llm = LLM(
            skip_tokenizer_init=True,
            dtype="float32",
            enforce_eager=True,
            block_size=BLOCK_TOKENS,
            generation_config="vllm",
            seed=0,
            **settings,
        )
        self._next = 0

    def _add(self, tokens: int, seed: int, answer_tokens: int) -> str:
        from vllm import SamplingParams

        self._next += 1
        name = f"r{self._next}"
        self._llm.llm_engine.add_request(
            name,
            {"prompt_token_ids": answers.tokens(tokens, seed)},
            SamplingParams(temperature=0, max_tokens=answer_tokens, detokenize=False, ignore_eos=True),
        )
        return name

    def batch(self, concurrency: int, tokens: int, answer_tokens: int, seed: int) -> dict[str, float]:
        """So many requests at once: time until all have ended, and the median of their times to the first token."""
        engine = self._llm.llm_engine
        begin = time.perf_counter()
        for number in range(concurrency):
            self._add(tokens, seed + number, answer_tokens)
        first: dict[str, float] = {}
        while engine.has_unfinished_requests():
            for output in engine.step():
                if output.outputs and output.outputs[0].token_ids:
                    first.setdefault(output.request_id, time.perf_counter() - begin)
        total = time.perf_counter() - begin
        self._settle()
        return {"total_ms": 1e3 * total, "ttft_ms": 1e3 * statistics.median(first.values())}

    def _settle(self) -> None:
        """Steps until nothing is owed, so that a measurement does not pay for the one before."""
        core = self._llm.llm_engine.engine_core.engine_core
        end = time.monotonic() + 10
        while core.scheduler.has_requests() and time.monotonic() < end:
            core.step_fn()

    def steps(self, running: int, count: int, seed: int) -> dict[str, float]:
        """Median time in the connector's hooks, of each side, of steps in which so many requests decode.

        Their lengths differ: in each step as many fill a block as on average.
        """
        import timed_connector

        engine = self._llm.llm_engine
        core = engine.engine_core.engine_core
        for number in range(running):
            self._add(33 + number % BLOCK_TOKENS, seed + number, count + 64)
        while len(core.scheduler.running) < running or any(r.num_output_tokens == 0 for r in core.scheduler.running):
            engine.step()
        times: dict[str, list[float]] = {"scheduler": [], "worker": []}
        for _ in range(count):
            before = (timed_connector.scheduler_ns, timed_connector.spent_ns)
            engine.step()
            scheduler_ns = timed_connector.scheduler_ns - before[0]
            times["scheduler"].append(scheduler_ns / 1e3)
            times["worker"].append((timed_connector.spent_ns - before[1] - scheduler_ns) / 1e3)
        while engine.has_unfinished_requests():
            engine.step()
        self._settle()
        result = {}
        for side, taken in times.items():
            result[f"{side}_us"] = statistics.median(taken)
            result[f"{side}_p99_us"] = sorted(taken)[int(0.99 * len(taken))]
        return result


def main() -> None:
    lines = JsonLines()
    child = Child(lines.setup)
    lines.serve({"batch": child.batch, "steps": child.steps})


if __name__ == "__main__":
    main()
