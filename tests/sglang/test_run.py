"""`orbitkv run` with SGLang: what it adds to a command, and what it refuses."""

import json
import shlex

import pytest

from orbitkv import run
from orbitkv.command import RunError
from orbitkv.sglang import command as sglang_command
from orbitkv.sglang.options import parse
from orbitkv.sglang.plugin import linker_config

SERVE = ["sglang", "serve", "--model-path", "m"]
MODULE = ["/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "m"]
FLAGS = ["--radix-cache-backend", "orbitkv", "--enable-unified-cache-external-linker"]
ENDPOINT = "ORBITKV_SGLANG_ENDPOINT"


def dynamic(**extra):
    config = json.dumps(linker_config(extra))
    return [
        "--enable-unified-cache-external-linker",
        "--unified-cache-external-linker-backend=dynamic",
        "--unified-cache-external-linker-config",
        config,
    ]


def value(plan, name):
    return plan.command[plan.command.index(name) + 1]


@pytest.mark.parametrize("command", [SERVE, MODULE, [*MODULE[:2], "sglang", "serve", "m"]])
def test_what_is_missing_is_added_and_said(command):
    plan = run.plan(command, "/s/m.sock", {"HOME": "/h"})
    assert plan.command[: len(command)] == command
    assert value(plan, "--unified-cache-external-linker-backend") == "dynamic"
    config = json.loads(value(plan, "--unified-cache-external-linker-config"))
    assert config == {"linker": "OrbitKVLinker", "linker_module_path": "orbitkv.sglang"}
    assert value(plan, "--page-size") == "64"
    assert plan.environment == {"HOME": "/h", ENDPOINT: "unix:///s/m.sock"}
    assert parse({}, plan.environment).socket == plan.socket == "/s/m.sock"
    said = " ".join(plan.added)
    assert plan.command[len(command) :] == shlex.split(said)[:-1] and plan.added[-1] == f"{ENDPOINT}=unix:///s/m.sock"


def test_the_socket_is_the_users_own_or_the_one_of_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert run.plan(SERVE, None, {}).socket == "/run/user/7/orbitkv/manager.sock"
    assert run.plan(SERVE, None, {"ORBITKV_SOCKET": "/e/m.sock"}).socket == "/e/m.sock"
    with pytest.raises(RunError, match="absolute"):
        run.plan(SERVE, "m.sock", {})


@pytest.mark.parametrize(
    "given",
    [
        FLAGS,
        ["--radix_cache_backend=orbitkv", FLAGS[2]],
        dynamic(),
    ],
)
def test_what_the_user_gave_stays(given):
    environment = {ENDPOINT: "unix:///own.sock"}
    plan = run.plan([*SERVE, *given, "--page-size", "1"], None, environment)
    assert plan.command == [*SERVE, *given, "--page-size", "1"]
    assert (plan.environment, plan.added, plan.socket) == (environment, [], "/own.sock")


def test_one_of_the_two_flags_gets_the_other():
    plan = run.plan([*SERVE, *FLAGS[:2], "--page-size", "1"], "/s", {})
    assert plan.command[-1] == FLAGS[2]
    plan = run.plan([*SERVE, *dynamic()[1:], "--page-size", "1"], "/s", {})
    assert plan.command[-1] == FLAGS[2]
    plan = run.plan([*SERVE, FLAGS[2]], "/s", {})
    assert plan.command.count(FLAGS[2]) == 1
    assert value(plan, "--unified-cache-external-linker-backend") == "dynamic"


@pytest.mark.parametrize(
    "given",
    [
        dynamic(endpoint="unix:///own.sock"),
        [*FLAGS, "--unified-cache-external-linker-config", '{"endpoint": "unix:///own.sock"}'],
    ],
)
def test_an_endpoint_in_the_command_is_where_the_manager_is(given):
    plan = run.plan([*SERVE, *given], None, {ENDPOINT: "unix:///other.sock"})
    assert plan.socket == "/own.sock", "the linker takes it too"
    with pytest.raises(RunError, match="one of them"):
        run.plan([*SERVE, *given], "/mine.sock", {})


def test_an_endpoint_that_is_no_socket_is_refused():
    with pytest.raises(RunError, match="unix:///path"):
        run.plan(SERVE, None, {ENDPOINT: "tcp://x"})


@pytest.mark.parametrize(
    "given",
    [
        ["--radix-cache-backend", "flexkv"],
        ["--unified-cache-external-linker-backend", "mooncake"],
        ["--unified-cache-external-linker-backend=dynamic", "--unified-cache-external-linker-config",
         '{"linker": "Other", "linker_module_path": "their.module"}'],
        ["--unified-cache-external-linker-config", '{"any": "thing"}'],
        [*FLAGS, "--unified-cache-external-linker-backend", "dynamic"],
    ],
)  # fmt: skip
def test_another_linker_or_cache_is_not_overridden(given):
    with pytest.raises(RunError, match="stays as it is"):
        run.plan([*SERVE, *given], "/s", {})


def test_the_engines_file_is_not_overridden(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\n")
    command = [*SERVE, "--config", str(file)]
    assert value(run.plan(command, "/s", {}), "--page-size") == "64"
    file.write_text("page_size: 16\n")
    assert "--page-size" not in run.plan(command, "/s", {}).command
    file.write_text("enable-unified-cache-external-linker: true\n")
    with pytest.raises(RunError, match="on the command line"):
        run.plan(command, "/s", {})


@pytest.mark.parametrize(
    "command",
    [
        ["sglang", "generate", "--model-path", "m"],
        ["python", "-m", "sglang.bench_serving"],
        ["python", "-m", "sglang_router.launch_router"],
    ],
)
def test_other_commands_of_sglang_are_refused(command):
    with pytest.raises(RunError, match="starts no engine; give `sglang serve"):
        run.plan(command, "/s", {})


def test_the_options_are_sglang_s():
    """Also that its own parser takes what is added."""
    from sglang.srt.server_args import prepare_server_args

    plan = run.plan(SERVE, "/s", {})
    arguments = prepare_server_args(plan.command[2:])
    assert arguments.unified_cache_external_linker_backend == "dynamic"
    assert arguments.unified_cache_external_linker_config == linker_config()
    assert (arguments.enable_unified_cache_external_linker, arguments.page_size) == (True, 64)
    assert sglang_command.FLAG in plan.command
