"""Prompts of small models, and how answers to them are compared.

An answer is {"tokens": its tokens, "logprobs": for each of them a list of (token, logprob), "cached": how many tokens
of the prompt were not computed}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

Answers = Sequence[dict[str, Any]]


def tokens(count: int, seed: int) -> list[int]:
    """A prompt like no other one from its first block on."""
    return [(i * i * 7 + i * seed * 13 + seed * 29 + seed // 500) % 500 + 3 for i in range(count)]


def same(left: Answers, right: Answers, *, logprobs: bool = True) -> bool:
    """Tokens equal, and logprobs exactly equal."""
    keys = ("tokens", "logprobs") if logprobs else ("tokens",)
    return all(a[key] == b[key] for a, b in zip(left, right, strict=True) for key in keys)


def cached(outputs: Answers) -> list[int]:
    return [output["cached"] for output in outputs]


def near(left: Answers, right: Answers, tolerance: float = 1e-3) -> bool:
    """Tokens equal, and the chosen tokens' logprobs nearly so: the steps had other batches."""
    for a, b in zip(left, right, strict=True):
        if a["tokens"] != b["tokens"]:
            return False
        for token, mine, theirs in zip(a["tokens"], a["logprobs"], b["logprobs"], strict=True):
            if abs(dict(map(tuple, mine))[token] - dict(map(tuple, theirs))[token]) > tolerance:
                return False
    return True
