"""A child process that is told what to do in JSON lines: its set-up first, then a command in each line.

Each is answered by one line on standard output; what anything else prints there goes to standard error instead, which
is the log. Needs the standard library alone: it also runs in environments that are not the project's.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any


class JsonLines:
    """Made before anything prints. `setup`: what the first line said."""

    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "w")
        os.dup2(2, 1)
        self.setup: Any = json.loads(sys.stdin.readline())

    def answer(self, value: Any) -> None:
        self._answers.write(json.dumps(value) + "\n")
        self._answers.flush()

    def serve(self, commands: Mapping[str, Callable[..., Any]]) -> None:
        """Answers the set-up, then each [name, arguments] by what that command returns, until there are no more."""
        self.answer({"ready": 1})
        for line in sys.stdin:
            name, arguments = json.loads(line)
            self.answer(commands[name](**arguments))
