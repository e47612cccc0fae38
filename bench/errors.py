"""`python -m bench errors`: errors of float32 against float64, beside cuDNN's.

A table of convolutions whose sums have 27 to 100,352 terms (of volumes 110,592), with several kinds
of data. An error is the norm of sampled elements' errors over that of their exact values.
"""

from __future__ import annotations

import argparse
from math import prod

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor

import customconv

from . import contenders, verify
from .contenders import Buffers
from .layers import Layer
from .run import gpu

SEED = 20261126
PRECISIONS = ("fp32", "tf32")
DATA = {
    "normal": "normally distributed, mean 0",
    "large mean": "normally distributed, mean 5",
    "cancelling": "one operand has a mean of 100, the other's sum over the terms is 0",
    "wide range": "magnitudes from 1e-30 to 1e30, products from 1e-30 to 1e30",
    "tiny": "magnitudes of 1e-37, whose low halves are subnormal, by 1e37",
}


def _layer(N: int, C: int, H: int, W: int, K: int, taps: int, pad: int = 1) -> Layer:
    return Layer("errors", "", N, C, H, W, K, taps, taps, pad=(pad, pad))


def _volume(N: int, C: int, side: int, K: int) -> Layer:
    pad = (1, 1, 1)
    return Layer("errors", "", N, C, side, side, K, 3, 3, pad=pad, D=side, T=3)


# Each pass has layers of short sums and of long ones.
LAYERS = {
    "fprop": [
        _layer(4, 3, 32, 32, 64, 3),
        _layer(4, 64, 32, 32, 64, 3),
        _layer(4, 512, 14, 14, 64, 3),
        _layer(4, 2048, 10, 10, 64, 7, pad=0),
    ],
    "dgrad": [
        _layer(4, 64, 32, 32, 3, 3),
        _layer(4, 64, 32, 32, 64, 3),
        _layer(4, 64, 14, 14, 512, 3),
        _layer(4, 64, 10, 10, 2048, 7, pad=0),
    ],
    "wgrad": [
        _layer(1, 64, 3, 9, 64, 3),
        _layer(1, 64, 24, 24, 64, 3),
        _layer(2, 64, 48, 48, 64, 3),
        _layer(32, 64, 56, 56, 64, 3),
    ],
}


VOLUMES = {
    "fprop": [
        _volume(4, 1, 16, 64), _volume(4, 64, 16, 64), _volume(4, 512, 8, 64),
        _volume(4, 4096, 6, 64),
    ],
    "dgrad": [
        _volume(4, 64, 16, 1), _volume(4, 64, 16, 64), _volume(4, 64, 8, 512),
        _volume(4, 64, 6, 4096),
    ],
    "wgrad": [_volume(1, 64, side, 64) for side in (3, 12, 24, 48)],
}  # fmt: skip


def make_buffers(layer: Layer, op: str, data: str, layout: str, device: torch.device) -> Buffers:
    """Operands of a pass with values of this kind."""
    generator = torch.Generator(device).manual_seed(SEED)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, device=device, dtype=torch.float64, generator=generator)

    def scale(shape: tuple[int, ...], least: float, most: float) -> Tensor:
        exponents = torch.empty(shape, device=device, dtype=torch.float64)
        return 10 ** exponents.uniform_(least, most, generator=generator)

    x, w, dy = normal(layer.input), normal(layer.weight), normal(layer.output)
    if data == "large mean":
        x, w, dy = x + 5, w + 5, dy + 5
    elif data == "cancelling" and op == "dgrad":
        dy, w = dy + 100, w - w.mean(0, keepdim=True)
    elif data == "cancelling":
        x, w = x + 100, w - w.mean([*range(1, w.ndim)], keepdim=True)
        dy = dy - dy.mean([0, *range(2, dy.ndim)], keepdim=True)
    elif data == "wide range":
        # One operand of a pass is small, and the other is large.
        w, dy = w * scale(layer.weight, 0, 30), dy * scale(layer.output, 0, 30)
        x = x * scale(layer.input, -30, 0)
        if op == "dgrad":
            dy = dy * 1e-30
    elif data == "tiny":
        x, w, dy = x * 1e-37, w * 1e37, dy * (1e-37 if op == "dgrad" else 1e37)
    memory = contenders.memory_format(layout, x.ndim)
    x, w, dy = (values.float().to(memory_format=memory) for values in (x, w, dy))
    return Buffers(x, w, None, dy)


def terms(layer: Layer, op: str) -> int:
    """Terms of a sum, with those of the padding."""
    if op == "wgrad":
        return layer.N * prod(layer.output[2:])
    return (layer.C if op == "fprop" else layer.K) * prod(layer.weight[2:])


def errors_of(layer: Layer, op: str, buffers: Buffers, precision: str) -> tuple[float, float, str]:
    """Relative errors of the planner's choice and of PyTorch's own, and the chosen plan."""
    with contenders.switches(precision, "cudnn"):
        ours = contenders.ours(layer, op, buffers)()
        theirs = contenders.peers(layer, op, buffers, "cudnn")()
        plan = contenders.plan_of(layer, op, buffers, "auto")[1]
    at = verify.sample(ours.shape, verify.SAMPLES[op])
    expected = verify.exact(layer, op, at, buffers.x, buffers.w, buffers.dy)
    errors = [verify.relative_error(result, at, expected) for result in (ours, theirs)]
    return errors[0], errors[1], plan


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--precision", choices=PRECISIONS, default="fp32")
    parser.add_argument("--layout", choices=[*contenders.LAYOUTS], default="nchw")
    parser.add_argument("--dims", type=int, choices=(2, 3), default=2, help="3: of volumes")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = gpu(console)
    if device is None:
        return 2
    table = Table(box=None, header_style="dim")
    for head in ("pass", "terms", "data", "ours", "cuDNN", "plan"):
        table.add_column(head)
    for op, layers in (LAYERS if arguments.dims == 2 else VOLUMES).items():
        for layer in layers:
            for data in DATA:
                buffers = make_buffers(layer, op, data, arguments.layout, device)
                ours, cudnns, plan = errors_of(layer, op, buffers, arguments.precision)
                table.add_row(
                    op, f"{terms(layer, op):,}", data, f"{ours:.1e}", f"{cudnns:.1e}", plan[:60]
                )
    console.print(f"customconv {customconv.__version__}, {arguments.precision}, {arguments.layout}")
    console.print(table)
    for data, meaning in DATA.items():
        console.print(f"{data}: {meaning}")
    return 0
