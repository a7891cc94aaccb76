"""A process that saves and loads blocks through one peer's client and times it; for data_path.py and failures.py.

Takes a JSON line with the peer's settings, then a JSON line for each command, and answers each by one. Bytes are
compared after each load, outside of what is timed.
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np

from harness.json_lines import JsonLines
from peer import BLOCKS, Client, Geometry, cpu_seconds

DEATH_LIMIT_S = 10.0
BESIDE_LIMIT_S = 30.0
# Added to a prompt's number: a prompt that nobody has saved.
UNKNOWN = 100_000


def connect(peer: str, settings: dict[str, Any], geometry: Geometry) -> Client:
    if peer == "orbitkv":
        from orbitkv_peer import OrbitKVClient

        return OrbitKVClient(settings, geometry)
    if peer.startswith("lmcache"):
        from lmcache_client import LMCacheClient

        return LMCacheClient(settings, geometry)
    if peer.startswith("mooncake"):
        from mooncake_client import MooncakeClient

        return MooncakeClient(settings, geometry)
    if peer == "redis":
        from redis_peer import RedisClient

        return RedisClient(settings, geometry)
    raise SystemExit(f"no client for {peer}")


class Child:
    """Pages are taken in an order that is mixed, but the same in every process."""

    def __init__(self, setup: dict[str, Any]) -> None:
        self._peer: str = setup["peer"]
        self._settings: dict[str, Any] = setup["settings"]
        self._servers: list[int] = setup["servers"]
        self._client: Client | None = None
        self._geometry = Geometry(0, 1, 1)
        self._order: list[int] = []

    def open(self, geometry: dict[str, int]) -> bool:
        """Connects with pages of this geometry, in place of those before."""
        self.close()
        self._geometry = Geometry(**geometry)
        self._client = connect(self._peer, self._settings, self._geometry)
        self._order = [int(page) for page in np.random.default_rng(3).permutation(self._geometry.blocks)[:BLOCKS]]
        return True

    def close(self) -> bool:
        if self._client is not None:
            self._client.close()
            self._client = None
        return True

    @property
    def client(self) -> Client:
        assert self._client is not None
        return self._client

    def _content(self, prompt: int, layer: int, like: Any, count: int) -> Any:
        """Bytes that nothing compresses, of this prompt's first blocks in this layer."""
        shape = (BLOCKS, *like.shape[1:])
        values = np.random.default_rng((prompt, layer)).integers(0, 1 << 15, size=shape, dtype=np.int16)
        return (values if like.dtype == np.int16 else values.astype(np.uint8))[:count]

    def _fill(self, prompt: int) -> None:
        for number, view in enumerate(self.client.views):
            view[self._order] = self._content(prompt, number, view, BLOCKS)

    def _clear(self) -> None:
        for view in self.client.views:
            view[self._order] = 0

    def _same(self, prompt: int, count: int) -> bool:
        return all(
            np.array_equal(view[self._order[:count]], self._content(prompt, number, view, count))
            for number, view in enumerate(self.client.views)
        )

    def _keys(self, prompt: int, count: int = BLOCKS) -> Any:
        return self.client.prepare([prompt * BLOCKS + number for number in range(count)])

    def _mixed_keys(self, prompt: int, known: int) -> Any:
        blocks = [prompt * BLOCKS + number for number in range(known)]
        return self.client.prepare(blocks + [(prompt + UNKNOWN) * BLOCKS + number for number in range(known, BLOCKS)])

    def _spent(self) -> float:
        return time.process_time() + sum(cpu_seconds(pid) for pid in self._servers)

    def save(self, prompts: list[int]) -> dict[str, Any]:
        """Seconds of each save of 256 blocks, and how many blocks of each were stored."""
        seconds, stored = [], []
        for prompt in prompts:
            self._fill(prompt)
            keys = self._keys(prompt)
            begin = time.perf_counter()
            stored.append(self.client.save(keys, self._order))
            seconds.append(time.perf_counter() - begin)
            self.client.rest()
        return {"seconds": seconds, "stored": stored}

    def touch(self, prompts: list[int]) -> bool:
        """Gives the pool its memory before anything is timed: saves that are forgotten again, if it needs that."""
        if not self.client.empty():
            return False
        for prompt in prompts:
            self.client.save(self._keys(prompt), self._order)
            self.client.rest()
        return self.client.empty()

    def save_beside(self, prompts: list[int], begin_at: float) -> dict[str, Any]:
        """Saves one after the other from that moment on, each with the bytes of the first prompt.

        How many blocks of each were stored, and begin and end of each, as everywhere in time.monotonic().
        """
        self._fill(prompts[0])
        prepared = [self._keys(prompt) for prompt in prompts]
        late = self._wait_for(begin_at)
        stored, spans = [], []
        for keys in prepared:
            begin = time.monotonic()
            stored.append(self.client.save(keys, self._order))
            spans.append((begin, time.monotonic()))
            self.client.rest()
        return {"stored": stored, "spans": spans, "late": late}

    def load_beside(self, prompts: list[int], begin_at: float, until: str) -> dict[str, Any]:
        """Loads of these prompts in turn from that moment on until there is a file of that name.

        How many blocks came, begin and end of each, and whether the bytes of the last one are right.
        """
        prepared = [self._keys(prompt) for prompt in prompts]
        self._clear()
        late = self._wait_for(begin_at)
        loaded: list[int] = []
        spans = []
        while not Path(until).exists() and time.monotonic() < begin_at + BESIDE_LIMIT_S:
            begin = time.monotonic()
            loaded.append(self.client.load(prepared[len(loaded) % len(prompts)], self._order))
            spans.append((begin, time.monotonic()))
            self.client.rest()
        right = bool(loaded) and self._same(prompts[(len(loaded) - 1) % len(prompts)], loaded[-1])
        return {"loaded": loaded, "spans": spans, "late": late, "right": right}

    def _wait_for(self, moment: float) -> bool:
        """Whether it was over already."""
        late = time.monotonic() > moment
        while time.monotonic() < moment:
            time.sleep(min(0.001, max(0.0, moment - time.monotonic())))
        return late

    def load(self, prompts: list[int], content: int | None = None) -> dict[str, Any]:
        """Seconds of each load of 256 blocks, how many came, whether their bytes are right; processor time of all.

        `content`: the prompt whose bytes all of these have, if not their own.
        """
        seconds, loaded, right, spent = [], [], [], 0.0
        for prompt in prompts:
            self._clear()
            keys = self._keys(prompt)
            before = self._spent()
            begin = time.perf_counter()
            loaded.append(self.client.load(keys, self._order))
            seconds.append(time.perf_counter() - begin)
            spent += self._spent() - before
            self.client.rest()
            right.append(self._same(prompt if content is None else content, loaded[-1]))
        return {"seconds": seconds, "loaded": loaded, "right": right, "spent_s": spent}

    def lookups(self, prompts: list[int], times: int, known: int = BLOCKS) -> dict[str, Any]:
        """Microseconds of look-ups of 256 blocks, and how many blocks each found.

        `known`: so many of the first blocks are those of the prompt; nobody has saved the rest.
        """
        taken, found = [], []
        prepared = [self._mixed_keys(prompt, known) for prompt in prompts]
        for number in range(times):
            begin = time.perf_counter()
            found.append(self.client.lookup(prepared[number % len(prepared)]))
            taken.append(1e6 * (time.perf_counter() - begin))
            self.client.rest()
        return {"us": taken, "found": found}

    def load_one(self, prompts: list[int], times: int) -> dict[str, Any]:
        """Microseconds of loads of a prompt's first block, or of its first blocks if the peer has no smaller unit."""
        taken, missed, right = [], 0, True
        count = self.client.unit_blocks
        pages = self._order[:count]
        prepared = {prompt: self._keys(prompt, count) for prompt in prompts}
        for number in range(times):
            prompt = prompts[number % len(prompts)]
            if number < len(prompts):
                self._clear()
            begin = time.perf_counter()
            loaded = self.client.load(prepared[prompt], pages)
            taken.append(1e6 * (time.perf_counter() - begin))
            self.client.rest()
            missed += loaded < count
            if number < len(prompts):
                right = right and self._same(prompt, loaded)
        return {"us": taken, "missed": missed, "right": right, "blocks": count}

    def save_and_die(self, prompt: int, after_s: float) -> None:
        """A save in the middle of which the process is killed; there is no answer."""
        self._fill(prompt)
        keys = self._keys(prompt)
        # A process of its own: a thread would wait for the interpreter, which the save may hold.
        if os.fork() == 0:
            time.sleep(after_s)
            os.kill(os.getppid(), signal.SIGKILL)
            os._exit(0)
        self.client.save(keys, self._order)
        time.sleep(DEATH_LIMIT_S)


def main() -> None:
    lines = JsonLines()
    child = Child(lines.setup)
    lines.serve(
        {
            "open": child.open,
            "close": child.close,
            "touch": child.touch,
            "save": child.save,
            "load": child.load,
            "save_beside": child.save_beside,
            "load_beside": child.load_beside,
            "lookups": child.lookups,
            "load_one": child.load_one,
            "save_and_die": child.save_and_die,
        }
    )
    child.close()


if __name__ == "__main__":
    main()
