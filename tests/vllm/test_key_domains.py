"""Adapters, identifiers of images and replaced weights: which requests are cached, and under which keys."""

import os
from concurrent.futures import Future
from types import SimpleNamespace

import pytest
from fakes import BLOCK, HASH_BYTES, FakeClient, block_hash, blocks, report, request, scheduler_side, step

from orbitkv.vllm import changes, key_domains, lora
from orbitkv.vllm.changes import Changes
from orbitkv.vllm.lora import AdapterFiles, content_digest, derived, key_domain, stamp
from orbitkv.vllm.messages import WorkerMetadata

CONTENT = b"c" * 32
OTHER = b"d" * 32
HASH_OF_CONTENT = "0123456789abcdef" * 4


# ---- an adapter's files ---------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path):
    write_adapter(tmp_path / "adapter", b"one")
    return tmp_path / "adapter"


def write_adapter(folder, weights, config="{}"):
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(config)
    (folder / "adapter_model.safetensors").write_bytes(weights)


def adapter(path, number=1, name="a", **more):
    return SimpleNamespace(name=name, path=str(path), adapter_id=number, **more)


def test_content_decides_and_nothing_else(folder, tmp_path):
    first = content_digest(folder)
    assert len(first) == 32
    write_adapter(tmp_path / "copy", b"one")
    (tmp_path / "copy" / "README.md").write_text("about")
    assert content_digest(tmp_path / "copy") == first, "neither the place nor other files"
    write_adapter(tmp_path / "copy", b"two")
    assert content_digest(tmp_path / "copy") != first
    write_adapter(tmp_path / "copy", b"one", '{"r": 8}')
    assert content_digest(tmp_path / "copy") != first, "the configuration as well"
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    assert content_digest(folder) != first


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_half_an_adapter_has_no_content(folder, missing):
    (folder / missing).unlink()
    assert content_digest(folder) == b""
    assert content_digest(folder / "nowhere") == b""


@pytest.mark.parametrize(
    "path", ["", "~nobody-of-this-name/x", "x" * 5000, "x" * 5000 + "/y", "a\0b", "org/name", "a/b/c/d"]
)
def test_a_path_from_outside_is_at_most_unreadable(path):
    files = AdapterFiles()
    assert files.start(adapter(path)).result(10) == b""
    files.close()


def test_files_that_change_while_they_are_read_have_no_content(folder, monkeypatch):
    original = lora._file_digest

    def slow(path):
        digest = original(path)
        (folder / "adapter_model.safetensors").write_bytes(b"other")
        return digest

    monkeypatch.setattr(lora, "_file_digest", slow)
    assert content_digest(folder) == b""


def test_what_did_not_change_is_read_once_unless_it_is_loaded_anew(folder, monkeypatch):
    read = []
    original = lora._file_digest
    monkeypatch.setattr(lora, "_file_digest", lambda path: read.append(path) or original(path))
    files = AdapterFiles()
    first = files.start(adapter(folder)).result(10)
    assert files.start(adapter(folder)).result(10) == first
    assert len(read) == 2
    assert files.start(adapter(folder, load_inplace=True)).result(10) == first
    assert len(read) == 4
    write_adapter(folder, b"two")
    os.utime(folder / "adapter_model.safetensors", ns=(1, 1))
    assert files.start(adapter(folder)).result(10) != first
    files.close()
    files.close()


def test_a_domain_changes_every_key_and_keeps_their_length():
    domains = [key_domain(CONTENT, "float16"), key_domain(OTHER, "float16"), key_domain(CONTENT, "bfloat16")]
    domains.append(key_domain(CONTENT, "float16", is_3d=True))
    for size in (16, 32):
        name = bytes(range(size))
        keys = {name, *(derived(domain, name) for domain in domains)}
        assert len(keys) == 5 and {len(key) for key in keys} == {size}


# ---- requests -------------------------------------------------------------------------------------------------------


class Files:
    """Stands in for AdapterFiles: contents by path."""

    def __init__(self, contents):
        self.contents = contents
        self.pending = []
        self.wait = False

    def start(self, lora):
        future = Future()
        if self.wait:
            self.pending.append(future)
        else:
            future.set_result(self.contents.get(lora.path, b""))
        return future

    def close(self):
        pass


class Pool:
    def __init__(self):
        self.cached_block_hash_to_block = {}


@pytest.fixture
def side(fake_hashes):
    made = scheduler_side(FakeClient())
    made.domains._files = Files({"/a": CONTENT, "/b": OTHER})
    made.domains.pool = Pool()
    made.domains.pool.cached_block_hash_to_block["x"] = 1
    return made


def admit(side, req, local=0):
    side.on_new_request(req)
    return side.matched_tokens(req, local * BLOCK)


def saved(side, req_id, table=(1, 2, 3), before=0):
    metadata = side.build(step(new=[(req_id, list(table), before, len(table) * BLOCK - before)]))
    return metadata.saves


def names(hashes):
    return [hashes[at : at + HASH_BYTES] for at in range(0, len(hashes), HASH_BYTES)]


def test_keys_of_a_request_with_an_adapter_are_in_the_domain_of_its_content(side):
    client = side._link.client
    domain = key_domain(CONTENT, "")
    own = [derived(domain, block_hash("r", i)) for i in range(3)]
    client.present = {block_hash("r", i) for i in range(3)}
    assert admit(side, request("r", 13, lora=adapter("/a", 7))) == (0, False), "blocks without the adapter are others"
    (save,) = saved(side, "r")
    assert names(save.hashes) == own
    assert save.adapter == (7, CONTENT, False)
    client.present = set(own)
    assert admit(side, request("s", 13, name="r", lora=adapter("/a", 7))) == (3 * BLOCK, True)
    side.allocated(side._requests["s"].request, blocks([4, 5, 6, 7]), 3 * BLOCK)
    (load,) = side.build(step()).loads
    assert names(load.hashes) == own
    assert load.adapter == (7, CONTENT, False)
    assert admit(side, request("t", 13, name="r", lora=adapter("/b", 8))) == (0, False), "another content"


def test_a_later_run_names_its_parent_in_the_domain_too(side):
    domain = key_domain(CONTENT, "")
    admit(side, request("r", 13, lora=adapter("/a")))
    saved(side, "r", (1,))
    metadata = side.build(step(cached=[("r", [2, 3], BLOCK, 2 * BLOCK, False)], tables={"r": [1, 2, 3]}))
    assert metadata.saves[0].parent == derived(domain, block_hash("r", 0))


def test_an_adapter_that_cannot_be_read_is_not_cached_and_its_requests_say_why(side, caplog):
    side._link.client.present = {block_hash("r", i) for i in range(3)}
    assert admit(side, request("r", 13, lora=adapter("/nowhere"))) == (0, False)
    assert side._requests["r"].outside == side._requests["r"].why == key_domains.LORA_UNREADABLE
    assert saved(side, "r") == []
    assert side._link.client.named("query") == []
    assert "'/nowhere' cannot be read" in caplog.text


def test_a_request_waits_for_its_adapter_and_not_for_ever(side, monkeypatch):
    now = [100.0]
    monkeypatch.setattr(key_domains, "time", SimpleNamespace(monotonic=lambda: now[0]))
    files = side.domains._files
    files.wait = True
    req = request("r", 13, lora=adapter("/a"))
    assert admit(side, req) == (None, False)
    assert saved(side, "r") == [], "vLLM may go on without an answer"
    files.pending[0].set_result(CONTENT)
    assert side.matched_tokens(req, 0) == (0, False)
    assert side._requests["r"].domain == key_domain(CONTENT, "")
    late = request("s", 13, lora=adapter("/b", 2))
    assert admit(side, late) == (None, False)
    now[0] += key_domains.READ_WAIT_S
    assert side.matched_tokens(late, 0) == (0, False)
    assert side._requests["s"].outside == key_domains.LORA_SLOW


def test_blocks_that_the_engine_kept_of_an_adapters_old_content_are_not_saved(side):
    """Its own cache knows an adapter by name and path."""
    admit(side, request("r", 13, lora=adapter("/a")))
    side.domains._files.contents["/a"] = OTHER
    inplace = adapter("/a", load_inplace=True)
    admit(side, request("s", 13, lora=inplace), local=1)
    assert side._requests["s"].outside == key_domains.FOUND_OLD
    assert saved(side, "s", before=BLOCK) == []
    admit(side, request("t", 13, lora=inplace))
    (save,) = saved(side, "t", (4, 5, 6))
    assert names(save.hashes)[0] == derived(key_domain(OTHER, ""), block_hash("t", 0)), "computed from the start"
    side.domains.pool.cached_block_hash_to_block.clear()
    side.reset()
    admit(side, request("u", 13, lora=adapter("/a")), local=1)
    assert side._requests["u"].outside == "", "the engine's own cache was emptied"


def test_an_adapter_that_is_loaded_as_it_was_is_not_taken_for_its_files(side, caplog):
    side.update(report(WorkerMetadata(adapters={5: OTHER})))
    admit(side, request("r", 13, lora=adapter("/a", 5)))
    assert side._requests["r"].outside == key_domains.LORA_CHANGED
    assert "still loaded as it was" in caplog.text
    side.update(report(WorkerMetadata(adapters={5: CONTENT})))
    admit(side, request("s", 13, lora=adapter("/a", 5)))
    assert side._requests["s"].outside == ""
    admit(side, request("t", 13, lora=adapter("/a", 5)), local=1)
    assert side._requests["t"].outside == key_domains.FOUND_OLD


def test_a_late_word_of_another_content_makes_what_was_computed_suspect(side):
    admit(side, request("r", 13, lora=adapter("/a", 5)))
    side.update(report(WorkerMetadata(adapters={5: OTHER})))
    side.update(report(WorkerMetadata(adapters={5: CONTENT})))
    admit(side, request("s", 13, lora=adapter("/a", 5)), local=1)
    assert side._requests["s"].outside == key_domains.FOUND_OLD


def image(identifier):
    return SimpleNamespace(identifier=identifier)


@pytest.mark.parametrize(
    ("identifiers", "trusted", "cached"),
    [
        ([HASH_OF_CONTENT], False, True),
        ([HASH_OF_CONTENT * 2], False, True),
        ([HASH_OF_CONTENT, "cat.png"], False, False),
        (["cat.png"], True, True),
        (["renderer0-mm-3-image-0"], False, False),
        ([HASH_OF_CONTENT.upper()], False, False),
        ([HASH_OF_CONTENT + "\n"], False, False),
        (["x:" + HASH_OF_CONTENT], False, False),
    ],
)
def test_identifiers_of_images_count_when_they_are_content_hashes(identifiers, trusted, cached):
    req = request("r", 13, mm=[image(item) for item in identifiers])
    assert (key_domains.outside(req, trusted) == "") is cached


def test_an_adapter_before_an_images_hash():
    features = [image("a:" + HASH_OF_CONTENT)]
    assert key_domains.outside(request("r", 13, mm=features, lora=adapter("/a")), False) == ""
    assert key_domains.outside(request("r", 13, mm=features, lora=adapter("/a", name="b")), False)


# ---- replaced weights -----------------------------------------------------------------------------------------------


def test_replaced_weights_move_the_engine_and_leave_running_requests_out(side):
    admit(side, request("r", 13))
    side.update(report(WorkerMetadata(weights_changed=True)))
    assert len(side._link.epochs) == 1
    assert saved(side, "r") == []
    admit(side, request("s", 13), local=1)
    assert side._requests["s"].outside == key_domains.FOUND_OLD
    admit(side, request("t", 13))
    (save,) = saved(side, "t", (4, 5, 6))
    assert names(save.hashes)[0] == block_hash("t", 0)
    side.domains.pool.cached_block_hash_to_block.clear()
    side.reset()
    admit(side, request("u", 13), local=1)
    assert side._requests["u"].outside == ""


def test_weights_that_are_replaced_behind_a_reset_leave_nothing_old(side):
    side.domains.pool.cached_block_hash_to_block.clear()
    side.update(report(WorkerMetadata(weights_changed=True)))
    admit(side, request("s", 13), local=1)
    assert side._requests["s"].outside == ""


class Runner:
    def reload_weights(self, path):
        return f"reloaded {path}"

    def sleep(self, level=1):
        return f"slept at {level}"

    def _load_adapter(self, lora_request):
        return lora_request.lora_name


@pytest.fixture
def watched(monkeypatch):
    class Fresh(Runner):
        reload_weights = Runner.reload_weights
        sleep = Runner.sleep
        _load_adapter = Runner._load_adapter

    here = [entry._replace(module=__name__, name="Watched") for entry in changes.WATCHED]
    monkeypatch.setattr(changes, "WATCHED", here)
    monkeypatch.setitem(globals(), "Watched", Fresh)
    told = Changes()
    told.watch()
    told.watch()
    return told, Fresh()


def test_a_reload_is_noticed_once_by_everybody_who_watches(watched):
    told, runner = watched
    other = Changes()
    other.watch()
    assert told.may_load(None) and told.may_save(None)
    assert runner.reload_weights("x") == "reloaded x"
    for each in (told, other):
        assert not each.may_load(None) and not each.may_save(None)
        assert each.take_news() == (True, {})
        assert each.take_news() == (False, {})
    told.epoch_began()
    assert told.may_load(None) and told.may_save(None)
    runner.reload_weights("y")
    assert told.take_news() == (True, {}), "the next one is told again"


def test_a_model_that_is_given_weights_is_noticed(watched):
    class Base:
        def load_weights(self, weights):
            return set(weights)

    class Model(Base):
        pass

    told, _ = watched
    told.watch(Model)
    assert Base().load_weights("a") == {"a"} and told.may_save(None), "models of other classes are not ours"
    assert Model().load_weights("b") == {"b"}
    assert told.take_news() == (True, {})
    assert not told.may_load(None) and not told.may_save(None)


def test_a_sleep_that_throws_the_weights_away_is_noticed(watched):
    told, runner = watched
    assert runner.sleep() == "slept at 1"
    assert runner.sleep(level=1) == "slept at 1"
    assert told.may_load(None) and told.may_save(None)
    assert runner.sleep(2) == "slept at 2"
    assert not told.may_load(None) and not told.may_save(None)


def test_an_adapter_is_known_by_what_was_loaded(watched, folder):
    told, manager = watched
    content = content_digest(folder)
    wanted, other = (5, content, False), (5, OTHER, False)
    assert told.may_load(wanted), "it will be loaded when the request runs"
    assert not told.may_save(wanted), "nobody has seen it being loaded"
    assert manager._load_adapter(SimpleNamespace(lora_name="a", lora_path=str(folder), lora_int_id=5)) == "a"
    assert told.take_news() == (False, {5: content})
    assert told.may_load(wanted) and told.may_save(wanted)
    assert not told.may_load(other) and not told.may_save(other)
    assert told.may_load((5, OTHER, True)), "it is loaded anew with the request"
    assert not told.may_save((5, OTHER, True))


def test_an_adapter_that_changed_while_it_was_loaded_is_never_saved(watched, folder, monkeypatch):
    told, manager = watched
    before = content_digest(folder)
    stamps = iter([stamp(folder), (), ()])
    monkeypatch.setattr(changes.lora, "stamp", lambda path: next(stamps, ()))
    manager._load_adapter(SimpleNamespace(lora_name="a", lora_path=str(folder), lora_int_id=5))
    assert told.take_news() == (False, {5: b""})
    assert not told.may_save((5, before, False))


def test_ranks_that_loaded_different_contents_agree_on_none():
    merged = WorkerMetadata(adapters={1: CONTENT, 2: CONTENT}).aggregate(WorkerMetadata(adapters={1: OTHER}))
    assert merged.adapters == {1: b"", 2: CONTENT}
    assert not merged.weights_changed
    assert merged.aggregate(WorkerMetadata(weights_changed=True)).weights_changed
