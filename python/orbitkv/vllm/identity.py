"""What this engine computes and how it keeps it, as the two digests that name its blocks.

The computation digest must come out the same in the scheduler and in every worker, so it is made only of what all of
them see. The representation digest comes from the tensors of a worker.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orbitkv
from orbitkv.vllm import compat
from orbitkv.vllm.groups import Group, Groups

Fields = dict[str, Any]


def computation_fields(vllm_config: Any, groups: Groups, weights: str) -> Fields:
    parallel = vllm_config.parallel_config
    return {
        "weights": weights,
        "model_config": compat.model_config_text(vllm_config),
        "rope_scaling": compat.rope_text(vllm_config),
        "sliding_window": compat.sliding_window(vllm_config),
        "long_rope_length": compat.long_rope_length(vllm_config),
        "dtype": compat.model_dtype(vllm_config),
        "quantization": compat.quantization_text(vllm_config),
        "engine": "vllm",
        "engine_version": compat.engine_version(),
        "cache_dtype": compat.cache_dtype(vllm_config, groups),
        "skipped_layers": compat.skipped_layers(vllm_config),
        "hash_algorithm": compat.hash_algorithm(vllm_config),
        "seed_probe": compat.seed_probe(vllm_config),
        "block_tokens": groups.align_tokens,
        "hash_block_tokens": groups.hash_tokens,
        "hit_alignment_tokens": groups.align_tokens,
        "tensor_parallel": int(parallel.tensor_parallel_size),
        "pipeline_parallel": int(parallel.pipeline_parallel_size),
        "pipeline_split": compat.pipeline_split(),
        "decode_context_parallel": 1,
        "prefill_context_parallel": 1,
        "drafter": "",
    }


def representation_fields(
    vllm_config: Any, group: Group, layer_names: list[str], page_format: compat.PageFormat, layer_count: int
) -> Fields:
    return {
        "page_bytes": group.page_bytes,
        "layer_count": layer_count,
        "order": page_format.order,
        "page_shape": list(page_format.shape),
        "page_strides": list(page_format.strides),
        "spec_kind": group.kind,
        "dtype": page_format.dtype,
        "attention_backend": compat.attention_backend(vllm_config, layer_names),
        "instruction_set": compat.instruction_set(vllm_config, group),
        "page_tokens": group.block_tokens,
    }


def representation_digest(groups: Sequence[Fields]) -> bytes:
    """Of a worker's pages: the digest of its one group, or one over those of all."""
    digests = [orbitkv.representation_digest(fields) for fields in groups]
    if len(digests) == 1:
        return digests[0]
    builder = orbitkv.DigestBuilder("representation of several groups")
    for digest in digests:
        builder.add("group", digest)
    return builder.digest()


def describe(fields: Mapping[str, Any]) -> str:
    """For one log line: everything but the long texts."""
    return " ".join(f"{key}={value}" for key, value in fields.items() if key not in ("model_config", "seed_probe"))
