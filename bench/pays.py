"""What a unit of the package earns: how much slower recorded plans get where it may not be used.

`python -m bench calibrate --without UNIT...` prints it. Nothing is measured, fitted or written: of
each recorded cell, the fastest plan that needs no such unit takes the place of the fastest.

A unit does not pay where the mean of all cells grows by a hundredth at most without it, and no
more than one cell in a hundred gets over a tenth slower. Weight gradients and all other passes each
have to keep this rule. Hardly any single tile pays by it, since each computes few cells. So units
that are to be deleted have to keep the rule together.
"""

from __future__ import annotations

import fnmatch
import heapq
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table

from . import results, units
from .replayed import Floats, Key, Replayed

MOST_MEAN = 1.01  # that a unit may earn and still go: the geometric mean without it,
MOST_SLOWER = 0.01  # and the share of cells that are slower without it
SLOWER = 1.1  # times the fastest plan's time

PASSES = {"fprop": "fprop, dgrad", "dgrad": "fprop, dgrad", "wgrad": "wgrad"}
# Units that the rule is not for, and why.
KEPT = {
    "family:*": "a family is there for what no other computes",
    "kernel:*": "kernels of families that few cells are of, or that are named algorithms",
    "*mma.sync*": "kernels of GPUs that are not Hopper's",
    "*3xtf32*": "strict float32 has few timings: a cell in eight",
}
PUBLISHED = Path(__file__).with_name("results") / "h100.json"


def why_kept(unit: str) -> str | None:
    """Why the rule is not for a unit, or None where it is."""
    return next((why for name, why in KEPT.items() if fnmatch.fnmatchcase(unit, name)), None)


def cudnn_times(path: Path = PUBLISHED) -> dict[Key, float]:
    """cuDNN's published times, by cell."""
    return {
        (row["suite"], row["name"], row["problem"]["N"], row["precision"], row["layout"],
         row["op"]): row["peer_ms"]
        for row in results.load(path)["rows"]
        if row["peer"] == "cudnn" and row.get("forced") is None
    }  # fmt: skip


@dataclass(frozen=True)
class Cost:
    """What cells lose where some units may not be used."""

    cells: int
    mean: float  # geometric, of the cells that have another plan
    slower: int  # of them, by more than SLOWER
    alone: int  # cells that have no other recorded plan

    @property
    def of_the_rule(self) -> float:
        """The part of what the rule allows that is used up: up to 1, units may go.

        Nobody knows how slow a cell without another recorded plan gets. It counts as slower.
        """
        mean = np.log(self.mean) / np.log(MOST_MEAN)
        return float(max(mean, (self.slower + self.alone) / (MOST_SLOWER * self.cells)))


class Recorded:
    """The recorded plans of cells, with the units that each of them needs."""

    def __init__(self, cells: Sequence[Replayed]) -> None:
        needed = [units.units_of(plan) for cell in cells for plan in cell.plans]
        self.units = sorted(frozenset().union(*needed))
        rows = {unit: row for row, unit in enumerate(self.units)}
        self._needs = np.zeros((len(self.units), len(needed)), bool)
        for column, own in enumerate(needed):
            self._needs[[rows[unit] for unit in own], column] = True
        self._rows = rows
        self._ms = np.concatenate([cell.ms for cell in cells])
        counts = [len(cell.plans) for cell in cells]
        self._starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        self._fastest = np.minimum.reduceat(self._ms, self._starts)
        self.keys = [cell.key for cell in cells]
        passes = [PASSES[cell.cell.op] for cell in cells]
        self.passes = {
            each: np.array([own == each for own in passes]) for each in sorted(set(passes))
        }

    def matching(self, patterns: Iterable[str]) -> list[str]:
        """The units that patterns like `loader:*` name.

        Raises:
            LookupError: A pattern names none.
        """
        found: dict[str, None] = {}
        for pattern in patterns:
            own = [unit for unit in self.units if fnmatch.fnmatchcase(unit, pattern)]
            if not own:
                raise LookupError(f"no recorded plan needs {pattern}; `--without list` lists units")
            found.update(dict.fromkeys(own))
        return list(found)

    def times_without(self, gone: Collection[str]) -> Floats:
        """Each cell's time by the fastest plan that needs no such unit; infinite without one."""
        out = self._needs[[self._rows[unit] for unit in gone]].any(axis=0)
        times: Floats = np.minimum.reduceat(np.where(out, np.inf, self._ms), self._starts)
        return times

    def cost(self, gone: Collection[str], among: NDArray[np.bool_] | None = None) -> Cost:
        """What cells lose without these units."""
        ratios = self.times_without(gone) / self._fastest
        if among is not None:
            ratios = ratios[among]
        known = ratios[np.isfinite(ratios)]
        mean = float(np.exp(np.log(known).mean())) if len(known) else 1.0
        alone = len(ratios) - len(known)
        return Cost(len(ratios), mean, int((known > SLOWER).sum()), alone)

    def costs(self, gone: Collection[str]) -> list[Cost]:
        """What cells lose without these units, of each kind of passes."""
        return [self.cost(gone, among) for among in self.passes.values()]

    def may_go(self, gone: Collection[str]) -> bool:
        """Whether the rule lets these units go: each kind of passes loses little enough."""
        return all(cost.of_the_rule <= 1 for cost in self.costs(gone))

    def pays(self, unit: str, gone: Collection[str] = ()) -> bool:
        """Whether a unit has to stay, where others are gone."""
        return not self.may_go({*gone, unit})

    def judged(self) -> list[str]:
        """The units that the rule is for."""
        return [unit for unit in self.units if why_kept(unit) is None]

    def may_go_together(self) -> list[str]:
        """Units that the rule lets go together, so many that no other one that it judges may.

        The one that costs least goes first. Then what the others cost is counted again.
        """

        def cost_with(unit: str) -> float:
            return sum(cost.of_the_rule for cost in self.costs([*gone, unit]))

        gone: list[str] = []
        queue = [(cost_with(unit), unit) for unit in self.judged()]
        heapq.heapify(queue)
        while queue:
            _, unit = heapq.heappop(queue)
            if self.pays(unit, gone):
                continue
            # Costs only grow as units go. So a unit whose new cost is below the others' old ones
            # is the cheapest.
            again = cost_with(unit), unit
            if queue and again > queue[0]:
                heapq.heappush(queue, again)
            else:
                gone.append(unit)
        return gone

    def newly_behind(self, gone: Collection[str], cudnn: dict[Key, float]) -> int:
        """Cells that are not slower than cuDNN, but are without these units."""
        times = self.times_without(gone)
        return sum(
            key in cudnn and before <= cudnn[key] < after < np.inf
            for key, before, after in zip(self.keys, self._fastest, times, strict=True)
        )


def table(recorded: Recorded, sets: Iterable[tuple[str, Collection[str]]]) -> Table:
    """What sets of units earn, by the names that they are given."""
    cudnn = cudnn_times()
    shared = sum(key in cudnn for key in recorded.keys)
    lines = Table(box=None, header_style="dim")
    lines.add_column("without", overflow="fold")
    heads = ("mean", *recorded.passes, "slower", "share", "no other plan", "behind cuDNN", "pays")
    for head in heads:
        lines.add_column(head, justify="right")
    for name, gone in sets:
        cost = recorded.cost(gone)
        lines.add_row(
            name, f"{cost.mean:.4f}", *(f"{each.mean:.4f}" for each in recorded.costs(gone)),
            str(cost.slower),
            f"{100 * cost.slower / cost.cells:.1f} %", str(cost.alone),
            str(recorded.newly_behind(gone, cudnn)), "no" if recorded.may_go(gone) else "yes",
        )  # fmt: skip
    lines.caption = (
        f"{len(recorded.keys)} cells, of which {shared} have a time of cuDNN's. Slower: by more "
        f"than {100 * (SLOWER - 1):.0f} %."
    )
    lines.caption_justify = "left"
    return lines


def report(cells: Sequence[Replayed], patterns: Sequence[str], console: Console) -> int:
    """Prints what the named units earn, or what each unit does if none is named."""
    recorded = Recorded(cells)
    if list(patterns) == ["list"]:
        for unit in recorded.units:
            console.print(unit, highlight=False)
        return 0
    try:
        named = recorded.matching(patterns)
    except LookupError as error:
        console.print(error)
        return 2
    sets: list[tuple[str, Collection[str]]] = [(unit, [unit]) for unit in named or recorded.units]
    sets.sort(key=lambda each: (-recorded.cost(each[1]).mean, each[0]))
    if len(named) > 1:
        sets.append(("all of these", named))
    console.print(table(recorded, sets))
    if not named:
        together = recorded.may_go_together()
        console.print(f"\n{len(together)} may go together, the cheapest first; with those above:")
        upto = [(unit, together[: i + 1]) for i, unit in enumerate(together)]
        console.print(table(recorded, upto))
    return 0
