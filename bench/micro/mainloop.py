"""A main loop for forward convolutions on TMA's im2col mode, beside cuDNN and our planner."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable
from ctypes import CDLL
from dataclasses import replace
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from bench import contenders, corpus, timing, verify
from bench.contenders import Buffers
from bench.layers import Layer
from bench.options import several
from bench.run import spread

from . import build

TILES = (
    (256, 128), (128, 256), (128, 128), (192, 128), (256, 64), (128, 64), (64, 128), (64, 64),
    (64, 256),
)  # fmt: skip
PLANAR_TILES = (0, 1, 2, 4, 5)  # those that may store planes
GRIDS = ("padded", "dense")
SHARED = {0: "", 1: " shared pixels", 2: " shared weights", 4: " 2 splits", 8: " 4 splits",
          16: " 8 splits"}  # fmt: skip
MOST_SPLIT = 128 * 128  # outputs of a tile whose sums are split
STAMPS = ("first stage", "products", "stores", "all tiles")  # of a block; three of its first tile
PREFETCHED = 2  # stages of a tile that threads ask for before the first copy
PACKED_BYTES = 24 << 20  # of images that are packed at a time

Variant = Callable[[Tensor | None], int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several(parser, "--suite", corpus.suites(), "resnet50:64,vgg16,odd", "layers", numbered=True)
    parser.add_argument("--layer", default="", help="only layers whose name contains this")
    parser.add_argument("--batch", type=int, help="the batch size of every other layer")
    several(parser, "--dtype", ("fp16", "tf32"), "fp16", "precisions")
    several(parser, "--layout", contenders.LAYOUTS, "nhwc", "layouts")
    parser.add_argument("--stamps", action="store_true", help="print when parts of a tile are done")
    parser.add_argument("--row-s", type=float, default=0.4, help="seconds of timing for a layer")
    parser.add_argument("--verbose", action="store_true", help="name each variant before it runs")
    parser.add_argument("--most", type=int, default=1000, help="layers, spread over all")


def fits(layer: Layer) -> bool:
    """Whether the loop computes it: dense, whole 16 bytes of channels, square geometry."""
    square = all(a == b for a, b in (layer.stride, layer.pad, layer.dil))
    channels = layer.C % 8 == 0 and layer.K % 8 == 0
    return layer.groups == 1 and channels and square and not layer.transposed


def _grids(layer: Layer) -> tuple[int, ...]:
    return (1,) if layer.stride[0] > 1 or layer.R * layer.S == 1 else (0, 1)


def variants(program: CDLL, layer: Layer, buffers: Buffers, y: Tensor) -> dict[str, Variant]:
    """Returns the calls that a layer may be computed by; each returns a status."""
    x, w = buffers.x, buffers.w
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count
    numbers = (
        layer.N, layer.C, layer.H, layer.W, layer.K, layer.R, layer.S, layer.stride[0],
        layer.pad[0], layer.dil[0], sms,
    )  # fmt: skip

    def run(tile: int, dense: int, share: int, ahead: int, stamps: Tensor | None) -> int:
        status: int = program.convolve_forward(
            tile, dense, share, ahead, x.element_size(), build.pointer(x), build.pointer(w),
            build.pointer(y), *numbers, None if stamps is None else build.pointer(stamps),
            build.stream(),
        )  # fmt: skip
        return status

    found: dict[str, Variant] = {}
    for tile, dense, share in itertools.product(range(len(TILES)), _grids(layer), SHARED):
        m, n = TILES[tile]
        if (share == 1 and n >= layer.K) or (share > 2 and (m * n > MOST_SPLIT or not dense)):
            continue
        name = f"{m}x{n} {GRIDS[dense]}{SHARED[share]}"
        found[name] = partial(run, tile, dense, share, 0)
        if dense and not share:
            found[f"{name} prefetched"] = partial(run, tile, dense, share, PREFETCHED)
    return found


def planar_variants(program: CDLL, layer: Layer, buffers: Buffers, y: Tensor) -> dict[str, Variant]:
    """The same for planes, packed some images at a time; also the kernels that pack, alone."""
    x = buffers.x
    w = buffers.w.contiguous(memory_format=torch.channels_last)
    size = x.element_size()
    image = layer.H * layer.W * -(-layer.C * size // 16) * 16  # bytes
    images = max(1, min(layer.N, PACKED_BYTES // image))
    workspace = torch.empty(images * image, dtype=torch.uint8, device=x.device)
    sms = torch.cuda.get_device_properties(x.device).multi_processor_count

    def run(tile: int, dense: int, only: int, _: Tensor | None) -> int:
        status: int = program.convolve_planes_forward(
            tile, dense, images, only, size, build.pointer(x), build.pointer(w), build.pointer(y),
            build.pointer(workspace), layer.N, layer.C, layer.H, layer.W, layer.K, layer.R,
            layer.S, layer.stride[0], layer.pad[0], layer.dil[0], sms, build.stream(),
        )  # fmt: skip
        return status

    found: dict[str, Variant] = {}
    for tile, dense in itertools.product(PLANAR_TILES, _grids(layer)):
        m, n = TILES[tile]
        found[f"{m}x{n} {GRIDS[dense]}"] = partial(run, tile, dense, 0)
    return found | {f"pack ({-(-layer.N // images)} times)": partial(run, 0, 1, 1)}


def _right(
    ours: dict[str, Variant],
    y: Tensor,
    expected: Tensor,
    precision: str,
    console: Console,
    *,
    verbose: bool,
) -> tuple[dict[str, Variant], int]:
    """Returns those that are right, and how many are not. What does not fit is neither."""
    found, wrong = {}, 0
    for name, call in ours.items():
        if name.startswith("pack"):
            found[name] = call
            continue
        if verbose:
            console.print(f"  {name}", highlight=False)
        y.fill_(torch.nan)
        status = call(None)
        torch.cuda.synchronize()
        if status >= 2000:
            continue
        try:
            if status != 0:
                raise verify.Wrong(f"status {status}")
            verify.check(y, expected, 0, 0, precision)
        except verify.Wrong as error:
            wrong += 1
            console.print(f"  {name}: wrong: {error}")
            continue
        found[name] = call
    return found, wrong


def _measure(
    program: CDLL, layer: Layer, precision: str, layout: str, arguments: argparse.Namespace,
    console: Console,
) -> int:  # fmt: skip
    """Checks and times the variants of a layer; returns how many are wrong."""
    device = torch.device("cuda")
    with contenders.switches(precision, "cudnn"):
        buffers = contenders.make_buffers(layer, precision, layout, device)
        calls = {
            "cuDNN": contenders.peers(layer, "fprop", buffers, "cudnn"),
            "planner": contenders.ours(layer, "fprop", buffers),
        }
        expected = calls["cuDNN"]()
        y = torch.empty_like(expected)
        make = variants if layout == "nhwc" else planar_variants
        made = make(program, layer, buffers, y)
        ours, wrong = _right(made, y, expected, precision, console, verbose=arguments.verbose)
        calls |= {name: partial(call, None) for name, call in ours.items()}
        times = timing.interleaved(
            {name: [call] for name, call in calls.items()}, device, most_runs=21,
            budget_s=arguments.row_s,
        ).times  # fmt: skip
        us = {name: time.median * 1e3 for name, time in times.items()}
        own = sorted(ours, key=us.__getitem__)
        best = next((name for name in own if not name.startswith("pack")), None)
        if best is None:
            return wrong
        # Again without the others: the best of many is too good by chance.
        rivals = {name: [calls[name]] for name in (best, "cuDNN", "planner")}
        again = timing.interleaved(rivals, device, budget_s=arguments.row_s)
        us |= {name: time.median * 1e3 for name, time in again.times.items()}
    console.print(
        f"{precision} {layout} {layer.name} N{layer.N} C{layer.C} {layer.H}x{layer.W} K{layer.K} "
        f"{layer.R}x{layer.S}/{layer.stride[0]} d{layer.dil[0]}: cuDNN {us['cuDNN']:.1f} us "
        f"({again.ratios['cuDNN'].median:.2f}), planner {us['planner']:.1f} "
        f"({again.ratios['planner'].median:.2f}), {layer.flops / us[best] * 1e-6:.0f} TFLOP/s: "
        f"{', '.join(f'{name} {us[name]:.1f}' for name in own[:6])}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    unsplit = next(name for name in own if not name.endswith("splits"))
    if arguments.stamps and layout == "nhwc":
        stamps = torch.zeros(8, dtype=torch.int64, device=device)
        ours[unsplit](stamps)
        torch.cuda.synchronize()
        first, *ends = stamps.tolist()[: 1 + len(STAMPS)]
        parts = (f"{what} after {end - first}" for what, end in zip(STAMPS, ends, strict=True))
        console.print(f"  {unsplit}: {', '.join(parts)} clocks", highlight=False)
    return wrong


def main(arguments: argparse.Namespace, console: Console) -> int:
    program = build.load("mainloop")
    wrong = 0
    layers = [
        replace(layer, bias=False) for layer in corpus.load(arguments.suite, arguments.batch)
        if arguments.layer in layer.name and fits(layer)
    ]  # fmt: skip
    for layer in spread(layers)[: arguments.most]:
        for precision in arguments.dtype:
            for layout in arguments.layout:
                wrong += _measure(program, layer, precision, layout, arguments, console)
                torch.cuda.empty_cache()
    return int(wrong > 0)
