"""Reads C++ just well enough for tools/tidy.py: comments, strings, functions and hash maps, without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator

_SKIP = re.compile(
    r'//[^\n]*|/\*.*?\*/|R"(?P<d>[^(\s]*)\(.*?\)(?P=d)"|"(?:\\.|[^"\\\n])*"|(?<![0-9a-fA-F])\'(?:\\.|[^\'\\\n])+\'',
    re.DOTALL,
)
_SCOPE = re.compile(r"\b(?:namespace|class|struct|union|enum|extern)\b")
_HASH_MAP = re.compile(r"\b(?:(?:flat|node)_hash_(?:map|set)|unordered_(?:multi)?(?:map|set))\s*<")
_DRAW = re.compile(r"\b\w*prng_?(?:\(\))?\s*(?:\.|->)\s*(?:Below|Next)\(", re.IGNORECASE)
_CALLED = re.compile(r"([A-Za-z_]\w*)\s*$")
_NOT_CALLS = {"if", "for", "while", "switch", "return", "catch", "sizeof"}
_NAME_AFTER = re.compile(r"(?:\s|[&*]|\bconst\b)*([A-Za-z_]\w*)")


def blank(text: str) -> str:
    """The text with comments and the contents of strings replaced by spaces; lines and columns stay."""

    def spaces(match: re.Match[str]) -> str:
        whole = match[0]
        inner = re.sub(r"[^\n]", " ", whole[1:-1])
        return f"{whole[0]}{inner}{whole[-1]}" if whole[0] in "\"'" else re.sub(r"[^\n]", " ", whole)

    return _SKIP.sub(spaces, text)


def _without_directives(text: str) -> str:
    """Preprocessor lines and their continuations blanked out: braces in a macro need not balance."""
    lines = text.split("\n")
    inside = False
    for index, line in enumerate(lines):
        if inside or line.lstrip().startswith("#"):
            inside = line.rstrip().endswith("\\")
            lines[index] = ""
    return "\n".join(lines)


def functions(text: str) -> Iterator[tuple[int, int]]:
    """First and last line of each function body with its head, counted from 1."""
    code = _without_directives(blank(text))
    stack: list[tuple[bool, int]] = []  # (is a function, line where its head starts)
    head_start = 0
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match[0] == "{":
            head = code[head_start:at]
            is_function = "(" in head and not _SCOPE.match(_last_statement(head)) and not any(f for f, _ in stack)
            first = head_start + len(head) - len(head.lstrip())
            stack.append((is_function, code.count("\n", 0, first) + 1))
        elif match[0] == "}" and stack:
            is_function, first_line = stack.pop()
            if is_function:
                yield first_line, code.count("\n", 0, at) + 1
        head_start = at + 1


def _last_statement(head: str) -> str:
    """The head without template parameters, attributes and access specifiers in front."""
    head = re.sub(r"^(?:\s|public:|private:|protected:|\[\[[^\]]*\]\]|template\s*<[^{}]*?>(?=\s))+", "", head)
    return head.lstrip()


def _hash_map_names(text: str) -> set[str]:
    """Names declared with a hash map type, and functions that return one; aliases count as such types."""
    code = blank(text)
    names: set[str] = set()
    for match in _HASH_MAP.finditer(code):
        depth, at = 1, match.end()
        while at < len(code) and depth:
            depth += {"<": 1, ">": -1}.get(code[at], 0)
            at += 1
        if found := _NAME_AFTER.match(code, at):
            names.add(found[1])
        if alias := re.search(r"\busing\s+(\w+)\s*=\s*(?:\w+::)*$", code[: match.start()]):
            for use in re.finditer(rf"\b{alias[1]}\b(?:\s|[&*])*\b([A-Za-z_]\w*)", code):
                names.add(use[1])
    return names - {"const", "return", "using", "public", "private"}


def hash_map_iterations(text: str, declared_in: list[str]) -> Iterator[tuple[int, str]]:
    """Line and name of each loop over a hash map that one of the texts declares."""
    names: set[str] = set()
    for declaring in declared_in:
        names |= _hash_map_names(declaring)
    if not names:
        return
    code = blank(text)
    any_name = "|".join(sorted(re.escape(name) for name in names))
    patterns = [
        rf"\bfor\s*\([^;{{}}]*?:\s*(?:\*|[\w.]|->|\(\))*?\b({any_name})(?:\(\))?\s*\)",
        rf"\b({any_name})(?:\(\))?\s*(?:\.|->)\s*c?begin\s*\(",
        rf"\b(?:std::c?begin|erase_if|c_for_each|for_each)\s*\(\s*\*?({any_name})\b",
    ]
    for pattern in patterns:
        for match in re.finditer(pattern, code):
            yield code.count("\n", 0, match.start()) + 1, match[1]


def unordered_draws(text: str) -> Iterator[int]:
    """Lines where two random numbers are drawn among the arguments of one call, or on both sides of an operator.

    A compiler may evaluate those in either order. Within braces and around ?:, && and || the order is given.
    """
    code = _without_directives(blank(text))
    draws = {match.start(): match.end() for match in _DRAW.finditer(code)}
    # Of each bracket: whether it is a call, the draws in its present argument, and the arguments before that had any.
    stack: list[list[int]] = []
    loose = False  # since the last draw of the same bracket only operators came whose sides have no order
    at = 0
    while at < len(code):
        if at in draws:
            if loose:
                yield code.count("\n", 0, at) + 1
            if stack:
                stack[-1][1] += 1
            at = _behind_call(code, draws[at])
            loose = True
            continue
        char = code[at]
        if char in "([{":
            called = _CALLED.search(code, max(0, at - 80), at) if char == "(" else None
            stack.append([int(called is not None and called[1] not in _NOT_CALLS), 0, 0])
            loose = False
        elif char in ")]}":
            call, here, before = stack.pop() if stack else [0, 0, 0]
            if call and here and before:
                yield code.count("\n", 0, at) + 1
            if stack and char == ")":
                stack[-1][1] += here + before
            loose = char == ")" and here + before > 0
        elif char == "," and stack:
            if stack[-1][1]:
                stack[-1][2] += 1
            stack[-1][1] = 0
            loose = False
        elif char in ",;?:=!&|<>":
            loose = False
        at += 1


def _behind_call(code: str, at: int) -> int:
    """Behind the bracket that closes the one before at. What is drawn for an argument comes before the call."""
    depth = 1
    while at < len(code) and depth:
        depth += {"(": 1, ")": -1}.get(code[at], 0)
        at += 1
    return at
