"""Notices in a worker that vLLM replaces weights in place or loads an adapter, which no hook of a connector tells.

The methods that do so are wrapped in their classes, once for each process: vLLM's own, and the model's `load_weights`,
which trainers call by themselves. Methods that a version of vLLM does not have are left out; an adapter whose loading
was not seen is never saved.

Threads: the worker's. Owns nothing: a `Changes` that is gone is told no more.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

from orbitkv.vllm import lora
from orbitkv.vllm.lora import Adapter
from orbitkv.wrap_once import wrap_once

WORKER = ("vllm.v1.worker.gpu_worker", "Worker")
WORKER_METHODS = (
    "reload_weights",
    "reset_weights",
    "start_weight_update",
    "start_draft_weight_update",
    "update_weights",
    "finish_weight_update",
)

_told: weakref.WeakSet[Changes] = weakref.WeakSet()
_contents = lora.Contents()


class Changes:
    def __init__(self) -> None:
        self.weights_changed = False  # since the namespace's epoch began
        self.has_news = False
        self._loaded: dict[int, bytes] = {}
        self._news: dict[int, bytes] = {}
        self._told_of_weights = False

    def watch(self, model: type | None = None) -> None:
        """To be called when the model, which is of this class, has its first weights."""
        for module, name, methods, wrapper in WATCHED:
            for method in methods:
                wrap_once(_imported(module, name), method, wrapper)
        wrap_once(model, "load_weights", _replacing_weights)
        _told.add(self)

    def replaced_weights(self) -> None:
        self.weights_changed, self._told_of_weights = True, False
        self.has_news = True

    def loaded_adapter(self, number: int, content: bytes) -> None:
        self._loaded[number] = self._news[number] = content
        self.has_news = True

    def epoch_began(self) -> None:
        self.weights_changed = self._told_of_weights = False

    def may_load(self, adapter: Adapter | None) -> bool:
        """Whether blocks of this content may go into the pages. An adapter that is not loaded yet will be soon."""
        if self.weights_changed:
            return False
        return adapter is None or adapter[2] or self._loaded.get(adapter[0], adapter[1]) == adapter[1]

    def may_save(self, adapter: Adapter | None) -> bool:
        """Whether the pages were computed with what their names say."""
        if self.weights_changed:
            return False
        return adapter is None or self._loaded.get(adapter[0]) == adapter[1]

    def take_news(self) -> tuple[bool, dict[int, bytes]]:
        """What the scheduler does not know yet: that the weights were replaced, and adapters by number."""
        weights = self.weights_changed and not self._told_of_weights
        self._told_of_weights = self.weights_changed
        news, self._news = self._news, {}
        self.has_news = False
        return weights, news


def _imported(module: str, name: str) -> type | None:
    return getattr(sys.modules.get(module), name, None)


def _tell_of_weights() -> None:
    for changes in list(_told):
        changes.replaced_weights()


def _replacing_weights(original: Any) -> Any:
    def replace(self: Any, *args: Any, **kwargs: Any) -> Any:
        _tell_of_weights()
        return original(self, *args, **kwargs)

    return replace


def _sleeping(original: Any) -> Any:
    """At level 2 the weights are thrown away, and whatever lies in their place is computed with after the sleep."""

    def sleep(self: Any, level: int = 1, *args: Any, **kwargs: Any) -> Any:
        if level > 1:
            _tell_of_weights()
        return original(self, level, *args, **kwargs)

    return sleep


def _loading_adapter(original: Any) -> Any:
    def load(self: Any, lora_request: Any, *args: Any, **kwargs: Any) -> Any:
        folder = lora.folder_of(str(lora_request.lora_path))
        before = lora.stamp(folder)
        loaded = original(self, lora_request, *args, **kwargs)
        content = _contents.digest(folder)
        if lora.stamp(folder) != before:
            content = b""  # what of it was loaded is not known
        for changes in list(_told):
            changes.loaded_adapter(int(lora_request.lora_int_id), content)
        return loaded

    return load


class Watched(NamedTuple):
    """Methods of one class, and what each is replaced by. Only modules that the worker has imported are looked at."""

    module: str
    name: str
    methods: tuple[str, ...]
    wrapper: Callable[[Any], Any]


WATCHED = (
    Watched(*WORKER, WORKER_METHODS, _replacing_weights),
    Watched("vllm.v1.worker.gpu_model_runner", "GPUModelRunner", ("reload_weights",), _replacing_weights),
    Watched("vllm.v1.worker.gpu.model_runner", "GPUModelRunner", ("reload_weights",), _replacing_weights),
    Watched(*WORKER, ("sleep",), _sleeping),
    Watched("vllm.lora.worker_manager", "WorkerLoRAManager", ("_load_adapter",), _loading_adapter),
)
