"""Prompts of a wanted length, cut from real texts."""

from __future__ import annotations

from pathlib import Path

from .chat_server import ChatServer
from .processes import ProcessError

LICENCES = Path("/usr/share/common-licenses")
QUESTION = "\n\nIn one sentence, what does this document say?"


def documents() -> list[str]:
    """Long texts without a common beginning, so that no prompt warms another one."""
    names = ("GPL-3", "LGPL-2.1", "GPL-2", "GFDL-1.3", "Artistic", "Apache-2.0")
    texts = [(LICENCES / name).read_text() for name in names if (LICENCES / name).exists()]
    if not texts:
        raise ProcessError(f"no licence texts under {LICENCES}; install the package base-files")
    return [text + "".join(texts) for text in texts]


def cut_prompts(server: ChatServer, lengths: tuple[int, ...]) -> list[str]:
    """One prompt per length, each of another document: its longest beginning that has no more tokens."""
    prompts = []
    texts = documents()
    for number, length in enumerate(lengths):
        text = f"Document {number + 1}.\n" + texts[number % len(texts)]
        fits, too_long = 0, min(len(text), length * 8)
        while too_long - fits > 16:
            middle = (fits + too_long) // 2
            if server.count_tokens(text[:middle] + QUESTION) <= length:
                fits = middle
            else:
                too_long = middle
        prompts.append(text[:fits] + QUESTION)
    return prompts
