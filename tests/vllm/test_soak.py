"""Mixed traffic for a long time, while the Manager and the engine are killed at random.

Every answer is compared with that of an engine without a connector; no request fails; memory, descriptors and slots do
not grow. ORBITKV_SOAK_SECONDS sets the time of the long form, ORBITKV_SOAK_SEED its seed.
"""

import mmap
import os
import random
import signal
import time
from pathlib import Path

import pytest
from engine import tokens

from harness.manager import Manager
from harness.processes import session_pids, wait_until

LONG_S = 3600.0
SHORT_S = 20.0
SEED = 1
# Small, so that the engine preempts and evicts, and the Manager evicts.
ENGINE = {"num_gpu_blocks_override": 72, "max_model_len": 1024, "max_num_batched_tokens": 256}
POOL = "8MiB"
MOST_TOKENS = 1024
# Between two things that happen to the Manager or the engine.
QUIET_ROUNDS = 3
# How often what happens, out of their sum, while one of the two is left alone to grow old: what leaks shows in an old
# process. After so many rounds it is the other one's turn.
HAPPENS = {
    "engine": {"manager killed": 12, "manager stopped": 12},
    "manager": {"manager stopped": 20, "engine killed": 1},
}
SPAN_ROUNDS = 240
# What a process has after so many rounds is what it may have later: they fill its caches and pools.
WARM_ROUNDS = 40
# Without anything happening, at the end.
CALM_ROUNDS = 12
# Of the Manager's figures, those that are zero when no request is under way.
HELD = (
    "orbitkv_leases",
    "orbitkv_grants",
    "orbitkv_found_pins",
    "orbitkv_granted_pins",
    "orbitkv_reservations",
    "orbitkv_reserved_slots",
    "orbitkv_held_slots",
    "orbitkv_draining_slots",
)
# The memory that an engine's malloc keeps in free pieces grows by 23 MiB in 480 rounds, what it has given out by 1 MiB:
# hashes of what is stored, up to a limit, and vLLM's statistics. A Manager's memory grows by 0.15 MiB.
MOST_GROWTH = {
    "engine": {"memory KiB": 64 << 10, "allocated KiB": 2 << 10, "entries": 100, "descriptors": 4, "threads": 4},
    "manager": {"memory KiB": 1 << 10, "descriptors": 8, "threads": 4},
}
# oneDNN and torch's part of it keep what they made for 1,024 shapes of steps: hundreds of MiB, which would hide a leak.
ENVIRONMENT = {"ONEDNN_PRIMITIVE_CACHE_CAPACITY": "16", "LRU_CACHE_CAPACITY": "16"}


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
    """What a process holds, against what it held when it was warm.

    `most`: how much more may be of each. `more`: gives what of it the system does not tell.
    """

    def __init__(self, pid, most, more=dict):
        self._folder = Path(f"/proc/{pid}")
        self._growth = most
        self._more = more
        self._rounds = 0
        self._first = {}
        self._most = {}

    def round(self):
        self._rounds += 1

    def check(self):
        if self._rounds < WARM_ROUNDS:
            return
        status = dict(line.split(":", 1) for line in (self._folder / "status").read_text().splitlines())
        now = self._more() | {
            "memory KiB": int(status["RssAnon"].split()[0]),
            "descriptors": len(list((self._folder / "fd").iterdir())),
            "threads": int(status["Threads"]),
        }
        self._first = self._first or now
        self._most = {name: max(value, self._most.get(name, 0)) for name, value in now.items()}
        grown = {name: value - self._first[name] for name, value in now.items()}
        too_much = {name: value for name, value in grown.items() if value > self._growth[name]}
        assert not too_much, f"after {self._rounds} rounds too much: {too_much} on top of {self._first}"

    def __str__(self):
        """The life of a process in a line."""
        grown = [f"{name} {value} + {self._most[name] - value}" for name, value in self._first.items()]
        return f"{self._rounds} rounds; {', '.join(grown) or 'not warm'}"


class Soak:
    """`say`: is given a line now and then."""

    def __init__(self, start_engine, folder, seed, say=lambda line: None):
        self._start_engine = start_engine
        self._say = say
        self._random = random.Random(seed)
        self._traffic = Traffic(self._random)
        self._manager = Manager(folder / f"soak{seed}" / "manager.sock", POOL)
        self._options = {"orbitkv.bootstrap_socket": str(self._manager.socket), "orbitkv.lookup_limit_ms": 2000}
        self._plain = start_engine(None, **ENGINE)
        self._references = {}
        self._sessions = []
        self._lives = {}
        self.rounds = 0
        self.happened = {kind: 0 for kinds in HAPPENS.values() for kind in kinds}
        self.compared = self.aborted = self.offered = self._offered_before = 0

    # ---- processes --------------------------------------------------------------------------------------------------

    def _begin_engine(self):
        self._engine = self._start_engine(self._options, environment=ENVIRONMENT, **ENGINE)
        assert self._engine.wait_up()
        self._free_blocks = self._engine.state()["free_blocks"]
        self._offered_before = 0
        self._begins("engine", self._engine.process.pid, self._engine.holds)

    def _begin_manager(self):
        self._manager.start()
        self._begins("manager", self._manager.pid)

    def _begins(self, name, pid, more=dict):
        if name in self._lives:
            self._say(f"{name}: {self._lives[name]}")
        self._lives[name] = Usage(pid, MOST_GROWTH[name], more)
        self._sessions.append(pid)

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
        self.rounds += 1
        for usage in self._lives.values():
            usage.round()
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
        # Without requests an engine does not step for the end of its saves while the Manager is away.
        assert self._engine.wait_up()
        state = self._engine.settle()
        for name in ("requests", "tracked", "jobs", "watched", "loading", "worker_loads", "worker_saves"):
            assert state[name] == 0, name
        self.offered += state["counters"]["offered_tokens"] - self._offered_before
        self._offered_before = state["counters"]["offered_tokens"]
        assert state["free_blocks"] == self._free_blocks
        assert wait_until(lambda: not self._held(), 20.0, 0.1), self._held()
        for usage in self._lives.values():
            usage.check()

    def _next(self):
        """What happens to one of them, while the other one's span goes on."""
        old = list(HAPPENS)[self.rounds // SPAN_ROUNDS % len(HAPPENS)]
        return self._random.choices(list(HAPPENS[old]), list(HAPPENS[old].values()))[0]

    def _held(self):
        """What the Manager keeps for somebody, and slots that no block of its index is in."""
        samples = self._manager.samples()
        held = {name: samples[name] for name in HELD if samples[name]}
        lost = samples["orbitkv_pool_slots_sealed"] - samples["orbitkv_blocks_resident"]
        return held | ({"lost slots": lost} if lost else {})

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
                self.round(kinds.pop(0) if kinds else self._next())
            for _ in range(CALM_ROUNDS):
                self.round()
            self.check()
            assert self.compared > 0 and self.offered > 0, (self.compared, self.offered)
            self._engine.close()
        finally:
            self._manager.close()
        left = [pid for session in self._sessions for pid in session_pids(session)]
        assert not left, "processes were left"
        for name, usage in self._lives.items():
            self._say(f"{name}: {usage}")


def fresh_memory():
    """Pages of its own: what malloc gives out may be what earlier tests gave back, which the process has already."""
    pages = mmap.mmap(-1, 32 << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    pages.write(b"x" * len(pages))
    return pages


@pytest.mark.parametrize(
    ("name", "leak"),
    [
        ("memory KiB", fresh_memory),
        ("descriptors", lambda: [Path(os.devnull).open() for _ in range(5)]),  # noqa: SIM115
        ("entries", lambda: [0] * 101),
    ],
)
def test_what_a_process_does_not_give_back_is_noticed(name, leak):
    """In this process."""
    kept = []
    most = {"memory KiB": 1024, "descriptors": 4, "threads": 4, "entries": 100}
    usage = Usage(os.getpid(), most, lambda: {"entries": sum(len(each) for each in kept if isinstance(each, list))})
    for _ in range(WARM_ROUNDS):
        usage.round()
    for _ in range(2):
        usage.check()
    kept.append(leak())
    with pytest.raises(AssertionError, match=f"rounds too much: .'{name}'"):
        usage.check()


def test_a_short_soak(start_engine, folder):
    soak = Soak(start_engine, folder, SEED)
    soak.run(SHORT_S)
    assert min(soak.happened.values()) > 0, soak.happened


@pytest.mark.long
@pytest.mark.timeout(0)
def test_a_long_soak(start_engine, folder, capsys):
    seed = int(os.environ.get("ORBITKV_SOAK_SEED", time.time_ns() % 1_000_000))
    seconds = float(os.environ.get("ORBITKV_SOAK_SECONDS", LONG_S))
    begin = time.monotonic()

    def say(line):
        with capsys.disabled():
            print(f"\nsoak, {time.monotonic() - begin:.0f} s: {line}", end="", flush=True)

    say(f"seed {seed}, {seconds:.0f} s")
    soak = Soak(start_engine, folder, seed, say)
    soak.run(seconds)
    counts = ", ".join(f"{count} times {kind}" for kind, count in soak.happened.items())
    say(f"{soak.rounds} rounds, {soak.compared} answers compared, {soak.aborted} aborted, {counts}\n")
