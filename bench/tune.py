"""`python -m bench tune`: how far the planner's choice is from the best plan that it considers.

It helps to calibrate the planner's cost model; the operator itself never tunes. A plan's kind is
its family, variant and number of splits. The plan with the least predicted time of each kind runs.
Each result is checked against float64 and against the result of the planner's choice.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

import customconv
from customconv import _C

from . import contenders, results, timing, verify
from .contenders import Buffers
from .layers import Layer
from .measure import Cell, LayerOutcome, buffer_sets, exact_sample, prepared
from .options import several
from .run import add_layer_arguments, attempt, cells
from .timing import Call, geomean

CLOSE = 0.05  # a choice this close to the best is as good


@dataclass(frozen=True)
class Outcome(LayerOutcome):
    """A layer's plans: the planner's choice and the best, with their times and its prediction."""

    op: str
    plans: int  # how many were timed
    chosen: str
    chosen_ms: float
    predicted_ms: float
    best: str
    best_ms: float

    @property
    def share(self) -> float:
        """The best plan's time over that of the planner's choice."""
        return self.best_ms / self.chosen_ms


def distinct(plans: Iterable[_C.ConvPlan], most: int) -> list[_C.ConvPlan]:
    """Returns the cheapest plan of each kind by prediction, at most ``most``, the choice first."""
    kinds: dict[tuple[str, int, int], _C.ConvPlan] = {}
    for plan in sorted(plans, key=lambda plan: plan.predicted_ms):
        kinds.setdefault((plan.family, plan.variant_index, plan.splits), plan)
    return list(kinds.values())[:most]


def call_by(plan: _C.ConvPlan, layer: Layer, op: str, buffers: Buffers) -> Call:
    """Returns the operator's call with that plan."""
    call = contenders.ours(layer, op, buffers, plan.family)

    def run() -> Any:
        _C.force_plan(plan)
        try:
            return call()
        finally:
            _C.force_plan(None)

    return run


def _check(cell: Cell, buffers: Buffers, calls: Sequence[Call]) -> None:
    """Raises ``verify.Wrong`` if a plan's result is wrong."""
    expected = calls[0]()
    at, exact = exact_sample(cell, buffers, expected)
    error = verify.relative_error(expected, at, exact)
    for call in calls:
        result = call()
        own = verify.relative_error(result, at, exact)
        verify.check(result, expected, own, error, cell.precision)


def tune(cell: Cell, device: torch.device, most: int, budget_s: float) -> Outcome:
    """Times the plans of one layer.

    Raises:
        contenders.Unmeasurable: There are no plans, or the layer cannot be measured.
        verify.Wrong: A plan's result is wrong; nothing was timed.
    """
    layer = cell.layer
    with prepared(cell, device) as first:
        plans = distinct(_C.variants(**contenders.planned(layer, cell.op, first)), most)
        if not plans:
            raise contenders.Unmeasurable("no family has a plan for it")
        sets = buffer_sets(cell, first, device)
        calls = {
            str(i): [call_by(plan, layer, cell.op, buffers) for buffers in sets]
            for i, plan in enumerate(plans)
        }
        _check(cell, first, [turns[0] for turns in calls.values()])
        times = timing.interleaved(calls, device, budget_s=budget_s).times
    best = min(range(len(plans)), key=lambda i: times[str(i)].median)
    return Outcome(
        layer.suite, layer.name, layer.problem(), cell.precision, cell.layout, cell.op, len(plans),
        str(plans[0]), times["0"].median, plans[0].predicted_ms, str(plans[best]),
        times[str(best)].median,
    )  # fmt: skip


def summary(outcomes: Sequence[Outcome]) -> Table:
    """For each precision, layout and op: the choices' speed relative to the best plans'."""
    table = Table(box=None, header_style="dim")
    for head in ("precision", "layout", "op", "layers", "of the best", "worst", "within 5 %"):
        table.add_column(head, justify="left" if head in ("precision", "layout", "op") else "right")
    groups: dict[tuple[str, str, str], list[float]] = {}
    for outcome in outcomes:
        key = outcome.precision, outcome.layout, outcome.op
        groups.setdefault(key, []).append(outcome.share)
    for (precision, layout, op), shares in groups.items():
        mean = geomean(shares)
        close = sum(share >= 1 - CLOSE for share in shares)
        table.add_row(precision, layout, op, str(len(shares)), f"{mean:.3f}", f"{min(shares):.2f}",
                      f"{100 * close / len(shares):.0f} %")  # fmt: skip
    return table


def text_of(outcome: Outcome) -> str:
    """Formats an outcome: the choice, and on a second line the best plan if it is faster."""
    text = (
        f"{outcome.what} {outcome.op} {outcome.chosen_ms:9.4f} ms, {outcome.share:.2f} of the best "
        f"of {outcome.plans}: {outcome.chosen}"
    )
    if outcome.share < 1 - CLOSE:
        text += f"\n{'':49}{outcome.best_ms:9.4f} ms: {outcome.best}"
    return text


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_layer_arguments(parser, "resnet50")
    several(parser, "--op", contenders.OPS, "fprop", "passes")
    parser.add_argument("--most", type=int, default=24, help="plans per layer, the cheapest first")
    parser.add_argument("--row-s", type=float, default=1.0, help="seconds of timing per layer")
    parser.add_argument("--json", type=Path, help="a file to write the outcomes to")
    parser.set_defaults(peer=["cudnn"], family=["auto"])


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    if not (torch.cuda.is_available() and customconv.build_info()["with_cuda"]):
        console.print("needs a GPU: plans are timed on it")
        return 2
    device = torch.device("cuda")
    todo = (
        (cell, partial(tune, cell, device, arguments.most, arguments.row_s))
        for cell in cells(arguments)
    )
    outcomes, wrong = attempt(todo, text_of, console)
    console.print(summary(outcomes))
    if arguments.json:
        results.save_outcomes(arguments.json, device, "layers", outcomes)
    return 1 if wrong else 0
