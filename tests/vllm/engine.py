"""Starts engines as processes of their own and talks to them. Everything started here is ended here."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import forks

from harness.processes import kill_session, session_pids, shared_memory
from harness.vllm_environment import ONE_PROCESS, SMALL_ENGINE

ENVIRONMENT = SMALL_ENGINE | {"VLLM_LOGGING_LEVEL": "INFO"}


def tokens(count, seed):
    """A prompt that looks like no other one."""
    return [(i * i * 7 + i * seed * 13 + seed * 29) % 500 + 3 for i in range(count)]


class EngineError(RuntimeError):
    """The command raised in the engine's process; its traceback is the message."""


class Engine:
    """`connector`: the orbitkv.* options (and "policy"), or None for a plain engine. `llm`: arguments of vllm.LLM.

    `processes`: scheduler and workers have processes of their own: "spawn" starts them as vLLM does on a CPU, each of
    which imports vLLM again; True forks them, as vLLM does elsewhere.
    """

    def __init__(self, log, model, connector=None, *, processes=False, environment=None, **llm):
        self.log = Path(log)
        environment = os.environ | ENVIRONMENT | (environment or {})
        if processes:
            environment["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
            environment["VLLM_ALLOW_INSECURE_SERIALIZATION"] = "1"  # functions are sent to single ranks
            llm = {"distributed_executor_backend": "mp"} | llm
        else:
            environment |= ONE_PROCESS
        with self.log.open("ab") as stream:
            # In a session of its own, so that a kill reaches the engine's own processes too.
            self.process = forks.server().start(environment, stream.fileno())
        forks_workers = processes and processes != "spawn"
        self._send({"llm": {"model": str(model)} | llm, "connector": connector, "forks_workers": forks_workers})
        self._receive()

    def _send(self, value):
        self.process.stdin.write(json.dumps(value) + "\n")
        self.process.stdin.flush()

    def _receive(self):
        line = self.process.stdout.readline()
        if not line:
            raise EngineError(f"the engine ended: {self.log.read_text()[-3000:]}")
        answer = json.loads(line)
        if "error" in answer:
            raise EngineError(answer["error"])
        return answer["ok"]

    def __getattr__(self, name):
        if name.startswith("_"):
            raise AttributeError(name)

        def call(**arguments):
            self.begin(name, **arguments)
            return self.end()

        return call

    def begin(self, name, /, **arguments):
        """Lets the engine work on a command while the caller does something else; end() gives the answer."""
        self._send([name, arguments])

    def end(self):
        return self._receive()

    def run(self, prompts, n=8, **more):
        return self.generate(prompts=prompts, n=n, **more)["outputs"]

    def kill(self):
        kill_session(self.process.pid)
        self._reap()

    def close(self):
        if self.process.poll() is not None:
            return
        # vLLM kills its workers when they take long to end, and then nobody removes what they had named.
        named = shared_memory(session_pids(self.process.pid))
        try:
            self.process.stdin.close()
            self.process.wait(30)
        except (BrokenPipeError, subprocess.TimeoutExpired):
            pass
        kill_session(self.process.pid, named)
        self._reap()

    def _reap(self):
        self.process.wait(30)
        self.process.stdout.close()
        if not self.process.stdin.closed:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass


def same(left, right, *, logprobs=True):
    """Tokens equal, and logprobs exactly equal."""
    keys = ("tokens", "logprobs") if logprobs else ("tokens",)
    return all(a[key] == b[key] for a, b in zip(left, right, strict=True) for key in keys)


def cached(outputs):
    return [output["cached"] for output in outputs]


def near(left, right, tolerance=1e-3):
    """Tokens equal, and the chosen tokens' logprobs nearly so: the steps had other batches."""
    for a, b in zip(left, right, strict=True):
        if a["tokens"] != b["tokens"]:
            return False
        for token, mine, theirs in zip(a["tokens"], a["logprobs"], b["logprobs"], strict=True):
            if abs(dict(map(tuple, mine))[token] - dict(map(tuple, theirs))[token]) > tolerance:
                return False
    return True
