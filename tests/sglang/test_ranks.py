"""Two tensor parallel ranks, each an engine of its own at the Manager: they agree, whatever happens to one."""

import pytest
from engine import details, fails_or_is_right, near, same, tokens

PROMPTS = [tokens(100, 1), tokens(300, 4)]
CACHED = [96, 288]
RANKS = {"tp_size": 2, "environment": {"SGLANG_CPU_OMP_THREADS_BIND": "0|1"}}


@pytest.fixture(scope="module")
def first(start_engine, linker):
    engine = start_engine(linker, **RANKS)
    assert engine.wait_up()
    cold, warm = engine.each(PROMPTS), engine.each(PROMPTS)
    engine.settle()
    engine.kill()
    return {"cold": cold, "warm": warm}


@pytest.fixture(scope="module")
def engine(start_engine, linker, first):
    started = start_engine(linker, **RANKS)
    assert started.wait_up()
    return started


@pytest.fixture
def clean(engine):
    assert engine.wait_up()
    engine.evict()
    yield engine
    assert engine.wait_up()
    engine.evict()
    for prompt in PROMPTS:
        engine.one(prompt)
    engine.evict()
    assert details(engine.each(PROMPTS)) == [(0, count) for count in CACHED]


def test_restored_after_a_kill_is_what_was_computed(clean, first, plain):
    assert near(first["cold"], plain.each(PROMPTS))
    restored = clean.each(PROMPTS)
    assert details(restored) == [(0, count) for count in CACHED]
    assert same(restored, first["warm"])


@pytest.mark.parametrize("rank", [0, 1])
def test_what_one_rank_does_not_find_is_computed(clean, first, rank):
    assert clean.plan(call="lookup", when="over", answer=[2, 3], rank=rank) == [rank == 0, rank == 1]
    answer = clean.one(PROMPTS[1])
    assert details([answer]) == [(0, 48)], "the longest that both have"
    assert near([answer], [first["cold"][1]])


@pytest.mark.parametrize("rank", [0, 1])
@pytest.mark.parametrize("call", ["lookup", "load", "start_layer_wise_loading", "offload"])
def test_one_rank_loses_its_manager(clean, first, plain, manager, call, rank):
    prompt = PROMPTS[1] + tokens(40, 9)
    clean.plan(call=call, when="before", cut=str(manager.socket), rank=rank)
    assert fails_or_is_right(clean.one(prompt), plain.one(prompt))
    assert clean.probe(name="planned") == [[], []]
    assert near([clean.one(PROMPTS[1])], [first["cold"][1]])
    states = clean.probe(name="state")
    assert states[0] == states[1], "the ranks hold the same"
