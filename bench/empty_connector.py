"""A connector that does nothing: what vLLM itself spends on having one; for connector_switch.py."""

from __future__ import annotations

from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorBase_V1, KVConnectorMetadata


class Nothing(KVConnectorMetadata):  # type: ignore[misc]
    """For no worker."""


class EmptyConnector(KVConnectorBase_V1):  # type: ignore[misc]
    @classmethod
    def beside(cls, connector: KVConnectorBase_V1) -> EmptyConnector:
        """One of the same engine and with the same role."""
        return cls(connector._vllm_config, connector.role, connector._kv_cache_config)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> Nothing:
        return Nothing()
