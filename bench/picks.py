"""What the planner picks of the plans that were timed, and where another planner picks far worse.

`python -m bench calibrate` compares the picks by new prices with those by the prices before. The
picks that were accepted last are kept in a file of a line for each cell. A test compares today's
planner with them.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from .replayed import Key, Replayed

PATH = Path(__file__).with_name("results") / "picks-h100.tsv"
FAR = 1.3  # times the time of the pick before

COLUMNS = ("suite", "name", "N", "precision", "layout", "op", "ms", "plan")


@dataclass(frozen=True)
class Pick:
    """The name of a cell's plan, and its recorded time in milliseconds."""

    ms: float
    plan: str


@dataclass(frozen=True)
class Cliff:
    """A cell whose pick takes more than FAR times as long as the one before."""

    key: Key
    before: Pick
    after: Pick

    @property
    def ratio(self) -> float:
        return self.after.ms / self.before.ms


def pick(cell: Replayed, number: int | None = None) -> Pick:
    """A cell's plan of that number, or else the one that the planner picks."""
    number = cell.pick if number is None else number
    return Pick(float(cell.ms[number]), cell.plans[number].name)


def picks(cells: Iterable[Replayed]) -> dict[Key, Pick]:
    """The planner's picks."""
    return {cell.key: pick(cell) for cell in cells}


def cliffs(before: Mapping[Key, Pick], after: Mapping[Key, Pick]) -> list[Cliff]:
    """The cells of both whose pick got far slower, the worst first."""
    found = [
        Cliff(key, old, after[key])
        for key, old in before.items()
        if key in after and after[key].ms > FAR * old.ms
    ]
    return sorted(found, key=lambda cliff: -cliff.ratio)


def table(found: Iterable[Cliff]) -> Table:
    """Cliffs for people to read."""
    lines = Table(box=None, header_style="dim")
    for head in ("cell", "times", "before", "after"):
        lines.add_column(head, overflow="fold")
    for cliff in found:
        lines.add_row(
            " ".join(map(str, cliff.key)), f"{cliff.ratio:.2f}",
            *(f"{each.ms:.4g} ms: {each.plan}" for each in (cliff.before, cliff.after)),
        )  # fmt: skip
    return lines


def added(path: Path, now: Mapping[Key, Pick]) -> dict[Key, Pick]:
    """Today's cells: with the pick that the file has, if any, and else with today's."""
    kept = read(path) if path.exists() else {}
    return {key: kept.get(key, pick) for key, pick in now.items()}


def write(kept: Mapping[Key, Pick], path: Path) -> None:
    """Replaces the picks in a file, in the order of the cells' names."""
    with path.open("w", newline="") as file:
        writer = csv.writer(file, delimiter="\t", lineterminator="\n")
        writer.writerow(COLUMNS)
        writer.writerows([*key, f"{own.ms:.4g}", own.plan] for key, own in sorted(kept.items()))


def read(path: Path = PATH) -> dict[Key, Pick]:
    """The picks in a file."""
    with path.open(newline="") as file:
        return {
            (row["suite"], row["name"], int(row["N"]), row["precision"], row["layout"],
             row["op"]): Pick(float(row["ms"]), row["plan"])
            for row in csv.DictReader(file, delimiter="\t")
        }  # fmt: skip
