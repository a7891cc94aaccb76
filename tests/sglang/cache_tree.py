"""SGLang's radix cache with real pools and our linker in this process: no model, no scheduler, a real Manager."""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from array import array
from pathlib import Path
from types import SimpleNamespace

import torch
from patience import PATIENT
from sglang.srt.mem_cache.allocator import PagedTokenToKVPoolAllocator
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import (
    CacheRequestHandle,
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool, MLATokenToKVPool, ReqToTokenPool
from sglang.srt.mem_cache.radix_cache import RadixKey
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool
from sglang.srt.mem_cache.unified_cache.components import ComponentType
from sglang.srt.mem_cache.unified_radix_cache import UnifiedRadixCache
from sglang.srt.runtime_context import publish
from sglang.srt.server_args import ServerArgs

import orbitkv
from harness.manager import Manager
from harness.processes import wait_until
from orbitkv.sglang import OrbitKVLinker

PAGE = 16
SLOTS = 512
CORES = ("rust", "python")
WINDOW = 2 * PAGE
WAIT_FOR_DISK = {"load_wait_ms": 20_000}  # look-ups wait for what is not in memory

ARGUMENTS = ServerArgs(model_path="dummy", device="cpu")
# Otherwise it is read from a model's configuration.
ARGUMENTS._mamba_cache_chunk_size = PAGE
publish(ARGUMENTS, role="test")


def digest(text):
    return hashlib.sha256(text.encode()).digest()


def tokens(name, pages, page=PAGE):
    """Of a prompt; two with one name begin alike."""
    count = pages * page
    return array("q", (int.from_bytes(digest(f"{name} {i}")[:2], "little") for i in range(count)))


def eventually(condition):
    """Looks again until it holds; the deadline only ends a test that has failed."""
    return wait_until(condition, 60.0, 0.002)


@contextlib.contextmanager
def managed(*extra, pool="64MiB"):
    """A Manager of its own, in a folder with a short name, because a socket's path has at most 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="okv-") as name:
        Path(name).chmod(0o700)
        manager = Manager(Path(name) / "manager.sock", pool, extra=extra).start()
        try:
            yield manager
        finally:
            manager.close()


class Connection:
    """A client at once, instead of one that comes when the weights are identified."""

    def __init__(self, socket, group, name="engine", **options):
        self._socket, self._group, self._name, self._options = socket, group, name, options
        self.renewals = 0
        self.client = self._make("")

    def _make(self, epoch):
        client = orbitkv.Client(
            orbitkv.ClientOptions(
                socket=str(self._socket),
                instance=f"{self._name}-{os.urandom(8).hex()}",
                role="both",
                computation_digest=digest(f"computation{epoch}"),
                representation_digest=digest(str([pool.formats for pool in self._group])),
                name=self._name,
                **self._options,
            )
        )
        self._group.register(client)
        return client

    def renew(self):
        self.renewals += 1
        self.client.close(0.0)
        self.client = self._make(os.urandom(8).hex())

    def close(self, timeout_s):
        self.client.close(timeout_s)


def mha_pool(slots=SLOTS, **more):
    values = {"head_num": 2, "head_dim": 8, "layer_num": 3, "dtype": torch.float32, "enable_memory_saver": False}
    return MHATokenToKVPool(size=slots, page_size=PAGE, device="cpu", **(values | more))


def mla_pool(slots=SLOTS, **more):
    values = {"kv_lora_rank": 32, "qk_rope_head_dim": 8, "layer_num": 3, "dtype": torch.bfloat16}
    return MLATokenToKVPool(size=slots, page_size=PAGE, device="cpu", enable_memory_saver=False, **(values | more))


def swa_pool(slots=SLOTS, **more):
    values = {"swa_attention_layer_ids": [0, 2], "full_attention_layer_ids": [1, 3], "head_num": 2, "head_dim": 8}
    return SWAKVPool(
        size=slots, size_swa=slots // 2, page_size=PAGE, dtype=torch.float32, device="cpu", **(values | more)
    )


def buffers(pool):
    """All tensors that attention reads, of every layer; two index spaces in a pool with windows."""
    if isinstance(pool, MLATokenToKVPool):
        return list(pool.kv_buffer)
    return [*pool.k_buffer, *pool.v_buffer]


class Tree:
    """One engine's cache. `content` compares bytes as they are, whatever the dtype.

    `patient`: what is not found is not there. Else it has the options that engines have by themselves.
    """

    def __init__(
        self, socket, *, pool=None, core="rust", extra=None, connect=None, name="engine", states=None, patient=True
    ):
        self.pool = pool or mha_pool()
        self.windowed = isinstance(self.pool, SWAKVPool)
        if self.windowed:
            self.allocator = SWATokenToKVPoolAllocator(
                SLOTS, SLOTS // 2, PAGE, torch.float32, "cpu", self.pool, need_sort=False
            )
        else:
            self.allocator = PagedTokenToKVPoolAllocator(
                SLOTS, page_size=PAGE, dtype=torch.float32, device="cpu", kvcache=self.pool, need_sort=False
            )
        components = (ComponentType.FULL, ComponentType.SWA) if self.windowed else (ComponentType.FULL,)
        if states is not None:
            components = (ComponentType.FULL, ComponentType.MAMBA)
        params = CacheInitParams(
            disable=False,
            req_to_token_pool=states
            or ReqToTokenPool(size=4, max_context_len=1024, device="cpu", enable_memory_saver=False),
            token_to_kv_pool_allocator=self.allocator,
            page_size=PAGE,
            tree_components=components,
            tree_core_backend=core,
            enable_mamba_extra_buffer=states is not None,
            sliding_window_size=WINDOW if self.windowed else None,
        )
        self.cache = UnifiedRadixCache(params)
        self.connections = []

        def connected(params, group, options):
            if connect:
                made = connect(group, options)
            else:
                made = Connection(socket, group, name, query_deadline_ms=options.lookup_limit_ms)
            self.connections.append(made)
            return self.connections[0]

        self.linker = OrbitKVLinker(
            None,
            params,
            components=set(self.cache.components),
            extra_config={"endpoint": f"unix://{socket}"} | (PATIENT if patient else {}) | (extra or {}),
            connect=connected,
        )
        self.cache.init_cache_linker(self.linker)
        self.counter = self.linker.layer_done_counter
        self.pool.register_layer_transfer_counter(self.counter)

    @property
    def connection(self):
        return self.connections[0]

    @property
    def client(self):
        return self.connection.client

    def counters(self):
        return self.client.counters()

    def up(self):
        assert self.client.wait_up(60.0)
        return self

    def close(self):
        self.cache.release_host_resources()

    # ---- what an engine does ------------------------------------------------------------------------------------

    def compute(self, prompt, seed=1):
        """Pages of a prompt with random content, in slots that are not in the tree yet."""
        count = len(prompt)
        if self.windowed:
            zero, many = torch.zeros(1, dtype=torch.int64), torch.tensor([count])
            slots = self.allocator.alloc_extend(zero, zero, many, many, torch.tensor([-1]), count)
        else:
            slots = self.allocator.alloc(count)
        random = torch.Generator().manual_seed(seed)
        for pool, rows in self._views(slots, whole=True):
            for buffer in buffers(pool):
                buffer[rows] = torch.randn(len(rows), *buffer.shape[1:], generator=random).to(buffer.dtype)
        return slots

    def _views(self, slots, whole=False):
        if not self.windowed:
            return [(self.pool, slots)]
        window = self.pool.translate_loc_from_full_to_swa(slots if whole else slots[-WINDOW:])
        return [(self.pool.full_kv_pool, slots), (self.pool.swa_kv_pool, window)]

    def content(self, slots):
        """The bytes of these slots in every buffer; in a window's pool of the last ones, which the next token sees."""
        return [
            buffer[rows].view(torch.uint8).numpy().tobytes()
            for pool, rows in self._views(slots)
            for buffer in buffers(pool)
        ]

    def insert(self, prompt, slots, windows_from=0):
        """`windows_from`: of the tokens before it the window's pool has nothing any more."""
        evicted = {ComponentType.SWA: windows_from} if windows_from else {}
        return self.cache.insert(InsertParams(key=RadixKey(prompt), value=slots, component_evicted_seqlens=evicted))

    def settle(self):
        """Until every offload has its result and the tree knows it."""
        linker = self.cache.linker

        def ended():
            self.cache.check_hicache_events()
            return not linker.pending_offloads

        assert eventually(ended)

    def save(self, prompt, seed=1):
        """Computes, inserts, offloads. Returns the bytes."""
        slots = self.compute(prompt, seed)
        content = self.content(slots)
        self.insert(prompt, slots)
        self.settle()
        return content

    def forget(self):
        """Evicts everything and overwrites the pages."""
        self.cache.evict(EvictParams(num_tokens=SLOTS, swa_num_tokens=SLOTS))
        self.wipe()

    def wipe(self):
        for pool in (self.pool.full_kv_pool, self.pool.swa_kv_pool) if self.windowed else (self.pool,):
            for buffer in buffers(pool):
                buffer.zero_()

    def request(self, rid):
        return SimpleNamespace(rid=rid, last_node=None, kv=None, session=None, swa_branching_seqlen=None)

    def match(self, request, prompt):
        found = self.cache.match_prefix(MatchPrefixParams(key=RadixKey(prompt), req=request))
        request.last_node = found.last_device_node
        return found

    def hit(self, request, prompt, least=1):
        """Looks up until the Manager has said that it has so many tokens behind the device's own."""
        found = []

        def has_them():
            self.cache.check_hicache_events()  # so begins each pass of SGLang's scheduler
            found[:] = [self.match(request, prompt)]
            return found[0].host_hit_length >= least

        assert eventually(has_them)
        return found[0]

    def admit(self, request, found):
        """The slots that the load goes to; None when it was refused."""
        count, _ = self.cache.init_load_back(
            InitLoadBackParams(
                best_match_node=found.best_match_node, host_hit_length=found.host_hit_length, req=request
            )
        )
        return self.cache.linker.private_load_indices[request.rid] if count else None

    def run_batch(self):
        """A forward that waits for each layer, and the verdict: requests whose pages are not there."""
        index = self.cache.ready_to_load_host_cache()
        self.counter.set_consumer(index)
        for layer in range(self.linker.group.layer_count):
            self.counter.wait_until(layer)
        return self.cache.linker.finish_loads()

    def restore(self, rid, prompt):
        """A whole request: look-up, load, forward. Returns the slots."""
        request = self.request(rid)
        found = self.hit(request, prompt, least=len(prompt) - self.match(request, prompt).device_prefix_len)
        slots = self.admit(request, found)
        assert slots is not None
        assert self.run_batch() == []
        return slots

    def abort(self, rid):
        self.cache.release_aborted_request(CacheRequestHandle(rid=rid, attempt_id=0))
