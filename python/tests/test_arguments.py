"""Bad input: one line that names the remedy, nothing lost; and what works without any Manager."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from conftest import Engine, Manager, hashes

import orbitkv

MakeClient = Callable[..., orbitkv.Client]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"role": "boss"}, "scheduler, worker or both"),
        ({"socket": ""}, "socket"),
        ({"instance": ""}, "instance"),
        ({"computation_digest": b"short"}, "32 bytes"),
        ({"representation_digest": b""}, "representation_digest"),
        ({"rank": 1}, "world_size"),
        ({"rank": -1}, "rank"),
        ({"world_size": 2}, "scheduler and worker"),
        ({"shard": 1}, "shard_count"),
        ({"stores": "quick"}, "nontemporal"),
        ({"copy_threads": 1000}, "copy_threads"),
    ],
)
def test_wrong_options_are_named(make_client: MakeClient, change: dict[str, object], words: str) -> None:
    with pytest.raises(orbitkv.InvalidArgument, match=words) as error:
        make_client(**change)
    assert "\n" not in str(error.value)


def test_unknown_option() -> None:
    with pytest.raises(TypeError, match="sockets"):
        orbitkv.ClientOptions(sockets="x")  # type: ignore[call-arg]


def test_errors_are_one_family() -> None:
    for error in (orbitkv.InvalidArgument, orbitkv.LayoutError, orbitkv.ForkedError, orbitkv.UnavailableError):
        assert issubclass(error, orbitkv.Error)
    assert orbitkv.Error.__module__ == "orbitkv"


def test_a_missing_socket_is_no_error(make_client: MakeClient) -> None:
    engine = Engine(make_client())
    assert engine.client.state == "down"
    assert not engine.client.wait_up(0.0)
    answer = engine.client.query("r", hashes(2))
    assert answer is not None and (answer.found_blocks, answer.lease, answer.reason) == (0, 0, "down")
    done = engine.wait(engine.client.restore(5, hashes(1), [0]))
    assert not done.ok and done.error
    done = engine.wait(engine.client.publish(hashes(1), [0], tag=9))
    assert done.outcomes == bytes([3]) and done.tag == 9
    assert engine.client.begin_restore(1, 1) == 0


def test_page_lists_are_checked(make_client: MakeClient) -> None:
    client = Engine(make_client(), blocks=8).client
    bad: list[tuple[object, str]] = [
        ([0], "one id for each block"),
        ([0, 8], "outside the registered layout"),
        ([0, -1], "0 to 2"),
        (["0", "1"], "numbers"),
        (np.array([0.0, 1.0]), "integers"),
        (np.array([[0, 1]], np.int32), "one-dimensional"),
        (np.arange(4, dtype=np.int32)[::2], "contiguous"),
        (7, "sequence"),
    ]
    for ids, words in bad:
        with pytest.raises(orbitkv.InvalidArgument, match=words):
            client.publish(hashes(2), ids)
    with pytest.raises(orbitkv.InvalidArgument, match="twice"):
        client.restore(5, hashes(2), [3, 3])
    with pytest.raises(orbitkv.InvalidArgument, match="parent"):
        client.publish(hashes(2), [0, 1], first_depth=4)
    with pytest.raises(orbitkv.InvalidArgument, match="16 bytes"):
        client.restore(5, hashes(1), [3], incarnation=b"x")
    assert client.counters()["publish_jobs"] == 0


def test_a_second_layout_is_refused(make_client: MakeClient) -> None:
    engine = Engine(make_client())
    same = [orbitkv.Layer.of(pages) for pages in engine.pages]
    engine.client.register_layout(same, block_tokens=16)
    with pytest.raises(orbitkv.LayoutError, match="create a new client"):
        engine.client.register_layout(same[:1], block_tokens=16)


def test_layers_are_checked(make_client: MakeClient) -> None:
    client = make_client()
    layer = orbitkv.Layer.of(np.zeros((4, 64), np.uint8))
    with pytest.raises(orbitkv.InvalidArgument, match="layer 1"):
        client.register_layout([layer, orbitkv.Layer.of(np.zeros((4, 32), np.uint8))], block_tokens=16)
    with pytest.raises(orbitkv.InvalidArgument):
        client.register_layout([], block_tokens=16)
    with pytest.raises(orbitkv.InvalidArgument, match="block_tokens"):
        client.register_layout([layer], block_tokens=0)
    with pytest.raises(orbitkv.InvalidArgument, match="register_layout"):
        client.publish(hashes(1), [0])
    with pytest.raises(orbitkv.InvalidArgument, match="scheduler"):
        make_client(role="scheduler").register_layout([layer], block_tokens=16)


def test_layer_of_a_strided_array() -> None:
    memory = np.zeros((6, 2, 32), np.float32)
    layer = orbitkv.Layer.of(memory[:, 1])
    assert (layer.block_stride_bytes, layer.page_bytes, layer.block_count) == (256, 128, 6)
    assert layer.address == memory.ctypes.data + 128
    assert orbitkv.Layer.of(bytearray(8)).page_bytes == 1
    with pytest.raises(orbitkv.InvalidArgument, match="contiguous"):
        orbitkv.Layer.of(memory[:, :, ::2])
    with pytest.raises(orbitkv.InvalidArgument, match="writable"):
        orbitkv.Layer.of(b"12345678")
    with pytest.raises(orbitkv.InvalidArgument, match="buffer protocol"):
        orbitkv.Layer.of(5)


def test_block_hashes() -> None:
    data = [bytes([index] * 32) for index in range(5)]
    blocks = orbitkv.BlockHashes(data[:3])
    view = blocks[1:]
    blocks.extend(data[3:])
    assert len(blocks) == 5 and len(view) == 2
    assert [blocks[index] for index in range(5)] == data and blocks[-1] == data[4]
    assert [view[index] for index in range(2)] == data[1:3]
    view.extend([data[0]])
    assert view[2] == data[0] and blocks[3] == data[3]
    short = orbitkv.BlockHashes(b"".join(item[:16] for item in data), 16)
    assert len(short) == 5 and short[2] == data[2][:16]
    with pytest.raises(IndexError):
        blocks[5]
    for broken in (lambda: orbitkv.BlockHashes(b"123"), lambda: blocks.extend([b"1"]), lambda: blocks[::2]):
        with pytest.raises(orbitkv.InvalidArgument):
            broken()
    assert len(blocks) == 5


def test_a_call_after_fork_is_refused(manager: Manager, engine: Engine) -> None:
    client, keys = engine.client, hashes(1)
    layers = [orbitkv.Layer.of(pages) for pages in engine.pages]
    calls: list[Callable[[], object]] = [
        lambda: client.wait_up(0.0),
        lambda: client.register_layout(layers, block_tokens=16),
        lambda: client.query("r", keys),
        lambda: client.cancel_query("r"),
        lambda: client.begin_restore(1, 1),
        lambda: client.release_lease(1),
        lambda: client.release_grant(1),
        lambda: client.restore(1, keys, [0]),
        lambda: client.publish(keys, [0]),
        lambda: client.cancel_publish(1),
        lambda: client.wait_sources_free([1], 0.0),
        lambda: client.poll(),
    ]
    child = os.fork()
    if child == 0:
        wrong = 0
        for call in calls:
            try:
                call()
                wrong += 1
            except orbitkv.ForkedError as error:
                wrong += "create a client in the child" not in str(error) or "\n" in str(error)
            except BaseException:
                wrong += 1
        os._exit(wrong)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert engine.publish(keys, [0]).ok


def test_a_closed_client_says_so(make_client: MakeClient) -> None:
    engine = Engine(make_client())
    engine.client.close()
    with pytest.raises(orbitkv.UnavailableError, match="closed"):
        engine.client.publish(hashes(1), [0])


def test_status_without_a_manager_names_the_remedy(folder: Path) -> None:
    with pytest.raises(orbitkv.UnavailableError, match="start orbitkv-manager"):
        orbitkv.status(str(folder / "none.sock"), 0.1)


def test_importing_orbitkv_imports_no_engine_and_no_array_library() -> None:
    code = "import sys, orbitkv; print([name for name in ('torch', 'numpy', 'vllm') if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_digests() -> None:
    def build(*fields: tuple[str, object], domain: str = "d") -> bytes:
        builder = orbitkv.DigestBuilder(domain)
        for name, value in fields:
            builder.add(name, value)  # type: ignore[arg-type]
        return builder.digest()

    seen = {
        build(),
        build(domain="e"),
        build(("a", 1)),
        build(("a", "1")),
        build(("a", b"1")),
        build(("a", True)),
        build(("a", None)),
        build(("b", 1)),
        build(("a", 1), ("b", 2)),
        build(("b", 2), ("a", 1)),
    }
    assert len(seen) == 10 and all(len(item) == 32 for item in seen)
    assert build(("a", 1)) == build(("a", 1))
    with pytest.raises(orbitkv.InvalidArgument, match="missing"):
        orbitkv.computation_digest({})
    with pytest.raises(orbitkv.InvalidArgument, match="bytes, str, int"):
        build(("a", 1.5))


def test_weights_are_told_apart_by_content(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
    (folder / "cache").mkdir()
    model = folder / "model"
    model.mkdir()
    (model / "model.safetensors").write_bytes(b"one" * 1000)
    first = orbitkv.weights_digest(str(model))
    assert len(first) == 32 and orbitkv.weights_digest(str(model)) == first
    (model / "model.safetensors").write_bytes(b"two" * 1000)
    assert orbitkv.weights_digest(str(model)) != first
    cancelled = orbitkv.CancelToken()
    cancelled.cancel()
    (model / "other.safetensors").write_bytes(b"new" * 1000)
    with pytest.raises(orbitkv.UnavailableError):
        orbitkv.weights_digest(str(model), cancel=cancelled)
    with pytest.raises(orbitkv.Error):
        orbitkv.weights_digest(str(folder / "nothing"))
