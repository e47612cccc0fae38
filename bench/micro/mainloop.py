"""A main loop for forward convolutions, channels-last, on TMA's im2col mode, beside cuDNN."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from ctypes import CDLL
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from bench import contenders, corpus, timing, verify
from bench.layers import Layer

from . import build

TILES = (
    (256, 128), (128, 256), (128, 128), (192, 128), (256, 64), (128, 64), (64, 128), (64, 64),
    (64, 256),
)  # fmt: skip
GRIDS = ("padded", "dense")
SHARED = ("", " shared pixels", " shared weights")
STAMPS = ("first stage", "products", "stores", "last stores")  # of a block's first tile


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--suite", default="resnet50,vgg16,odd", help="comma-separated suites")
    parser.add_argument("--layer", default="", help="only layers whose name contains this")
    parser.add_argument("--batch", type=int, help="the batch size of every layer")
    parser.add_argument("--stamps", action="store_true", help="print when parts of a tile are done")
    parser.add_argument("--row-s", type=float, default=0.3, help="seconds of timing for a layer")


def fits(layer: Layer) -> bool:
    """Whether the loop computes it: dense, whole 16 bytes of channels, square geometry."""
    square = all(a == b for a, b in (layer.stride, layer.pad, layer.dil))
    return layer.groups == 1 and layer.C % 8 == 0 and layer.K % 8 == 0 and square


def variants(
    program: CDLL, layer: Layer, x: Tensor, w: Tensor, y: Tensor
) -> dict[str, Callable[[Tensor | None], int]]:
    """Returns the calls that a layer may be computed by; each returns a status."""
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count

    def run(tile: int, dense: int, share: int, stamps: Tensor | None) -> int:
        status: int = program.convolve_forward(
            tile, dense, share, build.pointer(x), build.pointer(w), build.pointer(y), layer.N,
            layer.C, layer.H, layer.W, layer.K, layer.R, layer.S, layer.stride[0], layer.pad[0],
            layer.dil[0], sms, None if stamps is None else build.pointer(stamps), build.stream(),
        )  # fmt: skip
        return status

    found: dict[str, Callable[[Tensor | None], int]] = {}
    for tile, dense, share in itertools.product(range(len(TILES)), (0, 1), range(3)):
        if not dense and (layer.stride[0] > 1 or layer.R * layer.S == 1):
            continue
        if share == 1 and TILES[tile][1] >= layer.K:
            continue
        m, n = TILES[tile]
        found[f"{m}x{n} {GRIDS[dense]}{SHARED[share]}"] = partial(run, tile, dense, share)
    return found


def main(arguments: argparse.Namespace, console: Console) -> int:
    program = build.load("mainloop")
    device = torch.device("cuda")
    wrong = 0
    for layer in corpus.load(arguments.suite.split(","), arguments.batch):
        if arguments.layer not in layer.name or not fits(layer):
            continue
        with contenders.switches("fp16", "cudnn"):
            buffers = contenders.make_buffers(layer, "fp16", "nhwc", device)
            calls = {
                "cuDNN": contenders.peers(layer, "fprop", buffers, "cudnn"),
                "planner": contenders.ours(layer, "fprop", buffers),
            }
            expected = calls["cuDNN"]()
            y = torch.empty_like(expected)
            ours = variants(program, layer, buffers.x, buffers.w, y)
            for name, call in ours.items():
                y.fill_(torch.nan)
                status = call(None)
                torch.cuda.synchronize()
                if status != 0:
                    if status < 2000:
                        console.print(f"{layer.name} {name}: status {status}")
                    continue
                try:
                    verify.check(y, expected, 0, 0, "fp16")
                except verify.Wrong as error:
                    wrong += 1
                    console.print(f"{layer.name} {name}: wrong: {error}")
                    continue
                calls[name] = partial(call, None)
            times = timing.interleaved(
                {name: [call] for name, call in calls.items()}, device, most_runs=21,
                budget_s=arguments.row_s,
            ).times  # fmt: skip
        us = {name: time.median * 1e3 for name, time in times.items()}
        own = sorted((name for name in us if name in ours), key=us.__getitem__)
        console.print(
            f"{layer.name} N{layer.N} C{layer.C} {layer.H}x{layer.W} K{layer.K} {layer.R}x{layer.S}"
            f"/{layer.stride[0]} d{layer.dil[0]}: cuDNN {us['cuDNN']:.1f} us, planner "
            f"{us['planner']:.1f}, {', '.join(f'{name} {us[name]:.1f}' for name in own[:6])}; "
            f"{layer.flops / us[own[0]] * 1e-6:.0f} TFLOP/s",
            highlight=False, soft_wrap=True,
        )  # fmt: skip
        if arguments.stamps:
            stamps = torch.zeros(8, dtype=torch.int64, device=device)
            ours[own[0]](stamps)
            torch.cuda.synchronize()
            first, *ends = stamps.tolist()[: 1 + len(STAMPS)]
            phases = (
                f"{what} after {end - first} clocks" for what, end in zip(STAMPS, ends, strict=True)
            )
            console.print("  " + ", ".join(phases), highlight=False)
    return int(wrong > 0)
