"""Everything that depends on vLLM's version or internals: names, defaults, cache groups; pages.py has the layouts.

Checked with 0.32.0 and 0.33.0. What this file does not know is refused by name rather than guessed.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from prometheus_client import Counter as PromCounter
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.kv_transfer.kv_connector.v1.metrics import KVConnectorPromMetrics, KVConnectorStats
from vllm.v1.metrics.cache_hit_source import CacheHitSource

import orbitkv
from orbitkv.canonical import canonical, plain, without
from orbitkv.folders import local_copy
from orbitkv.vllm.groups import Group, Groups, Rule

__all__ = [
    "CacheHitSource",
    "KVConnectorBase_V1",
    "KVConnectorMetadata",
    "KVConnectorPromMetrics",
    "KVConnectorRole",
    "KVConnectorStats",
    "KVConnectorTransferResults",
    "KVConnectorWorkerMetadata",
    "PromCounter",
    "SupportsHMA",
]

logger = logging.getLogger("orbitkv.vllm")

# What a boundary needs of a cache group, by the class of its spec. Page content is opaque to us, so a class is enough;
# one that is not named here may keep blocks by other rules, also when it derives from one that is.
RULES: dict[str, Rule] = {
    "FullAttentionSpec": "full_attention",
    "MLAAttentionSpec": "full_attention",
    "SlidingWindowSpec": "sliding_window",
    "SlidingWindowMLASpec": "sliding_window",
    "ChunkedLocalAttentionSpec": "chunked_local",
    "MambaSpec": "recurrent",
}
# Architectures whose layers all have `num_key_value_heads`.
ONE_COUNT_OF_HEADS = (
    "LlamaForCausalLM",
    "MixtralForCausalLM",
    "Qwen2ForCausalLM",
    "Qwen3ForCausalLM",
    "Qwen3MoeForCausalLM",
)
# Drafters without a cache, and those whose layers are in the cache groups.
DRAFTERS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")
DRAFTERS_WITH_CACHE = ("eagle", "eagle3", "mtp", "draft_model")


class UnsupportedError(ValueError):
    """This engine configuration cannot be cached; the message says what and what to do."""


def refuse(what: str) -> UnsupportedError:
    return UnsupportedError(f"OrbitKV does not support {what}; start this engine without OrbitKVConnector")


def spec_kind(spec: Any) -> str:
    from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

    kind = get_kv_cache_spec_kind(spec)
    return str(getattr(kind, "value", kind)).lower()


def _rule(spec: Any) -> tuple[Rule, int]:
    """What a boundary needs of a layer, and the tokens of its window or chunk."""
    name = type(spec).__name__
    rule = RULES.get(name)
    if getattr(spec, "prefix_replay_tokens", 0):
        raise refuse("prefix replay")
    if not getattr(spec, "prefix_cacheable", True):
        raise refuse(f"a cache group whose blocks vLLM does not cache by prefix ({name})")
    if rule is None:
        raise refuse(f"cache groups of kind {spec_kind(spec)} ({name})")
    if rule == "sliding_window":
        # A drafter looks back further than the window.
        return rule, int(spec.sliding_window) + int(getattr(spec, "extra_retained_tokens", 0))
    if rule == "chunked_local":
        return rule, int(spec.attention_chunk_size)
    if rule == "recurrent":
        if spec.mamba_cache_mode == "none":
            raise refuse("recurrent layers in mamba_cache_mode none, which keeps no state of a block's end")
        if spec.num_speculative_blocks:
            raise refuse("speculative decoding with recurrent layers")
    return rule, 0


def _dtype(spec: Any) -> str:
    dtypes = getattr(spec, "dtypes", None) or (getattr(spec, "dtype", ""),)
    return "+".join(dict.fromkeys(str(dtype) for dtype in dtypes))


def page_content_bytes(spec: Any) -> int:
    """Of one layer's page, without what vLLM pads it with."""
    return int(getattr(spec, "real_page_size_bytes", None) or spec.page_size_bytes)


def _group(group: Any) -> Group:
    if getattr(group, "host_resident", False):
        raise refuse("HiSparse")
    if not getattr(group, "enable_kv_transfer", True):
        raise refuse("a cache group that vLLM excludes from transfer")
    # Layers of one kind and different page sizes have a spec each. A scheduler sees the first one only.
    specs = dict(getattr(group.kv_cache_spec, "kv_cache_specs", None) or {})
    spec = next(iter(specs.values()), group.kv_cache_spec)
    rules = {_rule(member) for member in specs.values() or (spec,)}
    if len(rules) > 1:
        raise refuse("layers of one cache group with different rules")
    ((rule, span),) = rules
    return Group(
        int(spec.block_size),
        page_content_bytes(spec),
        spec_kind(group.kv_cache_spec),
        _dtype(spec),
        spec,
        rule=rule,
        span_tokens=span,
        exact=rule == "recurrent" and spec.mamba_cache_mode == "align",
        volatile=bool(getattr(group, "is_eagle_group", False)),
        layer_specs=specs,
    )


def _looks_ahead(speculative: Any) -> bool:
    """Whether the drafter's part of a block depends on a token behind it, and vLLM minds."""
    drops: Callable[[], bool] | None = getattr(speculative, "use_eagle_block_drop", None)
    return drops() if drops is not None else speculative.method in ("eagle", "eagle3", "mtp")


def check_supported(vllm_config: Any, kv_cache_config: Any) -> Groups:
    """Raises UnsupportedError with the reason, or returns the cache groups."""
    if getattr(kv_cache_config, "hisparse_host_num_blocks", None):
        raise refuse("HiSparse")
    members = [_group(group) for group in kv_cache_config.kv_cache_groups]
    if not members:
        raise refuse("models without a cache group")
    speculative = getattr(vllm_config, "speculative_config", None)
    method = getattr(speculative, "method", None)
    if speculative is not None and method not in (*DRAFTERS_WITHOUT_CACHE, *DRAFTERS_WITH_CACHE):
        raise refuse(f"speculative decoding by {method!r}")
    if speculative is not None and _looks_ahead(speculative) and not any(group.volatile for group in members):
        members = [replace(group, volatile=True) for group in members]  # vLLM does not say which of them it is
    parallel = vllm_config.parallel_config
    if getattr(parallel, "nnodes", 1) > 1 or getattr(parallel, "distributed_executor_backend", None) == "ray":
        raise refuse("ranks on another host than the scheduler (several nodes, or placed by Ray)")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise refuse(f"{name} > 1 yet")
    hash_tokens = getattr(kv_cache_config, "hash_block_size", None) or 0
    try:
        groups = Groups(members, hash_tokens, getattr(kv_cache_config, "prefix_cache_retention_interval", None))
    except orbitkv.InvalidArgument as error:
        raise refuse(f"these cache groups ({error})") from error
    alignment = getattr(kv_cache_config, "cache_hit_alignment_tokens", None)
    if alignment is not None and alignment != groups.align_tokens:
        raise refuse(f"cache_hit_alignment_tokens {alignment} where all groups end a block every {groups.align_tokens}")
    return groups


# ---- block hashes ---------------------------------------------------------------------------------------------------


def hash_algorithm(vllm_config: Any) -> str:
    return str(vllm_config.cache_config.prefix_caching_hash_algo)


def hash_bytes(vllm_config: Any) -> int:
    return 32 if hash_algorithm(vllm_config).startswith("sha256") else 16


def seed_probe(vllm_config: Any) -> bytes:
    """The hash that every chain starts with, computed as vLLM does but without touching its state.

    xxhash without PYTHONHASHSEED starts from a random value in each process: nothing could ever be found again.
    """
    from vllm.utils.hashing import get_hash_fn_by_name
    from vllm.v1.core import kv_cache_utils

    algorithm = hash_algorithm(vllm_config)
    seed = os.environ.get("PYTHONHASHSEED")
    if seed is None:
        if not algorithm.startswith("sha256"):
            raise refuse(f"prefix_caching_hash_algo {algorithm} without PYTHONHASHSEED (set it, or use sha256)")
        seed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", "vllm-none-hash")
    return bytes(get_hash_fn_by_name(algorithm)(seed))


# ---- configuration --------------------------------------------------------------------------------------------------


def engine_version() -> str:
    import vllm

    return str(vllm.__version__)


def model_config_text(vllm_config: Any) -> str:
    # The version says who wrote the file, not what the model computes.
    return canonical(without(plain(vllm_config.model_config.hf_config), "transformers_version"))


def _rope(vllm_config: Any) -> Any:
    text_config = vllm_config.model_config.hf_text_config
    return getattr(text_config, "rope_scaling", None) or getattr(text_config, "rope_parameters", None)


def rope_text(vllm_config: Any) -> str:
    rope = _rope(vllm_config)
    return canonical(rope) if rope else ""


def long_rope_length(vllm_config: Any) -> int:
    """Long-rope factors are chosen by the engine's maximum length, so it is part of what is computed."""
    return int(vllm_config.model_config.max_model_len) if "longrope" in rope_text(vllm_config) else 0


def sliding_window(vllm_config: Any) -> int:
    window = getattr(vllm_config.model_config.hf_text_config, "sliding_window", None)
    return int(window) if isinstance(window, int) else 0


def model_dtype(vllm_config: Any) -> str:
    return str(vllm_config.model_config.dtype).removeprefix("torch.")


def cache_dtype(vllm_config: Any, groups: Groups) -> str:
    configured = str(vllm_config.cache_config.cache_dtype)
    resolved = "+".join(dict.fromkeys(group.dtype.removeprefix("torch.") for group in groups))
    return resolved if configured == "auto" and resolved else f"{configured}/{resolved}"


def quantization_text(vllm_config: Any) -> str:
    method = vllm_config.model_config.quantization
    return str(method) if method else ""


def skipped_layers(vllm_config: Any) -> list[str]:
    layers = getattr(vllm_config.cache_config, "kv_cache_dtype_skip_layers", None) or []
    return [str(layer) for layer in layers]


def pipeline_split() -> list[int]:
    """Layers are split evenly over the stages unless this variable says otherwise."""
    text = os.environ.get("VLLM_PP_LAYER_PARTITION", "")
    return [int(part) for part in text.split(",")] if text else []


def model_class(vllm_config: Any) -> type | None:
    """Of the model that a worker has loaded; None, with a warning, where vLLM does not say."""
    try:
        from vllm.model_executor.model_loader.utils import get_model_architecture

        found: type = get_model_architecture(vllm_config.model_config)[0]
    except Exception as error:  # of whatever kind: it is vLLM's way to say that it does not know
        logger.warning(
            "OrbitKV: vLLM does not say which class the model has (%s: %s): weights that it is given through its "
            "load_weights are not noticed; call reset_prefix_cache(reset_connector=True) before the next request",
            vllm_config.model_config.model,
            error,
        )
        return None
    return found


def lora_dtype(vllm_config: Any) -> str:
    """What adapters are converted to when they are loaded; empty without adapters."""
    config = getattr(vllm_config, "lora_config", None)
    return "" if config is None else str(config.lora_dtype).removeprefix("torch.")


def model_folder(vllm_config: Any) -> str:
    return _folder(vllm_config, vllm_config.model_config)


def _folder(vllm_config: Any, model_config: Any) -> str:
    """The local folder (or file) that the weights are read from; the name itself when it is not on this host."""
    revision = getattr(model_config, "revision", None)
    directory = getattr(vllm_config.load_config, "download_dir", None)
    return local_copy(str(model_config.model), "config.json", directory=directory, revision=revision)


def load_format(vllm_config: Any) -> str:
    value = vllm_config.load_config.load_format
    return str(getattr(value, "value", value))


@dataclass(frozen=True)
class Ranks:
    world_size: int
    shard_count: int
    replicas: int  # consecutive ranks that hold identical KV

    def shard_of(self, rank: int) -> int:
        return rank // self.replicas

    def writes(self, rank: int) -> bool:
        """One rank of each shard publishes; all of them read."""
        return rank % self.replicas == 0


def _replicas_of_heads(vllm_config: Any, kv_cache_config: Any) -> int:
    """Consecutive ranks that hold the same KV head. vLLM counts replicas only where the spec says so (MLA).

    Only for architectures whose layers all have the configuration's KV heads: a wrong guess restores other heads.
    """
    parallel, speculative = vllm_config.parallel_config, getattr(vllm_config, "speculative_config", None)
    tensor_parallel = int(parallel.tensor_parallel_size)
    if tensor_parallel == 1 or (speculative is not None and speculative.method in DRAFTERS_WITH_CACHE):
        return 1
    model = vllm_config.model_config
    if model.architecture not in ONE_COUNT_OF_HEADS:
        return 1
    heads = int(model.get_total_num_kv_heads())
    specs = [group.kv_cache_spec for group in kv_cache_config.kv_cache_groups]
    if heads >= tensor_parallel or tensor_parallel % heads or any(getattr(s, "num_kv_heads", 0) != 1 for s in specs):
        return 1
    return tensor_parallel // heads


def attends_to_prefixes(vllm_config: Any) -> bool:
    """Not with the reference kernels for MLA of CPUs without AMX: behind any prefix these compute wrong tokens."""
    import torch
    from vllm.platforms import current_platform

    uses_mla = bool(getattr(vllm_config.model_config, "use_mla", False))
    return not (uses_mla and current_platform.is_cpu() and not torch.cpu._is_amx_tile_supported())


def ranks(vllm_config: Any, kv_cache_config: Any) -> Ranks:
    parallel = vllm_config.parallel_config
    world = int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)
    replicas = max(1, int(getattr(kv_cache_config, "kv_tp_replicas", 1) or 1))
    if replicas == 1:
        replicas = _replicas_of_heads(vllm_config, kv_cache_config)
    if parallel.tensor_parallel_size % replicas != 0:
        raise refuse(f"{replicas} KV replicas in {parallel.tensor_parallel_size} tensor-parallel ranks")
    return Ranks(world, world // replicas, replicas)


def rank_of_this_worker(vllm_config: Any) -> int:
    """Rank within the instance: the data-parallel replicas count from 0 each."""
    from vllm.distributed.parallel_state import get_pp_group, get_tp_group

    size = int(vllm_config.parallel_config.tensor_parallel_size)
    return int(get_pp_group().rank_in_group) * size + int(get_tp_group().rank_in_group)


def overwrites_before_fence(vllm_config: Any, kv_cache_config: Any) -> bool:
    """Whether the runner may fill a block that it reuses before it calls handle_preemptions.

    Model runner V2 does where new blocks must be zeroed, which is also where a hit may copy one. V1 fences first.
    """
    zeroes = bool(getattr(kv_cache_config, "needs_kv_cache_zeroing", False))
    return zeroes and bool(getattr(vllm_config, "use_v2_model_runner", False))


# ---- requests -------------------------------------------------------------------------------------------------------


def handed_states(block_state: Any, req_id: str) -> set[tuple[int, int]]:
    """(group, tokens) of the states of recurrent layers that this step leaves in the request's table."""
    handed = getattr(block_state, "boundary_state_offloads", None)
    return {(group, tokens) for group, _, tokens in handed.get(req_id, ())} if handed else set()


def own_blocks(pool: Any, hashes: Sequence[bytes]) -> int:
    """How many of a request's first blocks are in vLLM's own cache. Of its first group; they leave from the end."""
    first, end = 0, len(hashes)
    while first < end:
        # Most requests have few or none; one with many costs twice as many steps as a bisection alone.
        middle = min(2 * first, (first + end) // 2)
        if pool.get_cached_block(hashes[middle], [0]):
            first = middle + 1
        else:
            end = middle
    return first


def skips_reading(request: Any) -> bool:
    return bool(getattr(request, "skip_reading_prefix_cache", False))


# ---- what vLLM is told ----------------------------------------------------------------------------------------------


def log_as_vllm() -> None:
    """Our lines go where vLLM's go, at its level, unless somebody has configured the logger "orbitkv"."""
    ours, theirs = logging.getLogger("orbitkv"), logging.getLogger("vllm")
    if ours.handlers or ours.level or not theirs.handlers:
        return
    for handler in theirs.handlers:
        ours.addHandler(handler)
    ours.setLevel(theirs.getEffectiveLevel())
    ours.propagate = False


def is_registered() -> bool:
    """Whether vLLM's processes know the connector by its name, from the package's plugin entry point."""
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory

    return "OrbitKVConnector" in KVConnectorFactory._registry


def publishes_events(vllm_config: Any) -> bool:
    config = getattr(vllm_config, "kv_events_config", None)
    return config is not None and bool(getattr(config, "enable_kv_cache_events", False))


def block_stored_event(
    hashes: Sequence[bytes],
    parent: bytes | None,
    token_ids: list[int],
    block_tokens: int,
    medium: str,
    group: int,
    lora: Any,
) -> Any:
    from vllm.distributed.kv_events import BlockStored
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockStored(
        block_hashes=[maybe_convert_block_hash(item) for item in hashes],
        parent_block_hash=None if parent is None else maybe_convert_block_hash(parent),
        token_ids=token_ids,
        block_size=block_tokens,
        lora_id=None if lora is None else lora.adapter_id,
        medium=medium,
        lora_name=None if lora is None else lora.name,
        group_idx=group,
    )


def block_removed_event(hashes: Sequence[bytes], medium: str, group: int) -> Any:
    from vllm.distributed.kv_events import BlockRemoved
    from vllm.v1.core.kv_cache_utils import maybe_convert_block_hash

    return BlockRemoved(
        block_hashes=[maybe_convert_block_hash(item) for item in hashes], medium=medium, group_idx=group
    )
