"""OrbitKV for SGLang: the external linker of its UnifiedRadixCache.

SGLang's ``dynamic`` linker backend loads it by ``{"linker": "OrbitKVLinker", "linker_module_path": "orbitkv.sglang"}``.
Importing this package imports neither SGLang nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitkv.sglang.linker import OrbitKVLinker

__all__ = ["OrbitKVLinker"]


def __getattr__(name: str) -> Any:
    if name == "OrbitKVLinker":
        from orbitkv.sglang.linker import OrbitKVLinker

        return OrbitKVLinker
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
