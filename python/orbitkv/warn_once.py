"""Warnings about what comes from outside: each is told once, and their number has a limit. Threads: the caller's."""

from __future__ import annotations

import logging

MAX_WARNINGS = 16


class WarnOnce:
    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._told: set[str] = set()

    def __call__(self, subject: str, message: str, *values: object) -> None:
        """`subject` makes it another warning; `message` and `values` are the logger's."""
        if subject not in self._told and len(self._told) < MAX_WARNINGS:
            self._told.add(subject)
            self._logger.warning(message, *values)
