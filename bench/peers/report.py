"""Rows out of samples: the median of the passes for each peer, who is first, and the table for people.

A record is one pass's value of one row for one peer, or the reason why there is none. A row that a peer lacks keeps its
cell and says why.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

OURS = "orbitkv"
# The column of what the machine can do: shown, not compared.
CEILING = "ceiling"
# Nearer than this nobody is first: the passes of one peer differ by more.
TIE = 0.03


@dataclass(frozen=True)
class RowKind:
    """`better`: "lower", "higher", or "" for what is shown and not compared. `text`: what the row says, for people."""

    suite: str
    name: str
    unit: str
    better: str
    text: str


@dataclass(frozen=True)
class Record:
    """`at_least`: the measurement was given up there; the value would have been larger."""

    row: str
    peer: str
    number: int
    value: float | None
    why: str = ""
    at_least: bool = False


@dataclass
class Cell:
    """Median and range over the passes, or the reason why there is no value.

    `given_up`: those of the values that would have been larger.
    """

    values: list[float] = field(default_factory=list)
    why: str = ""
    given_up: list[float] = field(default_factory=list)

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None

    @property
    def at_least(self) -> bool:
        """Whether the median would have been larger."""
        return bool(self.given_up) and statistics.median_high(self.values) >= min(self.given_up)


@dataclass
class Row:
    kind: RowKind
    cells: dict[str, Cell]

    def first(self) -> list[str]:
        """The peers with the best median, and those that are as good within TIE; none where nothing is compared.

        What was given up is never first.
        """
        medians = {peer: cell.median for peer, cell in self.cells.items() if not cell.at_least}
        found = {peer: median for peer, median in medians.items() if median is not None and peer != CEILING}
        if not self.kind.better or not found:
            return []
        best = min(found.values()) if self.kind.better == "lower" else max(found.values())
        near = abs(best) * TIE
        return [peer for peer, median in found.items() if abs(median - best) <= near]


def rows(
    kinds: Iterable[RowKind], records: Iterable[Record], peers: Sequence[str], absent: Mapping[str, str]
) -> list[Row]:
    """Every kind of which there is a record, in order. `absent`: peers that were not run, and why."""
    by_row: dict[str, dict[str, Cell]] = {}
    for record in records:
        cell = by_row.setdefault(record.row, {}).setdefault(record.peer, Cell())
        if record.value is not None:
            cell.values.append(record.value)
            if record.at_least:
                cell.given_up.append(record.value)
        cell.why = record.why or cell.why
    made = []
    for kind in kinds:
        cells = by_row.get(kind.name)
        if cells is None:
            continue
        whole = {}
        for peer in peers:
            cell = cells.get(peer, Cell(why="" if peer == CEILING else "not measured"))
            whole[peer] = Cell(why=f"not run: {absent[peer]}") if peer in absent else cell
        made.append(Row(kind, whole))
    return made


def number_text(value: float) -> str:
    if value >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell_text(cell: Cell, first: bool, notes: list[str]) -> str:
    """The median with its range; a reason becomes a numbered note below the table."""
    if cell.median is None:
        if not cell.why:
            return ""
        why = cell.why
        if why not in notes:
            notes.append(why)
        return f"- ({notes.index(why) + 1})"
    text = f"> {number_text(cell.median)}" if cell.at_least else number_text(cell.median)
    if len(cell.values) > 1:
        text += f" [{number_text(min(cell.values))} to {number_text(max(cell.values))}]"
    text = f"**{text}**" if first else text
    if cell.why:
        if cell.why not in notes:
            notes.append(cell.why)
        text += f" ({notes.index(cell.why) + 1})"
    return text


def suite_table(title: str, made: Sequence[Row], labels: Mapping[str, str]) -> str:
    """One Markdown table; the first of each row is bold, reasons follow as a numbered list."""
    peers = list(made[0].cells)
    notes: list[str] = []
    lines = [f"### {title}", "", "| |unit|" + "|".join(labels.get(peer, peer) for peer in peers) + "|"]
    lines.append("|-|-|" + "-|" * len(peers))
    for row in made:
        first = row.first()
        cells = [cell_text(row.cells[peer], peer in first, notes) for peer in peers]
        lines.append(f"|{row.kind.text}|{row.kind.unit}|" + "|".join(cells) + "|")
    lines += ["", *(f"{number}. {note}" for number, note in enumerate(notes, 1))]
    return "\n".join(lines).rstrip() + "\n"


def behind(made: Sequence[Row]) -> list[str]:
    """The rows in which ours has a value, another one too, and ours is not among the first."""
    lost = []
    for row in made:
        first = row.first()
        if first and OURS in row.cells and row.cells[OURS].values and OURS not in first:
            lost.append(row.kind.name)
    return lost


def as_json(made: Sequence[Row]) -> list[dict[str, Any]]:
    return [
        asdict(row.kind)
        | {
            "first": row.first(),
            "peers": {
                peer: {"median": cell.median, "values": cell.values}
                | ({"at_least": True} if cell.at_least else {})
                | ({"why": cell.why} if cell.why else {})
                for peer, cell in row.cells.items()
            },
        }
        for row in made
    ]
