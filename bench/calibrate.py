"""`python -m bench calibrate`: fits the planner's prices to recorded timings.

A plan lists the work of its kernels (csrc/plan/price.h). The table of prices says how fast each
kind of kernel does such work. The fit makes predictions as close to the times as it can, in ratio,
with the more weight the closer a plan is to the fastest of its cell. A kind with few timings stays
near the mean of its part. Held-out cells are not seen.

`--without` and `--accept` fit nothing: see `pays` and `picks`.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from scipy import optimize, sparse

from customconv import _bind

from . import corpus, pays, picks, timings
from .replayed import Floats, Key, Replayed, replay
from .timing import geomean

OUT = Path(__file__).parents[1] / "csrc" / "plan" / "prices_sm90.inc"
COLUMNS = ("rate", "wait", "store", "bandwidth")
START = {"rate": 0.7, "wait": 150.0, "store": 15.0, "bandwidth": 0.8}
BOUNDS = {
    "rate": (0.01, 1.5), "wait": (1.0, 3e4), "store": (1.0, 200.0), "bandwidth": (0.05, 1.0),
}  # fmt: skip
STIFFNESS = 0.2  # how much a kind's deviation from the mean of its part weighs, beside one plan
SMALL = 0.1  # errors, of the logarithm, up to which they count as squares
STEP = 1e-3  # of a logarithm, for slopes
DIGITS = 3  # that the table keeps


def workload(plans: Sequence[_bind.ConvPlan]) -> _bind.Workload:
    """The work of plans, whose prices can be computed with any table."""
    load = _bind.Workload()
    for plan in plans:
        load.add(plan)
    return load


def start_table(rows: int) -> Floats:
    """The table that the fit starts from."""
    return np.array([[START[column] for column in COLUMNS]] * rows)


class Fit:
    """Prices as the parameters of a least-squares problem: logarithms, part by part."""

    def __init__(self, cells: Sequence[Replayed]) -> None:
        plans, logs, weights = [], [], []
        for cell in cells:
            for plan, ms in zip(cell.plans, cell.ms, strict=True):
                if plan.has_works:
                    plans.append(plan)
                    logs.append(np.log(ms))
                    weights.append(np.min(cell.ms) / ms / np.sqrt(len(cell.plans)))
        self.load = workload(plans)
        self.logs, self.weights = np.array(logs), np.array(weights)
        self.weights *= np.sqrt(len(self.weights) / (self.weights**2).sum())
        used: dict[tuple[int, str], set[int]] = {}
        for number, rows in enumerate(self.load.rows()):
            for row, columns in rows:
                for column in columns:
                    used.setdefault((row, column), set()).add(number)
        self.parts = _bind.price_rows()  # of each row
        self.singles = sorted(used)
        self.plans_of = [np.array(sorted(used[key])) for key in self.singles]
        self.means = sorted({(self.parts[row][0], column) for row, column in self.singles})
        mean_of = {key: i for i, key in enumerate(self.means)}
        self.mean_of = np.array(
            [mean_of[self.parts[row][0], column] for row, column in self.singles]
        )
        self.all = np.arange(len(logs))

    def values(self, x: Floats) -> Floats:
        """The logarithms of all single prices."""
        values: Floats = x[: len(self.means)][self.mean_of] + x[len(self.means) :]
        return values

    def table(self, values: Floats) -> Floats:
        table = start_table(len(self.parts))
        for (row, column), value in zip(self.singles, values, strict=True):
            table[row, COLUMNS.index(column)] = np.exp(np.clip(value, *np.log(BOUNDS[column])))
        return table

    def predict(self, table: Floats, which: NDArray[np.int64]) -> Floats:
        logs: Floats = np.log(self.load.predict(table, which))
        return logs

    def slopes(self, x: Floats, off: Floats) -> sparse.csr_matrix:
        """How the predictions' logarithms change with the parameters."""
        values = self.values(x)
        table = self.table(values)
        now = off + self.logs
        rows, columns, slopes = [], [], []
        for i, (row, column) in enumerate(self.singles):
            moved = table.copy()
            moved[row, COLUMNS.index(column)] = np.exp(
                np.clip(values[i] + STEP, *np.log(BOUNDS[column]))
            )
            which = self.plans_of[i]
            slope = (self.predict(moved, which) - now[which]) / STEP
            for parameter in (self.mean_of[i], len(self.means) + i):
                rows.append(which)
                columns.append(np.full(len(which), parameter))
                slopes.append(slope)
        shape = (len(self.logs), len(x))
        entries = np.concatenate(slopes), (np.concatenate(rows), np.concatenate(columns))
        return sparse.csr_matrix(entries, shape=shape)

    def run(self) -> Floats:
        """Fits, and returns the table.

        Minimises the sum of a loss that grows like the absolute error where errors are large, by
        Newton's method with the Gauss-Newton matrix, in a trust region.
        """
        singles = slice(len(self.means), None)
        stiff = np.zeros(len(self.means) + len(self.singles))
        stiff[singles] = STIFFNESS**2
        known: dict[bytes, tuple[float, Floats, Floats]] = {}

        def at(x: Floats) -> tuple[float, Floats, Floats]:
            """The value, its gradient and the matrix of second derivatives."""
            key = x.tobytes()
            if key not in known:
                known.clear()
                off = self.predict(self.table(self.values(x)), self.all) - self.logs
                root = np.sqrt(1 + (off / SMALL) ** 2)
                value = (self.weights**2 * SMALL**2 * 2 * (root - 1)).sum() + (stiff * x**2).sum()
                slopes = self.slopes(x, off)
                by = self.weights**2 / root
                gradient = 2 * (slopes.T @ (by * off)) + 2 * stiff * x
                second = 2 * (slopes.T @ sparse.diags(by) @ slopes).toarray() + 2 * np.diag(stiff)
                known[key] = float(value), gradient, second
            return known[key]

        x = np.concatenate(
            [[np.log(START[column]) for _, column in self.means], np.zeros(len(self.singles))]
        )
        found = optimize.minimize(
            lambda x: at(x)[0], x, jac=lambda x: at(x)[1], hess=lambda x: at(x)[2],
            method="trust-exact", options={"maxiter": 100, "gtol": 1e-3},
        )  # fmt: skip
        return self.table(self.values(found.x))


def rounded(table: Floats) -> list[list[float]]:
    return [[float(f"{value:.{DIGITS}g}") for value in row] for row in table]


def written(table: Floats, parts: Sequence[tuple[str, int]], facts: dict[str, Any]) -> str:
    """The table as the planner compiles it in."""
    later = [own["sources"] for own in facts.get("suites", {}).values()]
    lines = [
        "// Written by `python -m bench calibrate` from timings on an "
        f"{facts['device'].replace('NVIDIA ', '').split()[0]} of sources",
        f"// {', '.join([facts['sources'], *later])}:",
        "// share of the full rate, clocks of a wait, bytes stored a clock,",
        "// share of the memory's bandwidth.",
    ]
    for (part, row), values in zip(parts, rounded(table), strict=True):
        if row == 0:
            lines.append(f"// {part}")
        lines.append(f"{{{', '.join(f'{value:g}' for value in values)}}},")
    return "\n".join(lines) + "\n"


def summary(cells: Sequence[Replayed]) -> Table:
    table = Table(box=None, header_style="dim")
    for head in ("cells", "number", "mean", "worst", "above 1.5", "above 1.2"):
        table.add_column(head)
    known = {layer.suite for layer in corpus.known_layers()}
    groups: dict[str, list[float]] = {}
    for cell in cells:
        layer = cell.cell.layer
        kinds = [
            "all", "held out" if cell.held_out else "fitted",
            "of shapes.json" if layer.suite in known else "of others",
            f"{cell.cell.precision} {cell.cell.layout} {cell.cell.op}",
        ]  # fmt: skip
        for kind in kinds:
            groups.setdefault(kind, []).append(cell.lost)
    for kind, lost in sorted(groups.items(), key=lambda item: -len(item[1])):
        table.add_row(
            kind, str(len(lost)), f"{geomean(lost):.3f}", f"{max(lost):.2f}",
            str(sum(each > 1.5 for each in lost)), str(sum(each > 1.2 for each in lost)),
        )  # fmt: skip
    return table


def picks_by(table: Floats, cells: Sequence[Replayed]) -> dict[Key, picks.Pick]:
    """What the planner picks by a table of prices."""
    found = {}
    for cell in cells:
        predicted = workload(cell.plans).predict(table, np.arange(len(cell.plans)))
        found[cell.key] = picks.pick(cell, int(np.argmin(predicted)))
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--timings", type=Path, default=timings.PATH)
    parser.add_argument("--out", type=Path, default=OUT, help="where the fitted prices go")
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--without", nargs="*", metavar="UNIT",
        help="fit nothing; say how much slower the fastest recorded plans get without these units "
        "('list' lists them, patterns like 'loader:*' name several), or without each in turn. "
        f"A cell has {timings.MOST} recorded plans at most, so this may say too much",
    )  # fmt: skip
    instead.add_argument(
        "--accept", nargs="?", type=Path, const=picks.PATH, metavar="FILE",
        help="fit nothing; keep the compiled planner's picks of cells that the file lacks, for a "
        "test of later ones; those of its other cells stay",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    facts, timed = timings.read(arguments.timings)
    cells = replay(timed)
    if arguments.without is not None:
        return pays.report(cells, arguments.without, console)
    now = picks.picks(cells)
    if arguments.accept is not None:
        picks.write(picks.added(arguments.accept, now), arguments.accept)
        return 0
    console.print(summary(cells))
    fit = Fit([cell for cell in cells if not cell.held_out])
    table = fit.run()
    arguments.out.write_text(written(table, fit.parts, facts))
    # The fit is kept even so: it takes a minute, and whoever looks into a cliff needs it.
    worse = picks.cliffs(now, picks_by(np.array(rounded(table)), cells))
    if worse:
        console.print(f"picks that take more than {picks.FAR} times as long as those before:")
        console.print(picks.table(worse))
    return 1 if worse else 0
