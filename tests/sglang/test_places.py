"""Each page is stored and asked for at its place in the prompt, however SGLang's tree has cut it."""

import pytest
from cache_tree import CORES, PAGE, WAIT_FOR_DISK, Tree, managed, swa_pool, tokens

from orbitkv.sglang import places
from orbitkv.sglang.errors import UnsupportedError


@pytest.fixture
def manager():
    with managed() as manager:
        yield manager


def watched(tree, monkeypatch):
    """What the linker's own parts are told."""
    asked, offered = [], []
    ask, accept = tree.linker._lookups.ask, tree.linker._offloads.accept
    monkeypatch.setattr(tree.linker._lookups, "ask", lambda *of: asked.append(of[3]) or ask(*of))
    monkeypatch.setattr(tree.linker._offloads, "accept", lambda *of: offered.append(of[0]) or accept(*of))
    return asked, offered


@pytest.mark.parametrize("core", CORES)
def test_a_node_is_stored_behind_those_above_it(manager, monkeypatch, core):
    tree = Tree(manager.socket, core=core).up()
    asked, offered = watched(tree, monkeypatch)
    prompt = tokens("prompt", 6)
    slots = tree.compute(prompt)
    tree.insert(prompt[: 2 * PAGE], slots[: 2 * PAGE])
    tree.insert(prompt[: 3 * PAGE], slots[: 3 * PAGE])
    tree.insert(prompt, slots)
    tree.settle()
    assert [(one.place.depth, len(one.keys)) for one in offered] == [(0, 2), (2, 1), (3, 3)]
    assert [one.place.parent for one in offered] == ["", offered[0].keys[-1], offered[1].keys[-1]]
    # The Manager has them as one chain: each is the parent of the next one.
    tree.forget()
    assert tree.hit(tree.request("r"), prompt).host_hit_length == 6 * PAGE
    tree.insert(prompt[: 2 * PAGE], tree.compute(prompt[: 2 * PAGE]))
    assert tree.hit(tree.request("s"), prompt).host_hit_length == 4 * PAGE
    assert sorted(set(asked)) == [0, 2]
    tree.close()


def test_prompts_with_a_key_of_their_own_begin_anew(manager, monkeypatch):
    from sglang.srt.mem_cache.base_prefix_cache import InsertParams
    from sglang.srt.mem_cache.radix_cache import RadixKey

    tree = Tree(manager.socket).up()
    _, offered = watched(tree, monkeypatch)
    prompt = tokens("prompt", 3)
    slots = tree.compute(prompt)
    tree.cache.insert(InsertParams(key=RadixKey(prompt[: 2 * PAGE], "tenant"), value=slots[: 2 * PAGE]))
    tree.cache.insert(InsertParams(key=RadixKey(prompt, "tenant"), value=slots))
    tree.settle()
    assert [one.place.depth for one in offered] == [0, 2]
    tree.close()


@pytest.mark.parametrize("core", CORES)
def test_windows_that_come_later_join_their_pages(manager, core):
    """The pages of full attention are there at their depth; a window's part of them is stored by another node."""
    tree = Tree(manager.socket, pool=swa_pool(), core=core).up()
    prompt = tokens("prompt", 6)
    slots = tree.compute(prompt)
    content = tree.content(slots[: 4 * PAGE])
    tree.insert(prompt, slots, windows_from=4 * PAGE)
    tree.settle()
    tree.forget()
    # Another tree cuts the same pages elsewhere, and has the windows that lack.
    again = tree.compute(prompt)
    tree.insert(prompt[: 2 * PAGE], again[: 2 * PAGE], windows_from=2 * PAGE)
    tree.insert(prompt[: 4 * PAGE], again[: 4 * PAGE])
    tree.settle()
    lost = tree.counters()["lost_blocks"]
    tree.forget()
    restored = tree.content(tree.restore("r", prompt[: 4 * PAGE]))
    assert restored == content
    assert lost == 0
    tree.close()


def test_what_is_on_disk_is_found_behind_what_the_device_has(tmp_path):
    store = ("--ssd-path", str(tmp_path / "store"), "--ssd-bytes", "64MiB", "--eviction-policy", "lru")
    prompts = [tokens(f"{i}", 4) for i in range(120)]
    with managed(*store, pool="2MiB") as manager:
        tree = Tree(manager.socket, extra=WAIT_FOR_DISK).up()
        contents = []
        for number, prompt in enumerate(prompts):
            contents.append(tree.save(prompt, seed=number))
            tree.forget()
        begin = prompts[0][: 2 * PAGE]
        tree.insert(begin, tree.compute(begin))
        request = tree.request("r")
        found = tree.match(request, prompts[0])
        assert (found.device_prefix_len, found.host_hit_length) == (2 * PAGE, 2 * PAGE)
        slots = tree.admit(request, found)
        assert tree.run_batch() == []
        assert tree.content(slots) == [part[len(part) // 2 :] for part in contents[0]]
        tree.close()


def test_another_wrapper_is_refused():
    places.follow(Wrapper)
    assert Wrapper.match(Wrapper(), None, None, Result()) == "matched"
    with pytest.raises(UnsupportedError, match=r"Other\.match"):
        places.follow(type("Other", (), {}))


class Result:
    device_prefix_len = 3 * PAGE


class Wrapper:
    """Of a linker that has no use for places."""

    cache_linker = object()
    cache = None

    def match(self, key, req, result):
        return "matched"

    def _offload_node(self, node_id, transfers):
        return None
