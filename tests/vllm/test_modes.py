"""Real engines that only save or only restore, by OrbitKV's mode and by vLLM's role, and settings that are refused."""

import pytest
from engine import EngineError, cached, same, tokens

pytestmark = pytest.mark.long

CACHED = [96, 288]
WAYS = {
    "mode": ({"orbitkv.mode": "save_only"}, {"orbitkv.mode": "restore_only"}),
    "role": ({"role": "kv_producer"}, {"role": "kv_consumer"}),
}


@pytest.fixture(scope="module")
def options(options):
    return options | {"orbitkv.require_manager": True}


@pytest.fixture(scope="module")
def engines(start_engine, options):
    """The one that saves and the one that restores, of each way to say so."""
    return {way: [start_engine(options | said) for said in both] for way, both in WAYS.items()}


def misses(engine):
    return {labels["reason"]: value for labels, value in engine.samples(name="vllm:orbitkv_misses")}


def emptied(engine):
    state = engine.settle()
    assert engine.reset()
    return state["counters"]


@pytest.mark.parametrize("way", WAYS)
def test_what_one_engine_saves_another_one_restores(engines, manager, way):
    saver, reader = engines[way]
    offset = list(WAYS).index(way) * 100
    prompts = [tokens(100, 1 + offset), tokens(300, 4 + offset)]
    own = [tokens(100, 21 + offset), tokens(300, 24 + offset)]

    def stored():
        return manager.sample("orbitkv_blocks_stored_total")

    before = stored()
    cold = [saver.run([prompt])[0] for prompt in prompts]
    warm = [saver.run([prompt])[0] for prompt in prompts]
    assert cached(warm) == CACHED, "by its own cache"
    counters = emptied(saver)
    again = saver.run(prompts)
    assert cached(again) == [0, 0] and same(again, cold, logprobs=False)
    assert misses(saver) == {"hits are off": 6.0}
    assert (counters["lookups"], counters["loads"], counters["saved_blocks"]) == (0, 0, 3 + 9)
    assert stored() == before + 3 + 9

    restored = [reader.run([prompt])[0] for prompt in prompts]
    assert cached(restored) == CACHED
    assert same(restored, warm), "tokens and logprobs are exactly those of the other engine's own cache"
    computed = [reader.run([prompt])[0] for prompt in own]
    counters = emptied(reader)
    assert (counters["loads"], counters["saved_blocks"], counters["unsaved_blocks"]) == (2, 0, 0)
    again = [reader.run([prompt])[0] for prompt in own]
    assert cached(again) == [0, 0] and same(again, computed)
    assert stored() == before + 3 + 9, "nothing that it computed"
    assert misses(reader) == {"never seen": 4.0}
    for engine, said in ((saver, "saves all, hits off"), (reader, "saves nothing, hits on")):
        assert f"OrbitKV: Cache Manager at {manager.socket}, {said}" in engine.log.read_text()


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        ({"orbitkv.mod": "save_only"}, "unknown option 'orbitkv.mod'"),
        ({"mode": "save_only"}, "orbitkv.mode"),
        ({"role": "kv_producer", "orbitkv.mode": "restore_only"}, "leave nothing to do"),
        ({"orbitkv.bootstrap_socket": "/no", "orbitkv.require_manager_timeout_s": 1}, "no Cache Manager at /no:"),
    ],
    ids=["unknown", "without prefix", "nothing left", "no Manager"],
)
def test_what_is_refused_when_the_engine_starts(start_engine, options, said, answer):
    with pytest.raises(EngineError, match=answer):
        start_engine(options | said)
