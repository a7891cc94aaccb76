"""Which weights a model folder holds, as a digest."""

from __future__ import annotations

from orbitkv._native import CancelToken, identify_weights


def weights_digest(folder: str, *, cancel: CancelToken | None = None) -> bytes:
    """SHA-256 over names and contents of all weight files of a folder, 32 bytes.

    Reads each file once per host and remembers its hash; may take minutes for large models, without the GIL.

    Raises:
        UnavailableError: cancelled.
        Error: the folder has no weight files, or cannot be read.
    """
    return bytes.fromhex(identify_weights(folder, cancel=cancel).removeprefix("sha256:"))
