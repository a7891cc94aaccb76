#!/usr/bin/env python3
"""Checks the rules of the house that no compiler checks; CONTRIBUTING.md lists them.

Usage: tools/tidy.py [ROOT]. Prints "path:line: rule: what is wrong" for each finding; exit status 1 when there is one.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import cxx_scan

MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 70

# Folders of src/orbitkv by level. A folder includes lower levels and itself; folders of one level are siblings.
LEVELS = [
    ("base",),
    ("os",),
    ("state",),
    ("wire",),
    ("copy", "pool", "orbite", "channel"),
    ("cache", "store", "cluster"),
    ("service",),
    ("manager",),
    ("testing",),
]
LEVEL = {folder: level for level, folders in enumerate(LEVELS) for folder in folders}
# What engines link: it maps the pool itself and never sees the cache.
CLIENT_MAY_INCLUDE = {"base", "os", "state", "wire", "copy", "channel", "client"}
PURE_FOLDERS = {"cache", "service"}

CXX = {".cc", ".h"}
SCRIPTS = {".py", ".sh", ".cmake"}
NOT_READ = {".png", ".gz", ".bin", ".gguf", ".safetensors"}

BANNED_STEMS = re.compile(r"(?:^|_)(utils?|helpers?|misc|common|stuff|impl)(?:_|$)")
BANNED_WORDS = re.compile(r"\b(TO" r"DO|FIX" r"ME|XX" r"X)\b")
SLEEP = re.compile(r"\b(?:sleep_for|sleep_until|usleep|nanosleep)\b")
THREAD = re.compile(r"\bstd::j?thread\b(?!::)|\bpthread_create\b")
DETACH = re.compile(r"\.detach\(\)")
IMPURE = re.compile(
    r"\b(?:system_clock|steady_clock|high_resolution_clock|random_device|clock_gettime|MonotonicNs|RandomBytes)\b"
)
SYSTEM_HEADER = re.compile(
    r"^\s*#\s*include\s*<((?:sys|linux|netinet|arpa|asm|net)/[^>]*"
    r"|(?:unistd|fcntl|poll|pthread|sched|signal|spawn|dlfcn|pwd|grp|netdb|dirent|termios)\.h|csignal)>"
)
INCLUDE = re.compile(r'^\s*#\s*include\s*"orbitkv/([a-z0-9_]+)/([^"]+)"')
MACHINE_PATH = re.compile(r"(?<![\w.~}$)\]*/<-])/(?:home|work|root|opt|mnt|srv|Users)/")
REGISTRY_HOST = re.compile(
    r"\b(?:[a-z0-9-]+\.)*(?:py" r"pi|pythonhosted|debian|py" r"torch|ubuntu|npmjs|crates|conda)\.(?:org|io|com|net)\b"
)


@dataclass(frozen=True)
class Finding:
    path: str
    line: int
    rule: str
    text: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.rule}: {self.text}"


@dataclass
class Source:
    """One file of the tree: its path relative to the root and its text."""

    path: str
    text: str

    @property
    def pure(self) -> PurePosixPath:
        return PurePosixPath(self.path)

    @property
    def folder(self) -> str | None:
        """The folder of src/orbitkv that the file lies in, or None."""
        parts = self.pure.parts
        return parts[2] if len(parts) > 3 and parts[:2] == ("src", "orbitkv") else None

    @property
    def is_cxx(self) -> bool:
        return self.pure.suffix in CXX

    @property
    def is_test(self) -> bool:
        """Tests may call the system and start threads: they stand for whole processes."""
        stem = self.pure.stem
        if stem == "conformance" or stem.endswith(("_test", "_fixture", "_fuzz", "_bench")):
            return True
        return self.pure.parts[0] in ("tests", "bench")

    def lines(self) -> list[str]:
        return self.text.split("\n")

    def code(self) -> list[str]:
        """The lines with comments and the contents of strings blanked out."""
        return cxx_scan.blank(self.text).split("\n")


def layering(source: Source) -> Iterator[Finding]:
    folder = source.folder
    if not source.is_cxx or folder is None:
        return
    if folder != "client" and folder not in LEVEL:
        yield Finding(source.path, 1, "layering", f"folder {folder} has no level in tools/tidy.py")
        return
    for number, line in enumerate(source.lines(), 1):
        match = INCLUDE.match(line)
        if match and not may_include(folder, match[1], source.is_test):
            yield Finding(source.path, number, "layering", f"{folder} may not include {match[1]}")


def may_include(folder: str, other: str, is_test: bool) -> bool:
    if other == folder or folder == "testing":
        return True
    if other == "testing":
        return is_test
    if folder == "client":
        return other in CLIENT_MAY_INCLUDE
    return other in LEVEL and LEVEL[other] < LEVEL[folder]


def top_comment(source: Source) -> Iterator[Finding]:
    if source.pure.suffix != ".h":
        return
    lines = source.lines()
    if not lines[0].startswith("// "):
        yield Finding(source.path, 1, "top-comment", "a header starts with a comment that says what it is")
    if not any(line.strip() == "#pragma once" for line in lines):
        yield Finding(source.path, 1, "top-comment", "a header has #pragma once")


def words(source: Source) -> Iterator[Finding]:
    for number, line in enumerate(source.lines(), 1):
        if match := BANNED_WORDS.search(line):
            yield Finding(source.path, number, "banned-word", f"{match[1]}: open an issue instead")
        if match := MACHINE_PATH.search(line):
            yield Finding(source.path, number, "machine-path", f"{match[0]}... exists on one machine only")
        if match := REGISTRY_HOST.search(line):
            yield Finding(
                source.path, number, "registry-host", f"{match[0]}: registries come from the machine's configuration"
            )


def file_names(source: Source) -> Iterator[Finding]:
    stem = source.pure.stem
    if source.pure.suffix in CXX | SCRIPTS and (match := BANNED_STEMS.search(stem)):
        yield Finding(source.path, 1, "banned-name", f"'{match[1]}' says nothing about the subject")
    if source.is_cxx and not re.fullmatch(r"[a-z0-9_]+", stem):
        yield Finding(source.path, 1, "banned-name", "C++ files are named in snake_case")


def system_calls(source: Source) -> Iterator[Finding]:
    if not source.is_cxx or source.folder == "os":
        return
    for number, (raw, code) in enumerate(zip(source.lines(), source.code(), strict=True), 1):
        if (match := SYSTEM_HEADER.match(raw)) and not source.is_test:
            yield Finding(source.path, number, "system-call", f"<{match[1]}>: only os/ makes system calls")
        # A benchmark paces its calls; everything else waits for something.
        if (match := SLEEP.search(code)) and source.pure.parts[0] != "bench":
            yield Finding(source.path, number, "sleep", f"{match[0]}: wait for the event, with a deadline")
        if (match := THREAD.search(code)) and not source.is_test:
            yield Finding(source.path, number, "thread", f"{match[0]}: use os::Thread, which is joined by its owner")
        if DETACH.search(code):
            yield Finding(source.path, number, "thread", "a detached thread belongs to nobody")


def purity(source: Source) -> Iterator[Finding]:
    if not source.is_cxx or source.folder not in PURE_FOLDERS or source.is_test:
        return
    for number, line in enumerate(source.code(), 1):
        if match := IMPURE.search(line):
            yield Finding(source.path, number, "purity", f"{match[0]}: time and randomness come in as events")


def draws(source: Source) -> Iterator[Finding]:
    """A seed stands for one life, whichever compiler built the program."""
    if not source.is_cxx:
        return
    for number in cxx_scan.unordered_draws(source.text):
        yield Finding(source.path, number, "draw-order", "random numbers are drawn in no given order: draw one by one")


def sizes(source: Source) -> Iterator[Finding]:
    if source.pure.suffix not in CXX | SCRIPTS:
        return
    count = len(source.lines()) - 1
    if count >= MAX_FILE_LINES:
        yield Finding(source.path, 1, "file-length", f"{count} lines; a file has fewer than {MAX_FILE_LINES}")
    functions = cxx_scan.functions(source.text) if source.is_cxx else python_functions(source)
    for first, last in functions:
        if last - first + 1 >= MAX_FUNCTION_LINES:
            text = f"{last - first + 1} lines; a function has fewer than {MAX_FUNCTION_LINES}"
            yield Finding(source.path, first, "function-length", text)


def python_functions(source: Source) -> Iterator[tuple[int, int]]:
    if source.pure.suffix != ".py":
        return
    for node in ast.walk(ast.parse(source.text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno:
            yield node.lineno, node.end_lineno


def orphan_tests(sources: list[Source]) -> Iterator[Finding]:
    lists = {str(s.pure.parent): s.text for s in sources if s.pure.name == "CMakeLists.txt"}
    for source in sources:
        if source.is_cxx and re.search(r"_(test|fuzz|bench)\.cc$", source.path):
            above = [str(parent) for parent in source.pure.parents]
            name = re.compile(rf"(?<![\w]){re.escape(source.pure.name)}\b")
            if not any(name.search(lists[folder]) for folder in above if folder in lists):
                yield Finding(source.path, 1, "orphan-test", "no CMakeLists.txt names it: it never runs")


def hash_iteration(sources: list[Source]) -> Iterator[Finding]:
    """In cache/ and service/ the order of a hash map would leak into decisions and break replays from a seed."""
    text_of = {s.path: s.text for s in sources}
    for source in sources:
        if not source.is_cxx or source.folder not in PURE_FOLDERS or source.is_test:
            continue
        texts = [source.text]
        for line in source.lines():
            match = INCLUDE.match(line)
            if match and match[1] in PURE_FOLDERS:
                texts.append(text_of.get(f"src/orbitkv/{match[1]}/{match[2]}", ""))
        for number, name in cxx_scan.hash_map_iterations(source.text, texts):
            text = f"iterates over hash map '{name}', whose order is random"
            yield Finding(source.path, number, "hash-iteration", text)


PER_FILE: list[Callable[[Source], Iterator[Finding]]] = [
    layering,
    top_comment,
    words,
    file_names,
    system_calls,
    purity,
    draws,
    sizes,
]
WHOLE_TREE: list[Callable[[list[Source]], Iterator[Finding]]] = [orphan_tests, hash_iteration]


def check(sources: list[Source]) -> list[Finding]:
    found = [finding for rule in PER_FILE for source in sources for finding in rule(source)]
    found += [finding for rule in WHOLE_TREE for finding in rule(sources)]
    return sorted(found, key=lambda f: (f.path, f.line, f.rule))


def read_tree(root: Path) -> list[Source]:
    """The files that git tracks or would track; every file when the tree is no repository."""
    git = ["git", "-C", str(root), "ls-files", "-z", "-co", "--exclude-standard"]
    listed = subprocess.run(git, capture_output=True, check=False)
    if listed.returncode == 0:
        names = sorted({os.fsdecode(name) for name in listed.stdout.split(b"\0") if name})
    else:
        names = sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())
    sources = []
    for name in names:
        path = root / name
        if path.suffix in NOT_READ or not path.is_file() or path.is_symlink():
            continue
        try:
            sources.append(Source(name, path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            continue
    return sources


def main(arguments: list[str]) -> int:
    root = Path(arguments[0]) if arguments else Path(__file__).resolve().parent.parent
    sources = read_tree(root)
    findings = check(sources)
    for finding in findings:
        print(finding)
    print(f"tidy: {len(sources)} files, {len(findings)} findings")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
