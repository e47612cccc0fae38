"""`python -m bench invariance`: what batch invariance costs.

A layer's call with `customconv.batch_invariant` takes turns with the same call without it. The
first result is checked against float64 and PyTorch's own.
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

import customconv

from . import contenders, results, timing, verify
from .contenders import Buffers
from .measure import Cell, LayerOutcome, buffer_sets, exact_sample, prepared
from .options import several
from .run import add_layer_arguments, attempt, cells, table_by_kind
from .timing import Call, geomean


@dataclass(frozen=True)
class Cost(LayerOutcome):
    """Milliseconds of a layer with batch invariance and without, and what computed it."""

    op: str
    invariant_ms: float
    ordinary_ms: float
    invariant_plan: str
    ordinary_plan: str

    @property
    def ratio(self) -> float:
        """The speed with batch invariance over the speed without."""
        return self.ordinary_ms / self.invariant_ms


def calls(cell: Cell, buffers: Buffers) -> dict[str, Call]:
    """Returns the call with batch invariance and the one without."""
    ordinary = contenders.ours(cell.layer, cell.op, buffers)

    def invariant() -> Any:
        with customconv.batch_invariant():
            return ordinary()

    return {"invariant": invariant, "ordinary": ordinary}


def _check(cell: Cell, buffers: Buffers) -> None:
    """Raises ``verify.Wrong`` if the result is wrong."""
    result = calls(cell, buffers)["invariant"]()
    expected = contenders.peers(cell.layer, cell.op, buffers, cell.peer)()
    at, exact = exact_sample(cell, buffers, result)
    own_error = verify.relative_error(result, at, exact)
    verify.check(
        result, expected, own_error, verify.relative_error(expected, at, exact), cell.precision
    )


def measure(cell: Cell, device: torch.device, budget_s: float) -> Cost:
    """Checks and times one layer.

    Raises:
        contenders.Unmeasurable: The layer cannot be measured.
        verify.Wrong: The result is wrong; nothing was timed.
    """
    with prepared(cell, device) as first:
        sets = buffer_sets(cell, first, device)
        _check(cell, first)
        ways = [calls(cell, buffers) for buffers in sets]
        turns = {name: [each[name] for each in ways] for name in ways[0]}
        times = timing.interleaved(turns, device, budget_s=budget_s).times
        _, ordinary_plan = contenders.plan_of(cell.layer, cell.op, first, "auto")
        with customconv.batch_invariant():
            _, invariant_plan = contenders.plan_of(cell.layer, cell.op, first, "auto")
    layer = cell.layer
    return Cost(
        layer.suite, layer.name, layer.problem(), cell.precision, cell.layout, cell.op,
        times["invariant"].median, times["ordinary"].median, invariant_plan, ordinary_plan,
    )  # fmt: skip


def summary(costs: Sequence[Cost]) -> Any:
    """Geometric means by precision, layout and pass."""

    def columns(ratios: Iterable[float]) -> tuple[str, str]:
        found = list(ratios)
        return f"{geomean(found):.3f}", f"{min(found):.2f}"

    kinds = (((cost.precision, cost.layout, cost.op), cost.ratio) for cost in costs)
    return table_by_kind(kinds, ("layers", "over ordinary", "least"), columns)


def text_of(cost: Cost) -> str:
    """A layer in one line."""
    return (
        f"{cost.what} {cost.op} {cost.invariant_ms:9.4f} ms: {cost.ratio:.3f} of the ordinary "
        f"plan's speed; {cost.invariant_plan}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_layer_arguments(parser, "resnet50:64,sd15_vae_decoder")
    several(parser, "--op", ("fprop", "dgrad"), "fprop,dgrad", "passes")
    parser.add_argument("--device", default="cuda", help="a CUDA device")
    parser.add_argument("--row-s", type=float, default=1.0, help="seconds of timing per layer")
    parser.add_argument("--json", type=Path, help="a file to write the times to")
    parser.set_defaults(family=["auto"], peer=["cudnn"])


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    todo = ((cell, partial(measure, cell, device, arguments.row_s)) for cell in cells(arguments))
    costs, wrong = attempt(todo, text_of, console)
    console.print(summary(costs))
    if costs:
        console.print(f"{geomean(cost.ratio for cost in costs):.3f} of the ordinary plans' speed")
    if arguments.json:
        results.save_outcomes(arguments.json, device, "layers", costs)
    return 1 if wrong else 0
