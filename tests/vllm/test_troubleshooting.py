"""The troubleshooting table of docs/vllm.md: what is seen when an engine finds nothing of what another one saved."""

import re
import shutil

import pytest
from engine import cached, same, tokens

from harness.processes import wait_until

pytestmark = pytest.mark.long

PROMPT = tokens(300, 7)
CACHED = 288


@pytest.fixture(scope="module")
def options(options):
    return options | {"orbitkv.require_manager": True}


@pytest.fixture(scope="module")
def model_in(folder, seeded):
    """The seeded model, with weights that are `factor` times as large, in files of this format."""

    def make(kind, factor=1.0):
        import torch
        from safetensors.torch import load_file, save_file

        target = folder / f"{kind}{factor}"
        shutil.copytree(seeded, target)
        path = target / "model.safetensors"
        weights = {name: tensor * factor for name, tensor in load_file(path).items()}
        path.unlink()
        if kind == "bin":
            torch.save(weights, target / "pytorch_model.bin")
        else:
            save_file(weights, str(path), metadata={"format": "pt"})
        return target

    return make


def identity(engine):
    """The fields of the line that the engine's scheduler logs."""
    line = re.search(r"OrbitKV identity \(vllm scheduler\): (.*)", engine.log.read_text())[1]
    return dict(re.findall(r"(\w+)=(\S*)", line))


def pages(engine):
    """Those of each rank, which say all of the representation."""
    return re.findall(r"OrbitKV pages (.*)", engine.log.read_text())


def misses(engine):
    return {labels["reason"]: value for labels, value in engine.samples(name="vllm:orbitkv_misses")}


@pytest.fixture(scope="module")
def saved(start_engine, options):
    """The lines and the answer of an engine that has saved the prompt."""
    engine = start_engine(options)
    (output,) = engine.run([PROMPT])
    engine.settle()
    lines = identity(engine), pages(engine)
    engine.close()
    return {"lines": lines, "output": output}


def test_equal_lines_and_what_of_a_prompt_is_not_found_then(saved, start_engine, options):
    engine = start_engine(options)
    assert (identity(engine), pages(engine)) == saved["lines"]
    (output,) = engine.run([PROMPT])
    assert output["cached"] == CACHED and same([output], [saved["output"]], logprobs=False)
    assert misses(engine) == {}
    engine.settle()
    assert engine.reset()
    assert cached(engine.run([PROMPT], salt="mine")) == [0]
    assert misses(engine) == {"never seen": 1.0}
    assert cached(engine.run([[PROMPT[0] + 1, *PROMPT[1:]]])) == [0], "they part within the first block"
    assert misses(engine) == {"never seen": 2.0}
    assert cached(engine.run([PROMPT[:31]])) == [0]
    assert misses(engine) == {"never seen": 2.0, "nothing to ask": 1.0}
    engine.close()


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ({"environment": {"PYTHONHASHSEED": "1"}}, "seed_probe"),
        ({"dtype": "bfloat16"}, "dtype"),
        ({"kv_cache_dtype": "fp8"}, "cache_dtype"),
        ({"block_size": 64}, "block_tokens"),
        ({"model": ("safetensors", 1.25)}, "weights"),
        ({"model": ("bin", 1.0)}, "weights"),
        ({"tensor_parallel_size": 2, "processes": True}, "tensor_parallel"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_differs_is_in_the_line_and_nothing_is_found(saved, start_engine, options, model_in, settings, field):
    if "model" in settings:
        settings = settings | {"model": model_in(*settings["model"])}
    engine = start_engine(options, **settings)
    assert cached(engine.run([PROMPT])) == [0]
    assert misses(engine) == {"never seen": 1.0}
    assert identity(engine)[field] != saved["lines"][0][field]
    hit = 256 if field == "block_tokens" else CACHED
    assert wait_until(lambda: engine.reset() and cached(engine.run([PROMPT])) == [hit], 20), "its own it finds"
    engine.close()


def test_a_name_for_the_weights_stands_for_their_content(saved, start_engine, options, model_in):
    named = options | {"orbitkv.model_id": "the model"}
    first = start_engine(named)
    assert cached(first.run([PROMPT])) == [0]
    first.settle()
    first.close()
    second = start_engine(named, model=model_in("bin", 2.0))
    assert identity(first) == identity(second)
    assert cached(second.run([PROMPT])) == [CACHED]
    second.close()


def test_the_failure_policy_is_told_at_the_start_and_hits_are_off(saved, start_engine, options):
    engine = start_engine(options | {"policy": "fail"})
    assert cached(engine.run([PROMPT])) == [0]
    assert misses(engine) == {"hits are off": 1.0}
    assert (identity(engine), pages(engine)) == saved["lines"]
    log = engine.log.read_text()
    assert "WARNING" in re.search(r".*OrbitKV saves blocks but offers no hits.*", log)[0]
    engine.close()
