"""What the demos of all engines have in common: the Manager that is killed, its folders, and how times are taken."""

from __future__ import annotations

import shutil
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from .chat_server import ChatServer, Reply
from .manager import Manager
from .processes import abandoned_memory, wait_until


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


def median(replies: list[Reply]) -> float:
    return statistics.median(reply.ttft_ms for reply in replies)


class Stage:
    """The Manager of a demo, whose lives share a socket, its folders, and the engine, which a demo makes."""

    name: str  # of its results
    lengths: tuple[int, ...]  # of its prompts, in tokens
    block_tokens: int
    processes: int  # of an engine, that register with the Manager

    def __init__(self, model: Path, pool: str, repeats: int, stores: str) -> None:
        self.model = model
        self.pool = pool
        self.repeats = repeats
        self.stores = stores
        self.abandoned = abandoned_memory()  # by others, before
        self.scratch = Path(tempfile.mkdtemp(prefix="orbitkv-demo-"))
        self.socket = self.scratch / "run" / "manager.sock"
        self.pool_dir = Path(tempfile.mkdtemp(prefix="orbitkv-demo-", dir="/dev/shm"))
        self.manager: Manager | None = None
        self.server: ChatServer | None = None

    def start_manager(self) -> Manager:
        self.manager = Manager(self.socket, self.pool, self.scratch / "manager.log").start()
        return self.manager

    def start_surviving_manager(self) -> Manager:
        """One whose RAM pool outlives it, and that keeps its blocks on disk too."""
        store = ["--ssd-path", str(self.scratch / "store"), "--ssd-bytes", self.pool]
        extra = ["--pool-path", str(self.pool_dir), *store]
        self.manager = Manager(self.socket, self.pool, self.scratch / "manager.log", extra).start()
        return self.manager

    def make_server(self) -> ChatServer:
        """Starts the engine and keeps it as `server`."""
        raise NotImplementedError

    def start_engine(self) -> ChatServer:
        start = time.monotonic()
        server = self.make_server()
        server.wait_ready(300)
        # The first request of an engine pays for warm-up that has nothing to do with the cache.
        server.chat("Say hello.", max_tokens=4)
        say(f"engine ready after {time.monotonic() - start:.0f} s")
        return server

    def forget(self) -> None:
        """The next prompts are not in the engine's own cache."""
        raise NotImplementedError

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

    def close(self, out: Path) -> list[str]:
        """Ends what runs, keeps the logs in `out`; what is left of the run in shared memory or beside the socket."""
        if self.server is not None:
            self.server.terminate()
        if self.manager is not None:
            self.manager.terminate()
        shutil.rmtree(self.pool_dir)
        for log in self.scratch.glob("*.log"):
            shutil.copy(log, out / f"{self.name}-{log.name}")
        left = [str(path) for path in sorted(abandoned_memory() - self.abandoned)]
        run = self.socket.parent
        left += [str(path) for path in run.iterdir() if not path.name.endswith(".lock")] if run.exists() else []
        shutil.rmtree(self.scratch)
        return left


def manager_restart(stage: Stage, prompts: list[str], reference: list[Reply]) -> dict[str, Any]:
    """The Manager is killed under the running engine and started again."""
    assert stage.manager is not None and stage.server is not None
    server = stage.server
    say("killing the Manager under the running engine")
    stage.manager.kill()
    while_down = [server.chat(prompt) for prompt in prompts]
    identical = all(reply.text == old.text for reply, old in zip(while_down, reference, strict=True))
    say("starting a Manager again, with a pool that outlives it and a store on disk; the prompts are sent again")
    manager = stage.start_surviving_manager()
    server.chat(prompts[0])
    reconnected = 0.0
    while not reconnected and time.monotonic() - manager.ready_at < 30:
        if manager.sample("orbitkv_blocks_resident") > 0:
            reconnected = time.monotonic() - manager.ready_at
        else:
            server.chat(prompts[0], max_tokens=1)
    for prompt in prompts:
        server.chat(prompt)
    expected = sum(reply.prompt_tokens // stage.block_tokens for reply in reference)
    republished = stage.wait_stored(expected) * stage.block_tokens
    stage.forget()
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


def survivals(stage: Stage, prompts: list[str], reference: list[Reply], stored_tokens: int) -> dict[str, Any]:
    """What is served of `stored_tokens` when the Manager dies, and when it dies with its pool."""
    wait_until(lambda: stage.on_disk() >= stored_tokens // stage.block_tokens, 60.0, 0.1)
    return {
        "pool_survival": survival(stage, prompts, reference, keep_pool=True),
        "ssd_survival": survival(stage, prompts, reference, keep_pool=False),
    }


def survival(stage: Stage, prompts: list[str], reference: list[Reply], keep_pool: bool) -> dict[str, Any]:
    """The Manager is killed and started again; its blocks come from RAM, or without its pool from disk."""
    assert stage.manager is not None and stage.server is not None
    say(f"killing the Manager again; {'its pool stays' if keep_pool else 'its pool is dropped, its disk stays'}")
    stage.manager.kill()
    if not keep_pool:
        shutil.rmtree(stage.pool_dir)
        stage.pool_dir.mkdir(mode=0o700)
    began = time.monotonic()
    manager = stage.start_surviving_manager()
    found = int(manager.sample("orbitkv_blocks_resident" if keep_pool else "orbitkv_ssd_records"))
    manager.wait_serving(stage.processes)
    tokens, same, samples = 0, True, []
    stage.forget()
    for prompt, old in zip(prompts, reference, strict=True):
        reply, restored = stage.server.chat_restored(prompt)
        tokens += restored
        same = same and reply.text == old.text
        samples.append(round(reply.ttft_ms, 1))
    recovery_s = round(manager.ready_at - began, 2)
    say(f"ready after {recovery_s} s with {found} blocks; {tokens} tokens restored in {samples} ms")
    return {"restored_tokens": tokens, "recovery_s": recovery_s, "identical": same, "ttft_ms": samples}
