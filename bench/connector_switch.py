"""Takes the connector out of a vLLM engine that runs in this process, and puts it or an empty one back.

Each step asks in two places whether there is a connector: the scheduler its attribute, the model runner the worker's
group. What else a scheduler keeps because of one is listed here, so that without it runs what an engine runs that was
made without. Checked with vLLM 0.32.0.
"""

from __future__ import annotations

from typing import Any

from empty_connector import EmptyConnector
from vllm.distributed.kv_transfer import kv_transfer_state

# Of a scheduler that was made without a connector.
WITHOUT = {
    "connector": None,
    "connector_prefix_cache_stats": None,
    "recompute_kv_load_failures": True,
    "defer_block_free": False,
    "requires_kv_delivery": False,
    "_kv_fetch_stages": None,
}


class Switch:
    """Of an engine that was made with a connector. It may be switched when the engine owes nothing to anybody."""

    def __init__(self, scheduler: Any) -> None:
        self._scheduler = scheduler
        ours = {name: getattr(scheduler, name) for name in WITHOUT}
        worker = kv_transfer_state.get_kv_transfer_group()
        empty = EmptyConnector.beside(ours["connector"])
        empty.bind_kv_cache_manager(scheduler.kv_cache_manager)
        with_empty = ours | {"connector": empty, "requires_kv_delivery": empty.requires_kv_delivery}
        self._states = {
            "off": (WITHOUT, None),
            "again": (WITHOUT, None),
            "empty": (with_empty, EmptyConnector.beside(worker)),
            "on": (ours, worker),
        }

    def put(self, state: str) -> None:
        """One of cost_rows.STATES."""
        attributes, worker = self._states[state]
        for name, value in attributes.items():
            setattr(self._scheduler, name, value)
        kv_transfer_state._KV_CONNECTOR_AGENT = worker
