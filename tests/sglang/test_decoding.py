"""The passes of a decode engine look for the results of its offloads."""

import sys
from types import ModuleType, SimpleNamespace

import pytest

from orbitkv.sglang import decoding
from orbitkv.sglang.errors import UnsupportedError


@pytest.fixture
def scheduler(monkeypatch):
    """SGLang's class, in a process where nothing is wrapped yet, and what its passes do."""
    calls = []

    class Scheduler:
        tree_cache = SimpleNamespace(check_hicache_events=lambda: calls.append("results"))

        def process_decode_queue(self):
            calls.append("pass")
            return "done"

    module = ModuleType(decoding.SCHEDULER)
    module.Scheduler = Scheduler
    monkeypatch.setitem(sys.modules, decoding.SCHEDULER, module)
    return SimpleNamespace(of=Scheduler, calls=calls)


def test_results_are_taken_before_each_pass(scheduler):
    decoding.follow()
    decoding.follow()
    assert scheduler.of().process_decode_queue() == "done"
    assert scheduler.calls == ["results", "pass"]


def test_an_sglang_with_other_passes_is_refused(scheduler, monkeypatch):
    monkeypatch.delattr(scheduler.of, decoding.PASS)
    with pytest.raises(UnsupportedError, match="decode engines work in another way"):
        decoding.follow()
    monkeypatch.delitem(sys.modules, decoding.SCHEDULER)
    with pytest.raises(UnsupportedError, match="decode engines work in another way"):
        decoding.follow()
