"""Shared by the unit tests (fakes, no engine) and the engine tests (engine.py)."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))


@pytest.fixture
def fake_hashes(monkeypatch):
    import orbitkv
    from fakes import FakeHashes

    monkeypatch.setattr(orbitkv, "BlockHashes", FakeHashes)
