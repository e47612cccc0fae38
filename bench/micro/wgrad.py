"""Weight gradients on runs of positions, channels-last, beside cuDNN and our planner."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from ctypes import CDLL
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from bench import contenders
from bench.contenders import Buffers
from bench.layers import Layer

from . import build, variants
from .variants import Variant, add_arguments

__all__ = ["add_arguments", "fits", "main"]

WAVES = (1, 2, 3)  # of blocks, by splits


def fits(layer: Layer) -> bool:
    """Whether the program computes it."""
    return (
        layer.groups == 1
        and layer.stride == (1, 1)
        and (layer.R, layer.S) in ((1, 1), (3, 3))
        and layer.pad[0] == layer.pad[1]
        and layer.dil[0] == layer.dil[1]
        and layer.C % 8 == 0
        and layer.K % 8 == 0
        and not layer.transposed
    )


def splits(program: CDLL, layer: Layer, buffers: Buffers, dw: Tensor) -> dict[str, Variant]:
    """Returns the calls, by the number of splits; each returns a status."""
    sms = torch.cuda.get_device_properties(dw.device).multi_processor_count
    slabs = (1, 1) if layer.R == 3 else (2, 4)
    tiles = -(-layer.K // (64 * slabs[0])) * -(-layer.C // (64 * slabs[1]))

    def run(count: int, sums: Tensor) -> int:
        status: int = program.convolve_wgrad(
            build.pointer(buffers.x), build.pointer(buffers.dy), build.pointer(dw),
            build.pointer(sums), layer.N, layer.C, layer.H, layer.W, layer.K, layer.R,
            layer.pad[0], layer.dil[0], count, build.stream(),
        )  # fmt: skip
        return status

    found: dict[str, Variant] = {}
    for count in dict.fromkeys(max(1, waves * sms // tiles) for waves in WAVES):
        sums = torch.empty(count * dw.numel(), device=dw.device)
        found[f"{count} splits"] = partial(run, count, sums)
    return found


def main(arguments: argparse.Namespace, console: Console) -> int:
    program = build.load("wgrad")
    wrong = 0
    for layer in variants.layers(arguments, fits):
        with contenders.switches("fp16", "cudnn"):
            buffers = contenders.make_buffers(layer, "fp16", "nhwc", torch.device("cuda"))
            calls: dict[str, Callable[[], object]] = {
                "cuDNN": contenders.peers(layer, "wgrad", buffers, "cudnn"),
                "planner": contenders.ours(layer, "wgrad", buffers),
            }
            expected = contenders.peers(layer, "wgrad", buffers, "cudnn")()
            dw = torch.empty_like(expected, memory_format=torch.channels_last)
            made = splits(program, layer, buffers, dw)
            ours, bad = variants.right(
                made, dw, expected, "fp16", console, verbose=arguments.verbose
            )
            wrong += bad
            us, _ = variants.timed(calls | ours, arguments.row_s, most_runs=21)
        own = sorted(ours, key=us.__getitem__)
        if own:
            console.print(
                f"{layer.name} N{layer.N} C{layer.C} {layer.H}x{layer.W} K{layer.K} "
                f"{layer.R}x{layer.S} d{layer.dil[0]}: cuDNN {us['cuDNN']:.1f} us, planner "
                f"{us['planner']:.1f}, {', '.join(f'{name} {us[name]:.1f}' for name in own)}; "
                f"{layer.flops / us[own[0]] * 1e-6:.0f} TFLOP/s",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
    return int(wrong > 0)
