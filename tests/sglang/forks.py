"""The process that has imported SGLang and forks the engines of these tests."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve()
if __name__ == "__main__":
    sys.path.append(str(HERE.parent.parent.parent / "tools"))

from harness import forks  # noqa: E402

# What the processes of an engine on a CPU import.
MODULES = (
    "sglang.srt.entrypoints.engine",
    "sglang.srt.layers.attention.torch_native_backend",
    "sglang.srt.mem_cache.unified_radix_cache",
    "sglang.srt.mem_cache.cpp_utils.native_hash",
    "sglang.srt.model_executor.model_runner",
    # With it all models.
    "sglang.srt.models.registry",
)


@functools.cache
def server() -> forks.ForkServer:
    """The one of this process; started when an engine is first asked for."""
    started = forks.ForkServer(HERE, os.environ)
    atexit.register(started.close)
    return started


def import_sglang() -> None:
    for name in MODULES:
        importlib.import_module(name)


if __name__ == "__main__":
    import engine_host

    forks.run(import_sglang, engine_host.main)
