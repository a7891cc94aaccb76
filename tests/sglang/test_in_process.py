"""The linker under SGLang's own radix cache, with real pools and a real Manager: every byte that comes back."""

import threading
from types import SimpleNamespace

import pytest
import torch
from cache_tree import (
    CORES,
    PAGE,
    WAIT_FOR_DISK,
    Tree,
    eventually,
    managed,
    mha_pool,
    mla_pool,
    swa_pool,
    tokens,
)

from orbitkv.sglang import compat
from orbitkv.sglang.linker import ranks_that_agree

POOLS = {
    "mha": mha_pool,
    "mha of two widths": lambda: mha_pool(v_head_dim=4),
    "mha of eight bits": lambda: mha_pool(dtype=torch.float8_e4m3fn),
    "mla": mla_pool,
    "windows": swa_pool,
}


@pytest.fixture(scope="module")
def manager():
    with managed() as manager:
        yield manager


@pytest.fixture
def make_tree(manager):
    trees = []

    def make(**more):
        trees.append(Tree(manager.socket, **more).up())
        return trees[-1]

    yield make
    for tree in trees:
        tree.close()


@pytest.fixture(params=CORES)
def tree(request, make_tree):
    return make_tree(core=request.param, name=request.node.name)


@pytest.fixture
def prompt(request):
    return tokens(request.node.name, 4)


@pytest.mark.parametrize("core", CORES)
@pytest.mark.parametrize("kind", POOLS)
def test_pages_come_back_as_they_were(make_tree, prompt, kind, core):
    tree = make_tree(pool=POOLS[kind](), core=core, name=kind)
    content = tree.save(prompt)
    assert any(any(part) for part in content)
    tree.forget()
    slots = tree.restore("r", prompt)
    assert len(slots) == len(prompt)
    assert tree.content(slots) == content


def test_only_what_the_device_lacks_is_loaded(tree, prompt):
    content = tree.save(prompt)
    tree.forget()
    begin = prompt[: 2 * PAGE]
    tree.insert(begin, tree.compute(begin, seed=1))
    before = tree.counters()["restored_blocks"]
    request = tree.request("r")
    found = tree.hit(request, prompt)
    assert (found.device_prefix_len, found.host_hit_length) == (2 * PAGE, 2 * PAGE)
    slots = tree.admit(request, found)
    assert tree.run_batch() == []
    assert tree.counters()["restored_blocks"] == before + 2
    half = [part[len(part) // 2 :] for part in content]
    assert tree.content(slots) == half


def test_what_is_stored_is_not_read_again(tree, prompt):
    tree.save(prompt)
    tree.forget()
    slots = tree.restore("r", prompt)
    before = tree.counters()
    # Restored pages enter the tree like computed ones, and it offers them.
    tree.insert(prompt, slots)
    assert len(tree.cache.linker.pending_offloads) == 1
    tree.settle()
    after = tree.counters()
    assert after["already_there_blocks"] == before["already_there_blocks"] + 4
    assert after["published_bytes"] == before["published_bytes"]
    # It was told that they are stored: they are not offered once more.
    tree.insert(prompt, tree.compute(prompt))
    assert tree.cache.linker.pending_offloads == []


def test_another_engine_restores_what_one_has_stored(make_tree, prompt):
    first = make_tree(name="first")
    content = first.save(prompt)
    second = make_tree(name="second", core="python")
    assert second.content(second.restore("r", prompt)) == content


def test_a_node_may_be_split_while_it_is_saved(tree, prompt, monkeypatch):
    gate = threading.Event()
    waiting = type("Event", (), {"synchronize": lambda self: gate.wait(60)})()
    monkeypatch.setattr(tree.linker, "record_offload_ready", lambda: [waiting])
    slots = tree.compute(prompt)
    content = tree.content(slots)
    tree.insert(prompt, slots)
    other = prompt[: 2 * PAGE] + tokens("another end", 2)
    tree.insert(other, torch.cat([slots[: 2 * PAGE], tree.compute(other[2 * PAGE :], seed=2)]))
    gate.set()
    tree.settle()
    monkeypatch.undo()
    tree.forget()
    assert tree.content(tree.restore("r", prompt)) == content


def test_the_boundary_that_the_ranks_agree_on_is_taken(tree, prompt, monkeypatch):
    content = tree.save(prompt)
    tree.forget()
    # Another rank has two pages only.
    monkeypatch.setattr(tree.linker, "_ranks", 2)
    agree = tree.cache._all_reduce_attn_groups
    monkeypatch.setattr(tree.cache, "_all_reduce_attn_groups", lambda mask, op: (mask[3:].zero_(), agree(mask, op)))
    request = tree.request("r")
    found = tree.hit(request, prompt)
    assert found.host_hit_length == 2 * PAGE
    slots = tree.admit(request, found)
    monkeypatch.undo()
    assert tree.run_batch() == []
    assert tree.content(slots) == [part[: len(part) // 2] for part in content]


def test_ranks_are_told_every_boundary_and_one_rank_the_longest(make_tree, prompt, monkeypatch):
    tree = make_tree()
    tree.save(prompt)
    tree.forget()
    told = []
    ask = tree.linker.lookup
    monkeypatch.setattr(tree.linker, "lookup", lambda rid, transfers: told.append(ask(rid, transfers)) or told[-1])
    tree.hit(tree.request("r"), prompt)
    assert told[-1] == [4]
    monkeypatch.setattr(tree.linker, "_ranks", 2)
    tree.hit(tree.request("r"), prompt)
    assert told[-1] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("context", "attention", "tensor", "count"),
    [(None, None, None, 1), (None, None, 2, 2), (None, 4, 8, 4), (2, 2, 8, 4), (1, 1, 2, 2)],
)
def test_the_ranks_that_compare_their_answers_are_sglang_s(monkeypatch, context, attention, tensor, count):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda group: group)
    groups = {"attn_cp_cache_group": context, "attn_tp_cache_group": attention, "tp_cache_group": tensor}
    assert ranks_that_agree(SimpleNamespace(**groups)) == count


def test_the_look_ups_of_the_scheduler_s_next_pass_may_wait_again(tree):
    tree.linker._lookups._waited_s = 1.0
    tree.cache.check_hicache_events()
    assert tree.linker._lookups._waited_s == 0


def test_several_requests_make_one_batch(tree, prompt):
    prompts = {f"r{i}": tokens(f"{i} of several", 2 + i) for i in range(3)}
    contents = {rid: tree.save(prompt, seed=i) for i, (rid, prompt) in enumerate(prompts.items())}
    tree.forget()
    slots = {}
    for rid, one in prompts.items():
        request = tree.request(rid)
        slots[rid] = tree.admit(request, tree.hit(request, one))
    assert tree.run_batch() == []
    assert {rid: tree.content(rows) for rid, rows in slots.items()} == contents


def test_a_request_that_is_aborted_before_its_batch_is_not_loaded(tree, prompt, manager):
    tree.save(prompt)
    tree.forget()
    request = tree.request("r")
    slots = tree.admit(request, tree.hit(request, prompt))
    tree.abort("r")
    assert tree.cache.ready_to_load_host_cache() == -1
    assert not any(any(part) for part in tree.content(slots))
    assert eventually(lambda: manager.sample("orbitkv_grants") == 0)


def test_a_flushed_engine_finds_nothing_older(tree, prompt):
    tree.save(prompt)
    tree.cache.reset()
    tree.allocator.clear()
    tree.up()
    assert tree.connection.renewals == 1
    assert tree.match(tree.request("r"), prompt).host_hit_length == 0
    # What it stores from then on is its own.
    content = tree.save(prompt, seed=5)
    tree.forget()
    assert tree.content(tree.restore("s", prompt)) == content


def test_a_flush_forgets_what_was_found(tree, prompt):
    tree.save(prompt)
    tree.forget()
    tree.hit(tree.request("r"), prompt)
    assert len(tree.linker._lookups) == 1
    tree.cache.reset()
    assert len(tree.linker._lookups) == 0


def test_pages_without_a_place_are_not_loaded(tree, prompt, monkeypatch):
    tree.save(prompt)
    tree.forget()
    asked = []
    ask = tree.linker.lookup
    monkeypatch.setattr(tree.linker, "lookup", lambda rid, transfers: asked.append(transfers) or ask(rid, transfers))
    tree.hit(tree.request("r"), prompt)
    transfers = [SimpleNamespace(name=of.name, keys=of.keys, device_indices=None) for of in asked[-1]]
    assert not tree.linker.load("r", transfers)


def test_a_flush_ends_loads_and_offloads_that_run(tree, prompt):
    tree.save(prompt)
    tree.forget()
    request = tree.request("r")
    tree.admit(request, tree.hit(request, prompt))
    tree.cache.ready_to_load_host_cache()
    other = tokens("while it flushes", 4)
    tree.insert(other, tree.compute(other))
    tree.cache.reset()
    assert tree.linker.num_completed_offloads() == 0
    assert tree.counter.futures == {}
    tree.allocator.clear()
    tree.wipe()
    # No byte of them moves any more.
    assert not any(any(part) for part in tree.content(torch.arange(PAGE, 20 * PAGE)))
    assert tree.client.poll() == []


def test_a_closed_linker_leaves_nothing(make_tree, prompt, manager):
    before = threading.active_count()
    tree = make_tree()
    tree.save(prompt)
    sessions = manager.sample("orbitkv_sessions")
    tree.close()
    tree.close()
    assert threading.active_count() == before
    assert eventually(lambda: manager.sample("orbitkv_sessions") < sessions)


def test_ranks_with_equal_pages_write_them_once(make_tree, prompt, monkeypatch):
    writer = make_tree(pool=mla_pool())
    content = writer.save(prompt)
    monkeypatch.setattr(compat, "ranks", lambda: compat.Ranks(tp_rank=1, tp_size=2, attn_tp_rank=1, attn_tp_size=2))
    reader = make_tree(pool=mla_pool())
    assert reader.content(reader.restore("r", prompt)) == content
    other = tokens("of the second rank", 3)
    reader.save(other)
    assert reader.counters()["publish_jobs"] == 0
    # It agreed: the tree takes them as stored.
    reader.insert(other, reader.compute(other))
    assert reader.cache.linker.pending_offloads == []
    # After a flush its namespace is its own, and what nobody saves there nobody finds.
    reader.cache.reset()
    content = reader.up().save(prompt)
    reader.forget()
    assert reader.content(reader.restore("r", prompt)) == content
    # Pages that differ are written by every rank.
    own = make_tree()
    own.save(other)
    assert own.counters()["stored_blocks"] == 3


def test_modes_leave_one_direction_out(make_tree, prompt):
    saver = make_tree(extra={"mode": "save_only"})
    content = saver.save(prompt)
    saver.forget()
    assert saver.match(saver.request("r"), prompt).host_hit_length == 0
    reader = make_tree(extra={"mode": "restore_only"})
    assert reader.content(reader.restore("r", prompt)) == content
    reader.save(tokens("not saved", 2))
    assert reader.counters()["publish_jobs"] == 0


def test_what_is_on_disk_is_waited_for_or_found_later(tmp_path):
    store = ("--ssd-path", str(tmp_path / "store"), "--ssd-bytes", "64MiB", "--eviction-policy", "lru")
    prompts = [tokens(f"{i} on disk", 4) for i in range(120)]
    with managed(*store, pool="2MiB") as manager:
        first = Tree(manager.socket).up()
        contents = []
        for number, prompt in enumerate(prompts):
            contents.append(first.save(prompt, seed=number))
            first.forget()
        assert manager.sample("orbitkv_cache_evictions_total") > 0
        # Not in memory any more. Asking has it loaded, and a later pass finds it.
        request = first.request("r")
        assert first.match(request, prompts[0]).host_hit_length == 0
        assert eventually(lambda: manager.sample("orbitkv_warm_ups_total") > 0)
        assert first.content(first.restore("r", prompts[0])) == contents[0]
        second = Tree(manager.socket, extra=WAIT_FOR_DISK).up()
        request = second.request("r")
        found = second.match(request, prompts[1])
        assert found.host_hit_length == len(prompts[1])
        slots = second.admit(request, found)
        assert second.run_batch() == []
        assert second.content(slots) == contents[1]
        first.close()
        second.close()


def test_an_engine_without_a_client_runs_without_cache(make_tree, prompt, monkeypatch):
    tree = make_tree()
    client = tree.client
    tree.connection.client = None
    tree.save(prompt)
    assert tree.match(tree.request("r"), prompt).host_hit_length == 0
    tree.connection.client = client
    # The tree was told that nothing was stored, and offers it again.
    tree.insert(prompt, tree.compute(prompt))
    assert len(tree.cache.linker.pending_offloads) == 1
    tree.settle()
    assert tree.counters()["stored_blocks"] == 4


def windowed(make_tree, prompt, core="rust"):
    """A tree that has saved six pages, of which only the last two are in the window's pool."""
    tree = make_tree(pool=swa_pool(), core=core)
    slots = tree.compute(prompt)
    content = tree.content(slots)
    tree.insert(prompt, slots, windows_from=4 * PAGE)
    tree.settle()
    tree.forget()
    return tree, content


@pytest.mark.parametrize("core", CORES)
def test_a_boundary_without_its_window_is_not_offered(make_tree, request, core):
    prompt = tokens(request.node.name, 6)
    tree, content = windowed(make_tree, prompt, core)
    longer = prompt + tokens("more", 2)
    found = tree.hit(tree.request("r"), longer)
    assert (found.host_hit_length, found.swa_host_hit_length) == (6 * PAGE, 2 * PAGE)
    # A prompt that parts before has the pages, but no window to go on from.
    parted = prompt[: 5 * PAGE] + tokens("other", 2)
    before = tree.counters()["queries"]
    assert tree.match(tree.request("s"), parted).host_hit_length == 0
    assert tree.counters()["queries"] > before
    assert tree.content(tree.restore("t", prompt)) == content


@pytest.mark.parametrize("core", CORES)
def test_a_window_may_reach_over_what_the_device_has(make_tree, request, core):
    prompt = tokens(request.node.name, 4)
    tree = make_tree(pool=swa_pool(), core=core)
    content = tree.save(prompt)
    tree.forget()
    begin = prompt[: 3 * PAGE]
    tree.insert(begin, tree.compute(begin))
    request = tree.request("r")
    found = tree.hit(request, prompt)
    # One page of the window of two is the device's.
    assert (found.device_prefix_len, found.host_hit_length, found.swa_host_hit_length) == (3 * PAGE, PAGE, PAGE)
    slots = tree.admit(request, found)
    assert tree.run_batch() == []
    page_bytes = len(content[0]) // 4
    assert tree.content(slots) == [part[-page_bytes:] for part in content]
