"""Starts engines as processes of their own and talks to them. Everything started here is ended here."""

from __future__ import annotations

import os

import forks

from harness.answers import cached, near, same, tokens
from harness.forked_engine import EngineError, ForkedEngine
from harness.vllm_environment import ONE_PROCESS, SMALL_ENGINE

__all__ = ["Engine", "EngineError", "cached", "near", "same", "tokens"]
ENVIRONMENT = SMALL_ENGINE | {"VLLM_LOGGING_LEVEL": "INFO"}


class Engine(ForkedEngine):
    """`connector`: the orbitkv.* options (and "policy"), or None for a plain engine. `llm`: arguments of vllm.LLM.

    `processes`: scheduler and workers have processes of their own: "spawn" starts them as vLLM does on a CPU, each of
    which imports vLLM again; True forks them, as vLLM does elsewhere.
    """

    def __init__(self, log, model, connector=None, *, processes=False, environment=None, **llm):
        environment = os.environ | ENVIRONMENT | (environment or {})
        if processes:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions are sent to single ranks
            llm = {"distributed_executor_backend": "mp"} | llm
        else:
            environment |= ONE_PROCESS
        forks_workers = processes and processes != "spawn"
        setup = {"llm": {"model": str(model)} | llm, "connector": connector, "forks_workers": forks_workers}
        super().__init__(forks.server(), environment, log, setup)

    def run(self, prompts, n=8, **more):
        return self.generate(prompts=prompts, n=n, **more)["outputs"]
