"""The process that has imported SGLang and forks the engines of these tests."""

from __future__ import annotations

import atexit
import functools
import importlib
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

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
# Of these, what keeps adapters in memory that is pinned for a GPU, without a look at whether there is one.
PINNING = ("sglang.srt.lora.layers", "sglang.srt.lora.backend.torch_backend")


class Unpinned:
    """torch, whose tensors are not pinned: it has no such memory on a machine without an accelerator."""

    def __init__(self, torch: ModuleType) -> None:
        self._torch = torch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._torch, name)

    def tensor(self, *arguments: Any, pin_memory: bool = False, **more: Any) -> Any:
        return self._torch.tensor(*arguments, **more)

    def zeros(self, *arguments: Any, pin_memory: bool = False, **more: Any) -> Any:
        return self._torch.zeros(*arguments, **more)


@functools.cache
def server() -> forks.ForkServer:
    """The one of this process; started when an engine is first asked for."""
    started = forks.ForkServer(HERE, os.environ)
    atexit.register(started.close)
    return started


def import_sglang() -> None:
    for name in MODULES:
        importlib.import_module(name)
    import torch

    torch.Tensor.pin_memory = lambda tensor, *_device: tensor
    for name in PINNING:
        importlib.import_module(name).torch = Unpinned(torch)


if __name__ == "__main__":
    import engine_host

    forks.run(import_sglang, engine_host.main)
