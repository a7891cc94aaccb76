"""Stand-ins for what needs no SGLang."""

from dataclasses import dataclass, replace

import orbitkv
from harness.processes import wait_until
from orbitkv.sglang.compat import Engine, Ranks

ENGINE = Engine(
    version="0.5.23",
    model_folder="/model",
    load_format="auto",
    config='{"layers":2}',
    architecture='["LlamaForCausalLM"]',
    rope_scaling="",
    sliding_window=0,
    long_rope_length=0,
    dtype="float32",
    quantization="",
    quantization_parameters="",
    cache_dtype="auto/float32",
    settings={"weight_version": "default", "attention_backend": "torch_native"},
    adapters=(),
    multimodal=False,
    hash_algorithm="sha256 chain",
    probe=b"probe",
    page_tokens=16,
    attention_backend="torch_native",
    instruction_set="AVX2",
    ranks=Ranks(),
)


def engine(**changes):
    return replace(ENGINE, **changes)


def until(condition):
    """Waits for another thread; the deadline only ends a test that has failed."""
    assert wait_until(condition, 60.0, 0.001), "it never came"


@dataclass(frozen=True)
class Format:
    shape: tuple[int, ...] = (16, 2, 32)
    dtype: str = "float32"


@dataclass(frozen=True)
class Pool:
    pool_class: str = "MHATokenToKVPool"
    rule: str = "full_attention"
    formats: tuple[Format, ...] = (Format(), Format())
    layers: tuple[orbitkv.Layer, ...] = (orbitkv.Layer(0, 4096, 4096, 8), orbitkv.Layer(65536, 4096, 4096, 8))
