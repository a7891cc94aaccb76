"""Has decode engines take the results of their offloads.

SGLang locks the pages of an offload until it has taken its result. It looks for results in every pass of a scheduler,
but in those of a decode engine only beside a host cache: with a linker alone, every page that was saved would stay
locked, until none is left and no request is admitted any more. So each pass is made to look there as well.

Threads: SGLang's scheduler thread.
"""

from __future__ import annotations

import sys
from typing import Any

from orbitkv.sglang.errors import refuse
from orbitkv.wrap_once import wrap_once

SCHEDULER = "sglang.srt.managers.scheduler"
PASS = "process_decode_queue"


def follow() -> None:
    """Wraps the pass in SGLang's scheduler, once for each process.

    Raises:
        UnsupportedError: this SGLang's decode engines have other passes.
    """
    scheduler = getattr(sys.modules.get(SCHEDULER), "Scheduler", None)
    if not wrap_once(scheduler, PASS, _looking):
        raise refuse(f"an SGLang whose decode engines work in another way (Scheduler.{PASS} is missing)")


def _looking(original: Any) -> Any:
    def process_decode_queue(self: Any) -> Any:
        self.tree_cache.check_hicache_events()
        return original(self)

    return process_decode_queue
