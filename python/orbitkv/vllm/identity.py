"""What this engine computes and how it keeps it, as the two digests that name its blocks.

The computation digest must come out the same in the scheduler and in every worker, so it is made only of what all of
them see. The representation digest comes from the tensors of a worker.
"""

from __future__ import annotations

from typing import Any

from orbitkv.canonical import canonical
from orbitkv.folders import PROCESSOR_FILES, file_digests
from orbitkv.identity import Fields
from orbitkv.vllm import compat, pages
from orbitkv.vllm.groups import Group, Groups

# Of vLLM's multimodal options, those that change what the language model is given for an image or a sound.
MULTIMODAL_OPTIONS = (
    "mm_processor_kwargs",
    "media_io_kwargs",
    "mm_device_do_normalize",
    "mm_encoder_attn_dtype",
    "video_pruning_rate",
    "video_pruning_method",
)


def model_text(vllm_config: Any) -> str:
    """What of the model the weights do not say: its configuration after all overrides, and what runs it."""
    model, cache = vllm_config.model_config, vllm_config.cache_config
    text: Fields = {
        "config": compat.model_config_text(vllm_config),
        "architecture": getattr(model, "architecture", ""),
        "runner": getattr(model, "runner_type", ""),
        "disable_sliding_window": bool(getattr(model, "disable_sliding_window", False)),
        "mamba_cache_dtype": getattr(cache, "mamba_cache_dtype", ""),
        "mamba_ssm_cache_dtype": getattr(cache, "mamba_ssm_cache_dtype", ""),
    }
    multimodal = getattr(model, "multimodal_config", None)
    if multimodal is not None:
        text["multimodal"] = {name: getattr(multimodal, name, None) for name in MULTIMODAL_OPTIONS}
        text["processors"] = file_digests(compat.model_folder(vllm_config), PROCESSOR_FILES)
    return canonical(text)


def quantization_text(vllm_config: Any) -> str:
    """The method and what it was told, which for some methods is not in the model's configuration."""
    method = compat.quantization_text(vllm_config)
    resolved = getattr(vllm_config, "quant_config", None)
    if resolved is None:
        return method
    return canonical([method, type(resolved).__name__, vars(resolved)])


def drafter_folder(vllm_config: Any) -> str:
    """Where the weights of a drafter with cache groups of its own are; empty without one."""
    speculative = getattr(vllm_config, "speculative_config", None)
    if speculative is None or getattr(speculative, "method", None) in compat.DRAFTERS_WITHOUT_CACHE:
        return ""
    return str(speculative.draft_model_config.model)


def drafter_text(vllm_config: Any, weights: str) -> str:
    if not drafter_folder(vllm_config):
        return ""
    speculative = vllm_config.speculative_config
    draft = speculative.draft_model_config
    return canonical([str(speculative.method), weights, draft.hf_config, str(draft.dtype)])


def computation_fields(vllm_config: Any, groups: Groups, weights: str, drafter_weights: str = "") -> Fields:
    parallel = vllm_config.parallel_config
    return {
        "weights": weights,
        "model_config": model_text(vllm_config),
        "rope_scaling": compat.rope_text(vllm_config),
        "sliding_window": compat.sliding_window(vllm_config),
        "long_rope_length": compat.long_rope_length(vllm_config),
        "dtype": compat.model_dtype(vllm_config),
        "quantization": quantization_text(vllm_config),
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
        "decode_context_parallel": int(getattr(parallel, "decode_context_parallel_size", 1)),
        "prefill_context_parallel": int(getattr(parallel, "prefill_context_parallel_size", 1)),
        "drafter": drafter_text(vllm_config, drafter_weights),
    }


def representation_fields(
    vllm_config: Any, group: Group, layer_names: list[str], page_format: pages.PageFormat, layer_count: int
) -> Fields:
    return {
        "page_bytes": page_format.page_bytes,
        "layer_count": layer_count,
        "order": page_format.order,
        "page_shape": list(page_format.shape),
        "page_strides": list(page_format.strides),
        "spec_kind": group.kind,
        "dtype": page_format.dtype,
        "attention_backend": pages.attention_backend(vllm_config, layer_names),
        "instruction_set": pages.instruction_set(vllm_config, group),
        "page_tokens": group.block_tokens,
    }
