"""Real engines in which OrbitKV is one of two children of vLLM's MultiConnector, before and behind the other one."""

import pytest
from engine import cached, same, tokens

from harness.processes import wait_until

PROMPTS = [tokens(100, 1), tokens(300, 4)]
CACHED = [96, 288]


@pytest.fixture(scope="module")
def options(manager):
    # These tests compare content: a busy machine may answer late.
    return {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.lookup_limit_ms": 10_000}


@pytest.fixture(scope="module")
def reference(start_engine):
    engine = start_engine(None)
    outputs = {seed: engine.run([tokens(length, seed)])[0] for length, seed in ((100, 1), (300, 4))}
    engine.close()
    return outputs


@pytest.fixture(scope="module")
def start(start_engine, options):
    def begin(*children, **more):
        engine = start_engine(options | {"children": list(children)}, **more)
        assert engine.wait_up()
        return engine

    return begin


def nothing_left(engine, manager):
    """The engine owes nothing, and the Manager keeps nothing for it."""
    state = engine.settle()
    assert [state[key] for key in ("requests", "tracked", "jobs", "loading", "worker_loads")] == [0] * 5

    def idle():
        samples = manager.samples()
        return samples["orbitkv_leases"] == 0 and samples["orbitkv_leased_bytes"] == 0

    assert wait_until(idle, 5), "leases were left"
    return state


# ---- beside ExampleConnector ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("ours_first", [True, False], ids=["first", "behind"])
def test_beside_the_example_connector(start, manager, reference, tmp_path, ours_first):
    example = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    engine = start(*(["orbitkv", example] if ours_first else [example, "orbitkv"]))
    expected = [reference[1], reference[4]]
    assert same(engine.run(PROMPTS), expected, logprobs=False)
    nothing_left(engine, manager)
    assert any(tmp_path.iterdir()), "the other one saves as well"
    assert engine.reset()
    before = engine.state()["counters"]
    restored = engine.run(PROMPTS)
    assert cached(restored) == CACHED and same(restored, expected, logprobs=False)
    after = nothing_left(engine, manager)["counters"]
    assert after["lookup_hits"] - before["lookup_hits"] == 2, "both are asked"
    assert after["loads"] - before["loads"] == (2 if ours_first else 0), "the first one that has something loads"
    assert "/orbitkv/vllm/" not in engine.log.read_text(), "no traceback of ours"
    engine.close()
