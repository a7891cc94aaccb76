"""Suite E: a real vLLM with each peer as its cache, and without one. Same engine, prompts and order of events for all.

For each peer one server and two engines, one after the other. The first computes prompts, gets them back after its own
prefix cache was emptied, and holds conversations whose KV is five times what the engine has room for. The second gets
the first one's prompts; then the server is killed under it, and comes back.
"""

from __future__ import annotations

import itertools
import signal
import statistics
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.children import Child, ChildError, NoAnswerError
from harness.vllm_environment import ONE_PROCESS, SMALL_ENGINE
from peer import Config, Peer, failure_text
from report import Record, RowKind

SCRIPT = Path(__file__).resolve().parent / "engine_child.py"
BLOCK_TOKENS = 128  # vLLM's own choice on a CPU
# Sixteen blocks and a bit: every peer restores 2048 tokens, counting in 128 or in 256, and the engine computes 16.
PROMPT_TOKENS = 2064
PROMPTS = 3
ANSWER_TOKENS = 8
SHORT_TOKENS = 528
KV_BYTES = 64 << 20  # 4096 tokens
POOL_BYTES = 2 << 30
TALK = {
    "conversations": 13,
    "turns": 2,
    "first_tokens": 1400,
    "more_tokens": 200,
    "answer_tokens": 32,
    "at_once": 2,
}
CALL_LIMIT_S = 180.0
START_LIMIT_S = 90.0  # of an engine whose cache's server is away
WATCH_S = 5.0  # after a kill at least, and until as many requests in a row were as fast as before it
WATCH_LIMIT_S = 45.0
CALM_REQUESTS = 5
RECOVERY_LIMIT_S = 40.0

KINDS = [
    RowKind("E", "ttft.cold_ms", "ms", "lower", f"first token, {PROMPT_TOKENS} tokens, nothing cached"),
    RowKind("E", "ttft.reload_ms", "ms", "lower", "the same, saved before, same engine"),
    RowKind("E", "ttft.new_engine_ms", "ms", "lower", "the same, saved by another engine that has ended"),
    RowKind("E", "ttft.after_restart_ms", "ms", "lower", "the same, after the server was killed and started again"),
    RowKind("E", "kill.longest_stall_ms", "ms", "lower", "longest first token after the kill, less the median before"),
    RowKind("E", "kill.recovery_s", "s", "lower", "from the new server's start to the first hit, same engine"),
    RowKind("E", "kill.ttft_ms", "ms", "lower", f"first token, {SHORT_TOKENS} tokens, server dead, after the stall"),
    RowKind("E", "talk.tokens_per_s", "tokens/s", "higher", "second turn of conversations, 5 times the engine's KV"),
    RowKind("E", "talk.cached_percent", "%", "", "of their prompts' tokens, not computed"),
    RowKind("E", "ttft.own_cache_ms", "ms", "", "for comparison: vLLM's own prefix cache"),
    RowKind("E", "restored_tokens", "tokens", "", "tokens restored per prompt, same engine"),
    RowKind("E", "equal_answers", "%", "", "answers equal to those without a connector"),
]

# One core computes, as where a GPU computes; the other one is free for the caches.
ENVIRONMENT = SMALL_ENGINE | ONE_PROCESS | {"VLLM_HOST_IP": "127.0.0.1", "VLLM_LOGGING_LEVEL": "INFO"}


class Engine(Child):
    """An engine_child.py with this peer as its cache."""

    def __init__(self, peer: Peer, model: Path, log: Path, start_limit_s: float = CALL_LIMIT_S) -> None:
        super().__init__(peer.python, SCRIPT, ENVIRONMENT | peer.variables(), log, start_limit_s)
        settings: dict[str, Any] = {
            "model": str(model),
            "skip_tokenizer_init": True,
            "dtype": "float32",
            "enforce_eager": True,
            "block_size": BLOCK_TOKENS,
            "max_model_len": 2560,
            "max_num_batched_tokens": 4096,
            "kv_cache_memory_bytes": KV_BYTES,
            "max_num_seqs": 8,
            "generation_config": "vllm",
            "seed": 0,
        }
        connector = peer.connector()
        if connector is not None:
            settings["kv_transfer_config"] = connector
        self.set_up(settings)
        self._limit_s = CALL_LIMIT_S

    def serve(self, seeds: range, tokens: int = PROMPT_TOKENS) -> list[dict[str, Any]]:
        served: list[dict[str, Any]] = self.call("serve", seeds=list(seeds), tokens=tokens, answer_tokens=ANSWER_TOKENS)
        return served

    def forget(self, seconds: float = 0.5) -> None:
        """Saves have so long to end after the engine has, then the engine's own cache is emptied."""
        self.call("settle", seconds=seconds)
        if not self.call("reset"):
            raise ChildError("the engine's own cache could not be emptied")


@dataclass
class Run:
    """What one pass over one peer gave: values of rows, and all answers, to be compared with those of "none"."""

    peer: str
    number: int
    values: dict[str, float] = field(default_factory=dict)
    whys: dict[str, str] = field(default_factory=dict)
    given_up: set[str] = field(default_factory=set)
    answers: list[list[int]] = field(default_factory=list)

    def put(self, row: str, value: float, why: str = "") -> None:
        self.values[row] = value
        if why:
            self.whys[row] = why

    def give_up(self, row: str, value: float, why: str) -> None:
        """The value would have been larger."""
        self.put(row, value, why)
        self.given_up.add(row)

    def served(self, outputs: list[dict[str, Any]]) -> float:
        """Keeps the answers; the median time to the first token."""
        self.answers += [output["tokens"] for output in outputs]
        return statistics.median(output["first_ms"] for output in outputs)

    def records(self, failure: str = "") -> Iterator[Record]:
        for kind in KINDS:
            why = self.whys.get(kind.name, "")
            value = self.values.get(kind.name)
            if value is None:
                why = why or failure
            if value is not None or why:
                yield Record(kind.name, self.peer, self.number, value, why, kind.name in self.given_up)


def fresh(numbers: Iterator[int], count: int = 1) -> range:
    """Seeds of prompts that nobody has had."""
    start = next(numbers)
    return range(100_000 + start * 10, 100_000 + start * 10 + count)


def wait_serving(engine: Engine, numbers: Iterator[int], limit_s: float) -> float | None:
    """Seconds until a prompt that was computed comes back from the cache; None when the time is over."""
    begin = time.monotonic()
    while time.monotonic() - begin < limit_s:
        seeds = fresh(numbers)
        engine.serve(seeds, SHORT_TOKENS)
        engine.forget(0.1)
        if engine.serve(seeds, SHORT_TOKENS)[0]["cached"] > 0:
            return time.monotonic() - begin
    return None


PROMPT_SEEDS = range(1000, 1000 + PROMPTS)
WARM_SEEDS = range(900, 901)


def first_engine(peer: Peer, engine: Engine, run: Run) -> None:
    numbers = itertools.count()
    cached = peer.connector() is not None
    if cached and wait_serving(engine, numbers, RECOVERY_LIMIT_S) is None:
        raise ChildError(f"no prompt came back from the cache within {RECOVERY_LIMIT_S:.0f} s")
    for _ in range(2):
        engine.serve(WARM_SEEDS)
        engine.forget()
    run.put("ttft.cold_ms", run.served(engine.serve(PROMPT_SEEDS)))
    if not cached:
        again = engine.serve(PROMPT_SEEDS[-1:])  # the last one: the engine has no room for all
        run.put("ttft.own_cache_ms", again[0]["first_ms"])
    engine.forget()
    outputs = engine.serve(PROMPT_SEEDS)
    run.put("ttft.reload_ms", run.served(outputs))
    run.put("restored_tokens", statistics.median(output["cached"] for output in outputs) if cached else 0)
    engine.forget()
    talk = engine.call("converse", **TALK)
    later = talk["rounds"][1:]
    run.put("talk.tokens_per_s", sum(turn["tokens"] for turn in later) / sum(turn["seconds"] for turn in later))
    run.put("talk.cached_percent", 100 * sum(turn["cached"] for turn in later) / sum(turn["prompt"] for turn in later))
    run.answers += talk["answers"]
    engine.call("settle", seconds=0.5)


def short_first_ms(engine: Engine, numbers: Iterator[int]) -> float:
    first_ms: float = engine.serve(fresh(numbers), SHORT_TOKENS)[0]["first_ms"]
    return first_ms


class StalledError(ChildError):
    """A request after the kill did not end: the engine is of no use for what follows."""


def watch_kill(peer: Peer, engine: Engine, numbers: Iterator[int], run: Run) -> None:
    """Kills the server: the longest time to a first token beyond that before, and what it is once that is over."""
    normal = statistics.median(short_first_ms(engine, numbers) for _ in range(CALM_REQUESTS))
    engine.call("settle", seconds=0.5)
    peer.stop(signal.SIGKILL)
    begin = time.monotonic()
    taken: list[float] = []
    while time.monotonic() - begin < WATCH_LIMIT_S:
        try:
            taken.append(short_first_ms(engine, numbers))
        except NoAnswerError:
            run.give_up("kill.longest_stall_ms", 1e3 * CALL_LIMIT_S - normal, "gave up: the request did not end")
            raise StalledError(f"a request did not end within {CALL_LIMIT_S:.0f} s of the kill") from None
        calm = taken[-CALM_REQUESTS:]
        if len(calm) == CALM_REQUESTS and max(calm) < 1.5 * normal + 50 and time.monotonic() - begin >= WATCH_S:
            break
    run.put("kill.longest_stall_ms", max(0.0, max(taken) - normal))
    run.put("kill.ttft_ms", statistics.median(taken[-CALM_REQUESTS:]))


def second_engine(peer: Peer, engine: Engine, run: Run, config: Config) -> None:
    numbers = itertools.count(1000)  # not those of the first engine
    cached = peer.connector() is not None
    if cached and wait_serving(engine, numbers, RECOVERY_LIMIT_S) is None:
        raise ChildError(f"no prompt came back from the cache within {RECOVERY_LIMIT_S:.0f} s")
    for _ in range(2):
        engine.serve(range(901, 902))
        engine.forget()
    outputs = engine.serve(PROMPT_SEEDS)
    run.put("ttft.new_engine_ms", run.served(outputs), lost_text(outputs, cached))
    if not cached:
        run.put("kill.ttft_ms", statistics.median(short_first_ms(engine, numbers) for _ in range(CALM_REQUESTS)))
        return
    engine.forget()
    watch_kill(peer, engine, numbers, run)
    peer.start(config)
    recover(engine, numbers, run, time.monotonic())


def recover(engine: Engine, numbers: Iterator[int], run: Run, began: float, remark: str = "") -> None:
    """`began`: when the new server was there. What of the first engine's prompts is still to be had."""
    if wait_serving(engine, numbers, RECOVERY_LIMIT_S) is None:
        run.whys["kill.recovery_s"] = f"no hit within {RECOVERY_LIMIT_S:.0f} s"
    else:
        run.put("kill.recovery_s", time.monotonic() - began, remark)
    engine.forget()
    outputs = engine.serve(PROMPT_SEEDS)
    run.put("ttft.after_restart_ms", run.served(outputs), "; ".join(filter(None, (lost_text(outputs, True), remark))))


def fresh_engines(peer: Peer, model: Path, folder: Path, run: Run, config: Config) -> None:
    """The rows after the kill, by engines that have not seen it: the one that did has ended."""
    remark = "in a new engine: the one before did not answer any more"
    numbers = itertools.count(2000)
    try:
        with Engine(peer, model, folder / "engine3.log", START_LIMIT_S) as engine:
            first_ms = statistics.median(short_first_ms(engine, numbers) for _ in range(CALM_REQUESTS))
            run.put("kill.ttft_ms", first_ms, remark)
    except NoAnswerError:
        run.whys["kill.ttft_ms"] = f"no new engine serves within {START_LIMIT_S:.0f} s while the server is away"
    except ChildError as error:
        run.whys["kill.ttft_ms"] = f"a new engine does not serve without the server: {failure_text(error)}"
    peer.start(config)
    began = time.monotonic()
    with Engine(peer, model, folder / "engine4.log") as engine:
        recover(engine, numbers, run, began, f"{remark}; its start is part of the time to the first hit")


def lost_text(outputs: list[dict[str, Any]], cached: bool) -> str:
    lost = sum(output["cached"] == 0 for output in outputs)
    return "what was saved is gone: computed" if cached and 2 * lost > len(outputs) else ""


def measure(peer: Peer, number: int, model: Path, folder: Path) -> tuple[Run, str]:
    """One pass over one peer; the text of what failed, if anything did."""
    run = Run(peer.name, number)
    config = Config(folder, POOL_BYTES)
    try:
        peer.start(config)
        with Engine(peer, model, folder / "engine1.log") as engine:
            first_engine(peer, engine, run)
        try:
            with Engine(peer, model, folder / "engine2.log") as engine:
                second_engine(peer, engine, run, config)
        except StalledError:
            fresh_engines(peer, model, folder, run, config)
    except (RuntimeError, OSError, subprocess.SubprocessError) as error:
        return run, failure_text(error)
    finally:
        peer.close()
    return run, ""


def equal_percent(run: Run, reference: Run) -> float | None:
    """Of the answers that both gave; the order of events is the same for all."""
    pairs = list(zip(run.answers, reference.answers, strict=False))
    return 100 * sum(mine == theirs for mine, theirs in pairs) / len(pairs) if pairs else None
