"""A page of docs/ that tests hold to what there is."""

from __future__ import annotations

import re
from pathlib import Path


class Guide:
    def __init__(self, path: Path) -> None:
        self._text = path.read_text()

    def section(self, title: str) -> str:
        return self._text.partition(f"\n## {title}\n")[2].partition("\n## ")[0]

    def first_cells(self, title: str) -> list[str]:
        """Of the table's lines in a section, without the marks of code."""
        return re.findall(r"^\| `?([^|`]+?)`? \|", self.section(title), re.MULTILINE)

    def check_tests(self, folder: Path, marks: tuple[str, ...], but: Path) -> None:
        """Every test that *What is tested* names is there, and none with one of these marks is left out."""
        named = set(re.findall(r"`(test_\w+\.py)`", self.section("What is tested")))
        files = [path for path in folder.glob("test_*.py") if path.name != but.name]
        marked = {path.name for path in files if any(mark in path.read_text() for mark in marks)}
        assert marked <= named, f"not in the table: {sorted(marked - named)}"
        assert named <= {path.name for path in files}, f"not there: {sorted(named - {path.name for path in files})}"
