"""``vllm serve``: what `orbitkv run` adds to it."""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from orbitkv.command import Plan, RunError, file_of, module_of, socket_path, value_of

CONFIG = "--kv-transfer-config"
CONNECTOR = "OrbitKVConnector"
SOCKET_OPTION = "orbitkv.bootstrap_socket"


def is_ours(command: Sequence[str]) -> bool:
    """Whether this is vLLM's, be it an engine or another of its tools."""
    return Path(command[0]).name == "vllm" or module_of(command).split(".")[0] == "vllm"


def is_engine(command: Sequence[str]) -> bool:
    return command[1:2] == ["serve"] or bool(module_of(command))


def kv_transfer_config(manager_socket: str) -> dict[str, Any]:
    return {
        "kv_connector": CONNECTOR,
        "kv_connector_module_path": "orbitkv.vllm",
        "kv_role": "kv_both",
        "kv_load_failure_policy": "recompute",
        "kv_connector_extra_config": {SOCKET_OPTION: manager_socket},
    }


def given_config(command: Sequence[str]) -> str | None:
    """What the command, or the file that it names, says of its connector; None when nothing."""
    text = value_of(command, CONFIG)
    if text is not None:
        return text
    content = file_of(command)
    return content if CONFIG[2:] in content else None


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
    if not is_engine(command):
        raise RunError(f"`{shlex.join(command[:3])}` starts no engine; give `vllm serve MODEL ...`")
    full, changed, added = list(command), dict(environment), list[str]()
    given = given_config(command)
    if given is not None and CONNECTOR not in given:
        raise RunError(
            f"the command has a {CONFIG} without {CONNECTOR}, which stays as it is: add OrbitKV to it as a child of "
            "MultiConnector, or leave it out"
        )
    named = _socket_in(given) if given is not None else None
    path = socket_path(manager_socket, named, f"the command's {CONFIG}", environment)
    if given is None:
        text = json.dumps(kv_transfer_config(path), separators=(",", ":"))
        full += [CONFIG, text]
        added.append(f"{CONFIG} {shlex.quote(text)}")
    if not changed.get("PYTHONHASHSEED"):
        changed["PYTHONHASHSEED"] = "0"
        added.append("PYTHONHASHSEED=0")
    return Plan(full, changed, path, added, _warning_of(given or ""))
