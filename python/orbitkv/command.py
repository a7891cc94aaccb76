"""The command line of an engine: what it says, what is added so that the engine uses OrbitKV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from orbitkv.options import default_socket


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


def module_of(command: Sequence[str]) -> str:
    """What `python -m` is told to run; empty when it is no such command."""
    at = command.index("-m") + 1 if "-m" in command[:-1] and Path(command[0]).name.startswith("python") else 0
    return command[at] if at else ""


def value_of(command: Sequence[str], name: str) -> str | None:
    """The last value of an option, in each of the forms that parsers take; its parts when it has some."""
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


def has_option(command: Sequence[str], name: str) -> bool:
    return any(argument.partition("=")[0].replace("_", "-") == name for argument in command)


def socket_path(given: str | None, named: str | None, where: str, environment: Mapping[str, str]) -> str:
    """Where the Manager listens, or is to listen.

    Args:
        given: to `orbitkv run`.
        named: by the engine's command or its environment.
        where: they do.
        environment: of `orbitkv run`.
    """
    if given and named and given != named:
        raise RunError(f"--socket {given}, but {where} names {named}: give one of them")
    path = given or named or environment.get("ORBITKV_SOCKET") or default_socket()
    if not path.startswith("/"):
        raise RunError(f"the socket must be an absolute path, not {path!r}")
    return path


def file_of(command: Sequence[str]) -> str:
    """What the file says that the command names with --config, with - in its names; empty without one."""
    name = value_of(command, "--config")
    if name is None:
        return ""
    try:
        return Path(name).read_text().replace("_", "-")
    except OSError:
        return ""  # the engine will say so
