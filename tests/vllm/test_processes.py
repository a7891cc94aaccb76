"""Engines whose scheduler and workers are processes of their own, one and two ranks, and the real model."""

import pytest
from engine import same, tokens

from harness.manager import Manager
from harness.processes import wait_until

PROMPTS = [tokens(100, 1), tokens(300, 4), tokens(500, 6)]
CACHED = [96, 288, 480]
BLOCKS = sum(CACHED) // 32


@pytest.fixture(scope="module")
def options(manager):
    # These tests compare content: a busy machine may answer late.
    return {
        "orbitkv.bootstrap_socket": str(manager.socket),
        "orbitkv.require_manager": True,
        "orbitkv.lookup_limit_ms": 10_000,
    }


def one_by_one(engine, prompts):
    """Logprobs are compared exactly: each prompt has a batch of its own, whenever its load ends."""
    return [engine.run([prompt])[0] for prompt in prompts]


def resident_blocks(manager):
    return manager.samples()["orbitkv_blocks_resident"]


def stored_components(manager):
    return manager.samples()["orbitkv_blocks_stored_total"]


def restored_after_restart(start_engine, manager, options, prompts, blocks, *, count=resident_blocks, **settings):
    """`blocks`: of the prompts, by `count`, which the Manager must hold before the engine is killed."""
    before = count(manager)
    first = start_engine(options, processes=True, **settings)
    cold = one_by_one(first, prompts)
    warm = one_by_one(first, prompts)
    assert wait_until(lambda: count(manager) >= before + blocks, 20), "the saves were not stored"
    first.kill()
    second = start_engine(options, processes=True, **settings)
    restored = one_by_one(second, prompts)
    second.close()
    return cold, warm, restored


def check(cold, warm, restored, cached):
    assert [output["cached"] for output in warm] == cached
    assert [output["cached"] for output in restored] == cached
    assert same(restored, warm), "tokens and logprobs are exactly those of the engine's own cache"
    assert same(restored, cold, logprobs=False)


def test_scheduler_and_worker_in_two_processes(start_engine, manager, options):
    check(*restored_after_restart(start_engine, manager, options, PROMPTS, BLOCKS), CACHED)


def test_two_ranks(start_engine, manager, options):
    check(*restored_after_restart(start_engine, manager, options, PROMPTS, BLOCKS, tensor_parallel_size=2), CACHED)


def test_two_ranks_with_several_groups(start_engine, manager, options, mixed):
    """Of each prompt a rank saves its part of every block of full attention, and of two blocks with a window."""
    parts = 2 * (BLOCKS + 2 * len(PROMPTS))
    settings = {"model": mixed, "tensor_parallel_size": 2, "count": stored_components}
    check(*restored_after_restart(start_engine, manager, options, PROMPTS, parts, **settings), CACHED)


def test_two_ranks_that_use_two_managers(start_engine, folder):
    """Each Manager has the shard of its rank alone, and a restore takes both."""
    managers = [Manager(folder / f"shard{shard}" / "manager.sock", "64MiB").start() for shard in range(2)]
    try:
        engine = start_engine(
            {
                "orbitkv.tp_shard_bootstrap_sockets": [str(manager.socket) for manager in managers],
                "orbitkv.require_manager": True,
                "orbitkv.lookup_limit_ms": 10_000,
            },
            processes=True,
            tensor_parallel_size=2,
        )
        cold = one_by_one(engine, PROMPTS)
        warm = one_by_one(engine, PROMPTS)
        for manager in managers:
            assert wait_until(lambda m=manager: resident_blocks(m) == BLOCKS, 20), "a shard's saves were not stored"
        assert engine.reset()
        restored = one_by_one(engine, PROMPTS)
        check(cold, warm, restored, CACHED)
        for manager in managers:
            assert manager.samples()["orbitkv_restored_blocks_total"] == BLOCKS
            assert manager.samples()["orbitkv_restores_mismatch_total"] == 0
    finally:
        for manager in managers:
            manager.close()


def test_the_real_model(start_engine, manager, options, smollm2):
    prompts = [[(i * 37 + seed * 11) % 40000 + 100 for i in range(700)] for seed in (1, 2)]
    settings = {"model": smollm2, "kv_cache_memory_bytes": 256 << 20}
    check(*restored_after_restart(start_engine, manager, options, prompts, 42, **settings), [672, 672])
