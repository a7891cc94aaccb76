"""``sglang serve`` and ``python -m sglang.launch_server``: what `orbitkv run` adds to them."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orbitkv.command import Plan, RunError, file_of, has_option, module_of, socket_path, value_of
from orbitkv.sglang.options import ENDPOINT, SCHEME
from orbitkv.sglang.plugin import FLAG, NAME, linker_config, names_us

BACKEND = "--radix-cache-backend"
LINKER_BACKEND = "--unified-cache-external-linker-backend"
LINKER_CONFIG = "--unified-cache-external-linker-config"
PAGE_SIZE = "--page-size"
MODULES = ("sglang.launch_server", "sglang.srt.entrypoints.http_server")
# SGLang's own default is pages of one token: a look-up would name each token, and a block would be tiny.
PAGE_TOKENS = "64"


def is_ours(command: Sequence[str]) -> bool:
    """Whether this is SGLang's, be it an engine or another of its tools."""
    return Path(command[0]).name == "sglang" or module_of(command).split(".")[0] in ("sglang", "sglang_router")


def _is_engine(command: Sequence[str]) -> bool:
    if module_of(command):
        return module_of(command) in MODULES or (module_of(command) == "sglang" and "serve" in command)
    return command[1:2] == ["serve"]


def _options(text: str | None) -> dict[str, Any]:
    """Of a linker's configuration, the part that is an object; what is no JSON is for SGLang to refuse."""
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _asks_for_us(command: Sequence[str]) -> bool:
    """Whether it names OrbitKV, by whichever way; another linker or cache stays as it is, and is refused."""
    file = file_of(command)
    for name in (BACKEND, LINKER_BACKEND, LINKER_CONFIG, FLAG):
        if name[2:] in file:
            raise RunError(f"the file of --config has {name[2:]}, which stays as it is: say that on the command line")
    backend = value_of(command, BACKEND)
    if backend is not None and backend != NAME:
        raise RunError(f"the command has {BACKEND} {backend}, which stays as it is: leave it out, or run it without us")
    linker = value_of(command, LINKER_BACKEND)
    text = value_of(command, LINKER_CONFIG)
    if backend is None and linker == "dynamic" and names_us(_options(text)):
        return True
    if linker is not None or (text is not None and backend is None):
        raise RunError(
            f"the command has a linker of its own ({LINKER_BACKEND}, {LINKER_CONFIG}), which stays as it is: name "
            f"OrbitKV's in it, or leave it out"
        )
    return backend == NAME


def _endpoint_in(command: Sequence[str]) -> str | None:
    config = _options(value_of(command, LINKER_CONFIG))
    found = config.get("linker_extra_config", config)
    return str(found["endpoint"]) if isinstance(found, dict) and found.get("endpoint") else None


def plan(command: Sequence[str], manager_socket: str | None, environment: Mapping[str, str]) -> Plan:
    if not _is_engine(command):
        raise RunError(
            f"`{shlex.join(command[:3])}` starts no engine; give `sglang serve ...` or "
            "`python -m sglang.launch_server ...`"
        )
    full, changed, added = list(command), dict(environment), list[str]()

    def add(*arguments: str) -> None:
        full.extend(arguments)
        added.append(shlex.join(arguments))

    named = _endpoint_in(command) or environment.get(ENDPOINT) or None
    if named is not None and not named.startswith(f"{SCHEME}/"):
        raise RunError(f"the endpoint must be {SCHEME}/path, not {named!r} ({ENDPOINT}, or in the command)")
    where = f"the command or {ENDPOINT}"
    path = socket_path(manager_socket, named and named.removeprefix(SCHEME), where, environment)
    if not _asks_for_us(command):
        add(LINKER_BACKEND, "dynamic")
        add(LINKER_CONFIG, json.dumps(linker_config(), separators=(",", ":")))
    if not has_option(command, FLAG):
        add(FLAG)
    if value_of(command, PAGE_SIZE) is None and PAGE_SIZE[2:] not in file_of(command):
        add(PAGE_SIZE, PAGE_TOKENS)
    if named is None:
        changed[ENDPOINT] = SCHEME + path
        added.append(f"{ENDPOINT}={changed[ENDPOINT]}")
    return Plan(full, changed, path, added)
