"""Everything that is taken from SGLang and may move between its versions, but for its pools (pools.py).

Checked with 0.5.23. Settings are read where SGLang publishes them after it has resolved them, never from what the
command line said.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from orbitkv.canonical import canonical, plain, without
from orbitkv.folders import local_copy
from orbitkv.sglang.errors import refuse

# SGLang's groups of published settings. No name is in two of them.
BAGS = ("device", "model", "exec", "schedule", "memory", "spec", "lora", "mm", "disagg", "serving", "observability")

# Settings with which SGLang computes other keys and values, or keeps them otherwise, for the same weights and prompt.
COMPUTING = (
    "model_impl",
    "custom_weight_loader",
    "model_loader_extra_config",
    "modelopt_quant",
    "quantize_and_serve",
    "rl_quant_profile",
    "is_embedding",
    "prefill_attention_backend",
    "decode_attention_backend",
    "attention_backend",
    "triton_attention_reduce_in_fp32",
    "prefill_kv_cache_dequant_dtype",
    "mamba_backend",
    "mamba_ssm_dtype",
    "linear_attn_backend",
    "linear_attn_prefill_backend",
    "linear_attn_decode_backend",
    "enable_deterministic_inference",
    "rl_on_policy_target",
    "enable_fused_qk_norm_rope",
    "dllm_algorithm",
    "disable_hybrid_swa_memory",
    "lora_target_modules",
    "lora_backend",
    "lora_strict_loading",
    "experts_shared_outer_loras",
    "weight_version",
)
# And of images and sounds.
MULTIMODAL = (
    "mm_process_config",
    "mm_attention_backend",
    "image_processor_backend",
    "disable_fast_image_processor",
    "language_only",
    "language_model_only",
)


class Settings(Mapping[str, Any]):
    """All that SGLang has published in this process, by name."""

    def __init__(self) -> None:
        from sglang.srt import runtime_context

        self._values: dict[str, Any] = {}
        for name in BAGS:
            self._add(getattr(runtime_context, f"get_{name}")())

    def _add(self, bag: Any) -> None:
        self._values.update(bag._fields)
        for inner in bag._subs.values():
            self._add(inner)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


@dataclass(frozen=True)
class Ranks:
    """Where this process stands among those that compute one model. Data-parallel replicas have equal ones.

    Attributes:
        tp_rank: in the tensor parallel group, which with attention data parallelism holds several replicas.
        attn_tp_rank: among the ranks that share the heads of one replica.
        attn_cp_rank: among the ranks that share its tokens while they prefill.
    """

    tp_rank: int = 0
    tp_size: int = 1
    attn_tp_rank: int = 0
    attn_tp_size: int = 1
    attn_cp_rank: int = 0
    attn_cp_size: int = 1
    attn_dp_size: int = 1
    ep_size: int = 1
    moe_dp_size: int = 1

    def writes(self, replicated: bool) -> bool:
        """Of ranks that hold equal bytes one saves them; all of them restore."""
        return not replicated or self.attn_tp_rank == 0

    def place(self, replicated: bool) -> str:
        """Which part of the state this rank holds, as its blocks' names say it."""
        part = "all" if replicated else f"{self.attn_tp_rank}/{self.attn_tp_size}"
        return f"tp {part} cp {self.attn_cp_rank}/{self.attn_cp_size}"


def ranks() -> Ranks:
    """SGLang states the ranks of a process when it is launched; without a launcher there is one.

    A name that SGLang does not have ends the start: ranks that all counted as the first one would share their blocks.
    """
    from sglang.srt.runtime_context import get_parallel

    parallel = get_parallel()

    def read(name: str, default: int) -> int:
        try:
            return int(getattr(parallel, name))
        except RuntimeError:  # not stated
            return default

    return Ranks(**{name: read(name, getattr(Ranks, name)) for name in Ranks.__dataclass_fields__})


@dataclass(frozen=True)
class Engine:
    """What of this process names its blocks, read once on the thread that starts it.

    Attributes:
        model_folder: of the weights on this host, else their name.
        load_format: SGLang's, of the weights.
        config: the model's configuration after all overrides, as canonical JSON.
        cache_dtype: what was asked for and what the pools hold.
        settings: of COMPUTING and MULTIMODAL those that are set.
        adapters: (name, folder) of those that are loaded at the start.
        probe: a page hash, and for images the numbers that stand for one in a prompt.
    """

    version: str
    model_folder: str
    load_format: str
    config: str
    architecture: str
    rope_scaling: str
    sliding_window: int
    long_rope_length: int
    dtype: str
    quantization: str
    quantization_parameters: str
    cache_dtype: str
    settings: Mapping[str, Any]
    adapters: tuple[tuple[str, str], ...]
    multimodal: bool
    hash_algorithm: str
    probe: bytes
    page_tokens: int
    attention_backend: str
    instruction_set: str
    ranks: Ranks


def version() -> str:
    from sglang.version import __version__

    return str(__version__)


def page_hash(tokens: list[int], *, bigram: bool = False, extra_key: str | None = None, salt: str | None = None) -> str:
    """SGLang's own hash of one page, in hex. The first call in a new environment compiles: seconds."""
    from sglang.srt.mem_cache.radix_cache import RadixKey
    from sglang.srt.mem_cache.utils import get_storage_hash_str

    key = RadixKey(array("q", tokens), extra_key, is_bigram=bigram, cache_salt=salt)
    (found,) = get_storage_hash_str(key, None, page_size=len(key))
    return str(found)


def image_tokens(content_hash: int) -> tuple[int, ...]:
    """The numbers by which SGLang stands for an image or sound with this content in a prompt."""
    from sglang.srt.managers.schedule_batch import Modality, MultimodalDataItem

    item = MultimodalDataItem(modality=Modality.IMAGE)
    item.set_hash(content_hash)
    return tuple(int(value) for value in item.padding_values())


def _probe(bigram: bool, multimodal: bool) -> bytes:
    tokens = [1, 2, 3, 70_000, 5]
    found = page_hash(tokens, bigram=bigram) + page_hash(tokens, bigram=bigram, extra_key="k", salt="s")
    images = canonical(list(image_tokens(0x1234_5678_9ABC_DEF0))) if multimodal else ""
    return bytes.fromhex(found) + images.encode()


def _rope(config: Any) -> str:
    rope = getattr(config, "rope_scaling", None) or getattr(config, "rope_parameters", None)
    return canonical(rope) if rope else ""


def _dtype_of(kvcache: Any) -> str:
    """Of the elements that the pools hold; several pools have several."""
    pools = [getattr(kvcache, name) for name in ("full_kv_pool", "swa_kv_pool") if hasattr(kvcache, name)]
    dtypes = [str(getattr(pool, "dtype", "")).removeprefix("torch.") for pool in pools or [kvcache]]
    return "+".join(dict.fromkeys(dtypes))


def _instruction_set(device: str) -> str:
    """Kernels of CPUs may order a page by it; empty on accelerators."""
    if device != "cpu":
        return ""
    import torch
    from sglang.srt.utils import cpu_has_amx_support

    return f"{torch.backends.cpu.get_cpu_capability()}{'+amx' if cpu_has_amx_support() else ''}"


def _model(settings: Settings, model_config: Any) -> dict[str, Any]:
    # The version says who wrote the file, not what the model computes; the length is SGLang's own addition.
    config = canonical(without(without(plain(model_config.hf_config), "transformers_version"), "context_len"))
    text_config = model_config.hf_text_config
    window = model_config.sliding_window_size
    rope = _rope(text_config)
    return {
        "model_folder": local_copy(
            str(settings["model_path"]),
            "config.json",
            directory=settings.get("download_dir"),
            revision=settings.get("revision"),
        ),
        "load_format": str(settings["load_format"]),
        "config": config,
        "architecture": canonical(list(model_config.hf_config.architectures or ())),
        "rope_scaling": rope,
        "sliding_window": int(window) if isinstance(window, int) and window > 0 else 0,
        # Long-rope factors are chosen by the engine's maximum length, so it is part of what is computed.
        "long_rope_length": int(model_config.context_len) if "longrope" in rope else 0,
        "dtype": str(model_config.dtype).removeprefix("torch."),
        "quantization": str(model_config.quantization or ""),
        "quantization_parameters": str(settings.get("quantization_param_path") or ""),
        "multimodal": bool(model_config.is_multimodal),
    }


def _adapters(lora_paths: Any) -> tuple[tuple[str, str], ...]:
    listed = lora_paths.values() if isinstance(lora_paths, dict) else lora_paths or ()
    return tuple(sorted((str(one.lora_name), local_copy(str(one.lora_path), "adapter_config.json")) for one in listed))


def describe(params: Any) -> Engine:
    """This process's engine, from what SGLang has published and the parameters of its radix cache."""
    from sglang.srt.runtime_context import process_model_config

    settings, model_config = Settings(), process_model_config()
    model = _model(settings, model_config)
    prefill, decode = attention_backends(settings)
    cache_dtype = f"{settings.get('kv_cache_dtype')}/{_dtype_of(params.token_to_kv_pool_allocator.get_kvcache())}"
    names = COMPUTING + (MULTIMODAL if model["multimodal"] else ())
    bigram = bool(params.is_eagle)
    return Engine(
        version=version(),
        **model,
        cache_dtype=cache_dtype,
        settings={name: plain(settings[name]) for name in names if settings.get(name) is not None},
        adapters=_adapters(settings.get("lora_paths")),
        hash_algorithm="sha256 chain of token pairs" if bigram else "sha256 chain",
        probe=_probe(bigram, model["multimodal"]),
        page_tokens=int(params.page_size),
        attention_backend=prefill if prefill == decode else f"{prefill}/{decode}",
        instruction_set=_instruction_set(str(settings.get("device"))),
        ranks=ranks(),
    )


def adapter_ids() -> list[str]:
    """Of the adapters that are loaded at the start: made of their names and paths, so equal in every life."""
    listed = Settings().get("lora_paths")
    return [str(one.lora_id) for one in (listed.values() if isinstance(listed, dict) else listed or ())]


def weight_version() -> str | None:
    return Settings().get("weight_version")


def keeps_released_weights() -> bool:
    return bool(Settings().get("enable_weights_cpu_backup"))


def only_decodes() -> bool:
    """Whether this engine is handed its prompts with their pages: SGLang asks its linker for none."""
    return Settings().get("disaggregation_mode") == "decode"


def attention_backends(settings: Mapping[str, Any]) -> tuple[str, str]:
    """For prefill and for decode."""
    base = settings.get("attention_backend")
    return str(settings.get("prefill_attention_backend") or base), str(settings.get("decode_attention_backend") or base)


# ---- what cannot be cached ------------------------------------------------------------------------------------------

# Settings that keep or move pages in ways that the linker does not know.
UNKNOWN_CACHES = (
    "enable_hierarchical_cache",
    "enable_hisparse",
    "enable_lmcache",
    "enable_flexkv",
    "enable_unified_memory",
    "enable_page_major_kv_layout",
    "enable_linker_mla_dedup",
    "enable_encoder_swa_bounded_replay",
    "enable_decoder_swa_bounded_replay",
    "enable_pd_role_switch",
)
UNKNOWN_DEGREES = {
    "pp_size": "pipeline parallelism (--pp-size; SGLang does not agree on hits across stages)",
    "nnodes": "ranks on several hosts (--nnodes)",
    "dcp_size": "decode context parallelism (--dcp-size)",
    "enable_kv_cache_sharding": "--enable-kv-cache-sharding",
    "enable_dsa_cache_layer_split": "--enable-dsa-cache-layer-split",
}
NO_CACHE = (
    "an engine without a radix cache (--disable-radix-cache, or a decode engine that needs "
    "--disaggregation-decode-enable-radix-cache)"
)
RETRACTION = "disaggregation_decode_retraction_backup"
SETTINGS_CHECKED = ("disable_radix_cache", *UNKNOWN_CACHES, "hicache_storage_backend", RETRACTION, "dllm_algorithm")
DEGREES_CHECKED = tuple(UNKNOWN_DEGREES)


def option(name: str) -> str:
    return "--" + name.replace("_", "-")


def check_settings(settings: Mapping[str, Any], parallel: Mapping[str, Any]) -> None:
    """Raises UnsupportedError for an engine that cannot be cached, whatever its pools are.

    Args:
        settings: SGLang's, by name.
        parallel: its parallel degrees and what belongs to them, by name.
    """
    if settings.get("disable_radix_cache"):
        raise refuse(NO_CACHE)
    for name, what in UNKNOWN_DEGREES.items():
        if int(parallel.get(name) or 0) > (0 if name.startswith("enable") else 1):
            raise refuse(what)
    for name in UNKNOWN_CACHES:
        if settings.get(name):
            raise refuse(option(name))
    if settings.get("hicache_storage_backend") is not None:
        raise refuse("--hicache-storage-backend beside a linker")
    if settings.get(RETRACTION) == "host_pool":
        raise refuse(f"{option(RETRACTION)} host_pool, which builds a cache without a linker")
    if settings.get("dllm_algorithm"):
        raise refuse("diffusion language models, whose pages change after they are filled")


def check_supported(params: Any, trust_mm_uuids: bool = False) -> None:
    """The same for this process, when its cache is made, with what SGLang has decided by then."""
    from sglang.srt.runtime_context import get_parallel, process_model_config

    settings, parallel = Settings(), get_parallel()
    check_settings(settings, {name: getattr(parallel, name) for name in DEGREES_CHECKED})
    if not settings.get("enable_unified_cache_external_linker"):
        raise refuse(
            "a cache whose scheduler does not know of a linker (--enable-unified-cache-external-linker is missing): "
            "it would compute with pages that were never loaded"
        )
    if params.disable:
        raise refuse(NO_CACHE)
    if process_model_config().is_encoder_decoder:
        raise refuse("encoder-decoder models, whose pages depend on more than the tokens before them")
    for name in ("mtp_draft_device_pools", "sidecar_draft_device_pools", "mtp_draft_mamba_pools"):
        if getattr(params, name, ()):
            raise refuse("speculative decoding whose drafter has a KV pool")
    if settings.get("trust_mm_content_hashes") and not trust_mm_uuids:
        raise refuse(
            "--trust-mm-content-hashes, by which callers name images and sounds themselves (unless the option "
            "trust_mm_uuids says to believe them)"
        )


# ---- what SGLang is told --------------------------------------------------------------------------------------------


def log_as_sglang() -> None:
    """Our lines go where SGLang's go, at its level, unless somebody has configured the logger "orbitkv".

    SGLang configures the root logger of each of its processes, which ours is a child of.
    """
    ours = logging.getLogger("orbitkv")
    if not ours.handlers and not ours.level:
        ours.setLevel(logging.getLogger().getEffectiveLevel())
