"""Recurrent states beside attention: a boundary needs the state that ends there, and brings it into a slot."""

from types import SimpleNamespace

import pytest
import torch
from cache_tree import CORES, PAGE, SLOTS, Tree, managed, tokens
from sglang.srt.configs.mamba_utils import Mamba2CacheParams, Mamba2StateShape
from sglang.srt.managers.schedule_batch import ReqKvInfo
from sglang.srt.mem_cache.base_prefix_cache import EvictParams, InsertParams
from sglang.srt.mem_cache.memory_pool import HybridLinearKVPool, HybridReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey

from orbitkv.sglang import pools
from orbitkv.sglang.errors import UnsupportedError

STATE_LAYERS, ATTENTION_LAYERS = [0, 2, 3], [1, 4]
STATES = 16


def state_pool(**more):
    shape = Mamba2StateShape.create(
        tp_world_size=1, intermediate_size=32, n_groups=1, num_heads=4, head_dim=8, state_size=4, conv_kernel=4
    )
    values = {
        "size": 4,
        "mamba_size": STATES,
        "mamba_spec_state_size": 0,
        "max_context_len": 1024,
        "device": "cpu",
        "enable_memory_saver": False,
        "cache_params": Mamba2CacheParams(shape=shape, layers=STATE_LAYERS),
        "mamba_layer_ids": STATE_LAYERS,
        "enable_mamba_extra_buffer": True,
    }
    return HybridReqToTokenPool(**(values | more))


def attention_pool(states, **more):
    values = {"head_num": 2, "head_dim": 8, "full_attention_layer_ids": ATTENTION_LAYERS, "dtype": torch.float32}
    return HybridLinearKVPool(size=SLOTS, page_size=PAGE, device="cpu", mamba_pool=states.mamba_pool, **(values | more))


class StateTree(Tree):
    """Each prompt that is inserted has a state at its end."""

    def __init__(self, socket, states=None, **more):
        self.states = states or state_pool()
        super().__init__(socket, pool=attention_pool(self.states), states=self.states, **more)
        self.state_buffers = [*self.states.mamba_pool.mamba_cache.conv, self.states.mamba_pool.mamba_cache.temporal]

    def _views(self, slots, whole=False):
        return [(self.pool.full_kv_pool, slots)]

    def state(self, seed):
        slot = self.states.mamba_allocator.alloc(1)
        random = torch.Generator().manual_seed(seed)
        for buffer in self.state_buffers:
            buffer[:, slot] = torch.randn(*buffer[:, slot].shape, generator=random).to(buffer.dtype)
        return slot

    def state_content(self, slot):
        return [buffer[:, int(slot)].contiguous().view(torch.uint8).numpy().tobytes() for buffer in self.state_buffers]

    def insert(self, prompt, slots, state=None):
        self.cache.insert(InsertParams(key=RadixKey(prompt), value=slots, mamba_value=state))

    def save(self, prompt, seed=1):
        slots, state = self.compute(prompt, seed), self.state(seed)
        content = self.content(slots), self.state_content(state)
        self.insert(prompt, slots, state)
        self.settle()
        return content

    def forget(self):
        self.cache.evict(EvictParams(num_tokens=SLOTS, mamba_num=STATES))
        for buffer in [*self.pool.full_kv_pool.k_buffer, *self.pool.full_kv_pool.v_buffer, *self.state_buffers]:
            buffer.zero_()

    def request(self, rid):
        request = super().request(rid)
        request.kv = ReqKvInfo()
        return request


@pytest.fixture(scope="module")
def manager():
    with managed() as manager:
        yield manager


@pytest.fixture(params=CORES)
def tree(request, manager):
    tree = StateTree(manager.socket, core=request.param).up()
    yield tree
    tree.close()


@pytest.fixture
def prompt(request):
    return tokens(request.node.name, 4)


def test_a_state_comes_back_with_its_pages(tree, prompt):
    pages, state = tree.save(prompt)
    assert all(any(part) for part in state)
    tree.forget()
    request = tree.request("r")
    found = tree.hit(request, prompt)
    assert (found.host_hit_length, found.mamba_host_hit_length) == (4 * PAGE, 1)
    slots = tree.admit(request, found)
    assert tree.run_batch() == []
    assert tree.content(slots) == pages
    assert tree.state_content(request.kv.mamba_pool_idx) == state


def test_a_boundary_without_a_state_is_not_offered(tree, prompt):
    tree.save(prompt)
    pages, state = tree.save(prompt + tokens("more", 2), seed=2)
    tree.forget()
    # States are at four pages and at six; a prompt that parts in between goes on from the fourth.
    parted = prompt + tokens("more", 1) + tokens("other", 2)
    assert tree.hit(tree.request("r"), parted).host_hit_length == 4 * PAGE
    before = prompt[: 3 * PAGE] + tokens("other", 2)
    asked = tree.counters()["queries"]
    assert tree.match(tree.request("s"), before).host_hit_length == 0
    assert tree.counters()["queries"] > asked
    request = tree.request("t")
    found = tree.hit(request, prompt + tokens("more", 2), least=6 * PAGE)
    slots = tree.admit(request, found)
    assert tree.run_batch() == []
    end = len(pages[0]) // 6 * 4  # behind what both prompts begin with
    assert [part[end:] for part in tree.content(slots)] == [part[end:] for part in pages]
    assert tree.state_content(request.kv.mamba_pool_idx) == state


def test_a_load_that_fails_says_so(tree, prompt, manager):
    tree.save(prompt)
    tree.forget()
    request = tree.request("r")
    slots = tree.admit(request, tree.hit(request, prompt))
    client = tree.client
    # Its grant is gone, as that of a Manager under pressure.
    (load,) = tree.linker._loads._queued.values()
    client.release_grant(load.grant.number)
    assert tree.run_batch() == ["r"]
    assert not any(any(part) for part in tree.content(slots))
    assert not any(any(part) for part in tree.state_content(request.kv.mamba_pool_idx))


def params_of(states, kvcache):
    return SimpleNamespace(
        token_to_kv_pool_allocator=SimpleNamespace(get_kvcache=lambda: kvcache),
        req_to_token_pool=states,
        page_size=PAGE,
    )


def resolve(states, kvcache=None):
    components = [SimpleNamespace(name="FULL"), SimpleNamespace(name="MAMBA")]
    return pools.resolve(params_of(states, kvcache or attention_pool(states)), components)


def test_states_are_a_group_of_their_own():
    states = state_pool()
    group = resolve(states)
    assert [(pool.name, pool.rule, pool.page_slots) for pool in group] == [
        ("kv", "full_attention", PAGE),
        ("mamba", "recurrent", 1),
    ]
    # Every layer that a forward may wait for is counted, whichever kind it is.
    assert group.layer_count == 5
    latent = attention_pool(states, use_mla=True, kv_lora_rank=32, qk_rope_head_dim=8)
    # States differ between ranks, so the whole does.
    assert resolve(states, latent).rank_replicated is False


def subclass(thing):
    thing.__class__ = type("Other", (type(thing),), {})


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda states: setattr(states, "mamba_ckpt_pool", object()), "quantized checkpoints"),
        (lambda states: setattr(states, "short_conv_pool", SimpleNamespace(enabled=True)), "short_conv_pool"),
        (lambda states: setattr(states, "ngram_pool", SimpleNamespace(enabled=True)), "ngram_pool"),
        (lambda states: states.mamba_pool.register_slot_state(object()), "states beside the recurrent ones"),
        (
            lambda states: setattr(states.mamba_pool, "__class__", type("Other", (type(states.mamba_pool),), {})),
            "Other",
        ),
        (lambda states: setattr(states, "__class__", type("Other", (type(states),), {})), "of a Other"),
    ],
)
def test_states_in_an_unknown_form_are_refused(change, reason):
    states = state_pool()
    kvcache = attention_pool(states)
    change(states)
    with pytest.raises(UnsupportedError, match=reason):
        resolve(states, kvcache)


def test_states_with_replay_records_are_refused():
    states = state_pool(enable_linear_replayssm=True)
    with pytest.raises(UnsupportedError, match="replayssm_d"):
        resolve(states)
