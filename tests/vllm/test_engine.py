"""Real vLLM engines in one process each, a real Manager: what is restored is what was computed, whatever happens."""

import pytest
from engine import cached, same, tokens

PROMPTS = [tokens(100, 1), tokens(128, 2), tokens(33, 3), tokens(300, 4), tokens(20, 5)]
# Of a prompt, whole blocks of 32 tokens without the last token can be had.
CACHED = [(len(prompt) - 1) // 32 * 32 for prompt in PROMPTS]


@pytest.fixture(scope="module")
def first(start_engine, options):
    """An engine that has computed the prompts, used its own cache, and was killed."""
    engine = start_engine(options)
    assert engine.wait_up()
    cold = engine.run(PROMPTS)
    warm = engine.run(PROMPTS)
    assert engine.settle()["jobs"] == 0
    engine.kill()
    return {"cold": cold, "warm": warm}


@pytest.fixture(scope="module")
def engine(start_engine, options, first):
    """The engine that comes after it."""
    started = start_engine(options)
    assert started.wait_up()
    return started


@pytest.mark.each_vllm
def test_this_is_the_vllm_that_was_asked_for(engine, variant):
    assert engine.about() == {"version": variant.version, "runner": variant.runner}


@pytest.mark.each_vllm
def test_restored_after_a_kill_is_what_was_computed(first, clean):
    assert same(first["warm"], first["cold"], logprobs=False)
    assert cached(first["cold"]) == [0] * len(PROMPTS)
    assert cached(first["warm"]) == CACHED
    restored = clean.run(PROMPTS)
    assert cached(restored) == CACHED
    assert same(restored, first["warm"]), "tokens and logprobs are exactly those of the engine's own cache"
    assert clean.state()["counters"]["offered_tokens"] >= sum(CACHED)


def test_restored_in_the_same_engine_and_after_a_local_hit(first, clean):
    prefix = PROMPTS[3][:64]
    clean.run([prefix + tokens(40, 77)])  # the engine's own cache holds two blocks
    (restored,) = clean.run([PROMPTS[3]])
    assert restored["cached"] == CACHED[3]
    assert same([restored], first["warm"][3:4])


@pytest.mark.each_vllm
def test_generated_blocks_are_kept_as_well(clean):
    prompt = tokens(60, 8)
    (reference,) = clean.run([prompt], n=80)
    follow_up = prompt + reference["tokens"][:70]
    (warm,) = clean.run([follow_up])
    clean.settle()
    assert clean.reset()
    (restored,) = clean.run([follow_up])
    assert restored["cached"] == warm["cached"] == (len(follow_up) - 1) // 32 * 32
    assert same([restored], [warm])


def test_a_failed_load_is_computed(first, clean):
    clean.fail_loads(count=1)
    (output,) = clean.run([PROMPTS[3]])
    assert same([output], first["cold"][3:4], logprobs=False)
    assert clean.state()["counters"]["loads_failed"] >= 1


@pytest.mark.each_vllm
def test_damaged_blocks_are_computed_and_not_offered_again(first, clean):
    """The failing block's pages hold rubbish: a wrong answer would show."""
    clean.corrupt_blocks(indices=[2])
    (output,) = clean.run([PROMPTS[3]])
    assert same([output], first["cold"][3:4], logprobs=False)
    clean.settle()
    assert clean.reset()
    (again,) = clean.run([PROMPTS[3]])
    assert again["cached"] == CACHED[3], "stored anew by the computation, so offered again"
    assert same([again], first["cold"][3:4], logprobs=False)


@pytest.mark.each_vllm
def test_the_first_block_damaged_does_not_loop(first, clean):
    clean.corrupt_blocks(indices=[0, 1])
    (output,) = clean.run([PROMPTS[3]])
    assert same([output], first["cold"][3:4], logprobs=False)


def test_prompt_logprobs_are_computed_without_asking(clean):
    before = clean.state()["counters"]["lookups"]
    (with_logprobs,) = clean.run([PROMPTS[0]], prompt_logprobs=1)
    assert with_logprobs["cached"] in (0, None)
    assert len(with_logprobs["prompt_logprobs"]) == len(PROMPTS[0])
    assert clean.state()["counters"]["lookups"] == before


def test_a_salt_is_another_key(clean):
    prompt = tokens(130, 21)
    (reference,) = clean.run([prompt])
    clean.settle()
    assert clean.reset()
    (salted,) = clean.run([prompt], salt="one")
    assert salted["cached"] == 0
    assert same([salted], [reference])
    clean.settle()
    assert clean.reset()
    (again,) = clean.run([prompt], salt="one")
    assert again["cached"] == 128
    (other,) = clean.run([prompt], salt="two")
    assert other["cached"] == 0


@pytest.mark.each_vllm
def test_equal_prompts_at_once(first, clean):
    outputs = clean.run([PROMPTS[3]] * 4)
    assert all(same([output], first["warm"][3:4]) for output in outputs)


def test_abort_while_queued(clean):
    for index in range(10):
        clean.add(req_id=f"q{index}", prompt=tokens(200, 40 + index), n=4)
    clean.step()
    for index in range(10):
        clean.abort(req_id=f"q{index}")


@pytest.mark.each_vllm
def test_abort_during_a_load(first, clean):
    clean.hold_loads(hold=True)
    clean.add(req_id="a", prompt=PROMPTS[3])
    assert clean.step_until(statuses=["WAITING_FOR_REMOTE_KVS"])
    clean.abort(req_id="a")
    clean.hold_loads(hold=False)
    clean.settle()
    (output,) = clean.run([PROMPTS[3]])
    assert same([output], first["warm"][3:4])


@pytest.mark.each_vllm
def test_abort_during_a_save(clean):
    prompt = tokens(600, 61)
    clean.add(req_id="s", prompt=prompt, n=50)
    clean.step()
    clean.abort(req_id="s")
    # The freed blocks are filled by others while the save may still run.
    outputs = clean.run([tokens(500, 62), tokens(500, 63)])
    clean.settle()
    assert clean.reset()
    (restored,) = clean.run([prompt + tokens(5, 64)])
    assert clean.reset()
    (again,) = clean.run([tokens(500, 62)])
    assert same([again], outputs[:1], logprobs=False)
    assert restored["cached"] in (0, 576)


def test_counts_in_vllms_metrics(clean):
    before = clean.metrics().get("vllm:external_prefix_cache_hits", 0)
    clean.run([PROMPTS[3]])
    assert clean.metrics()["vllm:external_prefix_cache_hits"] - before == CACHED[3]


@pytest.mark.parametrize("settings", [{"max_num_batched_tokens": 64, "max_num_seqs": 4}], ids=["chunked"])
def test_chunked_prefill(start_engine, options, first, settings):
    chunked = start_engine(options, **settings)
    assert chunked.wait_up()
    prompt = tokens(400, 71)
    (cold,) = chunked.run([prompt])
    chunked.settle()
    assert chunked.reset()
    (restored,) = chunked.run([prompt])
    assert restored["cached"] == 384
    assert same([restored], [cold], logprobs=False)
    # What another engine saved without chunks serves here too.
    outputs = chunked.run(PROMPTS)
    assert cached(outputs) == CACHED
    assert same(outputs, first["cold"], logprobs=False)
    chunked.close()


@pytest.mark.each_vllm
def test_preemption_with_few_blocks(start_engine, options, engine):
    prompts = [tokens(60, 80 + i) for i in range(4)]
    engine.settle()
    reference = engine.run(prompts, n=80)
    small = start_engine(options, num_gpu_blocks_override=14, max_model_len=256)
    assert small.wait_up()
    outputs = small.run(prompts, n=80)
    assert same(outputs, reference, logprobs=False)
    assert small.metrics()["vllm:num_preemptions"] > 0
    state = small.settle()
    assert (state["jobs"], state["loading"], state["tracked"]) == (0, 0, 0)
    small.close()


def test_policy_fail_saves_but_offers_nothing(start_engine, options, first, engine):
    careful = start_engine(options | {"policy": "fail"})
    assert careful.wait_up()
    assert cached(careful.run(PROMPTS)) == [0] * len(PROMPTS)
    prompt = tokens(140, 91)
    (reference,) = careful.run([prompt])
    careful.settle()
    careful.close()
    engine.settle()
    assert engine.reset()
    (restored,) = engine.run([prompt])
    assert restored["cached"] == 128
    assert same([restored], [reference], logprobs=False)
    log = careful.log.read_text()
    assert log.count("offers no hits") == 1
    assert "kv_load_failure_policy" in log


def test_policy_fail_with_loads_fails_the_request(start_engine, options, first):
    strict = start_engine(options | {"policy": "fail", "orbitkv.load_with_fail_policy": True})
    assert strict.wait_up()
    outputs = strict.run(PROMPTS)
    assert cached(outputs) == CACHED
    assert same(outputs, first["warm"])
    strict.settle()
    assert strict.reset()
    strict.fail_loads(count=1)
    (failed,) = strict.run([PROMPTS[3]])
    assert failed["reason"] == "error"
    (after,) = strict.run([PROMPTS[3]])
    assert same([after], first["warm"][3:4])
    strict.close()


def test_a_reset_of_all_caches_starts_a_namespace_of_its_own(start_engine, options, first):
    engine = start_engine(options)
    assert engine.wait_up()
    assert engine.reset_all()
    assert cached(engine.run(PROMPTS)) == [0] * len(PROMPTS), "what was saved before is not served"
    assert engine.settle()["jobs"] == 0
    # What the worker could not save while it changed over is published by the engine's next hits.
    assert engine.wait_up()
    assert cached(engine.run(PROMPTS)) == CACHED
    engine.settle()
    assert engine.reset()
    restored = engine.run(PROMPTS)
    assert cached(restored) == CACHED
    assert same(restored, first["warm"])
    engine.close()
