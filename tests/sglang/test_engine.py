"""Real SGLang engines and a real Manager: what is restored is what was computed.

Whatever is compared with comes from an engine without a linker.
"""

import pytest
from engine import details, near, same, tokens

PROMPTS = [tokens(100, 1), tokens(128, 2), tokens(33, 3), tokens(300, 4), tokens(20, 5)]
# Of a prompt, whole pages of 16 tokens without the last token can be had.
CACHED = [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]


@pytest.fixture(scope="module")
def right(plain):
    """The right answers: computed, and with the pages of the engine's own cache."""
    return {"cold": plain.each(PROMPTS), "warm": plain.each(PROMPTS)}


@pytest.fixture(scope="module")
def first(start_engine, linker):
    """An engine that has computed the prompts and was killed."""
    engine = start_engine(linker)
    assert engine.wait_up()
    cold, warm = engine.each(PROMPTS), engine.each(PROMPTS)
    engine.settle()
    engine.kill()
    return {"cold": cold, "warm": warm}


@pytest.fixture(scope="module", params=["in_turn", "overlapped"])
def schedule(request):
    """SGLang's scheduler runs in turn with the model, or beside it."""
    return request.param


@pytest.fixture
def fresh(schedule):
    """A prompt that no engine of this module has seen."""
    return lambda count, seed: tokens(count, seed + (200 if schedule == "overlapped" else 300))


@pytest.fixture(scope="module")
def engine(start_engine, linker, first, schedule):
    """The engine that comes after it."""
    started = start_engine(linker, disable_overlap_schedule=schedule == "in_turn")
    assert started.wait_up()
    yield started
    started.close()


@pytest.fixture
def clean(engine):
    """Each test begins with an empty cache of the engine's own, and leaves nothing behind."""
    engine.evict()
    before = engine.settle()
    assert before["evictable"] == before["protected"] == 0
    yield engine
    engine.evict()
    after = engine.settle()
    assert (after["available"], after["evictable"], after["protected"]) == (before["available"], 0, 0)


def test_a_linker_that_finds_nothing_changes_nothing(first, right):
    assert details(first["cold"]) == [(0, 0)] * len(PROMPTS)
    assert same(first["cold"], right["cold"])
    assert details(first["warm"]) == [(count, 0) for count in CACHED]
    assert same(first["warm"], right["warm"])


def test_restored_after_a_kill_is_what_was_computed(clean, right):
    restored = clean.each(PROMPTS)
    assert details(restored) == [(0, count) for count in CACHED]
    assert same(restored, right["warm"]), "tokens and logprobs are exactly those of an engine's own cache"
    assert details(clean.each(PROMPTS)) == [(count, 0) for count in CACHED], "restored pages are the engine's own now"


def test_restored_after_a_local_hit(clean, right, fresh):
    prefix = PROMPTS[3][:64]
    clean.one(prefix + fresh(40, 77))
    restored = clean.one(PROMPTS[3])
    assert details([restored]) == [(64, CACHED[3] - 64)]
    assert same([restored], right["warm"][3:4])


def test_a_longer_prompt_takes_what_there_is(clean, plain, fresh):
    longer = PROMPTS[1] + fresh(60, 78)
    plain.flush()
    expected = [plain.one(PROMPTS[1]), plain.one(longer)][1:]
    restored = clean.one(longer)
    assert details([restored]) == [(0, 128)]
    assert same([restored], expected)


def test_generated_pages_are_kept_as_well(clean, plain, fresh):
    prompt = fresh(60, 8)
    reference = clean.one(prompt, n=80)
    follow_up = prompt + reference["tokens"][:70]
    plain.flush()
    plain.one(prompt, n=80)
    expected = plain.one(follow_up)
    clean.evict()
    restored = clean.one(follow_up)
    assert details([restored]) == [(0, 128)], "60 tokens of the prompt and 68 of the answer"
    assert near([restored], [expected])
    assert restored["tokens"] == expected["tokens"]


def test_many_at_once(clean, right):
    restored = clean.run(PROMPTS)
    assert details(restored) == [(0, count) for count in CACHED]
    assert near(restored, right["warm"])


def test_equal_prompts_at_once(clean, right):
    answers = clean.run([PROMPTS[3]] * 4)
    assert near(answers, right["warm"][3:4] * 4)
    assert all(answer["cached"] >= CACHED[3] for answer in answers)


def test_a_salt_is_another_key(clean, plain, fresh):
    prompt = fresh(130, 21)
    plain.flush()
    expected = plain.one(prompt)
    salted = clean.one(prompt, salt="one")
    assert details([salted]) == [(0, 0)]
    assert same([salted], [expected])
    clean.evict()
    assert details([clean.one(prompt, salt="one")]) == [(0, 128)]
    clean.evict()
    assert details([clean.one(prompt, salt="two")]) == [(0, 0)]
    assert details([clean.one(prompt)]) == [(0, 0)]


def test_retracted_requests_are_answered_alike(clean, plain, fresh):
    prompts = [fresh(60, 80 + number) for number in range(4)]
    plain.flush()
    expected = plain.run(prompts, n=60)
    clean.probe(name="retract", interval=5)
    try:
        answers = clean.run(prompts, n=60)
    finally:
        clean.probe(name="retract", interval=None)
    assert near(answers, expected)
    assert any(answer["retractions"] > 0 for answer in answers)
    clean.settle()
    clean.evict()
    restored = clean.each(prompts, n=60)
    assert details(restored) == [(0, 48)] * 4
    assert near(restored, expected)


@pytest.fixture(scope="module")
def small(start_engine, linker):
    """One that computes prompts in parts, and whose pages are too few for the requests that it is given at once."""
    started = start_engine(linker, chunked_prefill_size=64, max_total_tokens=640)
    assert started.wait_up()
    return started


def test_prompts_in_parts_with_few_pages(small, plain):
    prompts = [tokens(200 + 16 * number, 90 + number) for number in range(6)]
    plain.flush()
    expected = [plain.one(prompt, n=24) for prompt in prompts]
    for _ in range(2):
        answers = small.run(prompts, n=24)
        assert near(answers, expected)
        small.settle()
    assert sum(answer["host"] for answer in answers) > 0, "the pages of one were taken for another, and restored"
    small.evict()
    restored = small.each(prompts, n=24)
    assert details(restored) == [(0, (len(prompt) - 1) // 16 * 16) for prompt in prompts]
    assert near(restored, expected)
    small.evict()
    assert small.settle()["available"] == 640


def test_new_weights_get_no_older_pages(start_engine, linker, first, plain, seeded, retrained):
    engine = start_engine(linker)
    assert engine.wait_up()
    prompt = PROMPTS[3]
    assert details([engine.one(prompt)]) == [(0, CACHED[3])], "the first engine has stored it"

    def restores(expected):
        """Of what was stored before the update nothing is found; what is computed now comes back."""
        assert engine.wait_up()
        computed = engine.one(prompt)
        engine.evict()
        restored = engine.one(prompt)
        assert details([computed, restored]) == [(0, 0), (0, CACHED[3])]
        assert near([computed, restored], [expected] * 2)

    def update(folder, flush_cache):
        engine.settle()
        success, message = engine.update_weights(folder=str(folder), flush_cache=flush_cache)
        assert success, message
        assert plain.update_weights(folder=str(folder))[0]
        return plain.one(prompt)

    old = plain.one(prompt)
    try:
        new = update(retrained, flush_cache=True)
        assert new["tokens"] != old["tokens"], "these weights show"
        restores(new)
        old = update(seeded, flush_cache=False)
        engine.evict()  # SGLang's own cache is the caller's affair then
        unassisted = [engine.one(prompt)]
        engine.evict()
        unassisted += [engine.one(prompt)]
        assert details(unassisted) == [(0, 0)] * 2, "without a flush the engine goes on without OrbitKV"
        assert near(unassisted, [old] * 2)
        assert engine.flush()
        restores(old)
    finally:
        assert plain.update_weights(folder=str(seeded))[0]
    engine.close()
    back = start_engine(linker)
    assert back.wait_up()
    assert details([back.one(prompt)]) == [(0, CACHED[3])], "one that starts anew has the first weights and their pages"
    back.close()
