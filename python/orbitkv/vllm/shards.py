"""One scheduler, several Managers: the shards of an engine whose ranks use different Managers of this host.

Each shard's ranks and a client of the scheduler are an instance of their own at their Manager. A block is there when
every shard has it, so a look-up asks all of them and takes the shortest answer; a restore begins at each.

Threads: the scheduler's only, as the clients' calls that it makes. Waits: a look-up as long as its caller says, in all.
"""

from __future__ import annotations

import contextlib
import time
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orbitkv

# Leases and grants whose owner has not given them back; the oldest are forgotten, and end at the Managers by time.
KEPT_HANDLES = 8192
# The reason of an answer that is none yet.
LOADING = "loading"


class FoundBlocks(Protocol):
    @property
    def found_blocks(self) -> int: ...
    @property
    def boundaries(self) -> Sequence[int]: ...
    @property
    def lease(self) -> int: ...
    @property
    def loaded_blocks(self) -> int: ...
    @property
    def reason(self) -> str: ...


class Asker(Protocol):
    """What the scheduler's side needs of a client."""

    @property
    def state(self) -> str: ...
    @property
    def incarnation(self) -> bytes: ...
    def query(
        self,
        request_id: str,
        hashes: orbitkv.BlockHashes,
        *,
        prefix_blocks: int = 0,
        attempt: int = 0,
        wait_s: float = 200e-6,
        load_wait_s: float = 0.0,
        load_wait_is_compute_time: bool = False,
    ) -> FoundBlocks | None: ...
    def cancel_query(self, request_id: str) -> None: ...
    def begin_restore(self, lease: int, blocks: int, ranks: Sequence[int] = (0,)) -> int: ...
    def release_lease(self, lease: int) -> None: ...
    def release_grant(self, grant: int) -> None: ...
    def close(self, timeout_s: float = 5.0) -> None: ...
    def wait_up(self, timeout_s: float) -> bool: ...


@dataclass(frozen=True)
class ShardGrant:
    """What the ranks of one shard restore under."""

    grant: int
    incarnation: bytes


@dataclass(frozen=True)
class CombinedAnswer:
    found_blocks: int
    lease: int
    reason: str
    loaded_blocks: int = 0

    @property
    def boundaries(self) -> Sequence[int]:
        return range(1, self.found_blocks + 1)


NOTHING = CombinedAnswer(0, 0, "given up")


@dataclass
class Question:
    """A look-up that not all shards have answered."""

    asked: tuple[int, int, int]  # hashes, prefix, attempt: another one makes the answers worthless
    answers: dict[int, FoundBlocks] = field(default_factory=dict)  # by shard


class ShardClients:
    """The clients of a scheduler as one client; shard i's Manager is the i-th one's."""

    def __init__(self, clients: Sequence[Asker], ranks_per_shard: int) -> None:
        self._clients = list(clients)
        self._ranks = range(ranks_per_shard)
        self._open: dict[str, Question] = {}
        self._handles: OrderedDict[int, list[int]] = OrderedDict()  # a lease or a grant of ours -> the shards'
        self._next_handle = 1

    @property
    def state(self) -> str:
        states = {client.state for client in self._clients}
        if states == {"up"}:
            return "up"
        return "down" if "down" in states else "suspect"

    @property
    def incarnation(self) -> bytes:
        """Of all Managers, one after the other; empty while one is away."""
        each = [client.incarnation for client in self._clients]
        return b"".join(each) if all(each) else b""

    # ---- look-up ----------------------------------------------------------------------------------------------------

    def query(
        self,
        request_id: str,
        hashes: orbitkv.BlockHashes,
        *,
        prefix_blocks: int = 0,
        attempt: int = 0,
        wait_s: float = 200e-6,
        load_wait_s: float = 0.0,
        load_wait_is_compute_time: bool = False,
    ) -> CombinedAnswer | None:
        asked = (len(hashes), prefix_blocks, attempt)
        question = self._open.get(request_id)
        if question is None or question.asked != asked:
            if question is not None:
                self._drop(question)
            question = self._open[request_id] = Question(asked)
        end = time.monotonic() + wait_s
        waiting: dict[int, FoundBlocks | None] = {}  # shards that have not answered
        for wait in (0.0, None):  # every shard is asked before the first answer is waited for
            for shard, client in enumerate(self._clients):
                if shard in question.answers:
                    continue
                left = max(0.0, end - time.monotonic()) if wait is None else wait
                answer = client.query(
                    request_id,
                    hashes,
                    prefix_blocks=prefix_blocks,
                    attempt=attempt,
                    wait_s=left,
                    load_wait_s=load_wait_s,
                    load_wait_is_compute_time=load_wait_is_compute_time,
                )
                if answer is None or answer.reason == LOADING:
                    waiting[shard] = answer
                    continue
                waiting.pop(shard, None)
                question.answers[shard] = answer
                if answer.found_blocks == 0:
                    return self._miss(request_id, answer.reason)
        if len(question.answers) < len(self._clients):
            return None if None in waiting.values() else CombinedAnswer(0, 0, LOADING)
        del self._open[request_id]
        answers = [question.answers[shard] for shard in range(len(self._clients))]
        found = min(answer.found_blocks for answer in answers)
        # In the pool is what is in all of them.
        resident = min(answer.found_blocks - answer.loaded_blocks for answer in answers)
        lease = self._keep([answer.lease for answer in answers])
        return CombinedAnswer(found, lease, "found", max(0, found - resident))

    def _miss(self, request_id: str, reason: str) -> CombinedAnswer:
        """One shard without the first block settles it for all."""
        self.cancel_query(request_id)
        return CombinedAnswer(0, 0, reason)

    def cancel_query(self, request_id: str) -> None:
        question = self._open.pop(request_id, None)
        if question is None:
            return
        for shard, client in enumerate(self._clients):
            if shard not in question.answers:
                client.cancel_query(request_id)
        self._drop(question)

    def _drop(self, question: Question) -> None:
        for shard, answer in question.answers.items():
            if answer.lease:
                self._clients[shard].release_lease(answer.lease)

    # ---- handles ----------------------------------------------------------------------------------------------------

    def _keep(self, handles: list[int]) -> int:
        number = self._next_handle
        self._next_handle += 1
        self._handles[number] = handles
        if len(self._handles) > KEPT_HANDLES:
            self._handles.popitem(last=False)
        return number

    def begin_restore(self, lease: int, blocks: int, ranks: Iterable[int] = ()) -> int:
        """`ranks` are all ranks of the instance: each Manager is asked for the ones of its shard, counted from 0."""
        leases = self._handles.get(lease)
        if leases is None:
            return 0
        grants: list[int] = []
        for client, one in zip(self._clients, leases, strict=True):
            grants.append(client.begin_restore(one, blocks, ranks=self._ranks))
            if grants[-1] == 0:
                for begun, grant in zip(self._clients, grants, strict=False):
                    if grant:
                        begun.release_grant(grant)
                return 0
        del self._handles[lease]  # the grants have taken its place
        return self._keep(grants)

    def shard_grants(self, grant: int) -> list[ShardGrant]:
        grants = self._handles.get(grant, [])
        return [ShardGrant(one, client.incarnation) for one, client in zip(grants, self._clients, strict=False)]

    def release_lease(self, lease: int) -> None:
        for client, one in zip(self._clients, self._handles.pop(lease, []), strict=False):
            client.release_lease(one)

    def release_grant(self, grant: int) -> None:
        for client, one in zip(self._clients, self._handles.pop(grant, []), strict=False):
            client.release_grant(one)

    # ---- life -------------------------------------------------------------------------------------------------------

    def wait_up(self, timeout_s: float) -> bool:
        end = time.monotonic() + timeout_s
        return all(client.wait_up(max(0.0, end - time.monotonic())) for client in self._clients)

    def close(self, timeout_s: float = 5.0) -> None:
        with contextlib.ExitStack() as every_one:
            for client in self._clients:
                every_one.callback(client.close, timeout_s)
