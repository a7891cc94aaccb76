"""What the linker is told: its part of SGLang's configuration and the environment."""

import pytest

from orbitkv.sglang.options import KNOWN_KEYS, VARIABLES, OptionError, parse


def test_without_a_word_the_manager_is_the_users_own(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert parse({}, {}).socket == parse(None, {}).socket == "/run/user/7/orbitkv/manager.sock"
    assert parse({}, {"ORBITKV_SGLANG_ENDPOINT": ""}).socket == "/run/user/7/orbitkv/manager.sock"
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert parse({}, {}).socket == "/run/orbitkv/manager.sock"


def test_the_environment_says_what_the_configuration_does_not():
    environment = {"ORBITKV_SGLANG_ENDPOINT": "unix:///e.sock", "ORBITKV_SGLANG_LOOKUP_WAIT": "250", "HOME": "/h"}
    options = parse({}, environment)
    assert (options.socket, options.load_wait_ms) == ("/e.sock", 250)
    options = parse({"endpoint": "unix:///c.sock", "load_wait_ms": 7, "model_id": "m"}, environment)
    assert (options.socket, options.load_wait_ms, options.model_id) == ("/c.sock", 7, "m")


def test_the_process_s_own_environment_is_read(monkeypatch):
    monkeypatch.setenv("ORBITKV_SGLANG_ENDPOINT", "unix:///own.sock")
    assert parse({}).socket == "/own.sock"


@pytest.mark.parametrize("endpoint", ["/path", "tcp://host:1", "unix://path", "unix:", "unix:/path", "manager.sock"])
def test_an_endpoint_that_is_no_socket_of_this_host_is_refused(endpoint):
    for given in ({"endpoint": endpoint}, {}):
        with pytest.raises(OptionError, match="unix:///path"):
            parse(given, {} if given else {"ORBITKV_SGLANG_ENDPOINT": endpoint})


def test_unknown_names_are_refused_with_those_that_are_known():
    with pytest.raises(OptionError, match=f"unknown option 'mod'.*{KNOWN_KEYS[-1]}"):
        parse({"mod": "save_only"}, {})
    with pytest.raises(OptionError, match=f"ORBITKV_SGLANG_MODE; known are: {', '.join(VARIABLES)}"):
        parse({}, {"ORBITKV_SGLANG_MODE": "save_only"})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mode": "write"}, "mode must be one of"),
        ({"stores": "fast"}, "stores must be one of"),
        ({"mode": 1}, "mode must be of type str"),
        ({"require_manager": 1}, "require_manager must be of type bool"),
        ({"copy_threads": True}, "copy_threads must be of type int"),
        ({"copy_threads": -1}, "copy_threads must not be negative"),
        ({"lookup_wait_us": -1}, "lookup_wait_us must not be negative"),
        ({"lookup_limit_ms": -1}, "lookup_limit_ms must not be negative"),
        ({"require_manager_timeout_s": -1}, "require_manager_timeout_s must not be negative"),
        ({"load_wait_ms": 60_001}, "load_wait_ms must be 0 to 60000"),
        ({"load_wait_ms": -1}, "load_wait_ms must be 0 to 60000"),
        ({"load_timeout_s": 2}, "load_timeout_s must be at least 3"),
        ({"reset_timeout_s": -2.0}, "reset_timeout_s must be more than 0"),
        ({"lookup_wait_us": 60_000_001}, "lookup_wait_us must be 0 to 60000000"),
        ({"load_timeout_s": 3601}, "load_timeout_s must be at most 3600"),
        ({"load_timeout_s": float("nan")}, "load_timeout_s must be at most 3600"),
        ({"reset_timeout_s": float("inf")}, "reset_timeout_s must be at most 3600"),
        ({"require_manager_timeout_s": 1e9}, "require_manager_timeout_s must be at most 3600"),
    ],
)
def test_values_that_cannot_be_meant_are_refused(given, message):
    with pytest.raises(OptionError, match=message):
        parse(given, {})


@pytest.mark.parametrize("text", ["-1", "1.5", "fast", "", "60001"])
def test_a_wait_of_the_environment_is_a_number_of_milliseconds(text):
    with pytest.raises(OptionError, match=r"milliseconds|0 to 60000"):
        parse({}, {"ORBITKV_SGLANG_LOOKUP_WAIT": text})


def test_a_mode_says_what_is_done():
    assert [
        (parse({"mode": mode}, {}).saves, parse({"mode": mode}, {}).loads)
        for mode in ("read_write", "save_only", "restore_only")
    ] == [(True, True), (True, False), (False, True)]
