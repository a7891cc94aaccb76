"""The engine that these tests have: SGLang as it was released, on a CPU, without a linker."""

import pytest
from engine import EngineError, details, near, same, tokens

PROMPTS = [tokens(100, 1), tokens(128, 2), tokens(33, 3), tokens(300, 4), tokens(20, 5)]
# Of a prompt, whole pages of 16 tokens without the last token can be had.
CACHED = [(len(prompt) - 1) // 16 * 16 for prompt in PROMPTS]


@pytest.fixture(scope="module")
def engine(start_engine):
    return start_engine()


def test_its_own_cache_answers_as_the_computation_does(engine):
    cold = engine.each(PROMPTS)
    warm = engine.each(PROMPTS)
    assert details(cold) == [(0, 0)] * len(PROMPTS)
    assert details(warm) == [(count, 0) for count in CACHED]
    assert near(warm, cold)
    assert same(engine.each(PROMPTS), warm), "the same work twice gives the same numbers"
    assert len({tuple(answer["tokens"]) for answer in cold}) == len(PROMPTS), "other prompts have other answers"


def test_a_flush_leaves_nothing_and_all_pages_come_back(engine):
    engine.each(PROMPTS)
    (before,) = engine.probe(name="state")
    assert before["evictable"] > 0
    assert engine.flush()
    (after,) = engine.probe(name="state")
    assert (after["available"], after["evictable"], after["protected"]) == (2048, 0, 0)
    assert engine.one(PROMPTS[0])["cached"] == 0


def test_requests_go_on_between_commands_and_can_be_aborted(engine):
    engine.add(rid="long", prompt=tokens(40, 6), n=600)
    engine.add(rid="short", prompt=tokens(40, 7), n=4)
    (short,) = engine.answers(rids=["short"])
    assert short["reason"]["type"] == "length"
    engine.abort(rid="long")
    (long,) = engine.answers(rids=["long"])
    assert long["reason"]["type"] == "abort"
    assert len(long["tokens"]) < 600


def test_what_a_linker_cannot_be_is_said_at_the_start(start_engine):
    with pytest.raises(EngineError, match="no_such_module"):
        start_engine({"linker_module_path": "no_such_module"})
