"""Engines whose scheduler and workers are processes of their own, one and two ranks, and the real model."""

import os
import signal
import time
from pathlib import Path

import pytest
from engine import same, tokens

from harness.manager import Manager
from harness.processes import session_pids, wait_until

PROMPTS = [tokens(100, 1), tokens(300, 4), tokens(500, 6)]
CACHED = [96, 288, 480]
BLOCKS = sum(CACHED) // 32


@pytest.fixture(scope="module")
def options(options):
    return options | {"orbitkv.require_manager": True}


def one_by_one(engine, prompts):
    """Logprobs are compared exactly: each prompt has a batch of its own, whenever its load ends."""
    return [engine.run([prompt])[0] for prompt in prompts]


def resident_blocks(manager):
    return manager.samples()["orbitkv_blocks_resident"]


def stored_components(manager):
    return manager.samples()["orbitkv_blocks_stored_total"]


def restored_after_restart(
    start_engine, manager, options, prompts, blocks, *, count=resident_blocks, then=None, processes=True, **settings
):
    """`blocks`: of the prompts, by `count`, which the Manager must hold before the engine is killed.

    `then(engine, cold, warm)` goes on with the second engine. `processes`: of the first one.
    """
    before = count(manager)
    first = start_engine(options, processes=processes, **settings)
    cold = one_by_one(first, prompts)
    warm = one_by_one(first, prompts)
    assert wait_until(lambda: count(manager) >= before + blocks, 20), "the saves were not stored"
    first.kill()
    second = start_engine(options, processes=True, **settings)
    restored = one_by_one(second, prompts)
    if then is not None:
        then(second, cold, warm)
    second.close()
    return cold, warm, restored


def check(cold, warm, restored, cached):
    assert [output["cached"] for output in warm] == cached
    assert [output["cached"] for output in restored] == cached
    assert same(restored, warm), "tokens and logprobs are exactly those of the engine's own cache"
    assert same(restored, cold, logprobs=False)


def used_cpu_s(engine, over_s):
    """By all processes of the engine in so many seconds."""

    def total():
        ticks = 0
        for pid in session_pids(engine.process.pid):
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    before = total()
    time.sleep(over_s)
    return total() - before


def test_scheduler_and_worker_in_two_processes(start_engine, manager, options):
    last = tokens(400, 31)

    def stopped_manager(engine, cold, warm):
        """An engine that has nothing to do does nothing, also when the Manager owes it an answer."""
        idle = max(0.1, used_cpu_s(engine, 2.0))
        manager.suspend()
        try:
            (output,) = engine.run([last], n=4)
            assert len(output["tokens"]) == 4
            # It looks for the end of its saves for some seconds, in passing.
            assert wait_until(lambda: used_cpu_s(engine, 2.0) < 2 * idle, 15)
        finally:
            manager.signal(signal.SIGCONT)
        # What an engine has not saved when it is closed is saved then.
        assert engine.reset()
        assert wait_until(lambda: engine.run([PROMPTS[0]])[0]["cached"] == CACHED[0] and engine.reset(), 20)
        before = resident_blocks(manager)
        engine.run([tokens(640, 32)], n=1)
        engine.close()
        assert resident_blocks(manager) == before + 20

    check(*restored_after_restart(start_engine, manager, options, PROMPTS, BLOCKS, then=stopped_manager), CACHED)


def test_two_ranks(start_engine, manager, options):
    def one_rank_fails(engine, cold, warm):
        for rank in range(2):
            assert engine.reset()
            assert engine.fail_on_rank(rank=rank) == [False, True]
            (computed,) = engine.run([PROMPTS[2]])
            assert same([computed], cold[2:], logprobs=False)
            assert engine.reset()
            (restored,) = engine.run([PROMPTS[2]])
            assert restored["cached"] == CACHED[2], "its blocks are good: the next load brings them"
            assert same([restored], warm[2:])

    settings = {"tensor_parallel_size": 2, "processes": "spawn", "then": one_rank_fails}
    check(*restored_after_restart(start_engine, manager, options, PROMPTS, BLOCKS, **settings), CACHED)


def test_two_ranks_with_several_groups(start_engine, manager, options, mixed):
    """Of each prompt a rank saves its part of every block of full attention, and of two blocks with a window."""
    parts = 2 * (BLOCKS + 2 * len(PROMPTS))
    settings = {"model": mixed, "tensor_parallel_size": 2, "count": stored_components}
    check(*restored_after_restart(start_engine, manager, options, PROMPTS, parts, **settings), CACHED)


def test_two_ranks_that_hold_the_same_are_one_shard(start_engine, manager, options, model_of):
    """One of them writes, both read; and an engine of one rank has other blocks, so it finds none of these."""
    settings = {"model": model_of("one_head"), "max_num_seqs": 4}
    before = stored_components(manager)
    engine = start_engine(options, processes=True, tensor_parallel_size=2, **settings)
    cold = one_by_one(engine, PROMPTS)
    warm = one_by_one(engine, PROMPTS)
    assert wait_until(lambda: stored_components(manager) >= before + BLOCKS, 20), "the saves were not stored"
    assert engine.reset()
    check(cold, warm, one_by_one(engine, PROMPTS), CACHED)
    assert stored_components(manager) == before + BLOCKS, "written once"
    engine.close()
    alone = start_engine(options, **settings)
    assert alone.wait_up()
    (missed,) = alone.run([PROMPTS[0]])
    assert missed["cached"] == 0
    alone.close()


def test_latent_attention_is_one_shard(start_engine, manager, options, model_of):
    """It is written once. This CPU build computes wrong tokens behind any prefix, so nothing is offered."""
    before = stored_components(manager)
    engine = start_engine(options, processes=True, tensor_parallel_size=2, model=model_of("latent"), max_num_seqs=4)
    cold = one_by_one(engine, PROMPTS)
    blocks = sum((len(prompt) + 7) // 16 for prompt in PROMPTS)  # the answer's last token is not computed
    assert wait_until(lambda: stored_components(manager) >= before + blocks, 20), "the saves were not stored"
    again = one_by_one(engine, PROMPTS)
    assert [output["cached"] for output in again] == [0] * len(PROMPTS)
    assert same(again, cold)
    assert stored_components(manager) == before + blocks, "written once"
    engine.close()
    assert "computes latent attention (MLA) only from a prompt's start" in engine.log.read_text()


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
