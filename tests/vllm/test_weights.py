"""Real engines whose weights are replaced, in each way that there is: nothing old is served, others keep theirs."""

import shutil

import pytest
from engine import cached, same, tokens

from harness.processes import wait_until

pytestmark = pytest.mark.long

PROMPTS = [tokens(100, 1), tokens(300, 4)]
CACHED = [96, 288]
FILES = {"weights_from_files": True}


@pytest.fixture(scope="module")
def options(options):
    return options | {"orbitkv.require_manager": True}


@pytest.fixture(scope="module")
def retrained(folder, seeded):
    """Other weights of the model, by a factor."""
    from safetensors.torch import load_file, save_file

    def make(factor):
        target = folder / f"retrained{factor}"
        shutil.copytree(seeded, target)
        path = target / "model.safetensors"
        weights = {name: tensor * factor for name, tensor in load_file(path).items()}
        save_file(weights, str(path), metadata={"format": "pt"})
        return target

    return make


@pytest.fixture(scope="module")
def plain(start_engine):
    return start_engine(None, **FILES)


@pytest.fixture(scope="module")
def engine(start_engine, options):
    return start_engine(options, **FILES)


@pytest.fixture(scope="module")
def first(engine):
    """Answers that the model gives with its own weights, and that are in the Manager."""
    outputs = engine.run(PROMPTS)
    engine.settle()
    return outputs


def reloads(engine, folder):
    engine.reload_weights(folder=str(folder))


def transfers(engine, folder):
    engine.transfer_weights(file=str(folder / "model.safetensors"))


def loads_into_the_model(engine, folder):
    engine.load_into_model(file=str(folder / "model.safetensors"))


@pytest.mark.parametrize(
    ("replace", "factor"),
    [(transfers, 1.25), (loads_into_the_model, 1.5), (reloads, 0.75), (transfers, 1.125)],
    ids=["transfer", "load", "reload", "again"],
)
def test_nothing_old_is_served(engine, plain, first, retrained, replace, factor):
    """One after the other in the same engine."""
    fresh = [tokens(100, int(factor * 1000)), tokens(300, int(factor * 1000) + 1)]
    weights = retrained(factor)
    for each in (engine, plain):
        assert each.reset()
    before = plain.run(PROMPTS)
    assert plain.reset()
    for each in (engine, plain):
        replace(each, weights)
    expected = plain.run(PROMPTS)
    assert not same(expected, before, logprobs=False)
    outputs = engine.run(PROMPTS)
    assert cached(outputs) == [0, 0] and same(outputs, expected, logprobs=False)
    engine.settle()
    assert engine.reset() and engine.wait_up()
    expected = engine.run(fresh)
    engine.settle()
    assert engine.reset()
    outputs = engine.run(fresh)
    assert cached(outputs) == CACHED and same(outputs, expected, logprobs=False), "its own namespace works"
    engine.settle()
    assert "/orbitkv/vllm/" not in engine.log.read_text(), "no traceback of ours"


def test_what_vllms_own_cache_has_of_the_old_weights_is_not_saved(engine, plain, first, retrained):
    """vLLM empties its cache only when it is told to, so a request may still find old blocks there."""
    prompt = tokens(300, 31)
    engine.run([prompt])
    saved = engine.settle()["counters"]["saved_blocks"]
    transfers(engine, retrained(1.0625))
    longer = prompt + tokens(100, 32)
    (output,) = engine.run([longer])
    assert output["cached"] == 288, "vLLM's own, old blocks"
    counters = engine.settle()["counters"]
    assert counters["saved_blocks"] == saved, "nor what was computed behind them"
    assert engine.reset_all() and engine.wait_up()
    engine.run([prompt])
    assert engine.wait_up()
    (output,) = engine.run([longer])
    assert output["cached"] == 288
    assert engine.settle()["counters"]["saved_blocks"] == saved + 12, "with all caches reset nothing old is left"


def test_others_keep_their_blocks(engine, first, start_engine, options):
    other = start_engine(options)
    outputs = other.run(PROMPTS)
    assert cached(outputs) == CACHED and same(outputs, first, logprobs=False)
    other.close()


def test_a_scheduler_and_a_worker_in_two_processes_go_on_together(start_engine, options, plain, retrained):
    """The worker has the folder of the new weights in its configuration, the scheduler has not."""
    weights, prompt, fresh = retrained(0.875), tokens(300, 41), tokens(300, 42)
    engine = start_engine(options, processes=True)
    engine.run([prompt])
    assert engine.reset() and plain.reset()
    for each in (engine, plain):
        reloads(each, weights)
    (expected,) = plain.run([prompt])
    (output,) = engine.run([prompt])
    assert output["cached"] == 0 and same([output], [expected], logprobs=False)
    assert wait_until(lambda: engine.reset() and engine.run([fresh])[0]["cached"] == 288, 20), "it came up again"
    engine.close()
