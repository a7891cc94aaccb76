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
from harness.fixtures import *  # noqa: E402, F403

SETTINGS = sglang_rig.environment(Path(sys.prefix))
if not sglang_rig.complete(Path(sys.prefix)):
    del SETTINGS["TORCH_EXTENSIONS_DIR"]
os.environ.update(SETTINGS)
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What an interpreter does at its start that has the shims on PYTHONPATH: this one was started without.
sys.path.insert(0, str(sglang_rig.SHIMS))
SPEC = importlib.util.spec_from_file_location("orbitkv_sglang_shims", sglang_rig.SHIMS / "sitecustomize.py")
SPEC.loader.exec_module(importlib.util.module_from_spec(SPEC))


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
def linker(manager):
    """A linker's configuration."""
    from patience import patient

    return patient(manager)


@pytest.fixture(scope="module")
def plain(start_engine):
    """An engine without a linker: what it answers is what is right."""
    return start_engine()
