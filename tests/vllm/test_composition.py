"""Real engines in which OrbitKV is one of two children of vLLM's MultiConnector, before and behind the other one."""

import pytest
from engine import cached, same, tokens

from harness.processes import wait_until
from harness.server import free_port

PROMPTS = [tokens(100, 1), tokens(300, 4)]
CACHED = [96, 288]


@pytest.fixture(scope="module")
def reference(start_engine):
    engine = start_engine(None)
    outputs = {
        seed: engine.run([tokens(length, seed)])[0] for length, seed in ((100, 1), (300, 4), (320, 9), (320, 10))
    }
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
    assert wait_until(lambda: not manager.held(), 5), manager.held()
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


# ---- beside NIXL ----------------------------------------------------------------------------------------------------


@pytest.fixture
def nixl(monkeypatch, variant):
    """A child's configuration, with a port of its own for the engine that is started next."""
    if variant.version != "0.32.0":
        pytest.skip("this vLLM needs NIXL 1.5; the one that is installed is 0.32.0's")
    pytest.importorskip("nixl", reason="tools/setup long installs NIXL")
    for name, value in {"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo", "VLLM_NIXL_SIDE_CHANNEL_HOST": "127.0.0.1"}.items():
        monkeypatch.setenv(name, value)

    def child(role):
        monkeypatch.setenv("VLLM_NIXL_SIDE_CHANNEL_PORT", str(free_port()))
        return {
            "kv_connector": "NixlConnector",
            "kv_role": role,
            "kv_buffer_device": "cpu",
            "kv_connector_extra_config": {"backends": ["UCX"]},
        }

    return child


def handed_over(source, target, prompt):
    """What a prefill and a decode engine do for one prompt: the answer of the second one."""
    remote = {"do_remote_decode": True, "do_remote_prefill": False} | dict.fromkeys(
        ("remote_engine_id", "remote_block_ids", "remote_host", "remote_port")
    )
    (first,) = source.run([prompt], n=1, wishes=remote)
    ticket = first["kv_transfer_params"]
    assert ticket["do_remote_prefill"], "the blocks wait for the other engine"
    return target.run([prompt], wishes=ticket)[0]


def counts(engine):
    """Tokens that connectors have brought, NIXL's transfers, and our look-ups with a hit and loads."""
    metrics, counters = engine.metrics(), engine.state()["counters"]
    return {
        "tokens": metrics.get("vllm:external_prefix_cache_hits", 0),
        "nixl": metrics.get("vllm:nixl_bytes_transferred", 0),
        "hits": counters["lookup_hits"],
        "loads": counters["loads"],
    }


@pytest.mark.long
def test_beside_nixl(start, manager, reference, nixl):
    left = start("orbitkv", nixl("kv_both"))
    right = start(nixl("kv_both"), "orbitkv")

    def hand_over(source, target, seed):
        """How the target's counts grow."""
        before = counts(target)
        output = handed_over(source, target, tokens(320, seed))
        assert same([output], [reference[seed]], logprobs=False)
        source.settle()  # NIXL's blocks are held until the other engine has said that it needs them no more
        nothing_left(target, manager)
        after = counts(target)
        return {name: after[name] - before[name] for name in after}

    # From left to right NIXL has all blocks and stands first there; our look-up was for nothing.
    by_nixl = {"tokens": 320, "nixl": 1, "hits": 1, "loads": 0}
    assert hand_over(left, right, 9) == by_nixl
    # Once more, now with what left restores from us.
    for engine in (left, right):
        assert engine.reset()
    loads = counts(left)["loads"]
    assert hand_over(left, right, 9) == by_nixl
    assert counts(left)["loads"] == loads + 1
    # From right to left we stand first: what right has saved is restored, and NIXL lets its blocks go.
    grown = hand_over(right, left, 10)
    assert grown == {"tokens": 288, "nixl": 0, "hits": 1, "loads": 1}

    # Without NIXL's parameters either engine restores from us, also what NIXL has brought.
    for engine, prompt, seed in ((left, PROMPTS[0], 1), (right, PROMPTS[0], 1), (left, tokens(320, 9), 9)):
        engine.settle()
        assert engine.reset()
        assert same(engine.run([prompt]), [reference[seed]], logprobs=False)
        nothing_left(engine, manager)
    for engine in (left, right):
        assert engine.metrics().get("vllm:nixl_num_failed_transfers", 0) == 0
        assert "/orbitkv/vllm/" not in engine.log.read_text(), "no traceback of ours"
        engine.close()
