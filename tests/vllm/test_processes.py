"""Engines whose scheduler and workers are processes of their own, one and two ranks, and the real model."""

import pytest
from engine import same, tokens

PROMPTS = [tokens(100, 1), tokens(300, 4), tokens(500, 6)]
CACHED = [96, 288, 480]


@pytest.fixture(scope="module")
def options(manager):
    return {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.require_manager": True}


def restored_after_restart(start_engine, options, prompts, **settings):
    first = start_engine(options, processes=True, **settings)
    cold = first.run(prompts)
    warm = first.run(prompts)
    first.kill()
    second = start_engine(options, processes=True, **settings)
    restored = second.run(prompts)
    second.close()
    return cold, warm, restored


def check(cold, warm, restored, cached):
    assert [output["cached"] for output in warm] == cached
    assert [output["cached"] for output in restored] == cached
    assert same(restored, warm), "tokens and logprobs are exactly those of the engine's own cache"
    assert same(restored, cold, logprobs=False)


def test_scheduler_and_worker_in_two_processes(start_engine, options):
    check(*restored_after_restart(start_engine, options, PROMPTS), CACHED)


def test_two_ranks(start_engine, options):
    check(*restored_after_restart(start_engine, options, PROMPTS, tensor_parallel_size=2), CACHED)


def test_the_real_model(start_engine, options, smollm2):
    prompts = [[(i * 37 + seed * 11) % 40000 + 100 for i in range(700)] for seed in (1, 2)]
    settings = {"model": smollm2, "kv_cache_memory_bytes": 256 << 20}
    check(*restored_after_restart(start_engine, options, prompts, **settings), [672, 672])
