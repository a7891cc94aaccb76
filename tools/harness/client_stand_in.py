"""A client that connects nowhere, for the tests of what keeps an engine's client."""

from __future__ import annotations

from typing import Any

import pytest

import orbitkv


class Client:
    def __init__(self, options: orbitkv.ClientOptions) -> None:
        self.options = options
        self.closed: float | None = None
        self.waited: float | None = None
        self.pages: Any = None

    def close(self, timeout_s: float = 5.0) -> None:
        self.closed = timeout_s

    def wait_up(self, timeout_s: float) -> bool:
        self.waited = timeout_s
        return False


def stand_in(monkeypatch: pytest.MonkeyPatch) -> list[Client]:
    """Whatever connects gets such clients from now on; they are in the list, in the order in which they were made."""
    made: list[Client] = []

    def make(options: orbitkv.ClientOptions) -> Client:
        made.append(Client(options))
        return made[-1]

    monkeypatch.setattr(orbitkv, "Client", make)
    return made


def settled(link: Any) -> Any:
    """The client of a link whose turn has ended."""
    assert link._turns.join(10)
    return link.client
