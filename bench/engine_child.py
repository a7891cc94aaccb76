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
SETTLE_LIMIT_S = 10


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
        self._core = self._llm.llm_engine.engine_core.engine_core
        self._switch: Any = None
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

    def _put(self, state: str) -> None:
        """The engine in this state, with nothing in its prefix cache. What a connector has stored stays."""
        from connector_switch import Switch

        if self._switch is None:
            self._switch = Switch(self._core.scheduler)
        self._switch.put(state)
        if not self._llm.llm_engine.reset_prefix_cache():
            raise RuntimeError("the prefix cache could not be emptied")

    def batch(self, state: str, concurrency: int, tokens: int, answer_tokens: int, seed: int) -> dict[str, float]:
        """So many requests at once in a state of cost_rows.py, which says what is measured."""
        engine = self._llm.llm_engine
        self._put(state)
        spent = time.process_time()
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
        spent = time.process_time() - spent
        return {"total_ms": 1e3 * total, "ttft_ms": 1e3 * statistics.median(first.values()), "cpu_ms": 1e3 * spent}

    def _settle(self) -> None:
        """Steps until nothing is owed, so that a measurement does not pay for the one before."""
        end = time.monotonic() + SETTLE_LIMIT_S
        while self._core.scheduler.has_requests():
            if time.monotonic() > end:
                raise TimeoutError("the engine did not settle")
            _, computed = self._core.step_fn()
            if not computed:
                time.sleep(0.001)  # as vLLM's own loop does

    def steps(self, running: int, count: int, seed: int) -> dict[str, float]:
        """Median time in the connector's hooks, of each side, of steps in which so many requests decode.

        Their lengths differ: in each step as many fill a block as on average.
        """
        import timed_connector

        engine = self._llm.llm_engine
        scheduler = self._core.scheduler
        for number in range(running):
            self._add(33 + number % BLOCK_TOKENS, seed + number, count + 64)
        while len(scheduler.running) < running or any(r.num_output_tokens == 0 for r in scheduler.running):
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
