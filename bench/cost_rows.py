"""What a cache costs an engine that finds nothing in it: one engine, from which it is taken out and put back.

A round is four batches of requests with the same prompts, each in another state of the engine: without a cache
(`off`), without one again (`again`), with one that does nothing (`empty`) and with ours (`on`). All four are the same
process, so where it happens to lie in memory, which makes more of a difference than any of this, is the same for them.

The engine's process has a command `batch` for it, with the state, how many requests at once, their tokens and the seed
of the first one's prompt. It answers milliseconds:

* `total_ms` until all of them have ended and `ttft_ms`, the median of their times to the first token: what users wait
  for. A save that is still on its way when the batch has ended is not in it.
* `cpu_ms`, which the engine's process spent until nothing was on its way any more: all of the save is in it.
"""

from __future__ import annotations

import itertools
import random
import statistics
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from harness.children import Child
    from harness.manager import Manager

STATES = ("off", "again", "empty", "on")
ROUNDS = 48  # each order of the states twice
WARM_UP = 3
PROMPT_TOKENS = 200
ANSWER_TOKENS = 24
# The most that a user may wait longer: the larger of these, by the upper end of the median's 95 % interval.
LIMIT_SHARE = 0.01
LIMIT_MS = 1.0
WAITED_FOR = ("total_ms", "ttft_ms")
SPENT = "cpu_ms"
# A save may be dropped on a busy machine; an engine that saves less than so much of what it computes is not measured.
LEAST_SAVED = 0.95
BOOTSTRAP_ROUNDS = 4000

Taken = dict[str, list[dict[str, float]]]


def measure(
    batch: Callable[[str, int, int], dict[str, float]], concurrencies: Sequence[int], rounds: int = ROUNDS
) -> dict[int, Taken]:
    """What each state took, by concurrency; entry n of all of them had the same prompts.

    Every state follows on every other one, so that what one leaves behind, in caches of the processor for example,
    meets all.
    """
    orders = list(itertools.permutations(STATES))
    random.Random(1).shuffle(orders)
    result: dict[int, Taken] = {}
    seed = 1
    for concurrency in concurrencies:
        taken: Taken = {state: [] for state in STATES}
        for number in range(-WARM_UP, rounds):
            for state in orders[number % len(orders)]:
                measured = batch(state, concurrency, seed)
                if number >= 0:
                    taken[state].append(measured)
            seed += concurrency
        result[concurrency] = taken
    return result


def check_saved(stored: float, block_tokens: int, concurrencies: Sequence[int], rounds: int = ROUNDS) -> None:
    """`stored`: how many blocks the Manager got, which must be those of one state of the four."""
    # The last token of an answer is not computed with.
    blocks = (PROMPT_TOKENS + ANSWER_TOKENS - 1) // block_tokens
    every = sum(concurrencies) * (WARM_UP + rounds) * blocks
    if not LEAST_SAVED * every <= stored <= every:
        raise SystemExit(f"cost: {stored:.0f} blocks were stored instead of {every}; the comparison is void")


def bootstrap_interval(differences: Sequence[float]) -> tuple[float, float]:
    """95 % bootstrap interval of the median."""
    generator = random.Random(1)
    medians = sorted(
        statistics.median(generator.choices(differences, k=len(differences))) for _ in range(BOOTSTRAP_ROUNDS)
    )
    return medians[int(0.025 * BOOTSTRAP_ROUNDS)], medians[int(0.975 * BOOTSTRAP_ROUNDS)]


def more(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [b - a for a, b in zip(before, after, strict=True)]


def interval(before: Sequence[float], after: Sequence[float]) -> list[float]:
    return [round(end, 3) for end in bootstrap_interval(more(before, after))]


def row(name: str, value: float, unit: str, baseline: str, base: float, samples: int) -> dict[str, Any]:
    return {
        "name": name,
        "value": round(value, 3),
        "unit": unit,
        "baseline": baseline,
        "baseline_value": round(base, 3),
        "ratio": round(value / base, 4),
        "samples": samples,
    }


def cost_rows(name: str, concurrency: int, taken: Taken) -> list[dict[str, Any]]:
    """What users wait for: the upper end of the median difference beside what is allowed. What is spent: the medians.

    Intervals of differences, in ms: `interval` of on against off, `noise` of off against off, `any` of the empty one
    against off, which is what the engine itself spends on having one, `own` of on against the empty one.
    """
    rows = []
    for what in (*WAITED_FOR, SPENT):
        off, again, empty, on = ([entry[what] for entry in taken[state]] for state in STATES)
        called, base, ends = f"{name}.{what}.c{concurrency}", statistics.median(off), interval(off, on)
        if what == SPENT:
            compared = row(called, statistics.median(on), "ms", "without a cache", base, len(on))
        else:
            limit = max(LIMIT_MS, LIMIT_SHARE * base)
            compared = row(called, ends[1], "ms", f"the most allowed, of {base:.1f} ms", limit, len(on))
        rows.append(
            compared
            | {
                "median": round(statistics.median(more(off, on)), 3),
                "interval": ends,
                "noise": interval(off, again),
                "any": interval(off, empty),
                "own": interval(empty, on),
            }
        )
    return rows


def compare(
    name: str, engine: Child, manager: Manager, block_tokens: int, concurrencies: Sequence[int], rounds: int
) -> list[dict[str, Any]]:
    """The rows of an engine's process, which has registered at this Manager and which nobody else uses."""

    def batch(state: str, concurrency: int, seed: int) -> dict[str, float]:
        tokens = {"tokens": PROMPT_TOKENS, "answer_tokens": ANSWER_TOKENS}
        measured: dict[str, float] = engine.call("batch", state=state, concurrency=concurrency, seed=seed, **tokens)
        return measured

    measured = measure(batch, concurrencies, rounds)
    check_saved(manager.sample("orbitkv_blocks_stored_total"), block_tokens, concurrencies, rounds)
    return [made for concurrency, taken in measured.items() for made in cost_rows(name, concurrency, taken)]
