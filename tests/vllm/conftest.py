"""Shared by the unit tests (fakes, no engine) and the engine tests (engine.py)."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent.parent / "tools")]

import vllm_rig  # noqa: E402

VARIANT = vllm_rig.chosen()
vllm_rig.enter(VARIANT)


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    """Killed and closed engines and Managers leave no named shared memory."""
    from harness.processes import abandoned_memory

    before = abandoned_memory()
    yield
    assert abandoned_memory() <= before


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
def seeded():
    """A two-layer model with weights of normal scale: wrong cache content shows in its tokens."""
    return _model("seeded")


@pytest.fixture(scope="session")
def mixed():
    """The same with layers of full attention and layers with a window: several cache groups."""
    return _model("mixed")


@pytest.fixture(scope="session")
def smollm2():
    return _model("smollm2")


@pytest.fixture(scope="session")
def model_of():
    """Any of the models that tools/models.py makes, by its name."""
    return _model


def _model(name):
    import models

    return models.make(name, HERE.parent.parent / "out" / "models" / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("okv")


@pytest.fixture(scope="module")
def manager(folder):
    from harness.manager import Manager

    started = Manager(folder / "run" / "manager.sock", "256MiB").start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def options(manager):
    """A connector's. These tests compare content, and a busy machine may answer late."""
    return {"orbitkv.bootstrap_socket": str(manager.socket), "orbitkv.lookup_limit_ms": 10_000}


@pytest.fixture(scope="module")
def start_engine(folder, seeded, request):
    """Starts engines that end with the module at the latest."""
    from engine import Engine

    engines = []

    def start(connector=None, *, model=None, **more):
        engine = Engine(folder / f"engine{len(engines)}.log", model or seeded, connector, **more)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


def pytest_collection_modifyitems(items):
    """Starting an engine takes 10 s on an idle machine and a minute on a busy one."""
    for item in items:
        if "start_engine" in item.fixturenames and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))


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
