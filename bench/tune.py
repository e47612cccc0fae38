"""`python -m bench tune`: times the plans that the planner considers for a layer.

It says how far the planner's choice is from the best plan, and records all times as data for the
planner's cost model; no plan is kept for the operator. A plan's kind is its name without sizes, and
its number of splits. The plan with the least predicted time of each kind runs, in turns with the
peer. Each result is checked against float64 and against the result of the planner's choice.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from customconv import _bind
from customconv.explain import variants

from . import contenders, results, timing, verify
from .contenders import Buffers
from .layers import Layer
from .measure import Cell, LayerOutcome, buffer_sets, exact_sample, prepared
from .options import minutes, several
from .run import add_layer_arguments, attempt_within, cells, gpu, table_by_kind
from .timing import Call, geomean

CLOSE = 0.05  # a choice this close to the best is as good


@dataclass(frozen=True)
class Timed:
    """A plan, the planner's prediction and the median time, in milliseconds."""

    name: str
    plan: str
    workspace_mb: float
    predicted_ms: float
    ms: float


@dataclass(frozen=True)
class Outcome(LayerOutcome):
    """A layer's plans, the planner's choice first, and the peer's time if it was timed."""

    op: str
    bias: bool
    plans: tuple[Timed, ...]
    peer_ms: float | None

    @property
    def chosen(self) -> Timed:
        return self.plans[0]

    @property
    def best(self) -> Timed:
        return min(self.plans, key=lambda plan: plan.ms)

    @property
    def share(self) -> float:
        """The best plan's time over that of the planner's choice."""
        return self.best.ms / self.chosen.ms


def distinct(plans: Iterable[_bind.ConvPlan], most: int) -> list[_bind.ConvPlan]:
    """Returns the cheapest plan of each kind by prediction, at most ``most``, the choice first."""
    kinds: dict[tuple[str, int], _bind.ConvPlan] = {}
    for plan in sorted(plans, key=lambda plan: plan.predicted_ms):
        kinds.setdefault((plan.kind, plan.splits), plan)
    return list(kinds.values())[:most]


def call_by(plan: _bind.ConvPlan, layer: Layer, op: str, buffers: Buffers) -> Call:
    """Returns the operator's call with that plan."""
    call = contenders.ours(layer, op, buffers, plan.family)

    def run() -> Any:
        _bind.force_plan(plan)
        try:
            return call()
        finally:
            _bind.force_plan(None)

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


def tune(
    cell: Cell,
    device: torch.device,
    chosen: Callable[[Iterable[_bind.ConvPlan]], list[_bind.ConvPlan]],
    budget_s: float,
    *,
    peer: bool = True,
) -> Outcome:
    """Times those plans of one layer that ``chosen`` picks, and the peer unless it is left out.

    Raises:
        contenders.Unmeasurable: There are no plans, or the layer cannot be measured.
        verify.Wrong: A plan's result is wrong; nothing was timed.
    """
    layer = cell.layer
    with prepared(cell, device) as first:
        possible = variants(**contenders.planned(layer, cell.op, first))
        if not possible:
            raise contenders.Unmeasurable("no family has a plan for it")
        plans = chosen(possible)
        sets = buffer_sets(cell, first, device)
        calls = {
            str(i): [call_by(plan, layer, cell.op, buffers) for buffers in sets]
            for i, plan in enumerate(plans)
        }
        _check(cell, first, [turns[0] for turns in calls.values()])
        if peer:
            calls["peer"] = [contenders.peers(layer, cell.op, each, cell.peer) for each in sets]
        times = timing.interleaved(calls, device, budget_s=budget_s).times
    timed = tuple(
        Timed(plan.name, str(plan), plan.workspace_bytes / 2**20, plan.predicted_ms,
              times[str(i)].median)
        for i, plan in enumerate(plans)
    )  # fmt: skip
    return Outcome(
        layer.suite, layer.name, layer.problem(), cell.precision, cell.layout, cell.op, layer.bias,
        timed, times["peer"].median if peer else None,
    )  # fmt: skip


def summary(outcomes: Sequence[Outcome]) -> Table:
    """For each precision, layout and op: the choices' speed relative to the best plans'."""

    def cells_of(shares: Sequence[float]) -> tuple[str, ...]:
        close = 100 * sum(share >= 1 - CLOSE for share in shares) / len(shares)
        return f"{geomean(shares):.3f}", f"{min(shares):.2f}", f"{close:.0f} %"

    values = (((each.precision, each.layout, each.op), each.share) for each in outcomes)
    return table_by_kind(values, ("layers", "of the best", "worst", "within 5 %"), cells_of)


def text_of(outcome: Outcome) -> str:
    """Formats an outcome: the choice, and on a second line the best plan if it is faster."""
    text = (
        f"{outcome.what} {outcome.op} {outcome.chosen.ms:9.4f} ms, {outcome.share:.2f} of the best "
        f"of {len(outcome.plans)}: {outcome.chosen.plan}"
    )
    if outcome.peer_ms is not None:
        text += f"; the peer {outcome.peer_ms:.4f}"
    if outcome.share < 1 - CLOSE:
        text += f"\n{'':49}{outcome.best.ms:9.4f} ms: {outcome.best.plan}"
    return text


def append(path: Path, outcome: Outcome, facts: dict[str, Any]) -> None:
    """Adds the outcome to a file of JSON lines, with the sources' version and the GPU."""
    row = asdict(outcome) | results.version(facts) | {"device": facts["device"]}
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_layer_arguments(parser, "resnet50")
    several(parser, "--op", contenders.OPS, "fprop", "passes")
    parser.add_argument("--most", type=int, default=24, help="plans per layer, the cheapest first")
    parser.add_argument("--row-s", type=float, default=1.0, help="seconds of timing per layer")
    parser.add_argument("--record", type=Path, help="a file that each layer's times are added to")
    minutes(parser)
    parser.set_defaults(peer=["cudnn"], family=["auto"])


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = gpu(console)
    if device is None:
        return 2
    facts = results.facts(device)

    def tuned(cell: Cell) -> Outcome:
        outcome = tune(cell, device, partial(distinct, most=arguments.most), arguments.row_s)
        if arguments.record:
            append(arguments.record, outcome, facts)
        return outcome

    outcomes, wrong = attempt_within(arguments.minutes, cells(arguments), tuned, text_of, console)
    console.print(summary(outcomes))
    return 1 if wrong else 0
