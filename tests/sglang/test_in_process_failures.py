"""The same when things go wrong: what fails is said to have failed, writes nothing afterwards, and holds nothing up."""

import signal
from pathlib import Path

import pytest
from cache_tree import CORES, PAGE, Tree, eventually, managed, tokens


@pytest.fixture
def manager():
    with managed() as manager:
        yield manager


@pytest.fixture(params=CORES)
def tree(request, manager):
    tree = Tree(manager.socket, core=request.param, patient=False).up()
    yield tree
    tree.close()


@pytest.fixture
def prompt():
    return tokens("prompt", 4)


def found(tree, prompt, rid="r"):
    """A request whose pages the Manager has and the device has not."""
    tree.save(prompt)
    tree.forget()
    request = tree.request(rid)
    return request, tree.hit(request, prompt)


def pool_of(manager):
    """The Manager's pool, as the kernel shows its descriptor."""
    for fd in Path(f"/proc/{manager.pid}/fd").iterdir():
        if "orbitkv" in str(fd.readlink()) and fd.stat().st_size == 64 << 20:
            return fd
    raise AssertionError("no pool among the Manager's descriptors")


def damage(manager, content):
    """Turns one bit of these bytes where the pool has them."""
    with pool_of(manager).open("r+b", buffering=0) as pool:
        head = pool.read(16 << 20)
        at = head.find(content)
        assert at >= 0
        pool.seek(at + 3)
        pool.write(bytes([head[at + 3] ^ 1]))


def test_a_manager_killed_after_the_look_up_costs_a_hit(tree, prompt, manager):
    request, match = found(tree, prompt)
    manager.kill()
    assert eventually(lambda: tree.client.state == "down")
    free = tree.allocator.available_size()
    # Refused: the request computes, and has its slots back.
    assert tree.admit(request, match) is None
    assert tree.allocator.available_size() == free
    assert tree.cache.ready_to_load_host_cache() == -1
    assert tree.match(request, prompt).host_hit_length == 0


def test_several_ranks_agree_on_a_load_that_one_cannot_begin(tree, prompt, manager, monkeypatch):
    monkeypatch.setattr(tree.linker, "_ranks", 2)
    request, match = found(tree, prompt)
    manager.kill()
    assert eventually(lambda: tree.client.state == "down")
    # The other ranks do not hear what a rank answers to a load, but its batch's verdict.
    assert tree.admit(request, match) is not None
    assert tree.run_batch() == ["r"]


def test_a_manager_killed_after_the_load_was_queued_fails_the_batch(tree, prompt, manager):
    request, match = found(tree, prompt)
    slots = tree.admit(request, match)
    manager.kill()
    assert tree.run_batch() == ["r"]
    assert not any(any(part) for part in tree.content(slots))
    # The engine goes on, and so does the linker with the next Manager.
    tree.allocator.free(slots)
    manager.start()
    tree.up()
    content = tree.save(tokens("after", 3), seed=3)
    tree.forget()
    assert tree.content(tree.restore("s", tokens("after", 3))) == content


def test_a_stopped_manager_fails_the_batch(tree, prompt, manager):
    request, match = found(tree, prompt)
    manager.suspend()
    slots = tree.admit(request, match)
    assert slots is not None
    assert tree.run_batch() == ["r"]
    manager.signal(signal.SIGCONT)
    assert eventually(lambda: tree.client.state == "up")
    # The late plan is not copied into slots that are the engine's again.
    assert eventually(lambda: manager.sample("orbitkv_grants") == 0)
    assert not any(any(part) for part in tree.content(slots))
    tree.allocator.free(slots)
    tree.restore("s", prompt)


def test_a_damaged_block_fails_its_batch_and_is_not_offered_again(tree, prompt, manager):
    content = tree.save(prompt)
    tree.forget()
    # The last page of the last layer's V.
    damage(manager, content[-1][-(len(content[-1]) // 4) :][:64])
    request = tree.request("r")
    slots = tree.admit(request, tree.hit(request, prompt))
    assert tree.run_batch() == ["r"]
    assert tree.counters()["mismatched_blocks"] == 1
    tree.allocator.free(slots)
    request = tree.request("s")
    # Looked at again, that block is not there; those before it are.
    assert eventually(lambda: tree.match(request, prompt).host_hit_length == 3 * PAGE)
    slots = tree.admit(request, tree.match(request, prompt))
    assert tree.run_batch() == []
    assert tree.content(slots) == [part[: len(part) // 4 * 3] for part in content]


def test_look_ups_do_not_wait_for_a_stopped_manager(tree, prompt, manager):
    found(tree, prompt)
    manager.suspend()
    queries = tree.counters()["queries"]
    others = [tree.request(f"other {i}") for i in range(32)]
    for request in others:
        assert tree.match(request, prompt).host_hit_length == 0
    # The first one waited for its time, the others did not; and nothing was asked of a Manager that is suspect.
    assert eventually(lambda: tree.match(others[0], prompt).host_hit_length == 0 and tree.client.state == "suspect")
    assert tree.counters()["queries"] > queries
    manager.signal(signal.SIGCONT)
    assert tree.hit(others[0], prompt).host_hit_length == 4 * PAGE


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_every_offload_has_its_result_without_a_manager(tree, manager, how):
    prompts = [tokens(f"{i}", 3) for i in range(6)]
    tree.save(prompts[0])
    if how == "kill":
        manager.kill()
    else:
        manager.suspend()
    for number, prompt in enumerate(prompts[1:]):
        tree.insert(prompt, tree.compute(prompt, seed=number))
    assert len(tree.cache.linker.pending_offloads) == 5
    tree.settle()
    # Nothing is locked any more.
    assert tree.cache.full_protected_size() == 0
    if how == "kill":
        manager.start()
        tree.up()
    else:
        manager.signal(signal.SIGCONT)
        assert eventually(lambda: tree.client.state == "up")
    # They were not stored, and are offered when they are used again.
    stored = tree.counters()["stored_blocks"]
    tree.insert(prompts[1], tree.compute(prompts[1]))
    tree.settle()
    assert tree.counters()["stored_blocks"] > stored


def test_a_flush_does_not_wait_for_a_stopped_manager(tree, prompt, manager):
    request, match = found(tree, prompt)
    slots = tree.admit(request, match)
    manager.suspend()
    tree.cache.ready_to_load_host_cache()
    other = tokens("other", 4)
    tree.insert(other, tree.compute(other))
    tree.cache.reset()
    assert tree.linker.num_completed_offloads() == 0
    assert not any(any(part) for part in tree.content(slots))
    manager.signal(signal.SIGCONT)


def test_a_flush_after_the_client_has_ended_ends_quietly(tree, prompt, manager):
    """As when weights were replaced while a request waited."""
    found(tree, prompt)
    tree.client.close(5.0)
    tree.cache.reset()
    tree.up().save(prompt)
    tree.forget()
    tree.restore("again", prompt)


def test_a_close_does_not_wait_for_a_stopped_manager(manager, prompt):
    tree = Tree(manager.socket, patient=False).up()
    tree.save(prompt)
    manager.suspend()
    tree.insert(tokens("other", 4), tree.compute(tokens("other", 4)))
    tree.close()
    assert tree.client.state == "down"
    manager.signal(signal.SIGCONT)


def test_leases_of_requests_that_leave_end_by_themselves(prompt):
    with managed("--lease-ms", "200") as manager:
        tree = Tree(manager.socket, patient=False).up()
        found(tree, prompt)
        assert eventually(lambda: manager.sample("orbitkv_leases_expired_total") >= 1)
        assert eventually(lambda: manager.sample("orbitkv_leases") == 0)
        tree.close()


def test_a_repeated_look_up_keeps_one_lease(tree, prompt, manager):
    request, _ = found(tree, prompt)
    other = tree.request("s")
    for _ in range(50):
        tree.match(request, prompt)
        tree.hit(other, prompt)
    assert manager.sample("orbitkv_leases") == 2
    tree.admit(request, tree.match(request, prompt))
    assert tree.run_batch() == []
    assert eventually(lambda: manager.sample("orbitkv_leases") == 1)
    assert eventually(lambda: manager.sample("orbitkv_grants") == 0)
