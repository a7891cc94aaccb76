"""What ends the start of an engine that cannot be cached."""

from __future__ import annotations


class UnsupportedError(ValueError):
    """This engine configuration cannot be cached; the message says what and what to do."""


def refuse(what: str) -> UnsupportedError:
    return UnsupportedError(f"OrbitKV does not support {what}; start this engine without OrbitKV's linker")
