"""Shared by the unit tests (fakes, no engine) and the engine tests (engine.py)."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "tools")]

import vllm_rig  # noqa: E402
from harness.fixtures import *  # noqa: E402, F403

VARIANT = vllm_rig.chosen()
vllm_rig.enter(VARIANT)


@pytest.fixture(scope="session")
def variant():
    """Which vLLM and which of its model runners this run is about."""
    return VARIANT


@pytest.fixture
def fake_hashes(monkeypatch):
    from fakes import FakeHashes

    import orbitkv

    monkeypatch.setattr(orbitkv, "BlockHashes", FakeHashes)


@pytest.fixture
def clock(monkeypatch):
    """The time of the scheduler's side."""
    from fakes import Clock

    from orbitkv.vllm import scheduler

    clock = Clock()
    monkeypatch.setattr(scheduler, "time", clock)
    return clock


@pytest.fixture(scope="session")
def mixed(model_of):
    """The seeded model's like with layers of full attention and layers with a window: several cache groups."""
    return model_of("mixed")


@pytest.fixture(scope="session")
def smollm2(model_of):
    return model_of("smollm2")


@pytest.fixture(scope="module")
def options(manager):
    """A connector's. These tests compare content, and a busy machine may answer late."""
    return {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.lookup_limit_ms": 10_000}


@pytest.fixture
def clean(engine):
    """Each test begins with an empty cache of the engine's own, and leaves nothing behind."""
    engine.settle()
    assert engine.reset()
    before = engine.state()
    yield engine
    after = engine.settle()
    for key in ("requests", "tracked", "jobs", "watched", "loading", "worker_loads", "worker_saves"):
        assert after[key] == 0, key
    assert engine.reset()
    assert engine.state()["free_blocks"] == before["free_blocks"]
