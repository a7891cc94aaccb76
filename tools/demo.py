"""The main job on a real model: an engine is killed, starts again and gets its prompts back from OrbitKV.

Run by `./dev demo`. Writes out/demo.json and prints a table; exit status 1 when a text differs or nothing was restored.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from harness.manager import Manager
from harness.processes import wait_until
from harness.prompts import cut_prompts
from harness.vllm_server import Reply, VllmServer, connector_config

LENGTHS = (1000, 2000, 4000, 7000)
BLOCK_TOKENS = 32
ENGINE_PROCESSES = 2  # that register: the scheduler, which asks, and the worker, which copies
WARM_BEFORE = 3  # warm requests of each prompt before the engine is killed


@dataclass
class Run:
    """One prompt length. Times are milliseconds to the first token.

    `warm_ttft_ms` and `restored_ttft_ms` are the medians of the samples below, which were taken in turn in the same
    restarted engine; `warm_before_ttft_ms` is the median of the engine that was killed, `restored_first_ttft_ms` the
    first request of this prompt after the restart. `target_ttft_ms` is warm + twice the copy time of the restored bytes
    + 10 ms.
    """

    prompt_tokens: int
    cold_ttft_ms: float
    warm_before_ttft_ms: float
    warm_ttft_ms: float
    restored_ttft_ms: float
    restored_first_ttft_ms: float
    restored_tokens: int
    restored_bytes: int
    target_ttft_ms: float
    target_met: bool
    identical: bool
    logprobs_identical: bool
    warm_samples_ms: list[float]
    restored_samples_ms: list[float]


def say(text: str) -> None:
    print(f"[{time.strftime('%H:%M:%S')}] {text}", flush=True)


def copy_gbps(megabytes: int = 256) -> float:
    """Plain copy speed of this machine: median of several copies of a populated buffer, one thread."""
    source = np.random.default_rng(0).integers(0, 255, megabytes << 20, dtype=np.uint8)
    target = np.zeros_like(source)
    speeds = []
    for _ in range(7):
        start = time.perf_counter()
        np.copyto(target, source)
        speeds.append(source.nbytes / (time.perf_counter() - start) / 1e9)
    return statistics.median(speeds)


class Demo:
    def __init__(self, model: Path, scratch: Path, pool: str, repeats: int, stores: str) -> None:
        self.model = model
        self.stores = stores
        self.scratch = scratch
        self.pool = pool
        self.repeats = repeats
        self.socket = scratch / "run" / "manager.sock"
        self.pool_dir = Path(tempfile.mkdtemp(prefix="orbitkv-demo-", dir="/dev/shm"))
        self.manager: Manager | None = None
        self.server: VllmServer | None = None

    def start_manager(self) -> Manager:
        self.manager = Manager(self.socket, self.pool, self.scratch / "manager.log").start()
        return self.manager

    def start_surviving_manager(self) -> Manager:
        """One whose RAM pool outlives it, and that keeps its blocks on disk too."""
        store = ["--ssd-path", str(self.scratch / "store"), "--ssd-bytes", self.pool]
        extra = ["--pool-path", str(self.pool_dir), *store]
        self.manager = Manager(self.socket, self.pool, self.scratch / "manager.log", extra).start()
        return self.manager

    def start_engine(self) -> VllmServer:
        start = time.monotonic()
        connector = connector_config(self.socket, **{"orbitkv.stores": self.stores})
        self.server = VllmServer(self.model, self.scratch / "vllm.log", connector)
        self.server.wait_ready()
        # The first request of an engine pays for warm-up that has nothing to do with the cache.
        self.server.chat("Say hello.", max_tokens=4)
        say(f"engine ready after {time.monotonic() - start:.0f} s")
        return self.server

    def wait_stored(self, blocks: int, timeout_s: float = 30.0) -> int:
        """Waits until the Manager holds `blocks` blocks; returns how many it holds."""
        assert self.manager is not None
        held = 0

        def enough() -> bool:
            nonlocal held
            assert self.manager is not None
            held = int(self.manager.sample("orbitkv_blocks_resident"))
            return held >= blocks

        wait_until(enough, timeout_s, 0.1)
        return held

    def on_disk(self) -> int:
        assert self.manager is not None
        return int(self.manager.sample("orbitkv_ssd_records"))

    def close(self) -> None:
        if self.server is not None:
            self.server.terminate()
        if self.manager is not None:
            self.manager.terminate()


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
    expected = sum(reply.prompt_tokens // BLOCK_TOKENS for reply in cold)
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
            server.reset_prefix_cache()
            replies.append(server.chat_restored(prompt)[0])
            warm_again.append(server.chat(prompt))
        warm_ms, restored_ms = median(warm_again), median(replies)
        target_ms = warm_ms + 2 * restored_bytes / (speed * 1e6) + 10
        everything = [first, *again, first_restored, *replies, *warm_again]
        runs.append(
            Run(
                prompt_tokens=first.prompt_tokens,
                cold_ttft_ms=round(first.ttft_ms, 1),
                warm_before_ttft_ms=round(median(again), 1),
                warm_ttft_ms=round(warm_ms, 1),
                restored_ttft_ms=round(restored_ms, 1),
                restored_first_ttft_ms=round(first_restored.ttft_ms, 1),
                restored_tokens=tokens,
                restored_bytes=restored_bytes,
                target_ttft_ms=round(target_ms, 1),
                target_met=restored_ms <= target_ms,
                identical=all(reply.text == first.text for reply in everything),
                logprobs_identical=all(reply.logprobs == again[-1].logprobs for reply in everything[1:]),
                warm_samples_ms=[round(reply.ttft_ms, 1) for reply in warm_again],
                restored_samples_ms=[round(reply.ttft_ms, 1) for reply in replies],
            )
        )
        say(
            f"{first.prompt_tokens:5d} tokens: restored {tokens} tokens in {restored_ms:.1f} ms, "
            f"warm {warm_ms:.1f} ms (medians of {demo.repeats} in turn)"
        )
    return runs, prompts, cold


def manager_restart(demo: Demo, prompts: list[str], reference: list[Reply]) -> dict[str, Any]:
    """The Manager is killed under the running engine and started again."""
    assert demo.manager is not None and demo.server is not None
    server = demo.server
    say("killing the Manager under the running engine")
    demo.manager.kill()
    while_down = [server.chat(prompt) for prompt in prompts]
    identical = all(reply.text == old.text for reply, old in zip(while_down, reference, strict=True))
    say("starting a Manager again, with a pool that outlives it and a store on disk; the prompts are sent again")
    manager = demo.start_surviving_manager()
    server.chat(prompts[0])
    reconnected = 0.0
    while not reconnected and time.monotonic() - manager.ready_at < 30:
        if manager.sample("orbitkv_blocks_resident") > 0:
            reconnected = time.monotonic() - manager.ready_at
        else:
            server.chat(prompts[0], max_tokens=1)
    for prompt in prompts:
        server.chat(prompt)
    expected = sum(reply.prompt_tokens // BLOCK_TOKENS for reply in reference)
    republished = demo.wait_stored(expected) * BLOCK_TOKENS
    server.reset_prefix_cache()
    restored_tokens, restored_same = 0, True
    for prompt, old in zip(prompts, reference, strict=True):
        reply, tokens = server.chat_restored(prompt)
        restored_tokens += tokens
        restored_same = restored_same and reply.text == old.text
    say(f"reconnected after {reconnected:.2f} s, {republished} tokens republished, {restored_tokens} restored")
    return {
        "identical_while_down": identical,
        "republished_tokens": republished,
        "reconnect_s": round(reconnected, 2),
        "restored_tokens": restored_tokens,
        "identical_restored": restored_same,
    }


def survival(demo: Demo, prompts: list[str], reference: list[Reply], keep_pool: bool) -> dict[str, Any]:
    """The Manager is killed and started again; its blocks come from RAM, or without its pool from disk."""
    assert demo.manager is not None and demo.server is not None
    server = demo.server
    say(f"killing the Manager again; {'its pool stays' if keep_pool else 'its pool is dropped, its disk stays'}")
    demo.manager.kill()
    if not keep_pool:
        shutil.rmtree(demo.pool_dir)
        demo.pool_dir.mkdir(mode=0o700)
    began = time.monotonic()
    manager = demo.start_surviving_manager()
    found = int(manager.sample("orbitkv_blocks_resident" if keep_pool else "orbitkv_ssd_records"))
    manager.wait_serving(ENGINE_PROCESSES)
    tokens, same, samples = 0, True, []
    server.reset_prefix_cache()
    for prompt, old in zip(prompts, reference, strict=True):
        reply, restored = server.chat_restored(prompt)
        tokens += restored
        same = same and reply.text == old.text
        samples.append(round(reply.ttft_ms, 1))
    recovery_s = round(manager.ready_at - began, 2)
    say(f"ready after {recovery_s} s with {found} blocks; {tokens} tokens restored in {samples} ms")
    return {"restored_tokens": tokens, "recovery_s": recovery_s, "identical": same, "ttft_ms": samples}


def median(replies: list[Reply]) -> float:
    return statistics.median(reply.ttft_ms for reply in replies)


def print_table(runs: list[Run], restart: dict[str, Any], survived: dict[str, dict[str, Any]]) -> None:
    head = ("tokens", "cold ms", "warm ms", "restored ms", "target ms", "speed-up", "MB restored", "text")
    print("\n" + "".join(f"{title:>13}" for title in head))
    for run in runs:
        cells = (
            str(run.prompt_tokens),
            f"{run.cold_ttft_ms:.1f}",
            f"{run.warm_ttft_ms:.1f}",
            f"{run.restored_ttft_ms:.1f}",
            f"{run.target_ttft_ms:.1f}" + ("" if run.target_met else " missed"),
            f"{run.cold_ttft_ms / max(run.restored_ttft_ms, 0.1):.1f}x",
            f"{run.restored_bytes / 1e6:.1f}",
            "identical" if run.identical else "DIFFERENT",
        )
        print("".join(f"{cell:>13}" for cell in cells))
    longest = max(run.cold_ttft_ms for run in runs)
    print("\ntime to the first token")
    for run in runs:
        for name, value in (("cold", run.cold_ttft_ms), ("warm", run.warm_ttft_ms), ("restored", run.restored_ttft_ms)):
            print(f"{run.prompt_tokens:6d} {name:>9} {'█' * max(1, round(60 * value / longest))} {value:.0f} ms")
    print(
        f"\nManager killed under the engine: text {'identical' if restart['identical_while_down'] else 'DIFFERENT'} "
        f"while it was down, reconnected {restart['reconnect_s']} s after the new one was ready, "
        f"{restart['republished_tokens']} tokens published again, {restart['restored_tokens']} restored"
    )
    for name, row in survived.items():
        print(
            f"{name.replace('_', ' ')}: Manager killed, ready again after {row['recovery_s']} s, "
            f"{row['restored_tokens']} tokens restored, text {'identical' if row['identical'] else 'DIFFERENT'}"
        )


def failures(runs: list[Run], restart: dict[str, Any], survived: dict[str, dict[str, Any]]) -> list[str]:
    found = []
    for run in runs:
        if not run.identical:
            found.append(f"the text at {run.prompt_tokens} tokens differs")
        if not run.logprobs_identical:
            found.append(f"the logprobs at {run.prompt_tokens} tokens differ between warm and restored")
        if run.restored_tokens == 0:
            found.append(f"nothing was restored at {run.prompt_tokens} tokens")
    if not restart["identical_while_down"] or not restart["identical_restored"]:
        found.append("the text differs around the Manager's restart")
    if restart["restored_tokens"] == 0 or restart["republished_tokens"] == 0:
        found.append("nothing was restored after the Manager's restart")
    if not 0 < restart["reconnect_s"] <= 5:
        found.append(f"the engine took {restart['reconnect_s']} s to reach the new Manager")
    for name, row in survived.items():
        if not row["identical"]:
            found.append(f"{name}: the text differs")
        if row["restored_tokens"] < restart["republished_tokens"] // 2:
            found.append(f"{name}: {row['restored_tokens']} of {restart['republished_tokens']} tokens restored")
    return found


def leftovers(before: set[str], scratch: Path) -> list[str]:
    """What the run left behind in shared memory or beside the Manager's lock file."""
    left = [f"/dev/shm/{name}" for name in sorted(set(os.listdir("/dev/shm")) - before)]
    run = scratch / "run"
    left += [str(path) for path in run.iterdir() if not path.name.endswith(".lock")] if run.exists() else []
    return left


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="Hugging Face folder of the model")
    parser.add_argument("--out", type=Path, default=Path("out"), help="where demo.json and the logs go")
    parser.add_argument("--pool-bytes", default="3GiB")
    parser.add_argument("--repeats", type=int, default=7, help="samples of each warm and each restored time")
    parser.add_argument("--stores", choices=("auto", "ordinary", "nontemporal"), default="auto")
    options = parser.parse_args()
    options.out.mkdir(exist_ok=True)
    shm_before = set(os.listdir("/dev/shm"))
    scratch = Path(tempfile.mkdtemp(prefix="orbitkv-demo-"))
    demo = Demo(options.model, scratch, options.pool_bytes, options.repeats, options.stores)
    try:
        runs, prompts, reference = engine_restart(demo)
        restart = manager_restart(demo, prompts, reference)
        blocks = restart["republished_tokens"] // BLOCK_TOKENS
        wait_until(lambda: demo.on_disk() >= blocks, 60.0, 0.1)
        survived = {
            "pool_survival": survival(demo, prompts, reference, keep_pool=True),
            "ssd_survival": survival(demo, prompts, reference, keep_pool=False),
        }
    finally:
        demo.close()
        shutil.rmtree(demo.pool_dir)
        for log in scratch.glob("*.log"):
            shutil.copy(log, options.out / f"demo-{log.name}")
        left = leftovers(shm_before, scratch)
        shutil.rmtree(scratch)
    result = {"runs": [asdict(run) for run in runs], "manager_restart": restart, **survived}
    (options.out / "demo.json").write_text(json.dumps(result, indent=1) + "\n")
    print_table(runs, restart, survived)
    problems = failures(runs, restart, survived) + [f"left behind: {path}" for path in left]
    for problem in problems:
        print(f"demo failed: {problem}", file=sys.stderr)
    print(f"\nwritten: {options.out / 'demo.json'}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
