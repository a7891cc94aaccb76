"""Every way in which SGLang replaces an engine's weights makes its link leave, whether or not a flush follows."""

import gc
import sys
from types import ModuleType, SimpleNamespace

import pytest

from orbitkv.sglang import updates
from orbitkv.sglang.errors import UnsupportedError


class Link:
    left = 0

    def leave(self):
        self.left += 1


@pytest.fixture
def sglang(monkeypatch):
    """SGLang's two classes, whose methods note what they were called with; None of a fresh process is wrapped."""
    calls = []

    def method(name, first):
        def call(self, *args, **kwargs):
            calls.append((name, args, kwargs, link_of(self)))
            return f"done {name}"

        call.__name__ = name
        return call

    def link_of(instance):
        return getattr(instance, "link", None) and instance.link.left

    classes = {}
    for place, names in (
        ("UPDATER", (*updates.REPLACE_WEIGHTS, *updates.OCCUPY_MEMORY, *updates.CHECK_WEIGHTS)),
        ("SCHEDULER", (*updates.LOAD_ADAPTER, *updates.NAME_VERSION)),
    ):
        module, name = getattr(updates, place)
        made = type(name, (), {each: method(each, place) for each in names})
        found = ModuleType(module)
        setattr(found, name, made)
        monkeypatch.setitem(sys.modules, module, found)
        classes[place] = made
    return SimpleNamespace(calls=calls, updater=classes["UPDATER"], scheduler=classes["SCHEDULER"])


@pytest.fixture
def watched(sglang):
    link = Link()

    def watch(**more):
        updates.watch(link, **more)
        for one in (sglang.updater, sglang.scheduler):
            one.link = link
        return link

    yield watch
    updates._watched.clear()


@pytest.mark.parametrize("name", updates.REPLACE_WEIGHTS)
def test_a_replacement_is_told_before_it_begins(sglang, watched, name):
    link = watched()
    assert getattr(sglang.updater(), name)("request", more=1) == f"done {name}"
    assert sglang.calls == [(name, ("request",), {"more": 1}, 1)]
    assert link.left == 1


@pytest.mark.parametrize("name", updates.OCCUPY_MEMORY)
def test_weights_whose_memory_was_given_away_are_other_ones(sglang, watched, name):
    link = watched()
    give = getattr(sglang.updater(), name)
    give(SimpleNamespace(tags=["kv_cache", "cuda_graph"]))
    assert link.left == 0
    for tags in (["weights"], ["kv_cache", "weights"], [], None):
        before = link.left
        give(SimpleNamespace(tags=tags))
        assert link.left == before + 1
        assert sglang.calls[-1][3] == before, "the flush that it includes must not end it"


@pytest.mark.parametrize("name", updates.OCCUPY_MEMORY)
def test_weights_that_sglang_keeps_a_copy_of_are_the_same(sglang, watched, name):
    link = watched(keeps_released_weights=True)
    getattr(sglang.updater(), name)(SimpleNamespace(tags=["weights"]))
    assert link.left == 0


@pytest.mark.parametrize("name", updates.OCCUPY_MEMORY)
def test_weights_are_other_ones_when_giving_their_memory_away_has_failed(sglang, watched, name):
    def fail(self, request):
        raise RuntimeError("half-way")

    setattr(sglang.updater, name, fail)
    link = watched()
    with pytest.raises(RuntimeError, match="half-way"):
        getattr(sglang.updater(), name)(SimpleNamespace(tags=["weights"]))
    assert link.left == 1


def test_a_check_that_overwrites_weights_counts(sglang, watched):
    link = watched()
    check = sglang.updater().check_weights
    for action in updates.HARMLESS_CHECKS:
        check(SimpleNamespace(action=action))
    assert link.left == 0
    check(SimpleNamespace(action="reset_tensors"))
    check(SimpleNamespace(action="one of tomorrow"))
    assert link.left == 2


@pytest.mark.parametrize("name", updates.LOAD_ADAPTER)
def test_an_adapter_under_a_new_id_is_told_by_its_id_and_one_under_an_old_id_is_a_replacement(sglang, watched, name):
    link = watched(adapter_ids=["start"])
    load = getattr(sglang.scheduler(), name)
    assert load(SimpleNamespace(lora_id="new")) == f"done {name}"
    assert link.left == 0
    load(SimpleNamespace(lora_id="new"))
    load(SimpleNamespace(lora_id="start"))
    assert link.left == 2
    assert sglang.calls[-1][3] == 2, "before it is loaded"


def test_another_version_of_the_weights_is_a_replacement(sglang, watched):
    link = watched(version="default")
    name = sglang.scheduler().record_weight_version_change
    name(new_version="default")
    name(new_version=None)
    assert link.left == 0
    name(new_version="2")
    name(new_version="2")
    assert link.left == 1
    assert [call[0] for call in sglang.calls] == ["record_weight_version_change"] * 4


def test_all_links_of_a_process_are_told_once_each_and_those_that_are_gone_are_not(sglang, watched):
    link, other = watched(), Link()
    updates.watch(other)
    sglang.updater().update_weights_from_disk("request")
    assert (link.left, other.left, len(sglang.calls)) == (1, 1, 1)
    del other
    gc.collect()
    assert len(updates._watched) == 1


def test_an_sglang_with_other_methods_is_refused(sglang, watched):
    del sglang.updater.update_weights_from_ipc
    with pytest.raises(UnsupportedError, match=r"SchedulerWeightUpdaterManager\.update_weights_from_ipc is missing"):
        watched()


@pytest.mark.parametrize("moved", ["sglang.srt.managers.elsewhere", "sglang.srt.elsewhere.weight_updater"])
def test_an_sglang_that_keeps_them_elsewhere_is_refused(monkeypatch, moved):
    monkeypatch.setattr(updates, "UPDATER", (moved, "SchedulerWeightUpdaterManager"))
    with pytest.raises(UnsupportedError, match=f"{moved} is missing"):
        updates.watch(Link())


def test_a_process_without_a_scheduler_has_nothing_to_watch(monkeypatch):
    for module, _ in (updates.UPDATER, updates.SCHEDULER):
        monkeypatch.delitem(sys.modules, module, raising=False)
    link = Link()
    updates.watch(link)
    assert len(updates._watched) == 1
    updates._watched.clear()
