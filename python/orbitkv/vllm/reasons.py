"""Why a request was admitted without blocks from OrbitKV, and from which tier it got those that it was given.

Each request is accounted for once, when vLLM first allocates its blocks: counted by reason or by tier, and told in one
line of the log where ``orbitkv.log_requests`` is set. Threads: the scheduler's.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from orbitkv.vllm import compat
from orbitkv.vllm.key_domains import LORA_SLOW
from orbitkv.vllm.shards import FoundBlocks
from orbitkv.vllm.stats import LABEL, MISSES, RESTORED_TOKENS

if TYPE_CHECKING:
    from orbitkv.vllm.records import Tracked

logger = logging.getLogger("orbitkv.vllm")

# Reasons that are this side's.
NOT_ASKED = "nothing to ask"  # the engine's own cache has all, or the prompt is shorter than a block
NOT_OFFERED = "hits are off"  # the mode, or the failure policy
NOT_REGISTERED = "not registered"  # the weights are not identified yet, or no client came up
ENGINE_READS_NOTHING = "engine reads no cache"  # it computes all, as for prompt logprobs
LOAD_FAILED = "load failed"
FAILED_BEFORE = "failed before"  # the block did not load the last time, and has not been stored since
UNWANTED = "unwanted"  # the request says so
NOT_TAKEN = "not taken"  # the engine took less than was offered, or another connector's
TIMED_OUT = "timed out"

# What an answer of the Manager or the client says, in the words of a reader of the log.
WORDS = {
    "": "never seen",
    "absent": "never seen",
    "evicted": "evicted",
    "no namespace": "rank missing",
    "incomplete": "incomplete",
    "over budget": "not admitted",
    "not admitted": "not admitted",
    "refused": "not admitted",
    "timed out": TIMED_OUT,
    "too late": TIMED_OUT,
    "given up": TIMED_OUT,
    "recompute": "slower than computing",
    "down": "Manager away",
}

# The Manager has looked, and the first block is not there.
GONE = ("absent", "evicted")

# Lines a second; a burst may have as many.
LINES_PER_S = 20.0


def of_answer(reason: str) -> str:
    return WORDS.get(reason, reason)


def before_asking(tracked: Tracked, connected: bool, offers: bool) -> str:
    """Why no look-up is made for it; empty when one is."""
    if not offers:
        return NOT_OFFERED
    if not connected:
        return NOT_REGISTERED
    if tracked.bypass:
        return tracked.outside or LORA_SLOW
    if compat.skips_reading(tracked.request):
        return ENGINE_READS_NOTHING
    if not tracked.wishes.load:
        return UNWANTED
    if tracked.gave_up:
        return LOAD_FAILED if tracked.failures else TIMED_OUT
    return ""


def after_asking(answer: FoundBlocks, offered: int) -> str:
    """Why it would have none of ours if vLLM took none."""
    if answer.found_blocks == 0:
        return of_answer(answer.reason)
    return NOT_TAKEN if offered > 0 else FAILED_BEFORE


@dataclass(frozen=True)
class Taken:
    """Tokens that vLLM took, by tier."""

    host: int = 0
    disk: int = 0

    @property
    def total(self) -> int:
        return self.host + self.disk

    def of(self, tokens: int) -> Taken:
        """The first so many of them: blocks that were loaded are the last ones."""
        host = min(tokens, self.host)
        return Taken(host, tokens - host)


def taken(answer: FoundBlocks | None, blocks: int, block_tokens: int) -> Taken:
    """Of the first so many blocks of an answer."""
    if answer is None:
        return Taken(max(0, blocks) * block_tokens)
    resident = int(answer.found_blocks) - int(answer.loaded_blocks)
    host = min(max(0, blocks), resident)
    return Taken(host * block_tokens, (max(0, blocks) - host) * block_tokens)


@dataclass
class Account:
    """Counts over the engine's life, by the names of stats.py."""

    log_requests: bool = False
    clock: Callable[[], float] = time.monotonic
    counts: dict[str, int] = field(default_factory=dict)
    _lines: float = LINES_PER_S
    _line_at: float = 0.0
    _left_out: int = 0

    def _count(self, name: str, label: str, amount: int) -> None:
        key = name + LABEL + label
        self.counts[key] = self.counts.get(key, 0) + amount

    def admitted(self, tracked: Tracked, block_tokens: int) -> None:
        """Its blocks are allocated; only the first time counts."""
        if tracked.accounted:
            return
        tracked.accounted = True
        local_tokens = tracked.local * block_tokens
        if tracked.taken.total:
            self.hit(tracked.request, local_tokens, tracked.taken)
        else:
            self.miss(tracked.request, local_tokens, tracked.why or NOT_ASKED)

    def hit(self, request: Any, local_tokens: int, taken: Taken) -> None:
        for source, tokens in (("host", taken.host), ("disk", taken.disk)):
            if tokens:
                self._count(RESTORED_TOKENS, source, tokens)
        if self.log_requests:
            self._say(request, local_tokens, f"restores {taken.total} (host {taken.host}, disk {taken.disk})")

    def miss(self, request: Any, local_tokens: int, reason: str) -> None:
        self._count(MISSES, reason, 1)
        if self.log_requests:
            self._say(request, local_tokens, f"restores none: {reason}")

    def _say(self, request: Any, local_tokens: int, what: str) -> None:
        now = self.clock()
        self._lines = min(LINES_PER_S, self._lines + (now - self._line_at) * LINES_PER_S)
        self._line_at = now
        if self._lines < 1:
            self._left_out += 1
            return
        self._lines -= 1
        more = f" ({self._left_out} requests before it are not shown)" if self._left_out else ""
        self._left_out = 0
        logger.info(
            "OrbitKV: request %s, %d tokens, %d in the engine's cache, %s%s",
            request.request_id,
            request.num_tokens,
            local_tokens,
            what,
            more,
        )
