"""What the tests of all engines have in common: models, a Manager, and engines that end with their module.

A folder of such tests has an `engine.py` with its class Engine, and imports these names in its conftest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .manager import Manager
from .processes import abandoned_memory

MODELS = Path(__file__).resolve().parents[2] / "out" / "models"

__all__ = [
    "folder",
    "manager",
    "model_of",
    "nothing_left_behind",
    "pytest_collection_modifyitems",
    "seeded",
    "start_engine",
]


@pytest.fixture(scope="session", autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Killed and closed engines and Managers leave no named shared memory."""
    before = abandoned_memory()
    yield
    assert abandoned_memory() <= before


@pytest.fixture(scope="session")
def model_of() -> Callable[[str], Path]:
    """Any of the models that tools/models.py makes, by its name."""

    def make(name: str) -> Path:
        import models

        return models.make(name, MODELS / name)

    return make


@pytest.fixture(scope="session")
def seeded(model_of: Callable[[str], Path]) -> Path:
    """A two-layer model with weights of normal scale: wrong cache content shows in its tokens."""
    return model_of("seeded")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("okv")


@pytest.fixture(scope="module")
def manager(folder: Path) -> Iterator[Manager]:
    started = Manager(folder / "run" / "manager.sock", "256MiB").start()
    yield started
    started.close()


@pytest.fixture(scope="module")
def start_engine(folder: Path, seeded: Path) -> Iterator[Callable[..., Any]]:
    """Starts engines, each with what OrbitKV in it is told, or plain ones. They end with the module at the latest."""
    from engine import Engine

    engines = []

    def start(told: Any = None, *, model: Path | None = None, **more: Any) -> Any:
        engine = Engine(folder / f"engine{len(engines)}.log", model or seeded, told, **more)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Starting an engine takes seconds on an idle machine and a minute on a busy one."""
    for item in items:
        if "start_engine" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(900))
