"""Real engines whose adapters and weights change: nothing stale is restored, and nothing wrong is left for others."""

import shutil

import pytest
from engine import cached, same, tokens

from models import write_adapter

PROMPTS = [tokens(100, 1), tokens(300, 4)]
CACHED = [96, 288]
LORA = {"enable_lora": True, "max_lora_rank": 8, "max_loras": 2}


@pytest.fixture(scope="module")
def retrained(folder, seeded):
    """The seeded model with other weights."""
    from safetensors.torch import load_file, save_file

    target = folder / "retrained"
    shutil.copytree(seeded, target)
    path = target / "model.safetensors"
    save_file({name: tensor * 1.25 for name, tensor in load_file(path).items()}, str(path), metadata={"format": "pt"})
    return target


@pytest.fixture(scope="module")
def plain(start_engine):
    return start_engine(None, **LORA)


@pytest.fixture(scope="module")
def start(start_engine, options):
    def begin():
        engine = start_engine(options, **LORA)
        assert engine.wait_up()
        return engine

    return begin


@pytest.fixture(scope="module")
def restarted(start):
    """The engine that comes after the first one, when this is first asked for."""
    return start()


def settled(engine):
    engine.settle()
    assert engine.reset()
    return engine


def adapter(folder, number=1, **more):
    return {"lora_name": "tuned", "lora_int_id": number, "lora_path": str(folder), **more}


def test_an_adapter_is_its_content(start, folder, plain, request):
    one, two, place = folder / "one", folder / "two", folder / "adapter"
    for target, seed in ((one, 1), (two, 2), (place, 1)):
        write_adapter(target, seed)
    references = [plain.run(PROMPTS, lora=adapter(each, number)) for number, each in ((11, one), (12, two))]
    base = plain.run(PROMPTS)
    assert not same(*references, logprobs=False) and not same(references[0], base, logprobs=False)

    first = start()
    assert same(first.run(PROMPTS, lora=adapter(place)), references[0], logprobs=False)
    settled(first)
    again = first.run(PROMPTS, lora=adapter(place))
    assert cached(again) == CACHED and same(again, references[0], logprobs=False), "the same content is found"
    first.settle()
    first.kill()

    # The same name and path, other files: vLLM's own hashes are the same.
    write_adapter(place, 2)
    second = request.getfixturevalue("restarted")
    outputs = second.run(PROMPTS, lora=adapter(place))
    assert cached(outputs) == [0, 0] and same(outputs, references[1], logprobs=False)
    settled(second)
    assert cached(second.run(PROMPTS)) == [0, 0], "blocks without the adapter are others"
    settled(second)

    # Put back under the running engine, which still has the other one loaded.
    write_adapter(place, 1)
    outputs = second.run(PROMPTS, lora=adapter(place))
    assert cached(outputs) == [0, 0] and same(outputs, references[1], logprobs=False)
    settled(second)
    outputs = second.run(PROMPTS, lora=adapter(place, load_inplace=True))
    assert cached(outputs) == CACHED and same(outputs, references[0], logprobs=False), "what the first one had saved"
    assert "/orbitkv/vllm/" not in second.log.read_text(), "no traceback of ours"


def test_replaced_weights_are_noticed(start, restarted, plain, retrained):
    fresh = [tokens(100, 21), tokens(300, 24)]
    engine = settled(restarted)
    before = engine.run(PROMPTS)
    settled(engine)
    plain.reset()
    engine.reload_weights(folder=str(retrained))
    plain.reload_weights(folder=str(retrained))
    reference = plain.run(PROMPTS)
    assert not same(reference, before, logprobs=False)
    outputs = engine.run(PROMPTS)
    assert cached(outputs) == [0, 0] and same(outputs, reference, logprobs=False)
    settled(engine)
    assert engine.wait_up()
    expected = engine.run(fresh)
    settled(engine)
    outputs = engine.run(fresh)
    assert cached(outputs) == CACHED and same(outputs, expected, logprobs=False), "its own namespace works"
    engine.settle()
    assert "/orbitkv/vllm/" not in engine.log.read_text(), "no traceback of ours"
    engine.close()

    # Nothing of the new weights is found by an engine with the old ones, and it has its own blocks still.
    other = start()
    outputs = other.run(PROMPTS)
    assert cached(outputs) == CACHED and same(outputs, before, logprobs=False)
    assert cached(other.run(fresh)) == [0, 0]
    other.close()
