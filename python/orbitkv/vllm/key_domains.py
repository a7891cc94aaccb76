"""Which requests have names for their blocks that say all of what these depend on, and in which key domain.

vLLM's own cache knows nothing of an adapter's or the weights' content. Once one of them has changed under it, blocks
that a request finds there may come from before: such a request is computed without OrbitKV, so that nothing wrong is
saved under a name that others look for.

Threads: the scheduler's only. Waits: never; a request whose adapter is being read is asked about again.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from orbitkv.vllm.lora import AdapterFiles, key_domain
from orbitkv.warn_once import WarnOnce

if TYPE_CHECKING:
    from orbitkv.vllm.records import Tracked

logger = logging.getLogger("orbitkv.vllm")

# A request waits this long for its adapter's files to be read, then it is computed without OrbitKV.
READ_WAIT_S = 2.0

# Why a request is in no key.
EMBEDDINGS = "prompt embeddings"
MULTIMODAL = "multimodal identifier"
LORA_UNREADABLE = "LoRA unreadable"
LORA_SLOW = "LoRA not read in time"
LORA_CHANGED = "LoRA changed on disk"
FOUND_OLD = "found in a cache from before a change"

# SHA-256 or BLAKE3, or SHA-512, as vLLM makes them of an item's content.
CONTENT_HASH = re.compile(r"[0-9a-f]{64}|[0-9a-f]{128}")

Name = tuple[str, str]  # of an adapter, and its path


def _is_content_hash(identifier: str, lora: Any) -> bool:
    if lora is not None:
        identifier = identifier.removeprefix(f"{lora.name}:")  # where an adapter reaches the encoder
    return CONTENT_HASH.fullmatch(identifier) is not None


def outside(request: Any, trust_mm_uuids: bool) -> str:
    """Why this request's block hashes do not say what its blocks hold; empty when they do."""
    if getattr(request, "prompt_embeds", None) is not None:
        return EMBEDDINGS
    lora = getattr(request, "lora_request", None)
    for feature in () if trust_mm_uuids else getattr(request, "mm_features", None) or ():
        if not _is_content_hash(str(feature.identifier), lora):
            return MULTIMODAL
    return ""


class KeyDomains:
    def __init__(self, trust_mm_uuids: bool = False) -> None:
        self._trust_mm_uuids = trust_mm_uuids
        self.lora_dtype = ""
        self._files = AdapterFiles()
        self._content: dict[Name, bytes] = {}  # since the engine's own cache was empty
        self._changed: set[Name] = set()  # adapters with more than one since then
        self._asked: dict[int, tuple[Name, bytes]] = {}  # by the adapter's number: what its files hold
        self._loaded: dict[int, bytes] = {}  # and what the workers have loaded
        self._weights_changed = False
        self._warn_once = WarnOnce(logger)
        self.pool: Any = None  # the engine's own cache

    def track(self, tracked: Tracked) -> None:
        """A new request: what its key needs is begun to be read."""
        tracked.outside = outside(tracked.request, self._trust_mm_uuids)
        lora = getattr(tracked.request, "lora_request", None)
        if lora is not None:
            tracked.reading = self._files.start(lora)
            tracked.reading_since = time.monotonic()

    def settle(self, tracked: Tracked, computed_tokens: int) -> bool:
        """Before each look-up. False: not known yet. `computed_tokens`: of its hit in the engine's own cache."""
        if tracked.reading is not None:
            if not tracked.reading.done():
                if time.monotonic() - tracked.reading_since < READ_WAIT_S:
                    return False
                self._give_up(tracked, LORA_SLOW)
                return True
            content, tracked.reading = tracked.reading.result(), None
            self._enter(tracked, content)
        lora = getattr(tracked.request, "lora_request", None)
        changed = self._weights_changed or (lora is not None and (lora.name, lora.path) in self._changed)
        if changed and computed_tokens > 0 and not tracked.outside:
            tracked.outside = FOUND_OLD
        return True

    def _enter(self, tracked: Tracked, content: bytes) -> None:
        lora = tracked.request.lora_request
        name = (str(lora.name), str(lora.path))
        if not content:
            self._give_up(tracked, LORA_UNREADABLE)
            self._warn(f"the files of LoRA {lora.name!r} at {lora.path!r} cannot be read: its requests are not cached")
            return
        if self._content.setdefault(name, content) != content:
            self._changed.add(name)
        inplace = bool(getattr(lora, "load_inplace", False))
        number = int(lora.adapter_id)
        self._asked[number] = (name, content)
        if not inplace and self._loaded.get(number, content) != content:
            self._give_up(tracked, LORA_CHANGED)
            self._warn(f"LoRA {lora.name!r} was replaced at {lora.path!r} and is still loaded as it was: not cached")
            return
        tracked.domain = key_domain(content, self.lora_dtype, bool(getattr(lora, "is_3d_lora_weight", False)))
        tracked.adapter = (number, content, inplace)

    def _give_up(self, tracked: Tracked, reason: str) -> None:
        """What the request leaves in the engine's own cache has no content that we know."""
        lora = tracked.request.lora_request
        self._changed.add((str(lora.name), str(lora.path)))
        tracked.outside = tracked.outside or reason

    def loaded(self, adapters: Mapping[int, bytes]) -> None:
        """What the workers have loaded, by the adapters' numbers; empty for a content that is not known."""
        self._loaded.update(adapters)
        for number, content in adapters.items():
            name, asked = self._asked.get(number, (None, content))
            if name is not None and asked != content:
                self._changed.add(name)

    def weights_changed(self) -> None:
        self._weights_changed = True
        self.reset()

    def reset(self) -> None:
        """The engine's own cache may have been emptied; if so, nothing in it is old any more."""
        if self.pool is not None and len(self.pool.cached_block_hash_to_block) == 0:
            self._weights_changed = False
            self._content.clear()
            self._changed.clear()

    def _warn(self, text: str) -> None:
        self._warn_once(text, "OrbitKV: %s", text)

    def close(self) -> None:
        self._files.close()
