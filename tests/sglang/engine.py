"""Starts SGLang engines as processes of their own and talks to them. Everything started here is ended here."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import forks

from harness.answers import near, same, tokens
from harness.forked_engine import EngineError, ForkedEngine

__all__ = ["Engine", "EngineError", "details", "fails_or_is_right", "near", "same", "tokens"]


class Engine(ForkedEngine):
    """`linker`: the fields of the linker's configuration, or None for a plain engine.

    `more`: arguments of sglang.Engine.
    """

    def __init__(self, log, model, linker=None, *, environment=None, **more):
        self._folder = log.with_suffix(".tmp")
        self._folder.mkdir(exist_ok=True)
        environment = os.environ | {"OMP_NUM_THREADS": "1", "TMPDIR": str(self._folder)} | (environment or {})
        setup = {"engine": {"model_path": str(model)} | more, "linker": linker}
        super().__init__(forks.server(), environment, log, setup)

    def run(self, prompts, n=8, **more):
        """The answers to all of them, which are asked at once."""
        return self.generate(prompts=prompts, n=n, **more)

    def one(self, prompt, n=8, **more):
        (answer,) = self.run([prompt], n, **more)
        return answer

    def each(self, prompts, n=8, **more):
        """The answers to one after the other: every one is a batch of its own."""
        return [self.one(prompt, n, **more) for prompt in prompts]

    def _reap(self):
        super()._reap()
        # Of processes that were killed SGLang removes neither sockets nor shared memory.
        shutil.rmtree(self._folder)
        for left in Path("/dev/shm").glob(f"sglang_{self.process.pid}_*"):
            left.unlink()


def details(answers):
    """Of each answer, how many tokens of its prompt were in the engine's own cache, and how many came from a linker."""
    return [(answer["device"], answer["host"]) for answer in answers]


def fails_or_is_right(answer, expected):
    """Whether it is one of the two answers to a request whose pages may not have come."""
    if "error" in answer:
        assert answer["status"] == 503, answer
        return True
    return near([answer], [expected])
