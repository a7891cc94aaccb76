import pytest

from orbitkv.options import default_socket
from orbitkv.vllm.options import OptionError, parse


def test_defaults_and_values():
    options = parse({})
    assert options.bootstrap_socket == default_socket()
    assert (options.saves, options.loads) == (True, True)
    options = parse({"orbitkv.bootstrap_socket": "/run/x.sock", "orbitkv.mode": "save_only", "other.key": 1})
    assert (options.bootstrap_socket, options.saves, options.loads) == ("/run/x.sock", True, False)
    assert parse({"orbitkv.mode": "restore_only"}).saves is False
    assert parse({"orbitkv.fence_timeout_s": 3}).fence_timeout_s == 3.0


def test_the_socket_follows_the_users_runtime_folder(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert default_socket() == "/run/user/7/orbitkv/manager.sock"
    monkeypatch.setenv("XDG_RUNTIME_DIR", "")
    assert default_socket() == "/run/orbitkv/manager.sock"


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"orbitkv.mod": "x"}, "orbitkv.mode"),
        ({"orbitkv.mode": "both"}, "read_write, save_only, restore_only"),
        ({"orbitkv.save": "some"}, "all, prompt, seen_twice"),
        ({"orbitkv.save": False}, "must be of type str"),
        ({"orbitkv.save_min_tokens": -1}, "must not be negative"),
        ({"orbitkv.mode": 3}, "type str"),
        ({"orbitkv.lookup_wait_us": "200"}, "type int"),
        ({"orbitkv.lookup_wait_us": True}, "type int"),
        ({"orbitkv.lookup_wait_us": -1}, "0 to 60000000"),
        ({"orbitkv.lookup_wait_us": 60_000_001}, "0 to 60000000"),
        ({"orbitkv.fence_timeout_s": float("nan")}, "0 to 3600"),
        ({"orbitkv.load_wait_ms": -2}, "-1 to 60000"),
        ({"orbitkv.require_manager": "yes"}, "type bool"),
        ({"orbitkv.stores": "fast"}, "nontemporal"),
        ({"orbitkv.bootstrap_socket": "run/x"}, "absolute"),
        ({"mode": "save_only"}, "orbitkv.mode"),
    ],
)
def test_mistakes_name_the_remedy(config, message):
    with pytest.raises(OptionError, match=message) as caught:
        parse(config)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("role", "mode", "effective"),
    [
        ("kv_both", "read_write", "read_write"),
        ("kv_both", "save_only", "save_only"),
        ("kv_both", "restore_only", "restore_only"),
        ("kv_producer", "read_write", "save_only"),
        ("kv_producer", "save_only", "save_only"),
        ("kv_consumer", "read_write", "restore_only"),
        ("kv_consumer", "restore_only", "restore_only"),
    ],
)
def test_a_role_narrows_the_mode(role, mode, effective):
    options = parse({"orbitkv.mode": mode}, role)
    assert options.mode == effective
    assert (options.saves, options.loads) == (effective != "restore_only", effective != "save_only")


@pytest.mark.parametrize(("role", "mode"), [("kv_producer", "restore_only"), ("kv_consumer", "save_only")])
def test_a_role_and_a_mode_that_leave_nothing_are_refused(role, mode):
    with pytest.raises(OptionError, match="kv_both goes with any mode"):
        parse({"orbitkv.mode": mode}, role)
