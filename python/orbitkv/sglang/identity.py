"""What this engine computes and how it keeps it, as the two digests that name its blocks.

Each tensor parallel rank is an instance of its own at the Manager, so what names the blocks says which part of the
state a rank holds. Ranks that hold the same bytes say the same.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import orbitkv
from orbitkv.canonical import canonical
from orbitkv.folders import PROCESSOR_FILES, file_digests
from orbitkv.identity import Fields
from orbitkv.sglang.compat import Engine

ADAPTER_FILES = ("adapter_config.json", "added_tokens.json")


class BufferFormat(Protocol):
    """One buffer's part of a page."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...


class Pool(Protocol):
    """A pool's pages, as pools.py knows them."""

    @property
    def pool_class(self) -> str: ...
    @property
    def rule(self) -> str: ...
    @property
    def formats(self) -> Sequence[BufferFormat]: ...
    @property
    def layers(self) -> Sequence[orbitkv.Layer]: ...


def weights(engine: Engine, model_id: str, cancel: orbitkv.CancelToken) -> str:
    """Of the model; reads files that no process of this host has read before, which may take minutes."""
    return orbitkv.identify_weights(
        engine.model_folder, load_format=engine.load_format, model_id=model_id, cancel=cancel
    )


def adapters(engine: Engine, cancel: orbitkv.CancelToken) -> dict[str, str]:
    """The content of the adapters that SGLang has loaded at its start, whose page hashes name them by path only."""
    found = {}
    for name, folder in engine.adapters:
        content = orbitkv.identify_weights(folder, cancel=cancel)
        found[name] = canonical([folder, content, file_digests(folder, ADAPTER_FILES)])
    return found


def model_text(engine: Engine, adapter_contents: Mapping[str, str]) -> str:
    """What of the model the weights do not say: its configuration after all overrides, and what runs it."""
    ranks = engine.ranks
    text: Fields = {
        "config": engine.config,
        "architecture": engine.architecture,
        "settings": dict(engine.settings),
        "adapters": dict(adapter_contents),
        "attention_parallel": [ranks.attn_tp_size, ranks.attn_dp_size, ranks.attn_cp_size],
        "expert_parallel": [ranks.ep_size, ranks.moe_dp_size],
    }
    if engine.multimodal:
        text["processors"] = file_digests(engine.model_folder, PROCESSOR_FILES)
    return canonical(text)


def quantization_text(engine: Engine) -> str:
    """The method, and the file of scales that it was told of."""
    if not engine.quantization_parameters:
        return engine.quantization
    content = hashlib.sha256(Path(engine.quantization_parameters).read_bytes()).hexdigest()
    return canonical([engine.quantization, content])


def computation_fields(
    engine: Engine, weights_text: str, adapter_contents: Mapping[str, str], *, replicated: bool, epoch: bytes = b""
) -> Fields:
    """What the Manager is told of the numbers in the pages.

    Args:
        engine: this process's.
        weights_text: of `weights`.
        adapter_contents: of `adapters`.
        replicated: all tensor parallel ranks hold the same bytes.
        epoch: of a namespace that nobody else is in; empty is the one that equal engines share.
    """
    ranks = engine.ranks
    named = f"{weights_text} part:{ranks.place(replicated)}"
    if epoch:
        named += f" epoch:{epoch.hex()}"
    return {
        "weights": named,
        "model_config": model_text(engine, adapter_contents),
        "rope_scaling": engine.rope_scaling,
        "sliding_window": engine.sliding_window,
        "long_rope_length": engine.long_rope_length,
        "dtype": engine.dtype,
        "quantization": quantization_text(engine),
        "engine": "sglang",
        "engine_version": engine.version,
        "cache_dtype": engine.cache_dtype,
        "skipped_layers": [],
        "hash_algorithm": engine.hash_algorithm,
        "seed_probe": engine.probe,
        "block_tokens": engine.page_tokens,
        "hash_block_tokens": engine.page_tokens,
        "hit_alignment_tokens": engine.page_tokens,
        "tensor_parallel": ranks.tp_size,
        "pipeline_parallel": 1,
        "pipeline_split": [],
        "decode_context_parallel": 1,
        "prefill_context_parallel": ranks.attn_cp_size,
        "drafter": "",
    }


def _strides(shape: Sequence[int]) -> list[int]:
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strides


def representation_fields(engine: Engine, pool: Pool) -> Fields:
    """Of one pool. Its buffers are compact within a page; what differs between them is in the order."""
    first = pool.formats[0]
    buffers = [[list(one.shape), one.dtype] for one in pool.formats]
    uniform = all(one == buffers[0] for one in buffers)
    return {
        "page_bytes": pool.layers[0].page_bytes,
        "layer_count": len(pool.layers),
        "order": canonical([pool.pool_class, len(buffers), *(buffers[:1] if uniform else buffers)]),
        "page_shape": list(first.shape),
        "page_strides": _strides(first.shape),
        "spec_kind": pool.rule,
        "dtype": "+".join(dict.fromkeys(one.dtype for one in pool.formats)),
        "attention_backend": engine.attention_backend,
        "instruction_set": engine.instruction_set,
        "page_tokens": engine.page_tokens,
    }
