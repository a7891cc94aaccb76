"""Mixed traffic for a long time, while the Manager and the engine are killed at random.

Every answer is compared with that of an engine without a connector; no request fails; memory, descriptors and slots do
not grow. ORBITKV_SOAK_SECONDS sets the time of the long form, ORBITKV_SOAK_SEED its seed.
"""

import os
import random
import signal
import time
from pathlib import Path

import pytest
from engine import tokens

from harness.manager import Manager
from harness.processes import wait_until

LONG_S = 3600.0
SHORT_S = 20.0
SEED = 1
# Small, so that the engine preempts and evicts, and the Manager evicts.
ENGINE = {"num_gpu_blocks_override": 72, "max_model_len": 1024, "max_num_batched_tokens": 256}
POOL = "8MiB"
MOST_TOKENS = 1024
# Between two things that happen to the Manager or the engine.
QUIET_ROUNDS = 3
# The first rounds of a process's life fill its caches and pools; what it has after them is what it may have later.
WARM_ROUNDS = 12
MEMORY_SLACK_KIB = 64 << 10
DESCRIPTOR_SLACK = 4


class Traffic:
    """Rounds of requests: conversations that go on, prompts behind shared ones, long prompts that come back, aborts."""

    def __init__(self, random_numbers):
        self._random = random_numbers
        self._histories = [[] for _ in range(6)]
        self._systems = [tokens(200, 900 + i) for i in range(3)]
        self._long = [tokens(self._random.randrange(500, 900), 950 + i) for i in range(10)]
        self._next = 0

    def _request(self, prompt, n, *, aborts=False, conversation=None):
        self._next += 1
        after = self._random.randrange(1, 6) if aborts and self._random.random() < 0.3 else None
        fields = {"id": f"r{self._next}", "prompt": prompt, "n": n, "abort_after": after}
        return fields | {"conversation": conversation}

    def _fresh(self, low, high):
        return [self._random.randrange(3, 503) for _ in range(self._random.randrange(low, high))]

    def round(self):
        draw = self._random
        result = []
        for number in draw.sample(range(len(self._histories)), draw.randrange(1, 4)):
            prompt = self._histories[number] + self._fresh(5, 60)
            result.append(self._request(prompt, draw.randrange(4, 40), conversation=number))
        for _ in range(draw.randrange(3)):
            prompt = draw.choice(self._systems) + self._fresh(10, 80)
            result.append(self._request(prompt, draw.randrange(2, 16), aborts=True))
        for _ in range(draw.randrange(3)):
            result.append(self._request(draw.choice(self._long), draw.randrange(1, 5), aborts=True))
        draw.shuffle(result)
        return result

    def answered(self, request, answer):
        if request["conversation"] is None:
            return
        history = request["prompt"] + answer
        self._histories[request["conversation"]] = history if len(history) < MOST_TOKENS - 200 else []


class Usage:
    """What a process holds now, against what it held when it was warm."""

    def __init__(self, pid):
        self._pid = pid
        self._first = None

    def check(self):
        folder = Path(f"/proc/{self._pid}")
        status = dict(line.split(":", 1) for line in (folder / "status").read_text().splitlines())
        now = {
            "memory": int(status["RssAnon"].split()[0]),
            "descriptors": len(list((folder / "fd").iterdir())),
            "threads": int(status["Threads"]),
        }
        if self._first is None:
            self._first = now
        assert now["memory"] <= self._first["memory"] + MEMORY_SLACK_KIB, (self._first, now)
        assert now["descriptors"] <= self._first["descriptors"] + DESCRIPTOR_SLACK, (self._first, now)
        assert now["threads"] <= self._first["threads"] + DESCRIPTOR_SLACK, (self._first, now)


class Soak:
    def __init__(self, start_engine, folder, seed):
        self._start_engine = start_engine
        self._random = random.Random(seed)
        self._traffic = Traffic(self._random)
        self._manager = Manager(folder / f"soak{seed}" / "manager.sock", POOL)
        self._options = {"orbitkv.bootstrap_socket": str(self._manager.socket), "orbitkv.lookup_limit_ms": 2000}
        self._plain = start_engine(None, **ENGINE)
        self._references = {}
        self.happened = dict.fromkeys(("manager killed", "manager stopped", "engine killed"), 0)
        self.compared = self.aborted = self.offered = self._offered_before = 0

    # ---- processes --------------------------------------------------------------------------------------------------

    def _begin_engine(self):
        self._engine = self._start_engine(self._options, **ENGINE)
        assert self._engine.wait_up()
        self._free_blocks = self._engine.state()["free_blocks"]
        self._engine_usage = Usage(self._engine.process.pid)
        self._engine_rounds = self._offered_before = 0

    def _begin_manager(self):
        self._manager.start()
        self._manager_usage = Usage(self._manager.pid)
        self._manager_rounds = 0

    def _wait(self):
        """Some part of a round, so that what happens then happens anywhere in it."""
        time.sleep(self._random.random() * 0.3)

    def _disturb(self, kind):
        """While the engine works; True when it is gone, and with it what it was asked."""
        self._wait()
        self.happened[kind] += 1
        if kind == "engine killed":
            self._engine.kill()
            return True
        if kind == "manager killed":
            self._manager.kill()
            self._wait()
            self._begin_manager()
            return False
        self._manager.suspend()
        self._wait()
        self._manager.signal(signal.SIGCONT)
        return False

    # ---- rounds -----------------------------------------------------------------------------------------------------

    def _reference(self, requests):
        key = [(tuple(request["prompt"]), request["n"]) for request in requests]
        missing = [request for request, k in zip(requests, key, strict=True) if k not in self._references]
        answers = self._plain.traffic(requests=[request | {"abort_after": None} for request in missing])
        for request in missing:
            self._references[tuple(request["prompt"]), request["n"]] = answers[request["id"]]["tokens"]
        result = [self._references[k] for k in key]
        # Only what comes again is worth its memory.
        self._references = {k: v for k, v in self._references.items() if k in set(key) or len(k[0]) >= 500}
        return result

    def round(self, kind=None):
        requests = self._traffic.round()
        self._engine.begin("traffic", requests=requests)
        if kind is not None and self._disturb(kind):
            self._begin_engine()
            self._engine.begin("traffic", requests=requests)
        answers = self._engine.end()
        self._engine_rounds += 1
        self._manager_rounds += 1
        for request, expected in zip(requests, self._reference(requests), strict=True):
            answer = answers.get(request["id"])
            if answer is None or answer["reason"] == "abort":
                assert request["abort_after"] is not None, request["id"]
                self.aborted += 1
                continue
            assert answer["reason"] == "length", answer["reason"]
            assert answer["tokens"] == expected, request["id"]
            self.compared += 1
            self._traffic.answered(request, expected)

    def check(self):
        """Between rounds nothing is held that a request needed, and nothing has grown."""
        state = self._engine.settle()
        for name in ("requests", "tracked", "jobs", "watched", "loading", "worker_loads", "worker_saves"):
            assert state[name] == 0, name
        self.offered += state["counters"]["offered_tokens"] - self._offered_before
        self._offered_before = state["counters"]["offered_tokens"]
        assert state["free_blocks"] == self._free_blocks
        held = ("orbitkv_leases", "orbitkv_grants", "orbitkv_held_slots", "orbitkv_draining_slots")
        assert wait_until(lambda: all(self._manager.sample(name) == 0 for name in held), 20.0, 0.1), {
            name: self._manager.sample(name) for name in held
        }
        if self._engine_rounds >= WARM_ROUNDS:
            self._engine_usage.check()
        if self._manager_rounds >= WARM_ROUNDS:
            self._manager_usage.check()

    def run(self, seconds):
        end = time.monotonic() + seconds
        try:
            self._begin_manager()
            self._begin_engine()
            # Each kind once, then at random: an engine takes long to start.
            kinds = list(self.happened)
            while time.monotonic() < end or kinds:
                for _ in range(QUIET_ROUNDS):
                    self.round()
                self.check()
                self.round(kinds.pop(0) if kinds else self._random.choices(list(self.happened), (12, 12, 1))[0])
            for _ in range(WARM_ROUNDS):
                self.round()
            self.check()
            assert self.compared > 0 and self.offered > 0, (self.compared, self.offered)
        finally:
            self._manager.close()


def test_a_short_soak(start_engine, folder):
    soak = Soak(start_engine, folder, SEED)
    soak.run(SHORT_S)
    assert min(soak.happened.values()) > 0, soak.happened


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_long_soak(start_engine, folder, capsys):
    seed = int(os.environ.get("ORBITKV_SOAK_SEED", time.time_ns() % 1_000_000))
    seconds = float(os.environ.get("ORBITKV_SOAK_SECONDS", LONG_S))
    with capsys.disabled():
        print(f"\nsoak: seed {seed}, {seconds:.0f} s", flush=True)
    soak = Soak(start_engine, folder, seed)
    soak.run(seconds)
    with capsys.disabled():
        counts = ", ".join(f"{count} times {kind}" for kind, count in soak.happened.items())
        print(f"soak: {soak.compared} answers compared, {soak.aborted} aborted, {counts}", flush=True)
