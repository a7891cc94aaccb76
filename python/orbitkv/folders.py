"""Folders of models and adapters on this host."""

from __future__ import annotations

import hashlib
from pathlib import Path

PROCESSOR_FILES = ("preprocessor_config.json", "processor_config.json", "video_preprocessor_config.json")


def local_copy(name: str, file: str, *, directory: str | None = None, revision: str | None = None) -> str:
    """Where what the hub calls `name` lies; the name itself when it is a path, or when there is no copy.

    Downloads nothing.

    Args:
        name: a path, or owner/name.
        file: that every such folder has.
        directory: of the downloads; None is the hub package's own.
        revision: of the hub's repository.
    """
    try:
        if "://" in name or Path(name).exists():
            return name
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(name, file, cache_dir=directory, revision=revision)
    except Exception:  # no hub package, or a name that it or the file system does not accept
        return name
    return str(Path(found).parent) if isinstance(found, str) else name


def file_digests(folder: str, names: tuple[str, ...]) -> dict[str, str]:
    """SHA-256 of those of the named files that are there."""
    digests = {}
    for name in names:
        path = Path(folder) / name
        if path.is_file():
            digests[name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests
