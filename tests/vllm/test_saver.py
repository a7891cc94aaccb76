"""Steps pass over requests that have nothing to save, and miss none that has: the saver against a walk over everything.

Whatever vLLM does with a request (chunks, drafts that are rejected, names that come late, preemptions in both runners'
shapes, tokens taken back in place), a saver that remembers when to look again saves the same as one that looks at every
block of every scheduled request in every step.
"""

import dataclasses
import random
from types import SimpleNamespace

import pytest
from fakes import (
    BLOCK,
    FULL,
    ONE_GROUP,
    STATE,
    WINDOW,
    FakeClient,
    block_hash,
    report,
    request,
    scheduler_side,
    step,
)

from orbitkv.vllm import compat, key_domains
from orbitkv.vllm.groups import Groups
from orbitkv.vllm.messages import Save, SaveReport, WorkerMetadata
from orbitkv.vllm.save_jobs import Job, SaveJobs

pytestmark = pytest.mark.usefixtures("fake_hashes")

SHAPES = {
    "full": ONE_GROUP,
    "window": Groups([FULL, WINDOW], BLOCK),
    "state": Groups([FULL, STATE], BLOCK),
    "drafter": Groups([dataclasses.replace(FULL, volatile=True), dataclasses.replace(WINDOW, volatile=True)], BLOCK),
}


def make(groups=ONE_GROUP, client=None, **options):
    return scheduler_side(client or FakeClient(), groups, **options)


# ---- which requests are looked at -----------------------------------------------------------------------------------


def looks(side, output):
    """Requests whose tables a step asks for."""
    asked = []
    state = output.kv_connector_block_state
    get, state.get_block_ids = state.get_block_ids, lambda req_id: asked.append(req_id) or get(req_id)
    side.build(output)
    return asked


def decode(requests, computed, scheduled=1):
    tables = {name: list(range(1, 40)) for name in requests}
    return step(cached=[(name, None, computed[name], scheduled, False) for name in requests], tables=tables)


def test_a_decode_is_looked_at_when_it_fills_a_block_and_not_otherwise():
    side = make()
    computed = {f"r{length}": length for length in range(9, 9 + 2 * BLOCK)}
    for name, length in computed.items():
        side.on_new_request(request(name, 100, prompt=length))
    new = [(name, list(range(1, 40)), 0, length) for name, length in computed.items()]
    assert len(looks(side, step(new=new))) == len(computed)
    for _ in range(3 * BLOCK):
        filled = [name for name, length in computed.items() if (length + 1) % BLOCK == 0]
        assert looks(side, decode(computed, computed)) == filled
        computed = {name: length + 1 for name, length in computed.items()}


def test_the_smallest_block_of_several_groups_decides():
    side = make(SHAPES["window"])
    side.on_new_request(request("r", 100, prompt=6))
    side.build(step(new=[("r", ([1, 2], [3]), 0, 6)]))
    table = (list(range(1, 30)), list(range(30, 60)))
    outputs = {at: step(cached=[("r", None, at, 1, False)], tables={"r": table}) for at in range(6, 30)}
    assert [at for at, output in outputs.items() if looks(side, output)] == [7, 11, 15, 19, 23, 27]


def test_a_full_block_without_a_name_is_looked_at_until_it_has_one():
    side = make()
    req = request("r", 7)
    side.on_new_request(req)
    side.build(step(new=[("r", [1, 2, 3], 0, 7)]))
    for at in range(7, 10):
        assert looks(side, decode(["r"], {"r": at})) == ["r"]
    req.block_hashes.append(block_hash("r", 1))
    assert looks(side, decode(["r"], {"r": 10})) == ["r"]
    assert looks(side, decode(["r"], {"r": 10})) == []


def test_requests_of_which_nothing_is_saved_are_looked_at_no_more():
    side = make()
    for name, params in (("saved", None), ("not", {"orbitkv.save": False})):
        req = request(name, 40, prompt=8)
        req.kv_transfer_params = params
        side.on_new_request(req)
    side.on_new_request(request("outside", 40, mm=[SimpleNamespace(identifier="x.png")]))
    names = ["saved", "not", "outside"]
    assert looks(side, decode(names, dict.fromkeys(names, 7))) == ["saved"]
    assert [name for name, _ in side._saver.due(decode(names, dict.fromkeys(names, 11)))] == ["saved"]


def test_a_request_below_the_least_number_of_tokens_is_looked_at_when_it_gets_there():
    side = make(save_min_tokens=14)
    side.on_new_request(request("r", 40, prompt=6))
    assert looks(side, decode(["r"], {"r": 6})) == ["r"]
    assert [at for at in range(7, 16) if looks(side, decode(["r"], {"r": at}))] == [13, 15]


def test_tokens_taken_back_and_another_admission_are_looked_at():
    side = make()
    req = request("r", 40)
    side.on_new_request(req)
    (save,) = side.build(step(new=[("r", list(range(1, 12)), 0, 21)])).saves
    side.update(report(WorkerMetadata({save.job: [SaveReport(side._link.client.incarnation, [True] * 5)]})))
    assert looks(side, decode(["r"], {"r": 21})) == []
    # A load that another connector had promised failed: from the tenth token on all is computed again.
    metadata = side.build(decode(["r"], {"r": 10}, scheduled=11))
    assert [save.first_block for save in metadata.saves] == [2]
    assert looks(side, decode(["r"], {"r": 21})) == []
    side.matched_tokens(req, 0)
    assert looks(side, decode(["r"], {"r": 21})) == ["r"]


def test_nothing_is_remembered_of_a_request_that_ended():
    side = make()
    req = request("r", 8)
    side.on_new_request(req)
    side.build(step(new=[("r", [1, 2], 0, 8)]))
    assert side._saver._quiet
    side.request_finished(req)
    assert not side._saver._quiet


# ---- the same saves as a walk over everything -----------------------------------------------------------------------


class Walk:
    """Looks at every block of every request in every step; remembers nothing but how far it has looked."""

    def __init__(self, side):
        self.side = side
        side._saver = self

    def forget(self, req_id):
        pass

    def step(self, output, requests, epoch):
        saves = []
        cached, state = output.scheduled_cached_reqs, output.kv_connector_block_state
        computed = list(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for req_id, before in computed + [(new.req_id, new.num_computed_tokens) for new in output.scheduled_new_reqs]:
            tracked = requests.get(req_id)
            if tracked is None or tracked.bypass or not tracked.wishes.save:
                continue
            tokens = (before, before + output.num_scheduled_tokens[req_id])
            handed = compat.handed_states(state, req_id)
            for number, table in enumerate(state.get_block_ids(req_id)):
                saves += self._group(tracked, number, table, tokens, handed, epoch)
        return saves

    def _group(self, tracked, number, table, tokens, handed, epoch):
        side, groups, req = self.side, self.side._groups, tracked.request
        before, after = tokens
        size, policy = groups[number].block_tokens, side._policy
        if tracked.found is None:
            tracked.found = before
        reached = req.num_prompt_tokens if tracked.wishes.save == "prompt" else max(req.num_prompt_tokens, after)
        if reached < side._options.save_min_tokens:
            return []
        have = before // size
        end = min(after // size, groups.blocks(number, len(tracked.block_hashes)), len(table))
        begin = min(tracked.saved[number], have)
        tracked.saved[number] = max(begin, end)
        saves, run = [], []
        for index in range(begin, end):
            key = side._key(tracked, number, index)
            if (
                table[index] != 0
                and not (index < have and key in side._stored)
                and not side._jobs.is_saving(table[index], key)
                and groups.holds(number, index, tokens, handed)
                and groups.keeps(number, index, req.num_prompt_tokens)
                and policy.wants(tracked.wishes, req, key, (index + 1) * size)
            ):
                run.append(index)
            else:
                saves += self._save(tracked, number, table, run, epoch)
                run = []
        return saves + self._save(tracked, number, table, run, epoch)

    def _save(self, tracked, number, table, run, epoch):
        side, groups, req = self.side, self.side._groups, tracked.request
        room = side._jobs.room(number)
        side.counters.dropped_blocks += max(0, len(run) - room)
        run = run[:room]
        if not run:
            return []
        size = groups[number].block_tokens
        first, last = groups.chain(number, run[0], run[-1] + 1)
        keys = [side._key(tracked, number, block) for block in run]
        ids = [table[block] for block in run]
        found = sum((block + 1) * size <= tracked.found for block in run)
        names = tracked.block_hashes
        answer = max(0, req.num_tokens - req.num_prompt_tokens)
        job = side._jobs.add(number, Job(keys, ids, found, size, epoch))
        parent = names[first - 1] if first else b""
        hashes = b"".join(names[first:last])
        save = Save(job, first, parent, hashes, ids, req.num_prompt_tokens, answer, number, run[0], tracked.adapter)
        side._saving(save, req)
        return [save]


class Running:
    """A request as vLLM sees it."""

    def __init__(self, req, groups, domain):
        self.req = req
        self.domain = domain
        self.computed = 0
        self.tables = tuple([] for _ in groups)
        self.admitted = False
        self.preempted = False


class Engine:
    """Plays vLLM to several scheduler sides at once, from a seed."""

    def __init__(self, seed, groups, sides):
        self.dice = random.Random(seed)
        self.groups = groups
        self.sides = sides
        self.running = []
        self.started = 0
        self.next_id = 0
        self.tables_of = {}  # name -> the tables of its last request

    def chance(self, share):
        return self.dice.random() < share

    def new_id(self, tables):
        """Of a block that is in none of these tables; saves may still read it."""
        while True:
            self.next_id = self.next_id % 80 + 1
            if not any(self.next_id in table for table in tables):
                return self.next_id

    def start(self):
        self.started += 1
        prompt = self.dice.randrange(1, 50)
        name = f"p{self.dice.randrange(4)}"
        req = request(f"r{self.started}", prompt, name=name)
        save = self.dice.choice([None, None, None, True, False, "prompt", "seen_twice"])
        req.kv_transfer_params = None if save is None else {"orbitkv.save": save}
        running = Running(req, self.groups, b"adapter" if self.chance(0.2) else b"")
        for side in self.sides:
            side.on_new_request(req)
            side._requests[req.request_id].domain = running.domain
        self.admit(running)
        self.running.append(running)

    def admit(self, running):
        """Its look-up, and what it finds in the engine's own cache of the request before it with its name."""
        known = self.tables_of.get(running.req.block_hashes[0] if running.req.block_hashes else None)
        running.tables = tuple([] for _ in self.groups)
        running.computed = 0
        if known is not None and self.chance(0.6):
            align = self.groups.align_tokens
            held = [len(table) * group.block_tokens for table, group in zip(known, self.groups, strict=True)]
            longest = min([running.req.num_tokens - 1, *held])
            running.computed = self.dice.randrange(longest // align + 1) * align
            running.tables = tuple(
                list(table[: running.computed // group.block_tokens])
                for table, group in zip(known, self.groups, strict=True)
            )
        if not running.preempted or self.chance(0.9):
            for side in self.sides:
                side.matched_tokens(running.req, running.computed)

    def grow(self, running, tokens):
        """Blocks for so many tokens. What has left a window is null."""
        fresh = []
        for group, table in zip(self.groups, running.tables, strict=True):
            begin = len(table)
            while len(table) * group.block_tokens < tokens:
                table.append(self.new_id(running.tables))
            fresh.append(table[begin:])
            if group.span_tokens:
                for block in range(max(0, running.computed - group.span_tokens) // group.block_tokens):
                    table[block] = 0
        return tuple(fresh) if any(fresh) else None

    def output(self):
        new, cached, handed = [], [], {}
        for running in self.running:
            if self.chance(0.15):
                continue  # not scheduled
            if running.admitted and not running.preempted and self.chance(0.05):
                running.preempted = True
                self.admit(running)
                continue
            if running.admitted and not running.preempted and self.chance(0.05):
                running.computed = self.dice.randrange(running.computed + 1)  # taken back in place
            left = running.req.num_tokens - running.computed
            drafts = self.dice.randrange(4) if left == 1 and self.chance(0.3) else 0
            count = min(left, self.dice.choice([1, 5, 16, 100])) + drafts
            fresh = self.grow(running, running.computed + count)
            name, tables = running.req.request_id, tuple(list(table) for table in running.tables)
            if self.chance(0.3):
                handed[name] = [(1, 0, self.dice.randrange(10) * 2 * BLOCK)]
            again = running.preempted and self.chance(0.5)
            if running.admitted and (again or not running.preempted):
                cached.append((name, tables if again else fresh, running.computed, count, again))
            else:
                new.append((name, tables, running.computed, count))
            running.admitted, running.preempted = True, False
            self.advance(running, count)
        tables = {r.req.request_id: tuple(list(t) for t in r.tables) for r in self.running}
        return step(new=new, cached=cached, tables=tables, handed=handed)

    def advance(self, running, count):
        """Tokens come, and their hashes perhaps some steps later."""
        after, req = running.computed + count, running.req
        if after >= req.num_tokens:
            accepted = self.dice.randrange(1, after - req.num_tokens + 2)
            req.num_tokens += accepted
            after = req.num_tokens - 1
        running.computed = after

    def late_names(self):
        for running in self.running:
            req = running.req
            if self.chance(0.7):
                name = req.block_hashes[0].split(b":")[0].decode() if req.block_hashes else req.request_id
                req.block_hashes += [block_hash(name, i) for i in range(len(req.block_hashes), req.num_tokens // BLOCK)]

    def finish(self):
        for running in list(self.running):
            if running.req.num_tokens > 80 or self.chance(0.03):
                self.running.remove(running)
                if running.req.block_hashes:
                    self.tables_of[running.req.block_hashes[0]] = running.tables
                for side in self.sides:
                    side.request_finished(running.req)

    def manager(self):
        """What the Manager and the workers do meanwhile."""
        jobs = [job for job in self.sides[0]._jobs._jobs if self.chance(0.3)]
        outcomes = {job: [self.chance(0.8) for _ in self.sides[0]._jobs._jobs[job].keys] for job in jobs}
        state = "up" if self.chance(0.9) else "suspect"
        replaced, reset = self.chance(0.02), self.chance(0.01)
        for side in self.sides:
            client = side._link.client
            saves = {job: [SaveReport(client.incarnation, stored)] for job, stored in outcomes.items()}
            side.update(report(WorkerMetadata(saves)))
            client.state = state
            if replaced:
                client.incarnation = bytes(reversed(client.incarnation))
            if reset:
                side.reset()


@pytest.mark.parametrize("policy", ["all", "prompt", "seen_twice"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_same_is_saved_as_by_looking_at_everything(monkeypatch, shape, policy):
    monkeypatch.setattr(key_domains.KeyDomains, "settle", lambda *_: True)
    epochs = iter(bytes([i]) * 8 for i in range(1, 250) for _ in range(2))
    monkeypatch.setattr("orbitkv.vllm.scheduler.os.urandom", lambda _: next(epochs))
    groups, saved, looked, scheduled = SHAPES[shape], 0, 0, 0
    for seed in range(8):
        options = {"save": policy, "save_min_tokens": 30 * (seed % 2), "save_queue_bytes": (1 << 30, 9000)[seed // 4]}
        side, walk = make(groups, **options), make(groups, **options)
        Walk(walk)
        engine = Engine(seed, groups, [side, walk])
        for number in range(80):
            if len(engine.running) < 6 and engine.chance(0.3):
                engine.start()
            output = engine.output()
            looked += len(side._saver.due(output))
            scheduled += len(output.num_scheduled_tokens)
            built, expected = side.build(output), walk.build(output)
            assert built == expected, (seed, number)
            assert side.counters == walk.counters, (seed, number)
            for name, tracked in side._requests.items():
                twin = walk._requests[name]
                assert (tracked.saved, tracked.found) == (twin.saved, twin.found), (seed, number, name)
            saved += len(built.saves)
            engine.late_names()
            engine.finish()
            engine.manager()
    assert saved > 50
    assert looked < scheduled


# ---- saves on their way ---------------------------------------------------------------------------------------------


def test_the_blocks_of_saves_are_watched_as_long_as_one_of_them_reads_them():
    """Against a plain list of (job, block, key)."""
    for seed in range(20):
        dice = random.Random(seed)
        jobs, model, taken = SaveJobs(1, [10], 1 << 20), [], set()
        for _ in range(60):
            ids = dice.sample(range(1, 12), dice.randrange(1, 5))
            key = bytes([dice.randrange(3)])
            number = jobs.add(0, Job([key] * len(ids), ids, 0, 4, b""))
            model += [(number, block, key) for block in ids]
            if dice.random() < 0.3:
                jobs.take(ids)
                taken |= {job for job, block, _ in model if block in ids}
            block, other = dice.randrange(1, 12), bytes([dice.randrange(3)])
            jobs.take_unless(block, other)
            taken |= {job for job, at, name in model if at == block and name != other}
            expected = any(at == block and name == other and job not in taken for job, at, name in model)
            assert jobs.is_saving(block, other) == expected
            if dice.random() < 0.7:
                ended = dice.choice(model)[0]
                assert jobs.report(ended, [SaveReport(b"", [True])]).keys
                model = [entry for entry in model if entry[0] != ended]
            if dice.random() < 0.3:
                assert jobs.pop_taken() == sorted(taken)
                taken = set()
            assert jobs.watched_blocks == len({at for _, at, _ in model})
            assert jobs.size_bytes == 10 * len(model)
            assert jobs.read_any([40, *ids]) == any(at in ids for _, at, _ in model)
            assert [jobs.reads(at) for at in range(12)] == [at in {b for _, b, _ in model} for at in range(12)]
