"""Small stand-ins for the native client and for what vLLM hands to a connector. No engine, no Manager."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

from orbitkv.vllm import compat
from orbitkv.vllm.groups import Group, Groups
from orbitkv.vllm.options import parse
from orbitkv.vllm.scheduler import SchedulerSide

BLOCK = 4
HASH_BYTES = 32
FULL = Group(BLOCK, 1024, "full_attention", "float32", None)
ONE_GROUP = Groups([FULL])
# Blocks twice as long, and a window that reaches over two of them: a boundary after every second hash block.
WINDOW = Group(2 * BLOCK, 1024, "sliding_window", "float32", None, "sliding_window", 10)
STATE = Group(2 * BLOCK, 512, "mamba", "float32", None, "recurrent", exact=True)


def parsed(**options):
    """A connector's options, given without their prefix."""
    return parse({"orbitkv.bootstrap_socket": "/x"} | {f"orbitkv.{key}": value for key, value in options.items()})


def scheduler_side(client, groups=ONE_GROUP, *, world=1, offers=True, **options):
    ranks = compat.Ranks(world, world, 1)
    return SchedulerSide(FakeLink(client), parsed(**options), groups, ranks, HASH_BYTES, offers)


def block_hash(name, index):
    return f"{name}:{index}".encode().ljust(HASH_BYTES, b".")


def hashes_of(name, *indices):
    return {block_hash(name, i) for i in indices}


def start(side, req, local=0):
    """Brings a request to the scheduler's side, up to its first look-up."""
    side.on_new_request(req)
    return side.matched_tokens(req, local * BLOCK)


class Clock:
    def __init__(self):
        self.now = 1000.0

    def monotonic(self):
        return self.now


class FakeHashes:
    """Stands in for orbitkv.BlockHashes, which does not give its bytes back."""

    def __init__(self, data, hash_bytes=HASH_BYTES):
        self.hash_bytes = hash_bytes
        self.items = (
            list(data)
            if isinstance(data, list)
            else [data[i : i + hash_bytes] for i in range(0, len(data), hash_bytes)]
        )

    def __len__(self):
        return len(self.items)

    def __getitem__(self, part):
        return FakeHashes(self.items[part], self.hash_bytes)

    def extend(self, items):
        self.items += items


def hash_list(hashes):
    return list(hashes.items)


def request(req_id, tokens, *, name=None, prompt=None, **extra):
    return SimpleNamespace(
        request_id=req_id,
        num_tokens=tokens,
        all_token_ids=list(range(tokens)),
        num_prompt_tokens=prompt if prompt is not None else tokens,
        block_hashes=[block_hash(name or req_id, i) for i in range(tokens // BLOCK)],
        lora_request=extra.get("lora"),
        mm_features=extra.get("mm", []),
        prompt_embeds=None,
        skip_reading_prefix_cache=extra.get("skip", False),
    )


def per_group(tables):
    """Block tables as vLLM has them. A list is the table of the only group, a tuple has one for each."""
    return tuple(list(table) for table in tables) if isinstance(tables, tuple) else (list(tables),)


def blocks(ids):
    return SimpleNamespace(get_block_ids=lambda: per_group(ids))


def step(new=(), cached=(), tables=None, handed=None):
    """One SchedulerOutput. handed: states by request.

    new: (id, tables, computed, scheduled); cached: (id, tables, computed, scheduled, again).
    """
    scheduled = {n[0]: n[3] for n in new} | {c[0]: c[3] for c in cached}
    all_tables = {n[0]: n[1] for n in new} | (tables or {})
    return SimpleNamespace(
        scheduled_new_reqs=[
            SimpleNamespace(req_id=n[0], block_ids=per_group(n[1]), num_computed_tokens=n[2]) for n in new
        ],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[c[0] for c in cached],
            new_block_ids=[None if c[1] is None else per_group(c[1]) for c in cached],
            num_computed_tokens=[c[2] for c in cached],
            resumed_req_ids={c[0] for c in cached if c[4]},
        ),
        num_scheduled_tokens=scheduled,
        total_num_scheduled_tokens=sum(scheduled.values()),
        kv_connector_block_state=SimpleNamespace(
            get_block_ids=lambda req_id: per_group(all_tables[req_id]) if req_id in scheduled else None,
            boundary_state_offloads=handed or {},
        ),
    )


def report(meta=None, finished=(), invalid=(), failed=()):
    return SimpleNamespace(
        kv_connector_worker_meta=meta,
        finished_recving=set(finished),
        invalid_block_ids=set(invalid),
        failed_recving=set(failed),
    )


@dataclass
class FakeClient:
    """Answers from a set of hashes. `silent` questions are never answered."""

    present: set = field(default_factory=set)
    boundaries: list | None = None  # what is offered instead, as far as the question goes
    state: str = "up"
    incarnation: bytes = b"one".ljust(16, b".")
    silent: bool = False
    loading: bool = False  # every question is answered with that
    grants_refused: bool = False
    loaded: int = 0  # of the blocks of each answer, the last ones
    reason: str = ""  # of an answer without blocks
    log: list = field(default_factory=list)
    prefixes: list = field(default_factory=list)  # of each restore
    runs: list = field(default_factory=list)  # of each publish
    measured: list = field(default_factory=list)  # of each query: whether its load_wait_s was
    completions: list = field(default_factory=list)
    queued: set = field(default_factory=set)  # publish jobs that a cancel still reaches
    sources_free: bool = True
    queue_full: bool = False
    next_id: int = 100
    fd: int = 0

    def _id(self):
        self.next_id += 1
        return self.next_id

    def named(self, name):
        return [entry[1:] for entry in self.log if entry[0] == name]

    # scheduler
    def query(
        self,
        request_id,
        hashes,
        *,
        prefix_blocks=0,
        attempt=0,
        wait_s=0.0,
        load_wait_s=0.0,
        load_wait_is_compute_time=False,
    ):
        self.log.append(("query", request_id, len(hashes), prefix_blocks, wait_s, load_wait_s))
        self.measured.append(load_wait_is_compute_time)
        if self.loading:
            return SimpleNamespace(found_blocks=0, boundaries=(), lease=0, reason="loading", loaded_blocks=0)
        if self.state != "up":
            return SimpleNamespace(found_blocks=0, boundaries=(), lease=0, reason="down", loaded_blocks=0)
        if self.silent:
            return None
        if self.boundaries is not None:
            offered = [at - prefix_blocks for at in self.boundaries if prefix_blocks < at <= len(hashes)]
            lease = self._id() if offered else 0
            return self._answer(max([0, *offered]), offered, lease)
        found = 0
        for item in hash_list(hashes)[prefix_blocks:]:
            if item not in self.present:
                break
            found += 1
        every = range(1, found + 1)
        return self._answer(found, every, self._id() if found else 0)

    def _answer(self, found, boundaries, lease):
        loaded = min(found, self.loaded)
        reason = "found" if found else self.reason
        return SimpleNamespace(
            found_blocks=found, boundaries=boundaries, lease=lease, reason=reason, loaded_blocks=loaded
        )

    def cancel_query(self, request_id):
        self.log.append(("cancel_query", request_id))

    def begin_restore(self, lease, count, ranks=(0,)):
        grant = 0 if self.grants_refused else self._id()
        self.log.append(("begin", lease, count, tuple(ranks), grant))
        return grant

    def release_lease(self, lease):
        self.log.append(("release_lease", lease))

    def release_grant(self, grant):
        self.log.append(("release_grant", grant))

    # worker
    def restore(self, grant, hashes, block_ids, *, prefix_blocks=0, incarnation=b"", tag=0):
        job = self._id()
        self.prefixes.append(prefix_blocks)
        self.log.append(("restore", grant, hash_list(hashes), list(block_ids), incarnation, job))
        return job

    def publish(
        self, hashes, block_ids, *, runs=(), first_depth=0, parent=b"", prompt_tokens=0, answer_tokens=0, tag=0
    ):
        if self.queue_full:
            return None
        job = self._id()
        self.runs.append(list(runs))
        self.log.append(("publish", hash_list(hashes), list(block_ids), first_depth, parent, job))
        return job

    def cancel_publish(self, job):
        self.log.append(("cancel_publish", job))
        return job in self.queued

    def wait_sources_free(self, jobs, timeout_s):
        self.log.append(("wait", tuple(jobs)))
        return self.sources_free

    def completion_fd(self):
        self.log.append(("completion_fd",))
        return self.fd

    def poll(self):
        done, self.completions = self.completions, []
        return done

    def complete(self, job, kind, outcomes):
        ok = all(outcome in (1, 2, 4) for outcome in outcomes)
        self.completions.append(
            SimpleNamespace(job=job, kind=kind, tag=0, ok=ok, outcomes=bytes(outcomes), bytes=0, error="")
        )


class FakeLink:
    def __init__(self, client):
        self.client = client
        self.closed = 0
        self.epochs = []

    @property
    def asker(self):
        return self.client

    def close(self, timeout_s=5.0):
        self.closed += 1

    def renew(self, epoch):
        self.epochs.append(epoch)

    def suspend(self, timeout_s):
        suspended, self.client = self.client, None
        return suspended

    def resume(self):
        self.resumed = getattr(self, "resumed", 0) + 1
