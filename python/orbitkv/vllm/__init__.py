"""OrbitKV for vLLM: the connector class and the plugin entry point.

vLLM finds the connector by ``"kv_connector_module_path": "orbitkv.vllm"`` or, without a path, through `register`, which
it calls in each of its processes. Importing this package imports neither vLLM nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orbitkv.vllm.connector import OrbitKVConnector

__all__ = ["OrbitKVConnector", "register"]

_NAME = "OrbitKVConnector"


def register() -> None:
    """Entry point of group ``vllm.general_plugins``. May be called again: a name that is taken is left alone."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    if _NAME not in KVConnectorFactory._registry:
        KVConnectorFactory.register_connector(_NAME, "orbitkv.vllm.connector", _NAME)


def __getattr__(name: str) -> Any:
    if name == _NAME:
        from orbitkv.vllm.connector import OrbitKVConnector

        return OrbitKVConnector
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
