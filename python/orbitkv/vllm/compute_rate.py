"""How fast this engine computes prompts, measured on its own steps: what a load has to beat."""

from __future__ import annotations

# Steps with fewer tokens are decodes: they say nothing about prompts.
MIN_STEP_TOKENS = 64
# A step that took longer was not a step: the engine was idle, or stopped.
MAX_STEP_S = 30.0
# Of each new sample in the mean.
WEIGHT = 0.2
# Before anything is known: a load is given this long.
DEFAULT_S = 0.2
LONGEST_S = 60.0


class ComputeRate:
    """Tokens per second of the steps that compute prompts. Threads: one. Units: seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._tokens_per_s: float | None = None
        self._tokens = 0
        self._began = 0.0

    def step(self, tokens: int, now: float) -> None:
        """A step with so many tokens begins now, and the one before it has ended."""
        took = now - self._began
        if self._tokens >= MIN_STEP_TOKENS and 0 < took <= MAX_STEP_S:
            rate = self._tokens / took
            known = self._tokens_per_s
            self._tokens_per_s = rate if known is None else known + WEIGHT * (rate - known)
        self._tokens, self._began = tokens, now

    @property
    def measured(self) -> bool:
        return self._tokens_per_s is not None

    def seconds(self, tokens: int) -> float:
        """How long the engine would compute for them."""
        if self._tokens_per_s is None:
            return DEFAULT_S
        return min(LONGEST_S, tokens / self._tokens_per_s)
