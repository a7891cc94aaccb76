"""OrbitKVConnector with a clock around every hook that vLLM calls; for callback_share.py and engine_cost.py."""

from __future__ import annotations

import functools
import time
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorRole, SupportsHMA

from orbitkv.vllm import OrbitKVConnector

spent_ns = 0
scheduler_ns = 0
_depth = 0


def _clocked(method: Any) -> Any:
    @functools.wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        global spent_ns, scheduler_ns, _depth
        _depth += 1
        start = time.perf_counter_ns()
        try:
            return method(*args, **kwargs)
        finally:
            _depth -= 1
            if _depth == 0:
                taken_ns = time.perf_counter_ns() - start
                spent_ns += taken_ns
                # A class method has no role; none is called in a step.
                if args and getattr(args[0], "role", None) == KVConnectorRole.SCHEDULER:
                    scheduler_ns += taken_ns

    return call


class TimedConnector(OrbitKVConnector):  # type: ignore[misc]
    """Counts the time from a hook's call to its return in `spent_ns`, nested calls once.

    `scheduler_ns` is the part of it that the scheduler waits for.
    """

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)


for _name in sorted(set(dir(KVConnectorBase_V1)) | set(dir(SupportsHMA))):
    _raw = getattr(OrbitKVConnector, _name, None)
    if not _name.startswith("_") and callable(_raw) and not hasattr(_raw, "__self__"):
        setattr(TimedConnector, _name, _clocked(_raw))
