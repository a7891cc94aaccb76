"""``orbitkv run -- ENGINE ...``: starts a Manager where none answers, then becomes the engine that uses it.

The command keeps its process: signals reach it and its exit status is the caller's. The Manager is nobody's child and
stays when the engine ends, so that the next one finds its blocks. What the command says itself is never overridden.
"""

from __future__ import annotations

import argparse
import os
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from orbitkv.command import Plan, RunError
from orbitkv.sglang import command as sglang_command
from orbitkv.vllm import command as vllm_command

EXAMPLES = "`vllm serve MODEL ...`, `sglang serve --model-path MODEL ...` or `python -m sglang.launch_server ...`"
# A killed Manager's successor waits for its memory to be torn down.
READY_S = 60.0
POLL_S = 0.05


def plan(command: Sequence[str], manager_socket: str | None, environment: Mapping[str, str]) -> Plan:
    """Raises RunError unless the command starts an engine that there is an adapter for."""
    if not command:
        raise RunError(f"no command: orbitkv run -- {EXAMPLES}")
    if vllm_command.is_ours(command):
        return vllm_command.plan(command, manager_socket, environment)
    if sglang_command.is_ours(command):
        return sglang_command.plan(command, manager_socket, environment)
    raise RunError(f"there is no adapter for what `{shlex.join(command[:3])}` starts; give {EXAMPLES}")


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
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="-- ENGINE ...")
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
