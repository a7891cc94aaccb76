"""The command line ``--radix-cache-backend orbitkv --enable-unified-cache-external-linker``.

SGLang calls `register` in each of its processes (entry point of group ``sglang.srt.plugins``). The two flags are then
resolved to what SGLang supports by itself: its own radix cache with its ``dynamic`` linker backend and our linker. All
that SGLang checks around its linkers it checks then too, and it builds and connects everything itself.

In an engine that does not ask for OrbitKV nothing happens. Importing this module imports neither SGLang nor torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from orbitkv.sglang.errors import UnsupportedError

NAME = "orbitkv"
LINKER = "OrbitKVLinker"
MODULE = "orbitkv.sglang"
STEP = "handle_hicache"
REGISTRY = "sglang.srt.mem_cache.registry"
FLAG = "--enable-unified-cache-external-linker"
# SGLang's own, which cannot be told from the same name on the command line.
DEFAULT_BACKEND = "mooncake"

_registered = False


def linker_config(extra_config: dict[str, Any] | None = None) -> dict[str, Any]:
    """What SGLang's dynamic backend is told of our linker."""
    config: dict[str, Any] = {"linker": LINKER, "linker_module_path": MODULE}
    return config | ({"linker_extra_config": extra_config} if extra_config else {})


def names_us(config: dict[str, Any]) -> bool:
    """Whether the dynamic backend is told of our linker."""
    return str(config.get("linker_module_path", "")).partition(".")[0] == "orbitkv"


def register() -> None:
    """May be called again. An SGLang without resolution hooks is left alone: there the two flags are refused."""
    global _registered
    try:
        from sglang.srt.arg_groups.resolution_hooks import register_resolution_hook
    except ImportError:
        return
    if not _registered:
        _registered = True
        register_resolution_hook(STEP)(resolve)
    if REGISTRY in sys.modules:  # a process that makes caches has it
        registry = sys.modules[REGISTRY]
        if registry.get_radix_cache_factory(NAME) is None:
            registry.register_radix_cache_backend(NAME, refuse_cache)


def resolve(server_args: Any, previous: Callable[[Any], None]) -> None:
    """Wraps the step in which SGLang checks its linkers. Raises what ends the start."""
    from sglang.srt.arg_groups.overrides import declare_resolution, resolving_view

    view = resolving_view(server_args)
    if view.radix_cache_backend == NAME:
        declare_resolution(server_args, NAME, **_resolved(view))
    if _is_ours(view):
        _check(view)
    previous(server_args)


def refuse_cache(context: Any) -> Any:
    """A cache of this name is never made: the resolution has replaced the name by then."""
    raise UnsupportedError(
        f"--radix-cache-backend {NAME} was not resolved in the process that started this engine: install OrbitKV's "
        "wheel there, and leave SGLANG_PLUGINS empty or let it name orbitkv"
    )


def _resolved(view: Any) -> dict[str, Any]:
    if not view.enable_unified_cache_external_linker:
        raise UnsupportedError(
            f"--radix-cache-backend {NAME} needs {FLAG}: without it SGLang would compute with pages that were never "
            "loaded"
        )
    config = view.unified_cache_external_linker_config
    backend = view.unified_cache_external_linker_backend
    if backend != DEFAULT_BACKEND:
        raise UnsupportedError(
            f"give --radix-cache-backend {NAME} or --unified-cache-external-linker-backend {backend}, not both"
        )
    if config is not None and not isinstance(config, dict):
        raise UnsupportedError("--unified-cache-external-linker-config must be a JSON object with OrbitKV's options")
    return {
        "radix_cache_backend": None,
        "unified_cache_external_linker_backend": "dynamic",
        "unified_cache_external_linker_config": linker_config(config),
    }


def _is_ours(view: Any) -> bool:
    config = view.unified_cache_external_linker_config
    return (
        bool(view.enable_unified_cache_external_linker)
        and view.unified_cache_external_linker_backend == "dynamic"
        and isinstance(config, dict)
        and names_us(config)
    )


def _check(view: Any) -> None:
    """What can be told this early, so that it is told before a model is loaded."""
    from orbitkv.sglang import compat
    from orbitkv.sglang.options import parse

    parse(view.unified_cache_external_linker_config.get("linker_extra_config"))
    names = (*compat.SETTINGS_CHECKED, *compat.DEGREES_CHECKED)
    values = {name: getattr(view, name, None) for name in names}
    compat.check_settings(values, {name: values[name] for name in compat.DEGREES_CHECKED})
