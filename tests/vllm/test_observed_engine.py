"""What a real engine shows of OrbitKV: its metrics, its KV events, its log, with and without MultiConnector."""

import pytest
from engine import tokens

PROMPT = tokens(300, 5)
CACHED = 288
BLOCKS = CACHED // 32


@pytest.fixture(scope="module")
def options(manager):
    return {
        "orbitkv.bootstrap_socket": str(manager.socket),
        "orbitkv.lookup_limit_ms": 10_000,
        "orbitkv.log_requests": True,
    }


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
