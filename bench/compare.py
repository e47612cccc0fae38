"""`python -m bench compare OLD NEW`: the rows that got slower by more than the noise, worst first.

A row got slower if our median rose by more than a given share and the quartiles of OLD and NEW do
not overlap. A row that had times and now has an error ranks worst. The exit status is 1 if there is
such a row, and 2 if a file cannot be read.
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from . import results
from .results import BadResults, Results, Row

LEAST_PERCENT = 3.0
NAMED = 5  # how many of the rows that only one file has are named


@dataclass(frozen=True)
class Change:
    """A row in both files; ``slowdown`` is our new time over the old, infinite for an error."""

    old: Row
    new: Row

    @property
    def slowdown(self) -> float:
        return math.inf if "error" in self.new else float(self.new["ours_ms"] / self.old["ours_ms"])

    @property
    def peer(self) -> float:
        return float(self.new["peer_ms"] / self.old["peer_ms"])

    def is_slower(self, least: float) -> bool:
        """Whether ours got slower by more than the share ``least`` and by more than the noise."""
        if "error" in self.new:
            return True
        apart = self.new["ours_low"] > self.old["ours_high"]
        return apart and self.slowdown > 1 + least

    def is_faster(self, least: float) -> bool:
        return "error" not in self.new and Change(self.new, self.old).is_slower(least)

    def __str__(self) -> str:
        name = _name(self.new)
        old = self.old["ours_ms"]
        if "error" in self.new:
            return f"{'error':>9} {'':>9} {old:10.4g} {'':>10}  {name}: {self.new['error']}"
        ratio = self.new["ratio"] / self.old["ratio"]
        return (
            f"{_percent(self.slowdown):>9} {_percent(ratio):>9} {old:10.4g} "
            f"{self.new['ours_ms']:10.4g}  {name}"
        )


HEAD = f"{'ours':>9} {'ratio':>9} {'old ms':>10} {'new ms':>10}  row"


def changes(old: Iterable[Row], new: Iterable[Row]) -> list[Change]:
    """Pairs the rows that have times in OLD with those in NEW, worst first."""
    before = {results.key(row): row for row in old}
    pairs = [(before.get(results.key(row)), row) for row in new]
    found = [Change(o, n) for o, n in pairs if o is not None and "error" not in o]
    return sorted(found, key=lambda change: -change.slowdown)


def report(old: Results, new: Results, least: float) -> tuple[str, int]:
    """Returns the text to print and how many rows got slower."""
    found = changes(old["rows"], new["rows"])
    slower = [change for change in found if change.is_slower(least)]
    lines = [f"{name}: {_origin(file)}" for name, file in (("OLD", old), ("NEW", new))]
    if old["meta"].get("device") != new["meta"].get("device"):
        lines.append("These are different devices: what differs is not customconv alone.")
    lines.append(
        f"{len(slower)} of {len(found)} rows got slower: their median by more than "
        f"{100 * least:g} %, and quartiles that do not overlap."
    )
    if slower:
        lines += ["", HEAD, *map(str, slower), ""]
    faster = sum(change.is_faster(least) for change in found)
    timed = [change for change in found if "error" not in change.new]
    if timed:
        ours, peer = (
            _percent(statistics.median(values))
            for values in ([c.slowdown for c in timed], [c.peer for c in timed])
        )
        lines.append(f"{faster} got faster. The median change: ours {ours}, the peer {peer}.")
    lines += _only("OLD", old, new) + _only("NEW", new, old)
    return "\n".join(lines), len(slower)


def _percent(factor: float) -> str:
    return f"{100 * (factor - 1):+.1f} %"


def _name(row: Row) -> str:
    forced = f" {row['forced']}" if row.get("forced") else ""
    kind = f"{row['precision']} {row['layout']} {row['op']}{forced}, {row['peer']}"
    bias = f", {words}" if (words := results.bias_words(row)) else ""
    return f"{row['suite']} {row['name']} N{row['problem']['N']} {kind}{bias}"


def _origin(file: Results) -> str:
    meta = file["meta"]
    return ", ".join(str(meta.get(name, f"no {name}")) for name in ("device", "commit", "date"))


def _only(name: str, file: Results, other: Results) -> list[str]:
    """Returns a line about the rows that only ``file`` has, if there are any."""
    known = {results.key(row) for row in other["rows"]}
    missing = [row for row in file["rows"] if results.key(row) not in known]
    if not missing:
        return []
    named = "; ".join(map(_name, missing[:NAMED]))
    more = f"; and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
    return [f"{len(missing)} only in {name}: {named}{more}."]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("old", type=Path, metavar="OLD", help="a results file")
    parser.add_argument("new", type=Path, metavar="NEW", help="a results file to compare with it")
    parser.add_argument(
        "--least",
        type=float,
        default=LEAST_PERCENT,
        metavar="PERCENT",
        help="ignore smaller slowdowns (default: %(default)g)",
    )


def main(arguments: argparse.Namespace) -> int:
    try:
        old, new = results.load(arguments.old), results.load(arguments.new)
    except BadResults as error:
        print(f"compare: {error}", file=sys.stderr)
        return 2
    text, slower = report(old, new, arguments.least / 100)
    print(text)
    return 1 if slower else 0
