"""What all engines' identities have in common: fields become a digest, and a line of the log."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orbitkv

Fields = dict[str, Any]


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
    """For one log line: everything but the long texts."""
    return " ".join(
        f"{key}={value.hex()[:16] if isinstance(value, bytes) else value}"
        for key, value in fields.items()
        if key not in ("model_config", "drafter")
    )
