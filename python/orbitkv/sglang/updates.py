"""Notices that SGLang replaces an engine's weights, also when it does not flush its cache afterwards.

The methods that do so are wrapped in their classes, once for each process. From the call on the engine's client is
gone; it comes back, in a namespace of its own, with the next flush. Until then SGLang's own cache may hold pages that
were computed with the weights of before, which must get no name that says otherwise.

Threads: SGLang's scheduler's. Owns nothing: a link that is gone is told no more.
"""

from __future__ import annotations

import importlib.util
import logging
import sys
import weakref
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from orbitkv.sglang.errors import refuse
from orbitkv.wrap_once import wrap_once

logger = logging.getLogger("orbitkv.sglang")

# Only modules that the process has imported are looked at: those of an engine's scheduler are, when its cache is made.
UPDATER = ("sglang.srt.managers.scheduler_components.weight_updater", "SchedulerWeightUpdaterManager")
SCHEDULER = ("sglang.srt.managers.scheduler", "Scheduler")
REPLACE_WEIGHTS = (
    "update_weights_from_disk",
    "update_weights_from_distributed",
    "update_weights_from_tensor",
    "update_weights_from_ipc",
    # Between these two a trainer may write into the parameters by itself.
    "begin_weight_update",
    "end_weight_update",
)
OCCUPY_MEMORY = ("release_memory_occupation", "resume_memory_occupation")
CHECK_WEIGHTS = ("check_weights",)
LOAD_ADAPTER = ("load_lora_adapter", "load_lora_adapter_from_tensors")
NAME_VERSION = ("record_weight_version_change",)

WEIGHTS_TAG = "weights"
HARMLESS_CHECKS = ("snapshot", "compare", "checksum")


class Leaves(Protocol):
    def leave(self) -> None: ...


class _Watch:
    """What is known of one link's engine."""

    def __init__(self, adapter_ids: Iterable[str], keeps_released_weights: bool) -> None:
        self.adapter_ids = set(adapter_ids)
        self.keeps_released_weights = keeps_released_weights
        self.version: str | None = None


_watched: weakref.WeakKeyDictionary[Leaves, _Watch] = weakref.WeakKeyDictionary()


def watch(
    link: Leaves, *, adapter_ids: Iterable[str] = (), version: str | None = None, keeps_released_weights: bool = False
) -> None:
    """Tells this link of every replacement from now on.

    Args:
        link: that is to leave its namespace.
        adapter_ids: of the LoRA adapters that are loaded by now; their content is known.
        version: of the weights, as SGLang names it.
        keeps_released_weights: they come back as they were when SGLang has given their memory away for a while.

    Raises:
        UnsupportedError: this SGLang has other methods, so that a replacement would not be noticed.
    """
    for place, methods, wrapper in (
        (UPDATER, REPLACE_WEIGHTS, _replacing),
        (UPDATER, OCCUPY_MEMORY, _occupying),
        (UPDATER, CHECK_WEIGHTS, _checking),
        (SCHEDULER, LOAD_ADAPTER, _loading_adapter),
        (SCHEDULER, NAME_VERSION, _naming_version),
    ):
        _wrap(place, methods, wrapper)
    known = _Watch(adapter_ids, keeps_released_weights)
    known.version = version
    _watched[link] = known


def _leave(what: str, concerns: Callable[[_Watch], bool] = lambda known: True) -> None:
    for link, known in list(_watched.items()):
        if concerns(known):
            logger.info("OrbitKV: %s: nothing is saved or restored until the cache is flushed", what)
            link.leave()


def _replacing(original: Any) -> Any:
    def replace(self: Any, *args: Any, **kwargs: Any) -> Any:
        _leave(f"the weights are being replaced ({original.__name__})")
        return original(self, *args, **kwargs)

    return replace


def _occupying(original: Any) -> Any:
    """Weights whose memory is given away are whatever lies there when it comes back."""

    def occupy(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return original(self, request, *args, **kwargs)
        finally:
            if not request.tags or WEIGHTS_TAG in request.tags:
                # Behind the flush that giving the cache's memory away includes; it may have failed half-way, too.
                _leave(
                    f"the weights' memory was given away ({original.__name__})",
                    lambda known: not known.keeps_released_weights,
                )

    return occupy


def _checking(original: Any) -> Any:
    """One of the checks overwrites the weights, so that an update can be seen to replace them all."""

    def check(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        if request.action not in HARMLESS_CHECKS:
            _leave(f"the weights are being overwritten (check_weights {request.action})")
        return original(self, request, *args, **kwargs)

    return check


def _loading_adapter(original: Any) -> Any:
    """Page hashes name an adapter by its id. SGLang makes a new one for each load; this holds it to that."""

    def load(self: Any, request: Any, *args: Any, **kwargs: Any) -> Any:
        number = str(request.lora_id)
        _leave("an adapter is loaded under the id of another one", lambda known: number in known.adapter_ids)
        for known in list(_watched.values()):
            known.adapter_ids.add(number)
        return original(self, request, *args, **kwargs)

    return load


def _naming_version(original: Any) -> Any:
    """Whoever says that the weights have another version has replaced them, however it was done."""

    def name(self: Any, new_version: str | None, *args: Any, **kwargs: Any) -> Any:
        if new_version is not None:
            _leave(f"the weights have version {new_version} now", lambda known: known.version != new_version)
            for known in list(_watched.values()):
                known.version = new_version
        return original(self, new_version, *args, **kwargs)

    return name


def _wrap(place: tuple[str, str], methods: tuple[str, ...], wrapper: Callable[[Any], Any]) -> None:
    module, name = place
    if module not in sys.modules:
        if not _exists(module):
            raise refuse(f"an SGLang that replaces weights in another way ({module} is missing)")
        return
    owner = getattr(sys.modules[module], name, None)
    for method in methods:
        if not wrap_once(owner, method, wrapper):
            raise refuse(f"an SGLang that replaces weights in another way ({name}.{method} is missing)")


def _exists(module: str) -> bool:
    """Whether it could be imported, which may take long for one that this process does not need."""
    try:
        return importlib.util.find_spec(module) is not None
    except ModuleNotFoundError:  # one of its packages
        return False
