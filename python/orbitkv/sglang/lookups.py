"""What the Manager has of the requests that wait: one answer and one lease for each.

SGLang may ask for every waiting request on every scheduling pass: an answer is kept while it is fresh and the question
is put to the Manager again after that, which renews the lease. A request that leaves the queue says nothing: what is
kept of it is forgotten after a while. Where nobody asks any more, its lease expires at the Manager.

Threads: SGLang's scheduler thread only. Blocks: `ask`; what all of them may wait between two calls of `begin_pass` is
in `Waits`. After a silence nothing is waited for until the Manager has answered again, or `SILENCE_S` later.
Errors: none; whatever goes wrong is no hit.
"""

from __future__ import annotations

import binascii
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import orbitkv
from orbitkv.warn_once import WarnOnce

logger = logging.getLogger("orbitkv.sglang")

# A complete answer is asked for anew after so long, well before its lease ends (10 s after the last renewal); one that
# could grow, because blocks are stored or loaded meanwhile, sooner, and each time that it did not, half as often.
COMPLETE_AGE_S = 1.0
PARTIAL_AGE_S = 0.02
# A request that was not asked for so long has left the queue, or will be asked for anew: its lease is given back. When
# the Manager has no room for another lease, that is supposed sooner.
FORGET_AGE_S = 5.0
HURRY_AGE_S = 1.5
MAX_REQUESTS = 4096
# An engine that is idle asks once for each request, so a late answer may find nobody: a Manager that was silent gets
# another chance after so long.
SILENCE_S = 0.25
# An answer that took at most this part of a look-up's wait is not counted: of a Manager that is well each look-up of a
# pass gets one, however many they are.
PROMPT_PART = 0.1
# One look at whether the Manager has loaded what is waited for.
LOAD_LOOK_S = 0.01

HASH_BYTES = 32
LOADING, REFUSED = "loading", "refused"
SILENT = ("timed out", "down")
NOT_ASKED = (*SILENT, "no namespace", REFUSED)  # of an answer: the Manager has not looked


@dataclass(frozen=True)
class Waits:
    """How long the look-ups of one scheduling pass may block the scheduler, all together but for prompt answers.

    Attributes:
        first_s: for the Manager's first word.
        load_s: while the Manager loads what it has outside its memory.
    """

    first_s: float = 0.002
    load_s: float = 0.0


@dataclass(slots=True)
class Known:
    """Of one request.

    Attributes:
        depth: pages that the engine has.
        keys: SGLang's hashes of those behind them.
        hashes: of all; those that the engine has are never looked at.
    """

    client: orbitkv.Client
    depth: int
    keys: Sequence[str]
    hashes: orbitkv.BlockHashes
    attempt: int
    boundaries: list[int] = field(default_factory=list)
    lease: int = 0
    asked_at: float = 0.0
    age_s: float = 0.0
    warmed_up: bool = False

    def is_about(self, client: orbitkv.Client, keys: Sequence[str]) -> bool:
        """A page hash covers all before it: the last one stands for all."""
        return self.client is client and len(self.keys) == len(keys) and self.keys[-1] == keys[-1]


@dataclass(frozen=True)
class Grant:
    """The right to restore the blocks of a boundary, which begin behind `depth` pages.

    `incarnation` is of the Manager that gave it.
    """

    client: orbitkv.Client
    number: int
    incarnation: bytes
    depth: int
    hashes: orbitkv.BlockHashes


def block_hashes(keys: Sequence[str], depth: int = 0) -> orbitkv.BlockHashes:
    """Behind so many that nobody knows."""
    return orbitkv.BlockHashes(bytes(HASH_BYTES * depth) + binascii.unhexlify("".join(keys)))


class Lookups:
    def __init__(self, waits: Waits, clock: Callable[[], float] = time.monotonic) -> None:
        self._waits = waits
        self._clock = clock
        self._known: dict[str, Known] = {}  # in the order of the last question
        self._waited_s = 0.0  # in this pass
        self._silent_until = 0.0  # nothing is waited for before
        self._warn = WarnOnce(logger)

    def __len__(self) -> int:
        return len(self._known)

    def begin_pass(self) -> None:
        """The scheduler asks about all that wait anew."""
        self._waited_s = 0.0

    def ask(self, client: orbitkv.Client, rid: str, keys: Sequence[str], depth: int = 0) -> list[int]:
        """Every count of pages, ascending, that the Manager can restore of these and keeps for a load.

        `depth`: pages of the prompt before them.
        """
        known = self._known.get(rid)
        now = self._clock()
        same = known is not None and known.is_about(client, keys)
        if known is not None and same and now - known.asked_at < known.age_s:
            return known.boundaries if client.state == "up" else []
        try:
            if known is None or not same:
                attempt = known.attempt + 1 if known is not None else 0
                known = Known(client, depth, keys, block_hashes(keys, depth), attempt)
            self._keep(rid, known, now)
            self._put(client, rid, known, now)
        except Exception as error:
            self._warn(str(error), "OrbitKV: a look-up failed and found nothing (said once): %s", error)
            self._known.pop(rid, None)
            return []
        return known.boundaries

    def begin(self, client: orbitkv.Client, rid: str, keys: Sequence[str]) -> Grant | None:
        """Takes the request's lease for the boundary behind these pages; None when there is none (any more)."""
        known = self._known.pop(rid, None)
        if known is None or known.client is not client:
            return None
        count = len(keys)
        number = 0
        # The ranks may have agreed on fewer pages than were found here.
        if known.lease and count in known.boundaries and known.keys[count - 1] == keys[-1]:
            number = client.begin_restore(known.lease, count)
        if number == 0:
            _release(known)
            return None
        hashes = known.hashes[known.depth : known.depth + count]
        return Grant(client, number, client.incarnation, known.depth, hashes)

    def clear(self) -> None:
        """Of an engine whose cache was reset: nothing that was found is to be taken."""
        while self._known:
            self._forget(next(iter(self._known)))

    def _forget(self, rid: str) -> None:
        _release(self._known.pop(rid))

    def _forget_older(self, now: float, age_s: float, most: int = MAX_REQUESTS) -> int:
        """How many that was."""
        before = len(self._known)
        while self._known:
            oldest = next(iter(self._known))
            if len(self._known) <= most and now - self._known[oldest].asked_at < age_s:
                break
            self._forget(oldest)
        return before - len(self._known)

    def _keep(self, rid: str, known: Known, now: float) -> None:
        self._known.pop(rid, None)
        self._forget_older(now, FORGET_AGE_S, MAX_REQUESTS - 1)
        known.asked_at = now
        self._known[rid] = known

    def _left_s(self) -> float:
        return max(0.0, self._waits.first_s + self._waits.load_s - self._waited_s)

    def _put(self, client: orbitkv.Client, rid: str, known: Known, now: float) -> None:
        wait_s = min(self._waits.first_s, self._left_s()) if now >= self._silent_until else 0.0
        answer = self._query(client, rid, known, wait_s)
        end = self._clock() + self._left_s()
        while answer is not None and answer.reason == LOADING and (left_s := end - self._clock()) > 0:
            answer = self._query(client, rid, known, min(LOAD_LOOK_S, left_s))
        if answer is not None and answer.reason == REFUSED and self._forget_older(now, HURRY_AGE_S):
            answer = self._query(client, rid, known, min(self._waits.first_s, self._left_s()))
        # A wait that others had cut short says nothing about the Manager.
        if answer is not None and answer.reason not in SILENT:
            self._silent_until = 0.0
        elif wait_s == self._waits.first_s:
            self._silent_until = now + SILENCE_S
        if answer is None or answer.reason == LOADING:
            # What was found before may have been given up meanwhile; the next pass asks again.
            known.boundaries, known.age_s = [], 0.0
            return
        known.lease = answer.lease
        before, known.boundaries = known.boundaries, answer.boundaries if answer.lease else []
        complete = bool(known.boundaries) and known.boundaries[-1] == len(known.keys)
        if complete:
            known.age_s = COMPLETE_AGE_S
        elif known.boundaries != before or answer.reason in NOT_ASKED:
            known.age_s = PARTIAL_AGE_S
        else:
            known.age_s = min(max(2 * known.age_s, PARTIAL_AGE_S), COMPLETE_AGE_S)
        if not (complete or known.warmed_up or answer.reason in NOT_ASKED):
            self._warm_up(client, rid, known, answer.found_blocks)

    def _query(self, client: orbitkv.Client, rid: str, known: Known, wait_s: float) -> orbitkv.Answer | None:
        began = self._clock()
        answer = client.query(
            rid,
            known.hashes,
            prefix_blocks=known.depth,
            attempt=known.attempt,
            wait_s=wait_s,
            load_wait_s=self._waits.load_s,
        )
        took = self._clock() - began
        if answer is None or took > PROMPT_PART * self._waits.first_s:
            self._waited_s += took
        return answer

    def _warm_up(self, client: orbitkv.Client, rid: str, known: Known, found: int) -> None:
        """SGLang cannot wait for what is on disk; a later pass may find it in memory."""
        known.warmed_up = True
        try:
            client.warm_up(rid, known.hashes, prefix_blocks=known.depth + found)
        except orbitkv.Error as error:
            logger.debug("OrbitKV: no warm-up of %s: %s", rid, error)


def _release(known: Known) -> None:
    """A client that has ended has no lease any more, and one that is not given back ends by its age."""
    if not known.lease:
        return
    try:
        known.client.release_lease(known.lease)
    except orbitkv.Error as error:
        logger.debug("OrbitKV: a lease was not given back: %s", error)
