"""Everything that depends on vLLM's version or internals: names, defaults, layouts, backends.

Checked with 0.32.0 and 0.33.0. What this file does not know is refused by name rather than guessed.
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
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
from orbitkv.vllm.groups import Group, Groups

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

# Page content is opaque to us, so any kind works whose blocks hold all tokens of their range for good.
FULL_KINDS = ("full_attention", "mla_attention")
# Drafters without cache groups of their own.
DRAFTERS_WITHOUT_CACHE = ("ngram", "ngram_gpu", "suffix")


class UnsupportedError(ValueError):
    """This engine configuration cannot be cached; the message says what and what to do."""


def _refuse(what: str) -> UnsupportedError:
    return UnsupportedError(f"OrbitKV does not support {what}; start this engine without OrbitKVConnector")


def _unwrap(spec: Any) -> Any:
    inner = getattr(spec, "kv_cache_specs", None)
    if not inner:
        return spec
    members = list(inner.values())
    if any(member != members[0] for member in members[1:]):
        raise _refuse("layers of one cache group with different page shapes")
    return members[0]


def spec_kind(spec: Any) -> str:
    from vllm.v1.kv_cache_interface import get_kv_cache_spec_kind

    kind = get_kv_cache_spec_kind(spec)
    return str(getattr(kind, "value", kind)).lower()


def _group(group: Any) -> Group:
    if getattr(group, "host_resident", False):
        raise _refuse("HiSparse")
    if not getattr(group, "enable_kv_transfer", True):
        raise _refuse("a cache group that vLLM excludes from transfer")
    if getattr(group, "is_eagle_group", False):
        raise _refuse("cache groups with speculative draft layers yet")
    spec = _unwrap(group.kv_cache_spec)
    kind = spec_kind(spec)
    window = 0
    if kind == "sliding_window":
        window = int(spec.sliding_window)
        if getattr(spec, "extra_retained_tokens", 0):
            raise _refuse("sliding windows of drafters yet")
        if getattr(spec, "prefix_replay_window", None) or getattr(spec, "replay_window", None):
            raise _refuse("prefix replay")
    elif kind not in FULL_KINDS:
        raise _refuse(f"cache groups of kind {kind} yet")
    if not getattr(spec, "prefix_cacheable", True):
        raise _refuse("a cache group whose blocks vLLM does not cache by prefix")
    return Group(int(spec.block_size), int(spec.page_size_bytes), kind, str(getattr(spec, "dtype", "")), spec, window)


def check_supported(vllm_config: Any, kv_cache_config: Any) -> Groups:
    """Raises UnsupportedError with the reason, or returns the cache groups."""
    if getattr(kv_cache_config, "hisparse_host_num_blocks", None):
        raise _refuse("HiSparse")
    members = [_group(group) for group in kv_cache_config.kv_cache_groups]
    if not members:
        raise _refuse("models without a cache group")
    parallel = vllm_config.parallel_config
    if getattr(parallel, "nnodes", 1) > 1:
        raise _refuse("ranks on another host than the scheduler")
    for name in ("decode_context_parallel_size", "prefill_context_parallel_size"):
        if getattr(parallel, name, 1) > 1:
            raise _refuse(f"{name} > 1 yet")
    hash_tokens = getattr(kv_cache_config, "hash_block_size", None) or 0
    try:
        groups = Groups(members, hash_tokens, getattr(kv_cache_config, "prefix_cache_retention_interval", None))
    except orbitkv.InvalidArgument as error:
        raise _refuse(f"these cache groups ({error})") from error
    alignment = getattr(kv_cache_config, "cache_hit_alignment_tokens", None)
    if alignment is not None and alignment != groups.align_tokens:
        raise _refuse(
            f"cache_hit_alignment_tokens {alignment} where all groups end a block every {groups.align_tokens}"
        )
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is not None and getattr(speculative, "method", None) not in DRAFTERS_WITHOUT_CACHE:
        raise _refuse(f"speculative decoding by {getattr(speculative, 'method', 'a drafter')!r} yet")
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
            raise _refuse(f"prefix_caching_hash_algo {algorithm} without PYTHONHASHSEED (set it, or use sha256)")
        seed = getattr(kv_cache_utils, "DEFAULT_NONE_HASH_SEED", "vllm-none-hash")
    return bytes(get_hash_fn_by_name(algorithm)(seed))


# ---- configuration --------------------------------------------------------------------------------------------------


def engine_version() -> str:
    import vllm

    return str(vllm.__version__)


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items() if not str(key).startswith("_")}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(_plain(item), sort_keys=True) for item in value)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict):
        return _plain(to_dict())
    text = str(value)
    if " at 0x" in text:  # a default repr names an address, which differs in every process
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return text


def canonical(value: Any) -> str:
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"))


def _without(value: Any, name: str) -> Any:
    if isinstance(value, dict):
        return {key: _without(item, name) for key, item in value.items() if key != name}
    return [_without(item, name) for item in value] if isinstance(value, list) else value


def model_config_text(vllm_config: Any) -> str:
    # The version says who wrote the file, not what the model computes.
    return canonical(_without(_plain(vllm_config.model_config.hf_config), "transformers_version"))


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


def lora_dtype(vllm_config: Any) -> str:
    """What adapters are converted to when they are loaded; empty without adapters."""
    config = getattr(vllm_config, "lora_config", None)
    return "" if config is None else str(config.lora_dtype).removeprefix("torch.")


def model_folder(vllm_config: Any) -> str:
    """The local folder (or file) that the weights are read from; the name itself when it is not on this host."""
    model = str(vllm_config.model_config.model)
    if Path(model).exists() or "://" in model:
        return model
    try:
        from huggingface_hub import try_to_load_from_cache

        revision = getattr(vllm_config.model_config, "revision", None)
        directory = getattr(vllm_config.load_config, "download_dir", None)
        found = try_to_load_from_cache(model, "config.json", cache_dir=directory, revision=revision)
    except Exception:  # no hub package, or a name it does not accept
        return model
    return str(Path(found).parent) if isinstance(found, str) else model


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


def ranks(vllm_config: Any, kv_cache_config: Any) -> Ranks:
    parallel = vllm_config.parallel_config
    world = int(parallel.tensor_parallel_size) * int(parallel.pipeline_parallel_size)
    replicas = max(1, int(getattr(kv_cache_config, "kv_tp_replicas", 1) or 1))
    if parallel.tensor_parallel_size % replicas != 0:
        raise _refuse(f"{replicas} KV replicas in {parallel.tensor_parallel_size} tensor-parallel ranks")
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


# ---- pages ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerPages:
    """One layer's pages. Addresses and sizes in bytes; block b starts at address + b * block_stride."""

    address: int
    block_stride: int
    page_bytes: int
    block_count: int
    tensor: Any


@dataclass(frozen=True)
class PageFormat:
    order: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    dtype: str


def _page_order(shape: Sequence[int], strides: Sequence[int]) -> str:
    """Names of the page's dimensions from outer to inner: H heads, N tokens, C content of a [B, H, N, C] view."""
    names = "HNC"[-len(shape) :] if len(shape) <= 3 else "".join(chr(ord("a") + i) for i in range(len(shape)))
    return "".join(names[i] for i in sorted(range(len(shape)), key=lambda i: (-strides[i], i)))


def _is_compact(shape: Sequence[int], strides: Sequence[int]) -> bool:
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size == 1:
            continue
        if stride != expected:
            return False
        expected *= size
    return True


def layer_pages(name: str, tensor: Any, block_count: int, page_bytes: int) -> tuple[LayerPages, PageFormat]:
    """Where the pages of one layer lie, from the tensor's own strides. A page must be one run of bytes."""
    if tensor.device.type != "cpu":
        raise _refuse(f"KV pages on {tensor.device.type} yet (CPU engines only)")
    if tensor.dim() < 2 or tensor.shape[0] % block_count != 0:
        raise _refuse(f"layer {name}: shape {tuple(tensor.shape)} does not hold {block_count} blocks")
    per_block = tensor.shape[0] // block_count  # kernel blocks of one block
    item = tensor.element_size()
    inner_shape, inner_strides = tuple(tensor.shape[1:]), tuple(tensor.stride()[1:])
    kernel_bytes = item
    for size in inner_shape:
        kernel_bytes *= size
    stride = tensor.stride(0) * item
    if not _is_compact(inner_shape, inner_strides) or (per_block > 1 and stride != kernel_bytes):
        raise _refuse(
            f"layer {name}: the layout with strides {tuple(tensor.stride())} (a page is not one run of bytes)"
        )
    if kernel_bytes * per_block != page_bytes:
        raise _refuse(f"layer {name}: pages of {kernel_bytes * per_block} bytes where vLLM says {page_bytes}")
    pages = LayerPages(tensor.data_ptr(), stride * per_block, page_bytes, block_count, tensor)
    page_format = PageFormat(
        _page_order(inner_shape, inner_strides),
        (per_block, *inner_shape),
        (tensor.stride(0), *inner_strides) if per_block > 1 else (0, *inner_strides),
        str(tensor.dtype).removeprefix("torch."),
    )
    return pages, page_format


def collect_pages(
    kv_caches: dict[str, Any], kv_cache_config: Any, groups: Groups, number: int = 0
) -> tuple[list[LayerPages], PageFormat]:
    """Pages of all layers of a group in the model's order, each storage place once, and their common format.

    Groups lie over each other: a block's bytes belong to the group that has it.
    """
    names = list(kv_cache_config.kv_cache_groups[number].layer_names)
    missing = [name for name in names if name not in kv_caches]
    if missing:
        raise _refuse(f"layers without a KV tensor ({', '.join(missing[:3])})")
    result: dict[int, LayerPages] = {}
    formats: set[PageFormat] = set()
    for name in names:
        tensor = kv_caches[name]
        if isinstance(tensor, (list, tuple)):
            raise _refuse(f"layer {name}: more than one tensor per layer")
        pages, page_format = layer_pages(name, tensor, int(kv_cache_config.num_blocks), groups[number].page_bytes)
        result.setdefault(pages.address, pages)  # layers that share KV share the tensor
        formats.add(page_format)
    if len(formats) != 1:
        raise _refuse("layers of one cache group with different page formats")
    return list(result.values()), formats.pop()


def attention_backend(vllm_config: Any, layer_names: Iterable[str]) -> str:
    layers = vllm_config.compilation_config.static_forward_context
    names = set()
    for layer_name in layer_names:
        layer = layers[layer_name]
        get_backend: Callable[[], Any] | None = getattr(layer, "get_attn_backend", None)
        backend = get_backend() if get_backend is not None else layer.attn_backend
        names.add(str(backend.get_name()))
    return "+".join(sorted(names))


def instruction_set(vllm_config: Any, group: Group) -> str:
    """The CPU backend orders a page's elements by instruction set and vector width."""
    import torch
    from vllm.v1.attention.backends import cpu_attn

    spec = group.spec
    chosen = cpu_attn._get_attn_isa(
        spec.dtype, group.block_tokens, getattr(spec, "head_size", None), str(vllm_config.cache_config.cache_dtype)
    )
    return f"{chosen}/{torch.backends.cpu.get_cpu_capability()}"


# ---- requests -------------------------------------------------------------------------------------------------------


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
