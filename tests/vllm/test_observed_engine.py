"""What a real engine shows of OrbitKV: its metrics, its KV events, its log, with and without MultiConnector."""

import pytest
from engine import tokens

from harness.manager import Manager

PROMPT = tokens(300, 5)
CACHED = 288
BLOCKS = CACHED // 32


@pytest.fixture(scope="module")
def options(options):
    return options | {"orbitkv.log_requests": True}


@pytest.fixture(scope="module")
def engine(start_engine, options):
    started = start_engine(options, kv_events=True)
    assert started.wait_up()
    assert started.keep_events()
    return started


def sources(engine):
    return {labels["source"]: value for labels, value in engine.samples(name="vllm:orbitkv_restored_tokens")}


def misses(engine):
    return {labels["reason"]: value for labels, value in engine.samples(name="vllm:orbitkv_misses")}


def hits_by_tier(engine):
    samples = engine.samples(name="vllm:prompt_tokens_cached_by_source")
    return {labels["source"]: value for labels, value in samples if value}


@pytest.mark.each_vllm
def test_a_miss_and_a_hit_are_counted_told_and_logged(engine, clean):
    engine.run([PROMPT])
    engine.settle()
    assert engine.reset()
    assert misses(engine) == {"never seen": 1.0}
    events = engine.events()
    stored = [event for event in events if event["kind"] == "BlockStored" and event["medium"] == "CPU"]
    assert sum(len(event["block_hashes"]) for event in stored) == len(PROMPT) // 32
    assert stored[0]["token_ids"][:32] == PROMPT[:32]
    own = [event for event in events if event["kind"] == "BlockStored" and event["medium"] != "CPU"]
    assert own[0]["block_hashes"][0] == stored[0]["block_hashes"][0], "by vLLM's own hashes"
    engine.run([PROMPT])
    engine.settle()
    assert sources(engine) == {"host": CACHED}
    assert hits_by_tier(engine) == {"host": CACHED}, "all of the hit has its tier"
    metrics = engine.metrics()
    assert metrics["vllm:orbitkv_saved_blocks"] >= BLOCKS
    assert metrics["vllm:orbitkv_restored_bytes"] > 0
    assert metrics["vllm:orbitkv_saved_bytes"] > 0
    log = engine.log.read_text()
    assert "300 tokens, 0 in the engine's cache, restores none: never seen" in log
    assert f"restores {CACHED} (host {CACHED}, disk 0)" in log


def test_under_multiconnector_the_same_is_counted(start_engine, options):
    """The front end makes a child's statistics from its registered name."""
    engine = start_engine(options | {"orbitkv.require_manager": True, "children": ["orbitkv"]})
    prompt = tokens(300, 6)
    engine.run([prompt])
    assert engine.reset()
    engine.run([prompt])
    assert misses(engine) == {"never seen": 1.0}
    assert sources(engine) == {"host": CACHED}
    assert engine.metrics()["vllm:orbitkv_saved_bytes"] > 0
    engine.close()


def test_blocks_that_came_from_disk_are_counted_as_such(start_engine, folder):
    """A pool of half of what is saved, with a store behind it."""
    store = ("--ssd-path", str(folder / "store"), "--ssd-bytes", "256MiB", "--eviction-policy", "lru")
    manager = Manager(folder / "small" / "manager.sock", "16MiB", extra=store).start()
    try:
        options = {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.require_manager": True}
        patient = {"orbitkv.load_wait_ms": 20_000, "orbitkv.lookup_limit_ms": 20_000}
        engine = start_engine(options | patient, kv_events=True)
        assert engine.keep_events()
        prompts = [tokens(1000, seed) for seed in range(20, 50)]
        for prompt in prompts:
            engine.run([prompt], n=1)
            engine.settle()
        assert engine.reset()
        engine.run(prompts[:1], n=1)
        counted = sources(engine)
        assert counted["disk"] > 0
        assert sum(counted.values()) == 992
        assert hits_by_tier(engine) == counted
        found = [event for event in engine.events() if event["medium"] == "STORAGE"]
        assert sum(len(event["token_ids"]) for event in found) == counted["disk"]
        engine.close()
    finally:
        manager.close()
