"""Several cache groups in the connector: what is offered, loaded and kept of each, and that vLLM means the same."""

import dataclasses
from types import SimpleNamespace

import pytest
import torch
from fakes import (
    BLOCK,
    FULL,
    HASH_BYTES,
    STATE,
    WINDOW,
    FakeClient,
    FakeLink,
    block_hash,
    blocks,
    parsed,
    report,
    request,
    scheduler_side,
    start,
    step,
)
from vllm.v1.core.single_type_kv_cache_manager import (
    ChunkedLocalAttentionManager,
    MambaManager,
    SlidingWindowManager,
)
from vllm.v1.kv_cache_interface import ChunkedLocalAttentionSpec, FullAttentionSpec, MambaSpec, SlidingWindowSpec

import orbitkv
from orbitkv.identity import representation_digest
from orbitkv.vllm import compat
from orbitkv.vllm.groups import Groups
from orbitkv.vllm.messages import Load, Metadata, SaveReport, WorkerMetadata
from orbitkv.vllm.worker import WorkerSide

pytestmark = pytest.mark.usefixtures("fake_hashes")

PROMPT = 33  # eight hash blocks and a token


def mixed(retention=0):
    return Groups([FULL, WINDOW], BLOCK, retention)


def make(client, groups=None):
    return scheduler_side(client, groups or mixed())


def make_worker(client):
    side = WorkerSide(None, None, parsed(), mixed(), compat.Ranks(1, 1, 1), HASH_BYTES)
    side._link = FakeLink(client)
    return side


def key(name, group, block):
    return mixed().key(group, block_hash(name, mixed().place(group, block)))


def kept(metadata, group):
    return [
        block
        for save in metadata.saves
        if save.group == group
        for block in range(save.first_block, save.first_block + len(save.block_ids))
    ]


# ---- look-ups and loads ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tokens", "offered"), [(PROMPT, 8), (PROMPT - 1, 4), (17, 4), (16, 0)])
def test_only_boundaries_are_offered_and_never_the_last_token(tokens, offered):
    client = FakeClient(boundaries=[4, 8])
    assert start(make(client), request("r", tokens)) == (offered * BLOCK, offered > 0)
    assert client.named("query")[0][1] % 2 == 0


def test_a_load_takes_what_the_boundary_demands_and_nothing_else():
    client = FakeClient(boundaries=[4, 8])
    side = make(client)
    req = request("r", PROMPT)
    assert start(side, req) == (8 * BLOCK, True)
    side.allocated(req, blocks(([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 21, 22, 23])), 8 * BLOCK)
    ((_, count, _, _),) = client.named("begin")
    assert count == 8
    (load,) = side.build(step()).loads
    assert (load.prefix, load.runs) == (0, [(0, 0, 8), (1, 2, 2)])
    assert load.block_ids == [1, 2, 3, 4, 5, 6, 7, 8, 21, 22]
    assert load.hashes == b"".join(block_hash("r", i) for i in range(8))


def test_behind_the_engines_own_hit_a_window_needs_less():
    client = FakeClient(boundaries=[8])
    side = make(client)
    req = request("r", PROMPT)
    assert start(side, req, local=6) == (2 * BLOCK, True)
    side.allocated(req, blocks(([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 21, 22, 23])), 2 * BLOCK)
    (load,) = side.build(step()).loads
    assert (load.prefix, load.runs, load.block_ids) == (6, [(0, 6, 2), (1, 3, 1)], [7, 8, 22])
    worker_client = FakeClient()
    make_worker(worker_client).start_loads(Metadata(loads=[load]))
    assert worker_client.prefixes == [6]


@pytest.mark.parametrize("window", [[0, 0, 0, 22, 23], [0, 0, 21]], ids=["null", "missing"])
def test_null_blocks_never_travel(window):
    client = FakeClient(boundaries=[8])
    side = make(client)
    req = request("r", PROMPT)
    start(side, req)
    side.allocated(req, blocks(([1, 2, 3, 4, 5, 6, 7, 8, 9], window)), 8 * BLOCK)
    assert client.named("begin") == []
    assert len(client.named("release_lease")) == 1
    (load,) = side.build(step()).loads
    worker = make_worker(FakeClient())
    worker.start_loads(Metadata(loads=[load]))
    assert (worker.take_finished_loads(), worker.take_failed_loads()) == ({"r"}, {"r"})


def test_another_count_than_a_boundary_is_not_begun():
    client = FakeClient(boundaries=[8])
    side = make(client)
    req = request("r", PROMPT)
    start(side, req)
    side.allocated(req, blocks(([1, 2, 3, 4], [11, 12])), 3 * BLOCK)
    assert client.named("begin") == []


def test_a_key_that_failed_takes_its_boundaries_with_it():
    client = FakeClient(boundaries=[4, 8])
    side = make(client)
    side._follow_incarnation(client)
    side.update(report(WorkerMetadata(failed_hashes={key("r", 1, 3)})))
    assert start(side, request("r", PROMPT)) == (4 * BLOCK, True)
    side.update(report(WorkerMetadata(failed_hashes={key("q", 0, 5)})))
    assert start(side, request("q", PROMPT)) == (4 * BLOCK, True)
    side.update(report(WorkerMetadata(failed_hashes={key("p", 0, 3)})))
    assert start(side, request("p", PROMPT)) == (0, False)
    # The group is part of the name: the window's block fails, not the one of full attention with the same hash.
    assert key("r", 1, 3) != key("r", 0, 7)


def test_a_failed_load_of_several_groups_is_a_failed_request():
    client = FakeClient()
    side = make_worker(client)
    hashes = b"".join(block_hash("r", i) for i in range(6, 8))
    side.start_loads(Metadata(loads=[Load("r", 7, b"", hashes, [7, 8, 22], prefix=6, runs=[(0, 6, 2), (1, 3, 1)])]))
    client.complete(client.named("restore")[0][-1], "restore", [4, 4, 5])
    assert side.take_finished_loads() == {"r"}
    assert side.take_failed_loads() == {"r"}
    assert side.take_failed_loads() == set()
    assert side.take_bad_blocks() == set(), "vLLM does not take block ids with several groups"
    assert side.take_report().failed_hashes == {key("r", 1, 3)}


def test_a_request_whose_load_failed_is_looked_up_again_twice():
    client = FakeClient(boundaries=[8])
    side = make(client)
    req = request("r", PROMPT)
    side.on_new_request(req)
    for attempt in range(2):
        side._requests["r"].answered_at = -1e9
        assert side.matched_tokens(req, 0) == (8 * BLOCK, True), attempt
        side.allocated(req, blocks(([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 21, 22, 23])), 8 * BLOCK)
        side.build(step())
        side.update(report(finished={"r"}, failed={"r"}))
    assert side.counters.loads_failed == 2
    assert side.matched_tokens(req, 0) == (0, False)


# ---- saves ----------------------------------------------------------------------------------------------------------

FULL_TABLE, WINDOW_TABLE = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10], [31, 32, 33, 34, 35]


def test_of_a_window_the_tail_of_the_prompt_is_kept_and_what_the_answer_adds():
    side = make(FakeClient())
    req = request("r", PROMPT, prompt=PROMPT)
    side.on_new_request(req)
    metadata = side.build(step(new=[("r", (FULL_TABLE, WINDOW_TABLE), 0, PROMPT)]))
    assert kept(metadata, 0) == list(range(8))
    assert kept(metadata, 1) == [2, 3]
    (save,) = [save for save in metadata.saves if save.group == 1]
    assert (save.first_depth, save.parent, save.block_ids) == (4, block_hash("r", 3), [33, 34])
    assert save.hashes == b"".join(block_hash("r", i) for i in range(4, 8))
    req.num_tokens = 41
    req.block_hashes = [block_hash("r", i) for i in range(10)]
    metadata = side.build(step(cached=[("r", None, PROMPT, 7, False)], tables={"r": (FULL_TABLE, [0, 0, 33, 34, 35])}))
    assert (kept(metadata, 0), kept(metadata, 1)) == ([8, 9], [4])
    client = FakeClient()
    make_worker(client).start_saves(metadata)
    assert client.runs == [[(0, 8, 2)], [(1, 4, 1)]]


def test_chunks_of_a_prompt_keep_the_same_blocks():
    side = make(FakeClient())
    side.on_new_request(request("r", PROMPT))
    found = []
    tables = {0: WINDOW_TABLE, 15: [31, 32, 33, 34, 35], 24: [0, 32, 33, 34, 35]}
    for before, scheduled in ((0, 15), (15, 9), (24, 9)):
        entry = {"tables": {"r": (FULL_TABLE, tables[before])}, "cached": [("r", None, before, scheduled, False)]}
        found += kept(side.build(step(**entry)), 1)
    assert found == [2, 3]


@pytest.mark.parametrize(("retention", "blocks_kept"), [(None, [0, 1, 2, 3]), (24, [1, 2, 3]), (8, [0, 1, 2, 3])])
def test_vllms_retention_is_followed(retention, blocks_kept):
    side = make(FakeClient(), mixed(retention))
    side.on_new_request(request("r", PROMPT))
    assert kept(side.build(step(new=[("r", (FULL_TABLE, WINDOW_TABLE), 0, PROMPT)])), 1) == blocks_kept


def test_where_prompts_part_is_a_boundary_too():
    side = make(FakeClient())
    req = request("r", PROMPT)
    req.shared_prefix_boundary = 19
    side.on_new_request(req)
    assert kept(side.build(step(new=[("r", (FULL_TABLE, WINDOW_TABLE), 0, PROMPT)])), 1) == [0, 1, 2, 3]


def test_a_window_that_was_loaded_is_known_and_its_null_blocks_are_skipped():
    client = FakeClient(boundaries=[8])
    side = make(client)
    side.build(step())
    req = request("r", PROMPT)
    start(side, req)
    tables = ([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 21, 22, 23])
    side.allocated(req, blocks(tables), 8 * BLOCK)
    side.build(step())
    side.update(report(finished={"r"}))
    assert side.build(step(new=[("r", tables, 8 * BLOCK, 1)])).saves == []
    # Another Manager has nothing of it.
    client.incarnation = b"two".ljust(16, b".")
    again = request("q", PROMPT, name="r")
    side.on_new_request(again)
    metadata = side.build(step(new=[("q", tables, 8 * BLOCK, 1)]))
    assert (kept(metadata, 0), kept(metadata, 1)) == (list(range(8)), [2, 3])
    saves = {save.job: [SaveReport(client.incarnation, [True] * len(save.block_ids))] for save in metadata.saves}
    side.update(report(WorkerMetadata(saves)))
    assert side.counters.saved_blocks == 10
    assert key("r", 1, 3) in side._stored and key("r", 0, 7) in side._stored


def test_a_block_that_another_group_gets_is_fenced():
    side = make(FakeClient())
    side.on_new_request(request("r", PROMPT))
    metadata = side.build(step(new=[("r", (FULL_TABLE, WINDOW_TABLE), 0, PROMPT)]))
    (job,) = [save.job for save in metadata.saves if save.group == 1]
    side.on_new_request(request("s", 4))
    # Window block 33 fell out of the window and holds full attention now.
    assert side.build(step(new=[("s", ([33], [50]), 0, 4)])).taken_jobs == [job]


def test_a_block_found_with_its_content_is_not_fenced_in_its_group():
    side = make(FakeClient())
    req = request("r", PROMPT)
    side.on_new_request(req)
    side.build(step(new=[("r", (FULL_TABLE, WINDOW_TABLE), 0, PROMPT)]))
    side.request_finished(req)
    side.on_new_request(request("s", PROMPT, name="r"))
    tables = ([1, 2, 3, 4, 5, 6, 7, 8, 11], [0, 0, 33, 34, 36])
    assert side.build(step(new=[("s", tables, 8 * BLOCK, 1)])).taken_jobs == []


# ---- states and drafters --------------------------------------------------------------------------------------------


def recurrent(retention=0, exact=True):
    return Groups([FULL, dataclasses.replace(STATE, exact=exact)], BLOCK, retention)


def test_of_a_state_a_boundary_needs_the_last_block_alone():
    client = FakeClient(boundaries=[4, 8])
    side = make(client, recurrent())
    req = request("r", PROMPT)
    assert start(side, req) == (8 * BLOCK, True)
    side.allocated(req, blocks(([1, 2, 3, 4, 5, 6, 7, 8, 9], [0, 0, 0, 22, 23])), 8 * BLOCK)
    (load,) = side.build(step()).loads
    assert (load.runs, load.block_ids) == ([(0, 0, 8), (1, 3, 1)], [1, 2, 3, 4, 5, 6, 7, 8, 22])


def test_a_state_is_kept_only_where_a_step_ends():
    """A step that ends inside a block, or runs over several, leaves other states in the table than the names say."""
    side = make(FakeClient(), recurrent(retention=None))
    side.on_new_request(request("r", PROMPT))
    found = []
    for before, after, table in ((0, 16, [0, 32]), (16, 22, [0, 32, 33]), (22, 32, [0, 0, 33, 34]), (32, 33, [0] * 4)):
        entry = {"tables": {"r": (FULL_TABLE, table)}, "cached": [("r", None, before, after - before, False)]}
        found.append(kept(side.build(step(**entry)), 1))
    assert found == [[1], [], [3], []]
    # One step over the whole prompt: the engine says where it kept a state.
    side.on_new_request(request("s", PROMPT))
    handed = {"s": [(1, 32, 16)], "other": [(1, 31, 8)]}
    whole_prompt = step(new=[("s", (FULL_TABLE, [0, 32, 0, 0, 35]), 0, PROMPT)], handed=handed)
    assert kept(side.build(whole_prompt), 1) == [1]
    assert make(FakeClient(), recurrent())._groups.keeps(1, 3, PROMPT) is True
    assert make(FakeClient(), recurrent())._groups.keeps(1, 1, PROMPT) is False


def test_an_engine_that_keeps_every_state_has_them_all_saved():
    side = make(FakeClient(), recurrent(retention=None, exact=False))
    side.on_new_request(request("r", PROMPT))
    assert kept(side.build(step(new=[("r", (FULL_TABLE, [31, 32, 33, 34, 35]), 0, PROMPT)])), 1) == [0, 1, 2, 3]


def test_the_last_found_block_of_a_drafter_is_not_offered():
    client = FakeClient({block_hash("r", i) for i in range(8)})
    side = make(client, Groups([dataclasses.replace(FULL, volatile=True)]))
    assert start(side, request("r", PROMPT)) == (7 * BLOCK, True)
    assert start(side, request("q", PROMPT, name="r"), local=7) == (0, False)
    volatile = Groups([FULL, dataclasses.replace(WINDOW, volatile=True)], BLOCK)
    assert start(make(FakeClient(boundaries=[4, 6, 8]), volatile), request("r", PROMPT)) == (6 * BLOCK, True)
    assert start(make(FakeClient(boundaries=[4, 8]), volatile), request("r", PROMPT)) == (4 * BLOCK, True)
    assert start(make(FakeClient(boundaries=[8]), volatile), request("r", PROMPT)) == (0, False)


def test_of_a_drafters_window_the_tail_before_the_last_is_kept_as_well():
    side = make(FakeClient(), Groups([FULL, dataclasses.replace(WINDOW, volatile=True)], BLOCK))
    side.on_new_request(request("r", PROMPT))
    assert kept(side.build(step(new=[("r", (FULL_TABLE, WINDOW_TABLE), 0, PROMPT)])), 1) == [0, 1, 2, 3]


# ---- the same as vLLM -----------------------------------------------------------------------------------------------


def specs(block, window, full_block=32):
    shape = {"num_kv_heads": 2, "head_size": 32, "dtype": torch.float32}
    return (
        FullAttentionSpec(block_size=full_block, **shape),
        SlidingWindowSpec(block_size=block, sliding_window=window, **shape),
    )


def checked(*members, retention=0, **changes):
    groups = [SimpleNamespace(kv_cache_spec=spec, layer_names=[f"l{i}"]) for i, spec in enumerate(members)]
    fields = {"num_blocks": 10, "kv_tp_replicas": 1, "prefix_cache_retention_interval": retention} | changes
    config = SimpleNamespace(
        parallel_config=SimpleNamespace(tensor_parallel_size=1, pipeline_parallel_size=1),
        cache_config=SimpleNamespace(block_size=32, prefix_caching_hash_algo="sha256", cache_dtype="auto"),
        speculative_config=None,
    )
    return compat.check_supported(config, SimpleNamespace(kv_cache_groups=groups, **fields))


@pytest.mark.parametrize("window", [1, 2, 31, 33, 64, 65, 97, 500])
@pytest.mark.parametrize("block", [32, 64])
def test_a_boundary_needs_what_vllm_allocates(block, window):
    full, sliding = specs(block, window)
    groups = checked(full, sliding, hash_block_size=32)
    manager = SlidingWindowManager.__new__(SlidingWindowManager)
    manager.sliding_window, manager.extra_retained_tokens = window, 0
    for boundary in range(groups.align_tokens, 20 * 32, groups.align_tokens):
        first = manager.get_num_skipped_tokens(boundary) // block
        demanded = {run[0]: run[1:] for run in groups.demand(0, boundary // 32)}
        assert demanded[0] == (0, boundary // 32)
        assert demanded.get(1, (boundary // block, 0)) == (first, boundary // block - first)


@pytest.mark.parametrize("chunk", [32, 64, 96, 100, 1000])
def test_a_boundary_needs_of_chunks_what_vllm_allocates(chunk):
    full, _ = specs(32, 64)
    chunked = ChunkedLocalAttentionSpec(
        block_size=32, num_kv_heads=2, head_size=32, dtype=torch.float32, attention_chunk_size=chunk
    )
    groups = checked(full, chunked)
    manager = ChunkedLocalAttentionManager.__new__(ChunkedLocalAttentionManager)
    manager.attention_chunk_size = chunk
    for boundary in range(32, 20 * 32, 32):
        first = manager.get_num_skipped_tokens(boundary) // 32
        demanded = {run[0]: run[1:] for run in groups.demand(0, boundary // 32)}
        assert demanded.get(1, (boundary // 32, 0)) == (first, boundary // 32 - first)
    assert all(groups.keeps(1, block, 300) for block in range(9))


def state_spec(block):
    return MambaSpec(block_size=block, shapes=((4, 4),), dtypes=(torch.float32,), mamba_cache_mode="align")


@pytest.mark.parametrize("retention", [None, 0, 64, 256])
@pytest.mark.parametrize("prompt", [64, 65, 300, 513])
def test_of_states_is_needed_and_kept_what_vllm_needs_and_keeps(prompt, retention):
    full, _ = specs(32, 64)
    state = state_spec(32)
    groups = checked(full, state, retention=retention)
    manager = MambaManager.__new__(MambaManager)
    for boundary in range(32, 20 * 32, 32):
        first = manager.get_num_skipped_tokens(boundary) // 32
        assert groups.demand(0, boundary // 32)[1] == (1, first, boundary // 32 - first)
    replay = (prompt - 1) // 32
    mask = MambaManager.reachable_block_mask(
        start_block=0,
        end_block=replay,
        alignment_tokens=32,
        kv_cache_spec=state,
        use_eagle=False,
        retention_interval=retention,
        reachable_boundaries=[prompt - 1, 130],
    )
    ours = [groups.keeps(1, block, prompt, 130) for block in range(replay)]
    assert ours == (mask if mask is not None else [True] * replay)


@pytest.mark.parametrize("retention", [None, 0, 64, 256])
@pytest.mark.parametrize("window", [1, 33, 64, 97])
@pytest.mark.parametrize("prompt", [64, 65, 300, 513])
def test_what_is_kept_of_a_prompt_is_what_vllm_keeps(prompt, window, retention):
    full, sliding = specs(32, window)
    groups = checked(full, dataclasses.replace(sliding), retention=retention)
    replay = (prompt - 1) // 32
    mask = SlidingWindowManager.reachable_block_mask(
        start_block=0,
        end_block=replay,
        alignment_tokens=32,
        kv_cache_spec=sliding,
        use_eagle=False,
        retention_interval=retention,
        reachable_boundaries=[prompt - 1, 130],
    )
    ours = [groups.keeps(1, block, prompt, 130) for block in range(replay)]
    assert ours == (mask if mask is not None else [True] * replay)


def test_groups_are_found_with_their_rules():
    full, sliding = specs(64, 100)
    groups = checked(full, sliding, hash_block_size=32, cache_hit_alignment_tokens=64)
    assert [(group.block_tokens, group.kind, group.span_tokens) for group in groups] == [
        (32, "full_attention", 0),
        (64, "sliding_window", 100),
    ]
    assert (groups.hash_tokens, groups.align_tokens, groups.plain) == (32, 64, False)
    with pytest.raises(compat.UnsupportedError, match="cache_hit_alignment_tokens 32"):
        checked(full, sliding, hash_block_size=32, cache_hit_alignment_tokens=32)


def test_the_representation_names_every_group_in_order():
    one, other = ({"page_bytes": 1}, {"page_bytes": 2})
    digests = {1: b"a" * 32, 2: b"b" * 32}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(orbitkv, "representation_digest", lambda fields: digests[fields["page_bytes"]])
        assert representation_digest([one]) == b"a" * 32
        several = {representation_digest(each) for each in ([one, other], [other, one], [one, one], [one])}
        assert len(several) == 4
