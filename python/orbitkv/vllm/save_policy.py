"""What of a request is saved, and whether it is looked up: the engine's options and the request's own wishes.

A request says what it wants in its `kv_transfer_params`: ``"orbitkv.save"`` is false, true (as the engine's option
says) or the name of a policy, ``"orbitkv.load"`` false keeps it from restoring. It can do no more than the engine's
mode allows. A wish that is not understood is ignored and told once: a request is never refused for it.

Threads: the scheduler's only. Units: tokens.
"""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orbitkv.vllm.options import PREFIX, SAVES, Options
from orbitkv.warn_once import WarnOnce

logger = logging.getLogger("orbitkv.vllm")

# Keys remembered as seen by a first request.
SEEN_KEYS = 1 << 18
# More tokens than any request has.
NEVER = sys.maxsize


@dataclass(frozen=True)
class Wishes:
    save: str = "all"  # a policy, or "" for nothing
    load: bool = True


class SavePolicy:
    def __init__(self, options: Options) -> None:
        self._default = Wishes(options.save if options.saves else "", options.loads)
        self._min_tokens = options.save_min_tokens
        self._seen: OrderedDict[bytes, str] = OrderedDict()  # key -> the first request that had it
        self._warn_once = WarnOnce(logger)

    def wishes(self, params: Mapping[str, Any] | None) -> Wishes:
        """Of a request with these `kv_transfer_params`."""
        save, load = self._default.save, self._default.load
        for key, value in (params or {}).items():
            if not key.startswith(PREFIX):
                continue
            if key == PREFIX + "save" and isinstance(value, bool):
                save = save if value else ""
            elif key == PREFIX + "save" and value in SAVES:
                save = value if save else ""
            elif key == PREFIX + "load" and isinstance(value, bool):
                load = load and value
            else:
                self._warn(key, value)
        return Wishes(save, load)

    def _warn(self, key: str, value: Any) -> None:
        text = f"{key}={value!r}"[:80]
        self._warn_once(
            text,
            "OrbitKV ignores %s in a request's kv_transfer_params; known are %ssave (false, true, %s) and "
            "%sload (false, true)",
            text,
            PREFIX,
            ", ".join(SAVES),
            PREFIX,
        )

    def saves_from(self, wishes: Wishes, prompt_tokens: int) -> int:
        """Tokens that must be computed before a request is saved; then it is, from its first block on."""
        if prompt_tokens >= self._min_tokens:
            return 0
        return NEVER if wishes.save == "prompt" else self._min_tokens

    def wanted_tokens(self, wishes: Wishes, prompt_tokens: int) -> int | None:
        """Of a request the blocks that end within so many tokens are wanted; None when that depends on the block."""
        if wishes.save == "prompt":
            return prompt_tokens
        return None if wishes.save == "seen_twice" else NEVER

    def wants(self, wishes: Wishes, request: Any, key: bytes, end_tokens: int) -> bool:
        """Whether a complete block goes to the Manager: its name, and where it ends in the request."""
        if wishes.save == "prompt":
            return end_tokens <= int(request.num_prompt_tokens)
        if wishes.save == "seen_twice":
            return self._seen_by_another(key, str(request.request_id))
        return bool(wishes.save)

    def _seen_by_another(self, key: bytes, request_id: str) -> bool:
        first = self._seen.setdefault(key, request_id)
        self._seen.move_to_end(key)
        if len(self._seen) > SEEN_KEYS:
            self._seen.popitem(last=False)
        return first != request_id
