"""The class that vLLM loads. It only routes vLLM's hooks to the scheduler's or the worker's side."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from orbitkv.vllm import compat
from orbitkv.vllm.events import Events
from orbitkv.vllm.link import Link, Part
from orbitkv.vllm.messages import Metadata
from orbitkv.vllm.options import parse
from orbitkv.vllm.scheduler import SchedulerSide
from orbitkv.vllm.stats import OrbitKVPromMetrics, OrbitKVStats
from orbitkv.vllm.worker import WorkerSide

logger = logging.getLogger("orbitkv.vllm")


class OrbitKVConnector(compat.KVConnectorBase_V1, compat.SupportsHMA):  # type: ignore[misc]
    """Publishes completed KV blocks to the host's Cache Manager and restores them. Both are asynchronous.

    Has one of two sides, by its role: `worker` or `scheduler`.
    """

    worker: WorkerSide
    scheduler: SchedulerSide

    _cache_hit_source = compat.CacheHitSource.HOST

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        compat.log_as_vllm()
        transfer = vllm_config.kv_transfer_config
        options = parse(transfer.kv_connector_extra_config or {}, str(transfer.kv_role or "kv_both"))
        groups = compat.check_supported(vllm_config, kv_cache_config)
        ranks = compat.ranks(vllm_config, kv_cache_config)
        options.check_shards(ranks.shard_count)
        if options.tp_shard_bootstrap_sockets and not groups.plain:
            raise compat.UnsupportedError(
                "OrbitKV does not support several cache groups with a Manager for each shard yet; give "
                "orbitkv.bootstrap_socket, one Manager for all shards"
            )
        hash_bytes = compat.hash_bytes(vllm_config)
        compat.seed_probe(vllm_config)  # refuses hashes that no other process can repeat
        self.is_worker = role == compat.KVConnectorRole.WORKER
        if self.is_worker:
            self.worker = WorkerSide(vllm_config, kv_cache_config, options, groups, ranks, hash_bytes)
            return
        offers = options.loads
        if offers and transfer.kv_load_failure_policy == "fail" and not options.load_with_fail_policy:
            offers = False
            logger.warning(
                "OrbitKV saves blocks but offers no hits: with kv_load_failure_policy 'fail' a failed load would fail "
                "the request. Set kv_load_failure_policy to 'recompute' (under MultiConnector both in its own and in "
                "OrbitKV's configuration), or orbitkv.load_with_fail_policy to true."
            )
        if offers and not compat.attends_to_prefixes(vllm_config):
            offers = False
            logger.warning(
                "OrbitKV saves blocks but offers no hits: on CPUs without AMX vLLM computes latent attention (MLA) "
                "only from a prompt's start."
            )
        logger.info(
            "OrbitKV: Cache Manager at %s, saves %s, hits %s",
            ", ".join(options.tp_shard_bootstrap_sockets or (options.bootstrap_socket,)),
            options.save if options.saves else "nothing",
            "on" if offers else "off",
        )
        link = Link(vllm_config, groups, options, Part("scheduler", 0, ranks, "vllm scheduler"))
        layers = [len(group.layer_names) for group in kv_cache_config.kv_cache_groups]
        block_bytes = [count * group.page_bytes for count, group in zip(layers, groups, strict=True)]
        self.scheduler = SchedulerSide(link, options, groups, ranks, hash_bytes, offers, block_bytes)
        self.scheduler.events = Events(groups, compat.publishes_events(vllm_config))
        self.scheduler.shares_loads = bool(vllm_config.cache_config.enable_prefix_caching)
        self.scheduler.domains.lora_dtype = compat.lora_dtype(vllm_config)
        link.start()

    # ---- both roles -------------------------------------------------------------------------------------------------

    @property
    def requires_kv_delivery(self) -> bool:
        return False

    @classmethod
    def supports_sleep_mode(cls, kv_transfer_config: Any) -> bool:
        return True

    @classmethod
    def get_required_kvcache_layout(cls, vllm_config: Any) -> str | None:
        return None

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> OrbitKVStats:
        return OrbitKVStats(data=dict(data or {}))

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: Any,
        metric_types: Any,
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> OrbitKVPromMetrics:
        return OrbitKVPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def get_kv_connector_stats(self) -> OrbitKVStats | None:
        if self.is_worker:
            return self.worker.transfers.take_stats()
        return self.scheduler.take_stats()

    def shutdown(self) -> None:
        if self.is_worker:
            self.worker.shutdown()
        else:
            self.scheduler.shutdown()

    # ---- worker -----------------------------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, Any]) -> None:
        self.worker.register(kv_caches)

    def unregister_kv_caches(self) -> None:
        """Called before the pages lose their memory."""
        self.worker.unregister()

    def restore_kv_caches(self) -> None:
        """Called when they have it again."""
        self.worker.restore_pages()

    def _metadata(self) -> Metadata:
        metadata = self._connector_metadata
        assert isinstance(metadata, Metadata)
        return metadata

    def handle_preemptions(self, kv_connector_metadata: Any) -> None:
        assert isinstance(kv_connector_metadata, Metadata)
        self.worker.fence(kv_connector_metadata)

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        self.worker.start_loads(self._metadata())

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Loads are asynchronous: a request runs only after its load was reported."""

    def save_kv_layer(self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any) -> None:
        """Whole blocks are saved after the step."""

    def wait_for_save(self) -> None:
        self.worker.start_saves(self._metadata())

    def get_transfer_results(self, finished_req_ids: set[str]) -> Any:
        finished = self.worker.take_finished_loads()
        return compat.KVConnectorTransferResults(
            finished_sending=set(), finished_recving=finished, failed_recving=self.worker.take_failed_loads()
        )

    def get_finished(self, finished_req_ids: set[str]) -> tuple[set[str] | None, set[str] | None]:
        return None, self.worker.take_finished_loads() or None

    def get_block_ids_with_load_errors(self) -> set[int]:
        return self.worker.take_bad_blocks()

    def build_connector_worker_meta(self) -> Any:
        return self.worker.take_report()

    def get_handshake_metadata(self) -> None:
        return None

    # ---- scheduler --------------------------------------------------------------------------------------------------

    def set_xfer_handshake_metadata(self, metadata: Any) -> None:
        """Another connector's business."""

    def set_xfer_handshake_metadata_pp_aware(self, metadata: Any) -> None:
        """Another connector's business."""

    def bind_gpu_block_pool(self, gpu_block_pool: Any) -> None:
        self.scheduler.domains.pool = gpu_block_pool

    def on_new_request(self, request: Any) -> None:
        self.scheduler.on_new_request(request)

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int | None, bool]:
        return self.scheduler.matched_tokens(request, num_computed_tokens)

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        self.scheduler.allocated(request, blocks, num_external_tokens)

    def build_connector_meta(self, scheduler_output: Any) -> Metadata:
        return self.scheduler.build(scheduler_output)

    def update_connector_output(self, connector_output: Any) -> None:
        self.scheduler.update(connector_output)

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        self.scheduler.request_finished(request)
        return False, None

    def request_finished_all_groups(
        self, request: Any, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        self.scheduler.request_finished(request)
        return False, None

    def has_pending_push_work(self) -> bool:
        return self.scheduler.has_pending_work()

    def get_external_cache_hit_sources(self, request: Any, num_external_tokens: int) -> dict[Any, int]:
        return self.scheduler.hit_sources(request, num_external_tokens)

    def take_events(self) -> Iterable[Any]:
        return self.scheduler.events.take()

    def reset_cache(self) -> bool | None:
        if not self.is_worker:
            self.scheduler.reset()
        return True
