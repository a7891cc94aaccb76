"""What the linker is told, checked once: its part of SGLang's linker configuration, and the environment.

SGLang hands ``linker_extra_config`` of ``--unified-cache-external-linker-config`` over; with
``--radix-cache-backend orbitkv`` the whole of that configuration is ours. What it says goes before the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orbitkv.options import AdapterOptions, OptionError, convert, default_socket

SCHEME = "unix://"
PREFIX = "ORBITKV_SGLANG_"
ENDPOINT = f"{PREFIX}ENDPOINT"
# Of the environment: the option that it sets.
VARIABLES = {ENDPOINT: "endpoint", f"{PREFIX}LOOKUP_WAIT": "load_wait_ms"}
MAX_LOOKUP_WAIT_US = 60_000_000
MAX_LOAD_WAIT_MS = 60_000
MIN_LOAD_TIMEOUT_S = 3.0
# The client refuses to wait longer than a day, and a wait that it refuses says nothing about the end of a copy.
MAX_TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class Options(AdapterOptions):
    endpoint: str = ""  # where the Manager listens, unix:///path; empty: the user's default place
    lookup_wait_us: int = 2000  # the look-ups of a pass wait at most so long in all for the Manager's first answers
    lookup_limit_ms: int = 50  # a Manager without an answer by then is left alone until it answers
    load_wait_ms: int = 0  # and so much longer for blocks that are not in the Manager's memory
    load_timeout_s: float = 10.0  # the copies of a load that do not end in this time end the engine
    reset_timeout_s: float = 10.0  # a flush and the end wait at most so long for copies that run

    @property
    def socket(self) -> str:
        return self.endpoint.removeprefix(SCHEME)


_FIELDS = Options.__dataclass_fields__
KNOWN_KEYS = tuple(sorted(_FIELDS))


def _of_environment(environment: Mapping[str, str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for variable, text in environment.items():
        if not variable.startswith(PREFIX):
            continue
        name = VARIABLES.get(variable)
        if name is None:
            raise OptionError(f"unknown variable {variable}; known are: {', '.join(VARIABLES)}")
        if name == "load_wait_ms":
            if not text.isdecimal():
                raise OptionError(f"{variable} must be a number of milliseconds, not {text!r}")
            values[name] = int(text)
        elif text:
            values[name] = text
    return values


def _check(options: Options) -> None:
    if not options.endpoint.startswith(SCHEME + "/"):
        raise OptionError(
            f"the endpoint must be {SCHEME}/path of a Manager's socket on this host, not {options.endpoint!r} "
            f"(option endpoint, or {ENDPOINT})"
        )
    options.check()
    if not 0 <= options.load_wait_ms <= MAX_LOAD_WAIT_MS:
        raise OptionError(f"load_wait_ms must be 0 to {MAX_LOAD_WAIT_MS}")
    for name in ("require_manager_timeout_s", "lookup_wait_us", "lookup_limit_ms"):
        if getattr(options, name) < 0:
            raise OptionError(f"{name} must not be negative")
    if options.lookup_wait_us > MAX_LOOKUP_WAIT_US:
        raise OptionError(f"lookup_wait_us must be 0 to {MAX_LOOKUP_WAIT_US}")
    for name in ("require_manager_timeout_s", "load_timeout_s", "reset_timeout_s"):
        if not getattr(options, name) <= MAX_TIMEOUT_S:  # JSON also has numbers that are none
            raise OptionError(f"{name} must be at most {MAX_TIMEOUT_S:g}")
    if options.load_timeout_s < MIN_LOAD_TIMEOUT_S:
        raise OptionError(f"load_timeout_s must be at least {MIN_LOAD_TIMEOUT_S:g}: a silent Manager has 2 s of it")
    if options.reset_timeout_s <= 0:
        raise OptionError("reset_timeout_s must be more than 0")


def parse(extra_config: Mapping[str, Any] | None, environment: Mapping[str, str] | None = None) -> Options:
    """Both together; an unknown key of either is refused.

    Args:
        extra_config: the linker's own part of SGLang's configuration.
        environment: the process's own by default.
    """
    values = _of_environment(os.environ if environment is None else environment)
    for name, value in (extra_config or {}).items():
        if name not in _FIELDS:
            raise OptionError(f"unknown option {name!r}; known are: {', '.join(KNOWN_KEYS)}")
        values[name] = convert(name, value, _FIELDS[name].default)
    values["endpoint"] = values.get("endpoint") or SCHEME + default_socket()
    options = Options(**values)
    _check(options)
    return options
