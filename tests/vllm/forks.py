"""The process that has imported vLLM and forks the engines of these tests."""

from __future__ import annotations

import atexit
import functools
import importlib
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path.append(str(HERE.parent.parent.parent / "tools"))

from harness import forks  # noqa: E402

# What an engine on a CPU imports. What a version or a runner does not have is left out.
MODULES = (
    "vllm.entrypoints.llm",
    "vllm.v1.engine.core",
    "vllm.v1.engine.llm_engine",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.worker.cpu_worker",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.model_executor.models.registry",
    "vllm.model_executor.models.llama",
    "vllm.lora.request",
    "vllm.distributed.kv_transfer.kv_connector.factory",
)
V2_MODULES = ("vllm.v1.worker.cpu.model_runner",)


@functools.cache
def server() -> forks.ForkServer:
    """The one of this process; started when an engine is first asked for."""
    from engine import ENVIRONMENT

    started = forks.ForkServer(HERE, os.environ | ENVIRONMENT)
    atexit.register(started.close)
    return started


def import_vllm() -> None:
    from vllm.model_executor.models import registry

    for name in MODULES + (V2_MODULES if os.environ.get("VLLM_USE_V2_MODEL_RUNNER") == "1" else ()):
        if importlib.util.find_spec(name) is not None:
            importlib.import_module(name)
    # vLLM looks at a model's class in a new process, so as not to wake a GPU. Here is none, and that takes 8 s.
    registry._run_in_subprocess = lambda function: function()


if __name__ == "__main__":
    import engine_host

    forks.run(import_vllm, engine_host.main)
