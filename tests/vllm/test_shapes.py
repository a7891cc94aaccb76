"""Real engines with models of other cache shapes, and a real Manager: what is restored is what was computed.

One engine for each shape. It computes the prompts, answers them from its own cache, and restores them after that was
dropped: tokens and logprobs are then exactly those of its own cache.
"""

import pytest
from engine import cached, same, tokens

PROMPTS = [tokens(100, 1), tokens(128, 2), tokens(33, 3), tokens(300, 4), tokens(20, 5), tokens(193, 6)]


def whole(block):
    """Of each prompt, the whole blocks without the last token."""
    return [(len(prompt) - 1) // block * block for prompt in PROMPTS]


@pytest.fixture(scope="module")
def shape(manager, start_engine, model_of):
    """Starts an engine of a shape; it is closed before the next one starts."""
    engines = []

    def begin(model, **settings):
        while engines:
            engines.pop().close()
        # These tests compare content: a busy machine may answer late.
        options = {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.lookup_limit_ms": 10_000}
        engine = start_engine(options, model=model_of(model), **settings)
        engines.append(engine)
        assert engine.wait_up(), engine.log.read_text()[-2000:]
        return engine

    return begin


def restored(engine, prompts=PROMPTS):
    """The prompts one by one, so that each has a batch of its own, after the engine's own cache was dropped."""
    engine.settle()
    assert engine.reset()
    return one_by_one(engine, prompts)


def one_by_one(engine, prompts=PROMPTS):
    return [engine.run([prompt])[0] for prompt in prompts]


def check(engine, expected):
    cold = one_by_one(engine)
    warm = one_by_one(engine)
    assert cached(warm) == expected
    again = restored(engine)
    assert cached(again) == expected
    assert same(again, warm), "tokens and logprobs are exactly those of the engine's own cache"
    assert same(again, cold, logprobs=False)
    state = engine.settle()
    assert state["counters"]["offered_tokens"] >= sum(expected)
    assert state["counters"]["loads_failed"] == 0
    for key in ("requests", "tracked", "jobs", "loading", "worker_loads", "worker_saves"):
        assert state[key] == 0, key
    return state


def stored(manager):
    return manager.samples()["orbitkv_blocks_stored_total"]


def test_chunked_local_attention(shape, manager):
    engine = shape("chunked")
    before = stored(manager)
    state = check(engine, whole(32))
    assert state["groups"] == [64, 0]
    assert stored(manager) - before == 2 * sum(len(prompt) // 32 for prompt in PROMPTS)
    # Whatever a prompt parts at, its chunk is there.
    prompt = PROMPTS[3][:180] + tokens(50, 9)
    (output,) = restored(engine, [prompt])
    assert output["cached"] == 160
    (warm,) = engine.run([prompt])
    assert same([output], [warm], logprobs=False)


def test_different_block_sizes_and_layers_that_share_tensors(shape):
    state = check(shape("shared"), whole(64))
    assert sorted(state["groups"]) == [0, 64]


def test_a_cache_of_another_type(shape, manager):
    engine = shape("seeded", kv_cache_dtype="fp8")
    before = manager.samples()["orbitkv_pool_used_bytes"]
    check(engine, whole(32))
    blocks = sum(len(prompt) // 32 for prompt in PROMPTS)
    used = manager.samples()["orbitkv_pool_used_bytes"] - before
    assert used < blocks * 2 * (2 * 32 * 64) * 2, "a byte for each number, not four"


def test_guesses_by_ngram(shape, variant):
    """Rejected guesses are computed and never saved."""
    if variant.runner == "v2":
        pytest.skip("Triton's interpreter does not run the n-gram kernel of vLLM's runner V2: a mask of integers")
    guess = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 3, "prompt_lookup_min": 1}
    engine = shape("seeded", speculative_config=guess)
    prompts = [(tokens(20, 31) * 8)[:150], tokens(100, 32)]
    cold = [engine.run([prompt], n=60)[0] for prompt in prompts]
    follow_ups = [prompt + output["tokens"] for prompt, output in zip(prompts, cold, strict=True)]
    warm = one_by_one(engine, follow_ups)
    again = restored(engine, follow_ups)
    assert cached(again) == cached(warm) == [(len(prompt) - 1) // 32 * 32 for prompt in follow_ups]
    assert same(again, warm, logprobs=False)


def test_states_of_recurrent_layers(shape, manager):
    # With steps of one block none ends between two, where this CPU build cannot keep a state.
    engine = shape("recurrent", max_num_batched_tokens=64)
    before = stored(manager)
    state = check(engine, whole(64))
    assert state["groups"] == [0, 0]
    full = sum(len(prompt) // 64 for prompt in PROMPTS)
    assert full < stored(manager) - before <= full + 2 * len(PROMPTS), "of states those at the last boundaries"
    # The answer goes on, and so do its states.
    prompt = tokens(60, 8)
    (reference,) = engine.run([prompt], n=80)
    follow_up = prompt + reference["tokens"][:70]
    (output,) = restored(engine, [follow_up])
    assert output["cached"] == 128
    (own,) = engine.run([follow_up])
    assert same([output], [own])


def test_guesses_by_a_drafter_with_a_cache(shape, model_of):
    """What the drafter keeps of the last block may be another continuation's: neither vLLM nor we use that block.

    Its layer has twice the KV heads, so one group has pages of two sizes: four pieces of one size.
    """
    guess = {"method": "eagle", "model": str(model_of("drafted")), "num_speculative_tokens": 2}
    engine = shape("seeded", speculative_config=guess)
    check(engine, [max(0, count - 32) for count in whole(32)])
    assert "page_bytes=16384 layer_count=4" in engine.log.read_text()


@pytest.mark.parametrize(("interval", "found"), [(128, 128), pytest.param(None, 160, marks=pytest.mark.long)])
def test_windows_are_kept_as_often_as_vllm_keeps_them(shape, interval, found):
    """A prompt that parts from a saved one is restored up to the last boundary whose window was kept.

    vLLM then sees that prompts part there, and keeps that boundary for the next one.
    """
    engine = shape("mixed", prefix_cache_retention_interval=interval)
    saved = tokens(300, 60 + found)
    parts = [saved[:170] + tokens(40, seed) for seed in (51, 52)]
    engine.run([saved])
    (parted,) = restored(engine, parts[:1])
    assert parted["cached"] == found
    engine.settle()
    (own,) = engine.run(parts[1:])
    assert own["cached"] == 160
    (parted,) = restored(engine, parts[1:])
    assert parted["cached"] == 192, "up to the last boundary before the last token"
    assert same([parted], [own], logprobs=False)
