"""One SGLang engine that measures itself; for bench/sglang_rows.py.

Takes a JSON line with the engine's settings, then a JSON line for each measurement, and answers each by one. The
scheduler is a process of its own, as it is in a server; nothing stands between it and this one but SGLang's own queues.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from harness import answers
from harness.json_lines import JsonLines

IDLE_LIMIT_S = 10
LOOK_S = 0.002


class Child:
    def __init__(self, settings: dict[str, Any], folder: Path) -> None:
        from sglang.srt.entrypoints.engine import Engine

        self._engine = Engine(**settings)
        self._answer = folder / "answer"

    def close(self) -> None:
        self._engine.shutdown()

    def _ask(self, command: str, **arguments: Any) -> Any:
        """Of the scheduler's switch, which answers when the scheduler has cleared away behind its last answer."""
        end = time.monotonic() + IDLE_LIMIT_S
        asked = {"path": str(self._answer), "command": command, "arguments": arguments}
        while time.monotonic() < end:
            time.sleep(LOOK_S)
            self._engine.collective_rpc("orbitkv_switch", **asked)
            answer = json.loads(self._answer.read_text())
            if answer is not None:
                return answer
        raise TimeoutError("the scheduler did not become idle")

    def batch(self, state: str, concurrency: int, tokens: int, answer_tokens: int, seed: int) -> dict[str, float]:
        """So many requests at once in a state of cost_rows.py, which says what is measured."""
        self._ask("put", state=state)
        prompts = [answers.tokens(tokens, seed + number) for number in range(concurrency)]
        times = self._engine.loop.run_until_complete(self._generate(prompts, answer_tokens))
        return times | {"cpu_ms": 1e3 * self._ask("spent")}

    async def _generate(self, prompts: list[list[int]], answer_tokens: int) -> dict[str, float]:
        sampling = {"temperature": 0, "max_new_tokens": answer_tokens, "ignore_eos": True}
        first: dict[int, float] = {}
        begin = time.perf_counter()
        # All of them reach the scheduler in one message.
        stream = await self._engine.async_generate(input_ids=prompts, sampling_params=sampling, stream=True)
        async for piece in stream:
            first.setdefault(piece["index"], time.perf_counter() - begin)
        total = time.perf_counter() - begin
        return {"total_ms": 1e3 * total, "ttft_ms": 1e3 * statistics.median(first.values())}


def main() -> None:
    lines = JsonLines()
    with tempfile.TemporaryDirectory(prefix="orbitkv-bench-") as folder:
        child = Child(lines.setup, Path(folder))
        lines.serve({"batch": child.batch})
        child.close()


if __name__ == "__main__":
    main()
elif __name__ == "__mp_main__":  # a process of the engine, which begins with this file
    import sglang_switch

    sglang_switch.install()
