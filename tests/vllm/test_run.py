"""`orbitkv run`: what it adds to a command, what it refuses, and the Manager that it leaves behind."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness.manager import binary
from harness.processes import wait_until
from orbitkv import run
from orbitkv.command import RunError
from orbitkv.vllm.command import CONFIG, kv_transfer_config
from orbitkv.vllm.options import parse

SERVE = ["vllm", "serve", "m"]


def config_of(command):
    return json.loads(command[command.index(CONFIG) + 1])


# ---- what is added --------------------------------------------------------------------------------------------------


def test_the_flags_and_the_seed_are_added_and_said():
    plan = run.plan([*SERVE, "--port", "1"], "/s/m.sock", {"HOME": "/h"})
    assert plan.command[:5] == [*SERVE, "--port", "1"]
    config = config_of(plan.command)
    assert (config["kv_connector"], config["kv_load_failure_policy"]) == ("OrbitKVConnector", "recompute")
    assert parse(config["kv_connector_extra_config"]).bootstrap_socket == "/s/m.sock"
    assert plan.environment == {"HOME": "/h", "PYTHONHASHSEED": "0"}
    assert plan.added[0].startswith(CONFIG)
    assert plan.added[1] == "PYTHONHASHSEED=0"


def test_the_socket_is_the_users_own_or_the_one_of_the_environment(monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", "/run/user/7")
    assert run.plan(SERVE, None, {}).socket == "/run/user/7/orbitkv/manager.sock"
    assert run.plan(SERVE, None, {"ORBITKV_SOCKET": "/e/m.sock"}).socket == "/e/m.sock"
    with pytest.raises(RunError, match="absolute"):
        run.plan(SERVE, "m.sock", {})


def test_what_the_user_gave_stays():
    own = json.dumps(kv_transfer_config("/own.sock") | {"kv_load_failure_policy": "fail"})
    for command in ([*SERVE, CONFIG, own], [*SERVE, f"{CONFIG}={own}"], [*SERVE, "--kv_transfer_config", own]):
        plan = run.plan(command, None, {"PYTHONHASHSEED": "7"})
        assert plan.command == command
        assert plan.environment == {"PYTHONHASHSEED": "7"}
        assert plan.added == []
        assert plan.socket == "/own.sock"
    with pytest.raises(RunError, match="one of them"):
        run.plan([*SERVE, CONFIG, own], "/other.sock", {})


def test_a_child_of_multiconnector_names_the_socket():
    child = kv_transfer_config("/child.sock")
    both = {
        "kv_connector": "MultiConnector",
        "kv_connector_extra_config": {"connectors": [{"kv_connector": "X"}, child]},
    }
    plan = run.plan([*SERVE, CONFIG, json.dumps(both)], None, {})
    assert plan.socket == "/child.sock"
    assert "recompute" in plan.warning, "vLLM's own default would fail requests"
    both["kv_load_failure_policy"] = "recompute"
    assert run.plan([*SERVE, CONFIG, json.dumps(both)], None, {}).warning == ""


@pytest.mark.parametrize(
    "given",
    [
        [CONFIG, '{"kv_connector": "NixlConnector"}'],
        [CONFIG + '={"kv_connector": "NixlConnector"}'],
        [CONFIG + ".kv_connector", "NixlConnector"],
        [CONFIG + ".kv_connector=NixlConnector"],
    ],
)
def test_another_connector_is_not_overridden(given):
    with pytest.raises(RunError, match="MultiConnector"):
        run.plan([*SERVE, *given], None, {})


def test_another_connector_in_the_engines_file_is_not_overridden(tmp_path):
    file = tmp_path / "serve.yaml"
    file.write_text("port: 1\n")
    assert CONFIG in run.plan([*SERVE, "--config", str(file)], "/s", {}).command
    file.write_text('port: 1\nkv_transfer_config: \'{"kv_connector": "NixlConnector"}\'\n')
    with pytest.raises(RunError, match="MultiConnector"):
        run.plan([*SERVE, "--config", str(file)], "/s", {})


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ([], "vllm serve"),
        (["vllm", "bench", "serve"], "vllm serve MODEL"),
        (["sleep", "1"], "vllm serve MODEL"),
    ],
)
def test_other_commands_are_refused(command, message):
    with pytest.raises(RunError, match=message):
        run.plan(command, "/s", {})


def test_vllms_module_is_an_engine_too():
    module = ["/usr/bin/python3", "-m", "vllm.entrypoints.openai.api_server", "--model", "m"]
    assert CONFIG in run.plan(module, "/s", {}).command


# ---- processes ------------------------------------------------------------------------------------------------------


@pytest.fixture
def folder_with_engine(tmp_path):
    """A `vllm` that tells what it was started with, then ends with 7, or waits for a signal."""
    program = tmp_path / "vllm"
    program.write_text(
        f"#!{sys.executable}\n"
        "import json, os, signal, sys\n"
        "print(json.dumps([os.getpid(), sys.argv[1:], os.environ['PYTHONHASHSEED']]), flush=True)\n"
        "if 'wait' in sys.argv:\n    signal.pause()\n"
        "sys.exit(7)\n"
    )
    program.chmod(0o755)
    return tmp_path


def start(folder, *command, options=("--pool-bytes", "16MiB")):
    return subprocess.Popen(
        [sys.executable, "-m", "orbitkv.run", "--socket", str(folder / "run" / "m.sock"), *options, "--", *command],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def manager_of(line):
    return int(line.partition("(process ")[2].partition(",")[0])


def is_gone(pid):
    status = Path(f"/proc/{pid}/stat")
    return not status.exists() or status.read_bytes().rpartition(b")")[2].split()[0] == b"Z"


def test_a_manager_is_started_once_stays_and_the_engine_takes_the_process_over(folder_with_engine):
    first = start(folder_with_engine, "vllm", "serve", "m")
    out, line = first.communicate(timeout=60)
    pid = manager_of(line)
    try:
        assert first.returncode == 7, "the engine's own status"
        own_pid, arguments, seed = json.loads(out)
        assert own_pid == first.pid, "signals reach the engine"
        assert arguments[:3] == ["serve", "m", CONFIG]
        assert seed == "0"
        assert line.count("\n") == 1
        assert not is_gone(pid), "it stays when the engine has ended"
        second = start(folder_with_engine, "vllm", "serve", "m", "wait")
        json.loads(second.stdout.readline())
        second.send_signal(signal.SIGTERM)
        _, line = second.communicate(timeout=60)
        assert second.returncode == -signal.SIGTERM
        assert "a Manager answers at" in line
        assert not is_gone(pid)
    finally:
        os.kill(pid, signal.SIGTERM)
        assert wait_until(lambda: is_gone(pid), 30)


def test_a_manager_that_does_not_come_up_is_said_and_nothing_is_started(folder_with_engine):
    refused = start(folder_with_engine, "vllm", "serve", "m", options=("--pool-bytes", "much"))
    out, line = refused.communicate(timeout=60)
    assert (refused.returncode, out) == (1, "")
    assert "pool" in line
    assert "manager.log" in line


def test_a_command_that_is_not_there_starts_no_manager(folder_with_engine):
    (folder_with_engine / "vllm").unlink()
    missing = start(folder_with_engine, str(folder_with_engine / "vllm"), "serve", "m")
    _, line = missing.communicate(timeout=60)
    assert missing.returncode == 127
    assert "no such program" in line
    assert not (folder_with_engine / "run").exists()


def test_the_command_line_tool_is_the_same():
    done = subprocess.run(
        [binary("orbitkv"), "run", "--", "sleep", "1"], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("orbitkv run: there is no adapter for what `sleep 1` starts")
