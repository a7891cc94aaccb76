"""One text for equal configurations, whichever process writes it."""

from __future__ import annotations

import json
from typing import Any


def plain(value: Any) -> Any:
    """Made of what JSON has; private names and addresses of objects are left out."""
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items() if not str(key).startswith("_")}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    if isinstance(value, (set, frozenset)):
        return sorted(json.dumps(plain(item), sort_keys=True) for item in value)
    to_dict = getattr(value, "to_dict", None)
    if callable(to_dict):
        return plain(to_dict())
    text = str(value)
    if " at 0x" in text:  # a default repr names an address, which differs in every process
        return f"{type(value).__module__}.{type(value).__qualname__}"
    return text


def canonical(value: Any) -> str:
    return json.dumps(plain(value), sort_keys=True, separators=(",", ":"))


def without(value: Any, name: str) -> Any:
    """Of what `plain` made, everything but the entries of that name."""
    if isinstance(value, dict):
        return {key: without(item, name) for key, item in value.items() if key != name}
    return [without(item, name) for item in value] if isinstance(value, list) else value
