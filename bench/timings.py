"""`python -m bench timings`: times plans of many layers, as data for the planner's prices.

The cells are drawn by a fixed seed: every layer once, in one precision, layout and pass. A quarter
of the networks, and of the drawn layers, is held out: `bench calibrate` does not see them.

Layers of volumes are in cells of their own (`--volumes`), which follow the others.

The file is JSON lines, compressed by xz. The first line names the GPU, the hash of the sources and
the columns of plans; every other line is a cell and its plans, with the times' medians. Suites that
were timed with other sources are named in the first line, with theirs.
"""

from __future__ import annotations

import argparse
import itertools
import json
import lzma
import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from customconv import _bind

from . import contenders, corpus, drawn, drawn3d, results
from .layers import Layer
from .measure import Cell
from .results import Row
from .run import attempt_within, gpu
from .tune import Outcome, Timed, text_of, tune

PATH = Path(__file__).with_name("results") / "timings-h100.jsonl.xz"
SEED = 20261126
HELD_OUT = 4  # one network in so many
# Layers that are drawn for timings, a suite each.
TIMED = {
    drawn.TIMED_SUITE: drawn.timed_layers,
    drawn.LARGE_SUITE: drawn.large_layers,
    drawn.TIMED_SMALL_SUITE: drawn.small_layers,
    drawn.TIMED_MORE_SUITE: drawn.more_layers,
}
# Layers of volumes, a group each with an order of its own.
TIMED_VOLUMES: dict[str, Callable[[], tuple[Layer, ...]]] = {
    drawn3d.TIMED_SUITE: drawn3d.timed_layers,
    corpus.VOLUMES: lambda: tuple(corpus.load([corpus.VOLUMES])),
}
MOST_LAYERS = 18  # of a network
BATCHES = (None, None, None, 1, 8)  # None: the layer's own
PRECISIONS = ("tf32", "tf32", "tf32", "fp16", "fp16", "fp16", "bf16", "fp32")

FIELDS = ("suite", "name", "problem", "precision", "layout", "op")  # of a cell

COLUMNS = ("plan", "ms")  # a plan's name, and its median time
FIRST = 16  # plans that are timed whatever their kind
MOST = 44  # plans of a cell
MOST_FLOPS = 5e11  # of a cell's layer
MOST_VOLUME_FLOPS = 2e12
FAR = 4.0  # times the least prediction: what is beyond is not timed


@dataclass(frozen=True)
class Timings:
    """A cell's plans, by name, and their times in milliseconds."""

    cell: Cell
    times: dict[str, float]


def is_held_out(suite: str, name: str) -> bool:
    """Whether the fit does not see a layer."""
    of = name if suite in (drawn.SUITE, *TIMED, *TIMED_VOLUMES) else ""
    if suite in corpus.VOLUME_SUITES:
        of = name.partition(": ")[0]  # the network
    return random.Random(f"{SEED} {suite} {of}").random() < 1 / HELD_OUT


def _cell(layer: Layer, generator: random.Random) -> Cell:
    batch = generator.choice(BATCHES)
    precision, layout = generator.choice(PRECISIONS), generator.choice(("nchw", "nhwc"))
    chosen = replace(layer, bias=False) if batch is None else replace(
        layer, bias=False, N=min(batch, layer.N)
    )  # fmt: skip
    return Cell(chosen, precision, layout, generator.choice(contenders.OPS), "cudnn")


def cells() -> list[Cell]:
    """The cells, in an order in which every beginning is a sample of all of ``corpus``.

    Those of the layers that are drawn for timings follow, each suite in an order of the same kind.
    """
    generator = random.Random(SEED)
    found = []
    for _, group in itertools.groupby(corpus.all_layers(), lambda layer: layer.suite):
        layers = list(group)
        if layers[0] in corpus.network_layers():
            layers = generator.sample(layers, min(MOST_LAYERS, len(layers)))
        found += [_cell(layer, generator) for layer in layers]
    found = [cell for cell in found if cell.layer.flops <= MOST_FLOPS]
    generator.shuffle(found)
    return found + _in_groups(TIMED)


def volume_cells() -> list[Cell]:
    """The cells of volumes, in an order of the same kind."""
    found = _in_groups(TIMED_VOLUMES)
    return [cell for cell in found if cell.layer.flops <= MOST_VOLUME_FLOPS]


def _in_groups(groups: Mapping[str, Callable[[], tuple[Layer, ...]]]) -> list[Cell]:
    found = []
    for layers in groups.values():
        generator = random.Random(SEED)
        more = [_cell(layer, generator) for layer in layers()]
        generator.shuffle(more)
        found += more
    return found


def considered(plans: Iterable[_bind.ConvPlan]) -> list[_bind.ConvPlan]:
    """The plans to time: those that are predicted fastest, and the fastest of other kinds."""
    ordered = sorted(plans, key=lambda plan: plan.predicted_ms)
    near = [plan for plan in ordered if plan.predicted_ms <= FAR * ordered[0].predicted_ms]
    chosen = {plan.name: plan for plan in near[:FIRST]}
    kinds = {(plan.kind, plan.splits) for plan in near[:FIRST]}
    for plan in near[FIRST:]:
        kind = (plan.kind, plan.splits)
        if len(chosen) < MOST and kind not in kinds:
            chosen.setdefault(plan.name, plan)
            kinds.add(kind)
    return list(chosen.values())


def _key(row: Row) -> str:
    return json.dumps([row[name] for name in FIELDS])


def _line(cell: Cell, outcome: Outcome) -> str:
    def entry(plan: Timed) -> list[Any]:
        return [plan.name, float(f"{plan.ms:.4g}")]

    row = cell.identity()
    return json.dumps(
        {name: row[name] for name in FIELDS} | {"plans": [entry(plan) for plan in outcome.plans]}
    )


def read(path: Path = PATH) -> tuple[dict[str, Any], list[Timings]]:
    """Reads a file of timings: its facts, and the cells that were timed."""
    by_key = {_key(cell.identity()): cell for cell in (*cells(), *volume_cells())}
    with lzma.open(path, "rt") as file:
        facts = json.loads(file.readline())
        found = []
        for line in file:
            row = json.loads(line)
            found.append(Timings(by_key[_key(row)], dict(row["plans"])))
    return facts, found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--row-s", type=float, default=0.3, help="seconds of timing per cell")
    parser.add_argument("--budget-s", type=float, help="stop cleanly after this many seconds")
    parser.add_argument("--begin", type=int, default=0, help="the first cell's number")
    parser.add_argument("--precision", choices=sorted(set(PRECISIONS)), help="of the cells to time")
    parser.add_argument("--volumes", action="store_true", help="time the cells of volumes")
    parser.add_argument("--out", type=Path, default=Path("timings.jsonl"), help="is appended to")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = gpu(console)
    if device is None:
        return 2
    is_new = not arguments.out.exists()
    file = arguments.out.open("a")
    if is_new:
        facts = results.facts(device) | {"plan": COLUMNS}
        file.write(json.dumps(facts) + "\n")
    begun = arguments.begin

    def timed(cell: Cell) -> Outcome:
        nonlocal begun
        begun += 1
        outcome = tune(cell, device, considered, arguments.row_s, peer=False)
        file.write(_line(cell, outcome) + "\n")
        file.flush()
        return outcome

    every = volume_cells() if arguments.volumes else cells()
    chosen = [cell for cell in every if arguments.precision in (None, cell.precision)]
    chosen = chosen[arguments.begin :]
    _, wrong = attempt_within(arguments.budget_s, chosen, timed, text_of, console)
    console.print(f"the next cell is number {begun}")
    return 1 if wrong else 0
