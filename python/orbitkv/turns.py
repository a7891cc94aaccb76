"""Something that is brought up beside its owner, and brought up anew for each turn: an engine's client.

A turn begins at the start, at each renewal and when a pause ends. What was brought up for a turn that is over is ended,
also when it comes late.

Threads: each turn has one, after the one of the turn before; every method may be called from any. Only `make_now`,
`pause` and `close` wait.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from orbitkv._native import UnavailableError
from orbitkv.options import AdapterOptions


class Ends(Protocol):
    def close(self, timeout_s: float = 5.0) -> None: ...


class ComesUp(Ends, Protocol):
    def wait_up(self, timeout_s: float) -> bool: ...


Thing = TypeVar("Thing", bound=Ends)
Client = TypeVar("Client", bound=ComesUp)


class Turns(Generic[Thing]):
    """Owns what it made, until it is handed out by `pause` or ended.

    `make` runs in the turn's thread. What it raises leaves this turn with nothing, and is told as a warning. `stop`
    makes a long `make` end, when all is closed.
    """

    def __init__(self, make: Callable[[], Thing], stop: Callable[[], None], logger: logging.Logger) -> None:
        self._make = make
        self._stop = stop
        self._logger = logger
        self._lock = threading.Lock()
        self._current: Thing | None = None
        self._closed = False
        self._paused = False
        self._turn = 0
        self._thread = self._new_thread(None, None)

    @property
    def current(self) -> Thing | None:
        return self._current

    def start(self) -> None:
        self._thread.start()

    def make_now(self) -> Thing | None:
        """Instead of `start`: the first turn's, in the caller's thread, which gets what `make` raises."""
        self._bring_up(self._turn)
        return self._current

    def join(self, timeout_s: float) -> bool:
        """Whether the turn's thread has ended."""
        if self._thread.is_alive():
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def renew(self, change: Callable[[], None] = lambda: None) -> None:
        """Makes anew after a change to what `make` reads; while it is paused, when the pause ends."""
        with self._lock:
            if self._closed:
                return
            change()
            self._begin_turn(self._take())

    def pause(self, timeout_s: float | None) -> Thing | None:
        """There is nothing until `resume`. Idempotent.

        Args:
            timeout_s: how long the end may take, which is waited for; None ends it beside the caller.

        Returns:
            What was ended, when that was waited for.
        """
        with self._lock:
            if self._closed:
                return None
            self._paused = True
            taken = self._take()
            if timeout_s is None and taken is not None:
                self._thread = self._new_thread(taken, self._thread)
                self._thread.start()
                return None
        if taken is not None and timeout_s is not None:
            taken.close(timeout_s)
        return taken

    def resume(self, change: Callable[[], None] = lambda: None) -> None:
        """Ends a pause, after a change to what `make` reads."""
        with self._lock:
            if self._closed or not self._paused:
                return
            change()
            self._paused = False
            self._begin_turn(None)

    def close(self, timeout_s: float) -> None:
        """Idempotent. Waits for the turn's thread and for the end of what there is, so long for each."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            taken = self._take()
        self._stop()
        self.join(timeout_s)
        if taken is not None:
            taken.close(timeout_s)

    def _take(self) -> Thing | None:
        taken, self._current = self._current, None
        return taken

    def _begin_turn(self, old: Thing | None) -> None:
        self._turn += 1
        self._thread = self._new_thread(old, self._thread)
        self._thread.start()

    def _new_thread(self, old: Thing | None, before: threading.Thread | None) -> threading.Thread:
        arguments = (old, before, self._turn)
        return threading.Thread(target=self._run, args=arguments, name="orbitkv-link", daemon=True)

    def _run(self, old: Thing | None, before: threading.Thread | None, turn: int) -> None:
        if before is not None and before.is_alive():
            before.join()
        if old is not None:
            self._end(old, 5.0)
        try:
            self._bring_up(turn)
        except Exception as error:
            if not self._closed:
                self._logger.warning("OrbitKV stays off in this engine: %s", error)

    def _bring_up(self, turn: int) -> None:
        if self._is_over(turn):
            return
        made = self._make()
        with self._lock:
            if not self._is_over(turn):
                self._current = made
                return
        self._end(made, 0.0)

    def _end(self, thing: Thing, timeout_s: float) -> None:
        """Nobody waits for it: the owner has waited for what it needs of it."""
        try:
            thing.close(timeout_s)
        except Exception as error:
            self._logger.warning("OrbitKV: a client did not end as it should: %s", error)

    def _is_over(self, turn: int) -> bool:
        return self._closed or self._paused or self._turn != turn


def start(turns: Turns[Client], options: AdapterOptions, where: str, prefix: str = "") -> None:
    """Begins the first turn of an engine's client. Waits only for a Manager that is required.

    Raises:
        UnavailableError: it is required and does not answer at `where`. `prefix` is of the option that says so.
    """
    if not options.require_manager:
        turns.start()
        return
    client = turns.make_now()
    if client is None or not client.wait_up(options.require_manager_timeout_s):
        turns.close(0.0)
        raise UnavailableError(
            f"no Cache Manager at {where}: start orbitkv-manager, or leave out {prefix}require_manager to serve "
            "without it"
        )
