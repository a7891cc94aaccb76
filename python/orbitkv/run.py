"""``orbitkv run -- vllm serve MODEL ...``: starts a Manager where none answers, then becomes the engine that uses it.

The command keeps its process: signals reach it and its exit status is the caller's. The Manager is nobody's child and
stays when the engine ends, so that the next one finds its blocks. What the command says itself is never overridden.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from orbitkv.options import default_socket

CONFIG = "--kv-transfer-config"
CONNECTOR = "OrbitKVConnector"
SOCKET_OPTION = "orbitkv.bootstrap_socket"
# A killed Manager's successor waits for its memory to be torn down.
READY_S = 60.0
POLL_S = 0.05


class RunError(RuntimeError):
    """Nothing was started; the message names the remedy."""

    def __init__(self, text: str, status: int = 2) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True)
class Plan:
    """The engine to become, and what of it is ours."""

    command: list[str]
    environment: dict[str, str]
    socket: str
    added: list[str]
    warning: str = ""


def kv_transfer_config(manager_socket: str) -> dict[str, Any]:
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {SOCKET_OPTION: manager_socket},
    }


# ---- the command ----------------------------------------------------------------------------------------------------


def check_command(command: Sequence[str]) -> None:
    """Raises RunError unless it starts an engine that there is an adapter for."""
    if not command:
        raise RunError("no command: orbitkv run -- vllm serve MODEL")
    program = Path(command[0]).name
    module = command[command.index("-m") + 1] if "-m" in command[:-1] and program.startswith("python") else ""
    if "sglang" in program or module.split(".")[0] == "sglang":
        raise RunError("there is no adapter for SGLang yet; orbitkv run starts `vllm serve`")
    serves = program == "vllm" and command[1:2] == ["serve"]
    if not serves and module.split(".")[0] != "vllm":
        raise RunError(f"there is no adapter for what `{shlex.join(command[:3])}` starts; give `vllm serve MODEL ...`")


def _value_of(command: Sequence[str], name: str) -> str | None:
    """The last value of an option, in each of the forms that vLLM's parser takes; its parts when it has some."""
    value: str | None = None
    parts: list[str] = []
    for at, argument in enumerate(command):
        option, equals, rest = argument.partition("=")
        option = option.replace("_", "-")
        if option == name:
            value = rest if equals else (command[at + 1] if at + 1 < len(command) else "")
        elif option.startswith(name + "."):
            parts += [argument] if equals else list(command[at : at + 2])
    return " ".join(parts) if parts else value


def given_config(command: Sequence[str]) -> str | None:
    """What the command, or the file that it names, says of its connector; None when nothing."""
    text = _value_of(command, CONFIG)
    if text is not None:
        return text
    file = _value_of(command, "--config")
    if file is None:
        return None
    try:
        content = Path(file).read_text()
    except OSError:
        return None  # the engine will say so
    return content if CONFIG[2:] in content.replace("_", "-") else None


def _warning_of(text: str) -> str:
    """MultiConnector's children do not see its policy, so only here can it be told that it is missing."""
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        config = json.loads(text)
        if config.get("kv_connector") == "MultiConnector" and config.get("kv_load_failure_policy") != "recompute":
            return f"MultiConnector in {CONFIG} has no kv_load_failure_policy 'recompute': failed loads fail requests"
    return ""


def _socket_in(text: str) -> str | None:
    with contextlib.suppress(ValueError, AttributeError, TypeError):
        config = json.loads(text)
        children = config.get("kv_connector_extra_config", {}).get("connectors", [])
        for one in (config, *children):
            found = one.get("kv_connector_extra_config", {}).get(SOCKET_OPTION)
            if found:
                return str(found)
    return None


def plan(command: Sequence[str], manager_socket: str | None, environment: Mapping[str, str]) -> Plan:
    check_command(command)
    full, changed, added = list(command), dict(environment), list[str]()
    given = given_config(command)
    if given is not None and CONNECTOR not in given:
        raise RunError(
            f"the command has a {CONFIG} without {CONNECTOR}, which stays as it is: add OrbitKV to it as a child of "
            "MultiConnector, or leave it out"
        )
    named = _socket_in(given) if given is not None else None
    if manager_socket and named and manager_socket != named:
        raise RunError(f"--socket {manager_socket}, but the command's {CONFIG} names {named}: give one of them")
    path = manager_socket or named or environment.get("ORBITKV_SOCKET") or default_socket()
    if not path.startswith("/"):
        raise RunError(f"the socket must be an absolute path, not {path!r}")
    if given is None:
        text = json.dumps(kv_transfer_config(path), separators=(",", ":"))
        full += [CONFIG, text]
        added.append(f"{CONFIG} {shlex.quote(text)}")
    if not changed.get("PYTHONHASHSEED"):
        changed["PYTHONHASHSEED"] = "0"
        added.append("PYTHONHASHSEED=0")
    return Plan(full, changed, path, added, _warning_of(given or ""))


# ---- the Manager ----------------------------------------------------------------------------------------------------


def answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def _manager_program() -> str:
    name = "orbitkv-manager"
    found = shutil.which(name, path=str(Path(sys.executable).parent)) or shutil.which(name)
    if found is None:
        raise RunError(f"{name} is neither beside {sys.executable} nor in PATH: install OrbitKV's wheel there", 1)
    return found


def _spawn(command: Sequence[str], log: Path) -> int:
    """Starts a process that has no parent of ours and no terminal. Its pid."""
    read, write = os.pipe()
    between = os.fork()
    if between == 0:
        status = 1
        try:
            with log.open("ab") as stream:
                started = subprocess.Popen(
                    command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True
                )
            os.write(write, str(started.pid).encode())
            status = 0
        finally:
            os._exit(status)
    os.close(write)
    with os.fdopen(read, "rb") as stream:
        pid = stream.read()
    os.waitpid(between, 0)
    if not pid:
        raise RunError(f"{command[0]} could not be started", 1)
    return int(pid)


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


def start_manager(path: str, pool_bytes: str | None, log: Path) -> int:
    """Returns when a Manager answers at `path`: the one that was started, or another that was faster."""
    command = [_manager_program(), "--socket", path]
    if pool_bytes:
        command += ["--pool-bytes", pool_bytes]
    pid = _spawn(command, log)
    end = time.monotonic() + READY_S
    while not answers(path):
        if not _lives(pid) or time.monotonic() > end:
            if answers(path):
                break
            tail = log.read_text(errors="replace").strip().splitlines()[-1:] or ["it says nothing"]
            raise RunError(f"no Manager came up at {path}: {tail[0]} (its log: {log})", 1)
        time.sleep(POLL_S)
    return pid


def ensure_manager(path: str, pool_bytes: str | None) -> str:
    """In words, for the one line that is printed."""
    if answers(path):
        return f"a Manager answers at {path}"
    folder = Path(path).parent
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise RunError(f"{folder}: {error.strerror}; give --socket PATH in a folder of yours", 1) from error
    log = folder / "manager.log"
    pid = start_manager(path, pool_bytes, log)
    return f"started a Manager at {path} (process {pid}, log {log}; it stays until `kill {pid}`)"


# ---- the command line -----------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="orbitkv run",
        description="Starts a Cache Manager where none answers, then the engine, which uses it. The Manager stays when "
        "the engine ends. Its other settings come from the environment (ORBITKV_...).",
    )
    parser.add_argument("--socket", metavar="PATH", help="the Manager's bootstrap socket (default: the user's own)")
    parser.add_argument("--pool-bytes", metavar="SIZE", help="of a Manager that is started, such as 16GiB")
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- vllm serve MODEL ...")
    return parser


def become(chosen: Plan) -> NoReturn:
    os.execvpe(chosen.command[0], chosen.command, chosen.environment)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    command = options.command[1:] if options.command[:1] == ["--"] else options.command
    try:
        chosen = plan(command, options.socket, os.environ)
        if shutil.which(chosen.command[0]) is None:
            raise RunError(f"{chosen.command[0]}: no such program", 127)
        manager = ensure_manager(chosen.socket, options.pool_bytes)
    except RunError as error:
        print(f"orbitkv run: {error}", file=sys.stderr)
        return error.status
    added = "; added " + " ".join(chosen.added) if chosen.added else "; added nothing"
    print(f"orbitkv run: {manager}{added}", file=sys.stderr, flush=True)
    if chosen.warning:
        print(f"orbitkv run: warning: {chosen.warning}", file=sys.stderr, flush=True)
    become(chosen)


if __name__ == "__main__":
    sys.exit(main())
