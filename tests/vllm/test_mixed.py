"""Real engines with a model of full attention and sliding windows, and a real Manager: several cache groups."""

import pytest
from engine import cached, same, tokens

WINDOW = 64
PROMPTS = [tokens(100, 1), tokens(128, 2), tokens(33, 3), tokens(300, 4), tokens(20, 5)]
CACHED = [(len(prompt) - 1) // 32 * 32 for prompt in PROMPTS]


@pytest.fixture(scope="module")
def start(start_engine, manager, mixed):
    # These tests compare content: a busy machine may answer late.
    options = {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.lookup_limit_ms": 10_000}

    def begin(**more):
        engine = start_engine(options, model=mixed, **more)
        assert engine.wait_up()
        return engine

    return begin


@pytest.fixture(scope="module")
def first(start, manager):
    """An engine that has computed the prompts, used its own cache, and was killed."""
    engine = start()
    cold = engine.run(PROMPTS)
    warm = engine.run(PROMPTS)
    state = engine.settle()
    assert state["jobs"] == 0
    engine.kill()
    stored = manager.samples()["orbitkv_blocks_stored_total"]
    return {"cold": cold, "warm": warm, "stored": stored, "groups": state["groups"]}


@pytest.fixture(scope="module")
def engine(start, first):
    """The engine that comes after it."""
    return start()


@pytest.mark.each_vllm
def test_restored_after_a_kill_is_what_was_computed(first, clean):
    assert len(first["groups"]) > 1 and set(first["groups"]) == {0, WINDOW}
    assert same(first["warm"], first["cold"], logprobs=False)
    assert cached(first["warm"]) == CACHED
    restored = clean.run(PROMPTS)
    assert cached(restored) == CACHED
    assert same(restored, first["warm"]), "tokens and logprobs are exactly those of the engine's own cache"
    assert clean.state()["counters"]["offered_tokens"] >= sum(CACHED)


def test_of_windows_only_tails_were_saved(first):
    assert first["groups"].count(WINDOW) == 1
    full = sum(len(prompt) // 32 for prompt in PROMPTS)
    # The two blocks that end at the last boundary of each prompt, and one that ends where the prompt does.
    tails = sum(min((len(prompt) - 1) // 32, 2) + (len(prompt) % 32 == 0) for prompt in PROMPTS)
    assert full < first["stored"] <= full + tails


@pytest.mark.each_vllm
def test_restored_behind_a_hit_of_the_engines_own(first, clean):
    clean.run([PROMPTS[3][:65]])
    clean.settle()
    before = clean.state()["counters"]["offered_tokens"]
    (restored,) = clean.run([PROMPTS[3]])
    assert restored["cached"] == CACHED[3]
    assert clean.state()["counters"]["offered_tokens"] - before == CACHED[3] - 64
    assert same([restored], first["warm"][3:4])


def test_a_conversation_goes_on_behind_its_answer(clean):
    prompt = tokens(60, 8)
    (reference,) = clean.run([prompt], n=80)
    follow_up = prompt + reference["tokens"][:70]
    (warm,) = clean.run([follow_up])
    clean.settle()
    assert clean.reset()
    (restored,) = clean.run([follow_up])
    assert restored["cached"] == warm["cached"] == (len(follow_up) - 1) // 32 * 32
    assert same([restored], [warm])


def test_a_prompt_that_parts_inside_what_was_saved_is_computed(clean):
    """No tail of a window ends where the two part, so nothing is offered there."""
    prompt = PROMPTS[3][:160] + tokens(100, 99)
    (output,) = clean.run([prompt])
    clean.settle()
    assert clean.reset()
    (again,) = clean.run([prompt])
    assert again["cached"] == (len(prompt) - 1) // 32 * 32
    assert same([again], [output], logprobs=False)


@pytest.mark.each_vllm
@pytest.mark.parametrize("blocks", [[1], [9], [10]], ids=["full", "window", "window's last"])
def test_a_damaged_block_is_computed(first, clean, blocks):
    """Its pages hold rubbish: a wrong answer would show."""
    clean.corrupt_blocks(indices=blocks)
    failed = clean.state()["counters"]["loads_failed"]
    (output,) = clean.run([PROMPTS[3]])
    assert same([output], first["cold"][3:4], logprobs=False)
    assert clean.state()["counters"]["loads_failed"] == failed + 1
    clean.settle()
    assert clean.reset()
    (again,) = clean.run([PROMPTS[3]])
    assert again["cached"] == CACHED[3], "stored anew by the computation, so offered again"
    assert same([again], first["warm"][3:4])


def test_chunked_prefill_and_equal_prompts(start, first):
    chunked = start(max_num_batched_tokens=64, max_num_seqs=4)
    prompt = tokens(400, 71)
    (cold,) = chunked.run([prompt])
    chunked.settle()
    assert chunked.reset()
    outputs = chunked.run([prompt] * 3)
    assert cached(outputs) == [384] * 3
    assert same(outputs, [cold] * 3, logprobs=False)
    assert cached(chunked.run(PROMPTS)) == CACHED
    chunked.close()


def test_preemption_with_few_blocks(start, engine):
    prompts = [tokens(60, 80 + i) for i in range(4)]
    engine.settle()
    reference = engine.run(prompts, n=80)
    small = start(num_gpu_blocks_override=24, max_model_len=256)
    outputs = small.run(prompts, n=80)
    assert same(outputs, reference, logprobs=False)
    assert small.metrics()["vllm:num_preemptions"] > 0
    state = small.settle()
    assert (state["jobs"], state["loading"], state["tracked"]) == (0, 0, 0)
    small.close()
