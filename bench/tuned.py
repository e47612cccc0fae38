"""`python -m bench tuned`: what `customconv.tune` gains over the planner's choice.

A layer's tuned call, the planner's choice and the peer take turns. The tuned result is checked
against float64 and the peer's.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console

import customconv

from . import contenders, results, timing, verify
from .measure import Cell, LayerOutcome, buffer_sets, exact_sample, prepared
from .options import minutes, several
from .run import add_layer_arguments, attempt_within, cells, gpu, table_by_kind
from .timing import geomean
from .tune import call_by


@dataclass(frozen=True)
class Tuned(LayerOutcome):
    """Milliseconds of a layer as tuned, as planned and by the peer, and what computes it."""

    op: str
    tuned_ms: float
    planned_ms: float
    peer_ms: float
    ratio: float  # the peer's time over the tuned one, turn by turn
    gain: float  # the planner's choice's time over the tuned one, turn by turn
    tuned_plan: str
    planned_plan: str


def measure(cell: Cell, device: torch.device, budget_s: float) -> Tuned:
    """Tunes, checks and times one layer.

    Raises:
        contenders.Unmeasurable: The layer cannot be measured, or only PyTorch computes it.
        verify.Wrong: The tuned result is wrong; nothing was timed.
    """
    layer = cell.layer
    with prepared(cell, device) as first:
        planned = customconv.explain(**contenders.planned(layer, cell.op, first)).plan
        if planned is None:
            raise contenders.Unmeasurable("no family has a plan for it")
        sets = buffer_sets(cell, first, device)
        ours = [contenders.ours(layer, cell.op, buffers) for buffers in sets]
        peer = [contenders.peers(layer, cell.op, buffers, cell.peer) for buffers in sets]
        expected = peer[0]()
        with customconv.tuning():
            ours[0]()
        result = ours[0]()
        at, exact = exact_sample(cell, first, result)
        verify.check(
            result, expected, verify.relative_error(result, at, exact),
            verify.relative_error(expected, at, exact), cell.precision,
        )  # fmt: skip
        tuned_plan = contenders.plan_of(layer, cell.op, first, "auto")[1]
        found = timing.interleaved(
            {
                "tuned": ours,
                "planned": [call_by(planned, layer, cell.op, buffers) for buffers in sets],
                "peer": peer,
            },
            device, budget_s=budget_s,
        )  # fmt: skip
        customconv.clear_plans()
    return Tuned(
        layer.suite, layer.name, layer.problem(), cell.precision, cell.layout, cell.op,
        found.times["tuned"].median, found.times["planned"].median, found.times["peer"].median,
        found.ratios["peer"].median, found.ratios["planned"].median, tuned_plan, str(planned),
    )  # fmt: skip


def summary(outcomes: Sequence[Tuned]) -> Any:
    """By precision, layout and pass: ratios to the peer, and gains over the planner's choice."""

    def columns(ratios: Sequence[float]) -> tuple[str, ...]:
        return f"{geomean(ratios):.3f}", f"{min(ratios):.3f}"

    kinds = (((each.precision, each.layout, each.op), each.ratio) for each in outcomes)
    return table_by_kind(kinds, ("layers", "over the peer", "worst"), columns)


def text_of(outcome: Tuned) -> str:
    """A layer in one line."""
    return (
        f"{outcome.what} {outcome.op} {outcome.tuned_ms:9.4f} ms: {outcome.ratio:.3f} of the "
        f"peer's speed, {outcome.gain:.3f} of the plan's; {outcome.tuned_plan[:60]}"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_layer_arguments(parser, "all")
    several(parser, "--op", contenders.OPS, ",".join(contenders.OPS), "passes")
    parser.add_argument("--row-s", type=float, default=0.5, help="seconds of timing per layer")
    minutes(parser)
    parser.add_argument("--json", type=Path, help="a file to write the times to")
    parser.set_defaults(family=["auto"], peer=["cudnn"])


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = gpu(console)
    if device is None:
        return 2

    outcomes, wrong = attempt_within(
        arguments.minutes, cells(arguments),
        lambda cell: measure(cell, device, arguments.row_s), text_of, console,
    )  # fmt: skip
    console.print(summary(outcomes))
    if outcomes:
        console.print(
            f"{len(outcomes)} layers: {geomean(each.ratio for each in outcomes):.3f} of the peer's "
            f"speed, at worst {min(each.ratio for each in outcomes):.3f}; "
            f"{geomean(each.gain for each in outcomes):.3f} of the planner's choices'; PyTorch's "
            f"own in {sum(each.tuned_plan == 'aten' for each in outcomes)}",
            soft_wrap=True,
        )
    if arguments.json:
        results.save_outcomes(arguments.json, device, "layers", outcomes)
    return 1 if wrong else 0
