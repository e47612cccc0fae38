"""`python -m bench fused`: what an epilogue costs on top of a convolution.

Four versions take turns: the bare convolution; `conv2d_fused` with a bias and ReLU, with or without
a residual; `conv2d` followed by PyTorch's in-place operators; and PyTorch's tuned convolution with
the same operators. Fused results are first checked against float64.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

from . import contenders, results, timing, verify
from .contenders import Buffers
from .layers import Layer
from .measure import Cell, LayerOutcome, buffer_sets, exact_sample, prepared
from .options import several
from .run import add_layer_arguments, attempt, cells
from .timing import Call, geomean


@dataclass(frozen=True)
class Cost(LayerOutcome):
    """Milliseconds of a layer in each version, with or without a residual."""

    residual: bool
    bare_ms: float
    fused_ms: float
    composed_ms: float
    peer_ms: float

    @property
    def overhead(self) -> float:
        """The fused call's time over the bare convolution's."""
        return self.fused_ms / self.bare_ms

    @property
    def ratio(self) -> float:
        """The peer's time over the fused call's."""
        return self.peer_ms / self.fused_ms


def calls(layer: Layer, buffers: Buffers, with_residual: bool) -> dict[str, Call]:
    """Returns the four versions, ours first. The output's gradient serves as the residual."""
    x, w, bias, geometry = buffers.x, buffers.w, buffers.bias, layer.geometry
    residual = buffers.dy if with_residual else None
    fused, plain = contenders.operator(layer, "_fused"), contenders.operator(layer)

    pytorchs = contenders.FORWARD[layer.dims, False]

    def finish(y: Tensor) -> Tensor:
        return (y if residual is None else y.add_(residual)).relu_()

    return {
        "fused": lambda: fused(x, w, bias, *geometry, residual=residual, activation="relu"),
        "bare": lambda: plain(x, w, None, *geometry),
        "composed": lambda: finish(plain(x, w, bias, *geometry)),
        "peer": lambda: finish(pytorchs(x, w, bias, *geometry)),
    }


def _check(cell: Cell, buffers: Buffers, with_residual: bool) -> None:
    """Raises ``verify.Wrong`` if the fused result is wrong."""
    ways = calls(cell.layer, buffers, with_residual)
    result, expected = ways["fused"](), ways["peer"]()
    at, exact = exact_sample(cell, buffers, result)
    if with_residual:
        exact = exact + buffers.dy[tuple(at.to(exact.device).unbind(1))].double()
    exact = exact.relu()
    own_error = verify.relative_error(result, at, exact)
    peer_error = verify.relative_error(expected, at, exact)
    verify.check(result, expected, own_error, peer_error, cell.precision)


def measure(cell: Cell, device: torch.device, with_residual: bool, budget_s: float) -> Cost:
    """Checks and times one layer.

    Raises:
        contenders.Unmeasurable: The layer cannot be measured.
        verify.Wrong: The fused result is wrong; nothing was timed.
    """
    layer = cell.layer
    if layer.transposed:
        raise contenders.Unmeasurable("transposed convolutions have no epilogue")
    with prepared(cell, device) as first:
        bias = torch.randn(layer.K, device=device).to(first.x.dtype)
        sets = [replace(buffers, bias=bias) for buffers in buffer_sets(cell, first, device)]
        _check(cell, sets[0], with_residual)
        ways = [calls(layer, buffers, with_residual) for buffers in sets]
        turns = {name: [each[name] for each in ways] for name in ways[0]}
        times = timing.interleaved(turns, device, budget_s=budget_s).times
    return Cost(
        layer.suite, layer.name, layer.problem(), cell.precision, cell.layout, with_residual,
        *(times[name].median for name in ("bare", "fused", "composed", "peer")),
    )  # fmt: skip


def summary(costs: Sequence[Cost]) -> Table:
    """Geometric means by precision, layout and epilogue."""
    table = Table(box=None, header_style="dim")
    words = ("precision", "layout", "epilogue")
    for head in (*words, "layers", "over bare", "most", "composed over bare", "peer over fused"):
        table.add_column(head, justify="left" if head in words else "right")
    groups: dict[tuple[str, str, bool], list[Cost]] = {}
    for cost in costs:
        groups.setdefault((cost.precision, cost.layout, cost.residual), []).append(cost)

    for (precision, layout, residual), found in groups.items():
        over = [cost.overhead for cost in found]
        table.add_row(
            precision, layout, "residual, relu" if residual else "relu", str(len(found)),
            f"{geomean(over):.3f}", f"{max(over):.2f}",
            f"{geomean(cost.composed_ms / cost.bare_ms for cost in found):.3f}",
            f"{geomean(cost.ratio for cost in found):.3f}",
        )  # fmt: skip
    return table


def text_of(cost: Cost) -> str:
    """A layer in one line."""
    return (
        f"{cost.what} {'residual, relu' if cost.residual else 'relu':14} {cost.fused_ms:9.4f} ms: "
        f"{cost.overhead:.3f} of the bare convolution, composed "
        f"{cost.composed_ms / cost.bare_ms:.3f}; {cost.ratio:.2f} times as fast as the peer"
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    add_layer_arguments(parser, "resnet50")
    several(parser, "--epilogue", ("relu", "residual"), "relu,residual", "epilogues")
    parser.add_argument("--device", default=device, help="cuda or cpu")
    parser.add_argument("--row-s", type=float, default=1.0, help="seconds of timing per layer")
    parser.add_argument("--json", type=Path, help="a file to write the times to")
    parser.set_defaults(op=["fprop"], family=["auto"])


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    arguments.peer = ["cudnn" if device.type == "cuda" else "aten"]
    todo = (
        (cell, partial(measure, cell, device, epilogue == "residual", arguments.row_s))
        for cell in cells(arguments)
        for epilogue in arguments.epilogue
    )
    costs, wrong = attempt(todo, text_of, console)
    console.print(summary(costs))
    if arguments.json:
        results.save_outcomes(arguments.json, device, "layers", costs)
    return 1 if wrong else 0
