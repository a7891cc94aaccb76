"""How a worker's client ends and comes back: with its pages, with the namespace, and when a bring-up is late."""

import threading
from types import SimpleNamespace

import pytest
from fakes import ONE_GROUP

from harness.client_stand_in import settled, stand_in
from orbitkv.vllm import compat
from orbitkv.vllm import link as link_module
from orbitkv.vllm.link import Link, Part
from orbitkv.vllm.options import parse


@pytest.fixture
def made(monkeypatch):
    monkeypatch.setattr(link_module.orbitkv, "computation_digest", lambda fields: fields["weights"].encode())
    monkeypatch.setattr(link_module.orbitkv, "representation_digest", lambda fields: b"pages")
    monkeypatch.setattr(link_module.orbitkv, "identify_weights", lambda *args, **more: "weights")
    monkeypatch.setattr(
        link_module.identity, "computation_fields", lambda config, groups, weights, *_: {"weights": weights}
    )
    monkeypatch.setattr(link_module.compat, "model_folder", lambda config: "")
    monkeypatch.setattr(link_module.compat, "load_format", lambda config: "")
    return stand_in(monkeypatch)


def make_link(prepare=None, **options):
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(engine_id="engine"))
    part = Part("worker", 0, compat.Ranks(1, 1, 1), "name")
    given = {"orbitkv.bootstrap_socket": "/x"} | {f"orbitkv.{key}": value for key, value in options.items()}
    return Link(config, ONE_GROUP, parse(given), part, [{}], prepare)


def test_what_the_options_say_of_the_client_reaches_it(made, monkeypatch):
    monkeypatch.setattr(link_module.orbitkv, "identify_weights", lambda *_, model_id, **__: f"named {model_id}")
    link = make_link(copy_threads=3, stores="ordinary", lookup_limit_ms=70, mode="restore_only", model_id="m")
    link.start()
    options = settled(link).options
    assert (options.socket, options.copy_threads, options.stores) == ("/x", 3, "ordinary")
    assert options.query_deadline_ms == 70 and options.read_only
    assert options.computation_digest == b"named m"
    link = make_link()
    link.start()
    options = settled(link).options
    assert (options.copy_threads, options.stores, options.query_deadline_ms) == (0, "auto", 50)
    assert not options.read_only


def test_a_manager_that_is_required_and_does_not_answer_is_named(made):
    link = make_link(require_manager=True, require_manager_timeout_s=2)
    with pytest.raises(link_module.orbitkv.UnavailableError, match="no Cache Manager at /x: start orbitkv-manager"):
        link.start()
    assert made[0].waited == 2.0


def test_a_suspended_link_has_no_client_until_it_is_resumed(made):
    pages = ["old"]
    link = make_link(lambda client: setattr(client, "pages", pages[0]))
    link.start()
    first = settled(link)
    assert link.suspend(3.0) is first
    assert (first.closed, link.client) == (3.0, None)
    assert link.suspend(3.0) is None
    pages[0] = "new"
    link.resume()
    second = settled(link)
    assert second is not first and (second.pages, second.closed) == ("new", None)
    assert second.options.instance == first.options.instance == "engine"
    link.resume()
    assert (link.client, len(made)) == (second, 2)


def test_a_suspended_link_stays_so_at_a_reset_and_comes_back_in_the_new_namespace(made):
    link = make_link()
    link.start()
    settled(link)
    link.suspend(1.0)
    link.renew(b"\x01")
    assert (settled(link), len(made)) == (None, 1)
    link.resume()
    assert settled(link).options.computation_digest == b"weights epoch:01"


def test_a_new_namespace_is_told_by_the_weights_that_the_engine_began_with(made, monkeypatch):
    """A worker's configuration names the folder of reloaded weights; the scheduler's does not."""
    monkeypatch.setattr(link_module.compat, "model_folder", lambda config: config.folder)
    monkeypatch.setattr(link_module.orbitkv, "identify_weights", lambda folder, **more: f"weights of {folder}")
    link = make_link()
    link._vllm_config.folder = "first"
    link.start()
    assert settled(link).options.computation_digest == b"weights of first"
    link._vllm_config.folder = "second"
    link.renew(b"\x01")
    assert settled(link).options.computation_digest == b"weights of first epoch:01"


def test_a_client_that_comes_up_after_its_pages_went_away_is_ended(made, monkeypatch):
    """Its pages are of before: it must not be used when the link was resumed meanwhile either."""
    reached, go_on = threading.Event(), threading.Event()

    def identify(*args, **more):
        if not reached.is_set():
            reached.set()
            assert go_on.wait(10)
        return "weights"

    monkeypatch.setattr(link_module.orbitkv, "identify_weights", identify)
    link = make_link()
    link.start()
    assert reached.wait(10)
    assert link.suspend(1.0) is None
    link.resume()
    go_on.set()
    client = settled(link)
    late, current = made
    assert client is current and current.closed is None
    assert late.closed is not None


def test_a_closed_link_neither_suspends_nor_resumes(made):
    link = make_link()
    link.start()
    settled(link)
    link.close()
    assert link.suspend(1.0) is None
    link.resume()
    assert (link.client, len(made)) == (None, 1)
