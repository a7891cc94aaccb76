"""Methods of an engine's own classes, wrapped in their classes once for each process."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

_MARK = "_orbitkv_wrapped"


def wrap_once(owner: Any, method: str, wrapper: Callable[[Any], Any]) -> bool:
    """Replaces a method by what `wrapper` makes of it, unless it is wrapped already. False when there is none."""
    original = getattr(owner, method, None)
    if original is None:
        return False
    if not hasattr(original, _MARK):
        wrapped = functools.wraps(original)(wrapper(original))
        setattr(wrapped, _MARK, True)
        setattr(owner, method, wrapped)
    return True
