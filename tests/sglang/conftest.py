"""Shared by the unit tests (fakes, or a cache tree in this process) and the engine tests (engine.py).

These tests run in the environment that tools/sglang_rig.py makes.
"""

import importlib.util
import os
import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path[:0] = [str(HERE), str(ROOT / "tools")]

import sglang_rig  # noqa: E402

SETTINGS = sglang_rig.environment(Path(sys.prefix))
if not sglang_rig.complete(Path(sys.prefix)):
    del SETTINGS["TORCH_EXTENSIONS_DIR"]
os.environ.update(SETTINGS)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What an interpreter does at its start that has the shims on PYTHONPATH: this one was started without.
sys.path.insert(0, str(sglang_rig.SHIMS))
SPEC = importlib.util.spec_from_file_location("orbitkv_sglang_shims", sglang_rig.SHIMS / "sitecustomize.py")
SPEC.loader.exec_module(importlib.util.module_from_spec(SPEC))


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind():
    """Killed and closed engines and Managers leave no named shared memory."""
    from harness.processes import abandoned_memory

    before = abandoned_memory()
    yield
    assert abandoned_memory() <= before


@pytest.fixture(scope="session")
def model_of():
    """Any of the models that tools/models.py makes, by its name."""

    def make(name):
        import models

        return models.make(name, ROOT / "out" / "models" / name)

    return make


@pytest.fixture(scope="session")
def seeded(model_of):
    """A two-layer model with weights of normal scale: wrong cache content shows in its tokens."""
    return model_of("seeded")


@pytest.fixture(scope="session")
def retrained(seeded, tmp_path_factory):
    """The same model with other weights: its layers have changed places."""
    from safetensors.torch import load_file, save_file

    other = tmp_path_factory.mktemp("models") / "retrained"
    shutil.copytree(seeded, other)
    file = other / "model.safetensors"
    places = {"layers.0.": "layers.1.", "layers.1.": "layers.0."}
    weights = {}
    for name, tensor in load_file(file).items():
        place = next((place for place in places if place in name), None)
        weights[name.replace(place, places[place]) if place else name] = tensor
    save_file(weights, str(file), metadata={"format": "pt"})
    return other


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
def linker(manager):
    """A linker's configuration."""
    from patience import patient

    return patient(manager)


@pytest.fixture(scope="module")
def plain(start_engine):
    """An engine without a linker: what it answers is what is right."""
    return start_engine()


@pytest.fixture(scope="module")
def start_engine(folder, seeded):
    """Starts engines that end with the module at the latest."""
    from engine import Engine

    engines = []

    def start(linker=None, *, model=None, **more):
        engine = Engine(folder / f"engine{len(engines)}.log", model or seeded, linker, **more)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


def pytest_collection_modifyitems(items):
    """Starting an engine takes seconds on an idle machine and a minute on a busy one."""
    for item in items:
        if "start_engine" in item.fixturenames and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))
