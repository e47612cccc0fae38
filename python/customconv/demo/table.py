"""Part three: a few shapes, timed beside PyTorch's own convolution."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich import box
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

from customconv.explain import explain
from customconv.ops import conv2d


@dataclass(frozen=True)
class Shape:
    """A convolution: its name and sizes, with the padding that keeps the image's size."""

    name: str
    batch: int
    channels: int
    filters: int
    image: int
    kernel: tuple[int, int]
    stride: int = 1
    groups: int = 1

    @property
    def padding(self) -> tuple[int, int]:
        """Half the kernel, in height and width."""
        return self.kernel[0] // 2, self.kernel[1] // 2


# Sizes for a CPU; a GPU gets images of four times the height and width.
SHAPES = [
    Shape("first layer", 4, 3, 64, 56, (7, 7), stride=2),
    Shape("3 x 3", 4, 64, 64, 56, (3, 3)),
    Shape("1 x 1", 4, 64, 256, 56, (1, 1)),
    Shape("5 x 9", 1, 32, 64, 64, (5, 9)),
    Shape("grouped", 4, 64, 64, 56, (3, 3), groups=8),
    Shape("depthwise", 4, 96, 96, 56, (7, 7), groups=96),
]


def milliseconds(call: Callable[[], Tensor], device: torch.device) -> float:
    """How long one call takes: by CUDA events on a GPU, by the clock on a CPU."""
    if device.type == "cuda":
        begin = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        end = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        begin.record()
        call()
        end.record()
        end.synchronize()
        return float(begin.elapsed_time(end))
    start = time.perf_counter()
    call()
    return (time.perf_counter() - start) * 1e3


def compare(
    ours: Callable[[], Tensor], theirs: Callable[[], Tensor], device: torch.device, rounds: int
) -> tuple[float, float]:
    """The median time of each of two calls, in turns, so that both see the same machine.

    Args:
        ours: One call.
        theirs: The other.
        device: Where they compute.
        rounds: How often each is timed, after a few rounds that are not.
    """
    times: tuple[list[float], list[float]] = ([], [])
    for turn in range(rounds + 3):
        for call, kept in zip((ours, theirs), times, strict=True):
            spent = milliseconds(call, device)
            if turn >= 3:
                kept.append(spent)
    return statistics.median(times[0]), statistics.median(times[1])


@torch.no_grad()
def run(console: Console, device: torch.device, quick: bool) -> None:
    """Prints the table of the shapes that this package computes, or why there is none.

    A ratio above 1 means that this package is faster.

    Args:
        console: Where to print.
        device: Where to compute.
        quick: Time fewer rounds.
    """
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for heading in ("convolution", "sizes", "device", "family"):
        table.add_column(heading)
    for heading in ("customconv", "PyTorch", "times as fast"):
        table.add_column(heading, justify="right")
    reasons: dict[str, None] = {}
    scale, rounds = (4 if device.type == "cuda" else 1), (5 if quick else 31)
    for shape in SHAPES:
        side, groups = shape.image * scale, shape.groups
        x = torch.randn(shape.batch, shape.channels, side, side, device=device)
        w = torch.randn(shape.filters, shape.channels // groups, *shape.kernel, device=device)
        arguments = (x, w, None, shape.stride, shape.padding, 1, groups)
        explanation = explain(*arguments)
        if explanation.plan is None:  # PyTorch would be compared with itself
            reasons[explanation.fallback] = None
            continue
        ours, theirs = compare(
            partial(conv2d, *arguments), partial(functional.conv2d, *arguments), device, rounds
        )
        table.add_row(
            shape.name,
            f"{shape.batch}x{shape.channels}x{side}x{side} to {shape.filters}",
            device.type, explanation.family,
            f"{ours:.3f}", f"{theirs:.3f}", f"{theirs / ours:.2f}",
        )  # fmt: skip
    if table.rows:
        console.print("[bold]3. times:[/] medians of milliseconds a call, float32")
        console.print(table)
    for reason in reasons:
        console.print(f"[bold]3. times:[/] none where PyTorch computes: {reason}")
