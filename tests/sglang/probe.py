"""Looks into the scheduler processes of an engine, and lets things happen at chosen moments of theirs.

The engine's host installs it before the engine forks its schedulers; class Probe has the commands, which each rank runs
between two passes of its loop.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from pathlib import Path

# Whoever holds a scheduler lets it go, or has died.
HOLD_LIMIT_S = 30.0


def install():
    from sglang.srt.managers.scheduler import Scheduler
    from sglang.srt.runtime_context import get_parallel

    def orbitkv_probe(self, name, arguments, stem):
        if not hasattr(self, "_orbitkv_probe"):
            self._orbitkv_probe = Probe(self, get_parallel().tp_rank)
        answer = getattr(self._orbitkv_probe, name)(**arguments)
        Path(f"{stem}.{get_parallel().tp_rank}").write_text(json.dumps(answer))

    Scheduler.orbitkv_probe = orbitkv_probe


def cut(path):
    """Ends this process's connections to the socket `path`, as the end of the peer would. How many there were."""
    count = 0
    for entry in Path("/proc/self/fd").iterdir():
        try:
            if not str(entry.readlink()).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(entry.name))) as connection:
                if connection.family == socket.AF_UNIX and connection.getpeername() == path:
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        except OSError:
            continue  # of another thread, or not connected
    return count


class Probe:
    def __init__(self, scheduler, rank):
        self._scheduler = scheduler
        self._rank = rank
        self._wrapper = getattr(scheduler.tree_cache, "linker", None)
        self._linker = getattr(self._wrapper, "cache_linker", None)
        self._calls = {}
        self._planned = {}
        if self._linker is not None:
            for name in ("lookup", "load", "start_layer_wise_loading", "finish_layer_wise_loading", "offload", "reset"):
                self._watch(self._linker, name)
        if scheduler.disagg_prefill_bootstrap_queue is not None:
            self._watch(scheduler.disagg_prefill_bootstrap_queue.kv_manager, "send_kvcache")

    def _watch(self, owner, name):
        """Counts the calls of a function of `owner` and runs what is planned for the next one."""
        original = getattr(owner, name)

        def call(*arguments, **more):
            begin = time.monotonic()
            try:
                plan = self._planned.get(name)
                if plan is None or plan["rid"] not in (None, *arguments):
                    return original(*arguments, **more)
                del self._planned[name]
                return self._run(plan, lambda: original(*arguments, **more))
            finally:
                entry = self._calls.setdefault(name, {"count": 0, "longest_s": 0.0})
                entry["count"] += 1
                entry["longest_s"] = max(entry["longest_s"], time.monotonic() - begin)

        setattr(owner, name, call)

    def _run(self, plan, original):
        if plan["when"] == "instead":
            return plan["answer"]
        if plan["when"] == "over":
            original()
            return plan["answer"]
        if plan["when"] == "before":
            self._act(plan)
            return original()
        answer = original()
        self._act(plan)
        return answer

    def _act(self, plan):
        for number, pid in plan["signals"]:
            os.kill(pid, number)
        if plan["cut"]:
            cut(plan["cut"])
        if plan["hold"]:
            held = Path(plan["hold"])
            held.touch()
            end = time.monotonic() + HOLD_LIMIT_S
            while held.exists() and time.monotonic() < end:
                time.sleep(0.002)

    # ---- commands ---------------------------------------------------------------------------------------------------

    def plan(self, call, when="before", answer=None, kill=None, stop=None, cut=None, hold=None, rank=None, rid=None):
        """For the next call of the linker's function `call`, on one rank or on all, or for the next about a request.

        "send_kvcache" is another one: a prefill engine's thread calls it to hand pages over to the decode engine.

        `when` "instead": it answers `answer`; "over": the same, after what it does. "before" or "after" the call:
        processes are killed or stopped, connections to the socket `cut` end, and the scheduler waits while the file
        `hold` exists, which it makes.
        """
        if rank is not None and rank != self._rank:
            return False
        signals = [(signal.SIGKILL, kill)] if kill else []
        signals += [(signal.SIGSTOP, stop)] if stop else []
        self._planned[call] = {
            "when": when, "answer": answer, "signals": signals, "cut": cut, "hold": hold, "rid": rid
        }  # fmt: skip
        return True

    def calls(self):
        """Of each function of the linker that was called: how often, and how long the scheduler was in it at most."""
        calls, self._calls = self._calls, {}
        return calls

    def planned(self, forget=False):
        planned = sorted(self._planned)
        if forget:
            self._planned.clear()
        return planned

    def retract(self, interval):
        """Every so many steps all requests but one are retracted; never with None."""
        from sglang.srt.managers import scheduler

        scheduler.TEST_RETRACT = interval is not None
        scheduler.TEST_RETRACT_INTERVAL = interval or 3
        return True

    def up(self):
        """The linker's client has a session with its Manager."""
        client = self._linker.connection.client
        return client is not None and client.wait_up(0)

    def evict(self):
        """Gives all pages back that no request and no offload needs."""
        from sglang.srt.mem_cache.base_prefix_cache import EvictParams

        self._scheduler.tree_cache.evict(EvictParams(num_tokens=1 << 30, swa_num_tokens=1 << 30))
        return self.state()["evictable"]

    def page(self, number):
        """The keys of the first layer in a page of the device pool, in hex."""
        pool = self._scheduler.token_to_kv_pool_allocator.get_kvcache()
        size = self._scheduler.page_size
        return pool.k_buffer[0][number * size : (number + 1) * size].contiguous().numpy().tobytes().hex()

    def state(self):
        """What the scheduler and its cache hold."""
        scheduler = self._scheduler
        state = {
            "waiting": len(scheduler.waiting_queue),
            "running": len(scheduler.running_batch.reqs),
            "available": scheduler.token_to_kv_pool_allocator.available_size(),
            "evictable": scheduler.tree_cache.evictable_size(),
            "protected": scheduler.tree_cache.protected_size(),
            "handed_over": self._handed_over(),
        }
        if self._wrapper is not None:
            state |= {
                "offloads": len(self._wrapper.pending_offloads),
                "loads": len(self._wrapper.inflight_load_rids) + len(self._wrapper.private_load_indices),
            }
        return state

    def _handed_over(self):
        """Requests between a prefill and a decode engine, and those whose pages the other one may still use."""
        scheduler = self._scheduler
        bootstrap, prealloc = scheduler.disagg_prefill_bootstrap_queue, scheduler.disagg_decode_prealloc_queue
        queues = []
        if bootstrap is not None:
            queues += [bootstrap.queue, scheduler.disagg_prefill_inflight_queue]
        if prealloc is not None:
            transfer = scheduler.disagg_decode_transfer_queue
            queues += [prealloc.queue, prealloc.retracted_queue, transfer.queue, transfer._deferred_releases]
        return sum(len(queue) for queue in queues)
