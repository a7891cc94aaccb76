"""What all engines' identities have in common: fields become a digest, and a line of the log."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import orbitkv

Fields = dict[str, Any]
LONG_TEXTS = ("model_config", "drafter")


def representation_digest(groups: Sequence[Fields]) -> bytes:
    """Of a worker's pages: the digest of its one group, or one over those of all."""
    digests = [orbitkv.representation_digest(fields) for fields in groups]
    if len(digests) == 1:
        return digests[0]
    builder = orbitkv.DigestBuilder("representation of several groups")
    for digest in digests:
        builder.add("group", digest)
    return builder.digest()


def describe(fields: Mapping[str, Any]) -> str:
    """For one log line: lines are equal when the fields are. Long texts and bytes are there by their digests."""

    def shown(key: str, value: Any) -> Any:
        if key in LONG_TEXTS and value:
            value = value.encode()
        return hashlib.sha256(value).hexdigest()[:16] if isinstance(value, bytes) else value

    return " ".join(f"{key}={shown(key, value)}" for key, value in fields.items())
