"""A main loop for forward convolutions on TMA's im2col mode, beside cuDNN and our planner."""

from __future__ import annotations

import argparse
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from rich.console import Console
from torch import Tensor

from bench import contenders
from bench.contenders import Buffers
from bench.layers import Layer
from bench.options import several

from . import build, variants
from .variants import Variant

GRIDS = ("padded", "dense")
SHARED = {0: "", 1: " shared pixels", 2: " shared weights", 4: " 2 splits", 8: " 4 splits",
          16: " 8 splits"}  # fmt: skip
MOST_SPLIT = 128 * 128  # outputs of a tile whose sums are split
STAMPS = ("first stage", "products", "stores", "all tiles")  # of a block; three of its first tile
PREFETCHED = 2  # stages of a tile that threads ask for before the first copy
PACKED_BYTES = 24 << 20  # of images that are packed at a time


def add_arguments(parser: argparse.ArgumentParser) -> None:
    variants.add_arguments(parser)
    several(parser, "--dtype", ("fp16", "tf32"), "fp16", "precisions")
    several(parser, "--layout", contenders.LAYOUTS, "nhwc", "layouts")
    parser.add_argument("--stamps", action="store_true", help="print when parts of a tile are done")


def fits(layer: Layer) -> bool:
    """Whether the loop computes it: dense, whole 16 bytes of channels, square geometry."""
    square = all(a == b for a, b in (layer.stride, layer.pad, layer.dil))
    channels = layer.C % 8 == 0 and layer.K % 8 == 0
    return layer.groups == 1 and channels and square and not layer.transposed


def _grids(layer: Layer) -> tuple[int, ...]:
    return (1,) if layer.stride[0] > 1 or layer.R * layer.S == 1 else (0, 1)


class Program:
    """The compiled program, and one layer that it computes, in one layout.

    Attributes:
        tiles: Positions and output channels of each tile.
        y: What the variants write.
    """

    def __init__(self, layer: Layer, buffers: Buffers, y: Tensor) -> None:
        self._run = build.load("mainloop")
        count = self._run.tile_count()
        self.tiles = [(self._run.tile_positions(i), self._run.tile_channels(i))
                      for i in range(count)]  # fmt: skip
        self.layer, self.y, self._x = layer, y, buffers.x
        self._w = buffers.w.contiguous(memory_format=torch.channels_last)
        self._numbers = (
            layer.N, layer.C, layer.H, layer.W, layer.K, layer.R, layer.S, layer.stride[0],
            layer.pad[0], layer.dil[0],
            torch.cuda.get_device_properties(y.device).multi_processor_count,
        )  # fmt: skip

    def _forward(
        self, tile: int, dense: int, share: int, ahead: int, stamps: Tensor | None = None
    ) -> int:
        status: int = self._run.convolve_forward(
            tile, dense, share, ahead, self._x.element_size(), build.pointer(self._x),
            build.pointer(self._w), build.pointer(self.y), *self._numbers,
            None if stamps is None else build.pointer(stamps), build.stream(),
        )  # fmt: skip
        return status

    def _planes(self, workspace: Tensor, images: int, tile: int, dense: int, only: int) -> int:
        status: int = self._run.convolve_planes_forward(
            tile, dense, images, only, self._x.element_size(), build.pointer(self._x),
            build.pointer(self._w), build.pointer(self.y), build.pointer(workspace),
            *self._numbers, build.stream(),
        )  # fmt: skip
        return status

    def _cells(self) -> Iterator[tuple[int, int, str]]:
        """Yields the number of each tile, each grid, and their name."""
        grids = _grids(self.layer)
        for (i, (m, n)), dense in itertools.product(enumerate(self.tiles), grids):
            yield i, dense, f"{m}x{n} {GRIDS[dense]}"

    def channels_last(self) -> dict[str, Callable[..., int]]:
        """The variants for NHWC; each takes stamps."""
        found: dict[str, Callable[..., int]] = {}
        for tile, dense, name in self._cells():
            m, n = self.tiles[tile]
            for share, words in SHARED.items():
                if share == 1 and n >= self.layer.K:
                    continue
                if share > 2 and (m * n > MOST_SPLIT or not dense):
                    continue
                found[name + words] = partial(self._forward, tile, dense, share, 0)
            if dense:
                found[f"{name} prefetched"] = partial(self._forward, tile, dense, 0, PREFETCHED)
        return found

    def planes(self) -> tuple[dict[str, Variant], Variant]:
        """The variants for NCHW, packed some images at a time; and the packing kernels alone."""
        layer, size = self.layer, self._x.element_size()
        image = layer.H * layer.W * -(-layer.C * size // 16) * 16  # bytes
        images = max(1, min(layer.N, PACKED_BYTES // image))
        workspace = torch.empty(images * image, dtype=torch.uint8, device=self.y.device)
        run = partial(self._planes, workspace, images)
        found: dict[str, Variant] = {
            name: partial(run, tile, dense, 0) for tile, dense, name in self._cells()
        }
        return found, partial(run, 0, 1, 1)


def _measure(
    layer: Layer, precision: str, layout: str, arguments: argparse.Namespace, console: Console
) -> int:
    """Checks and times the variants of a layer; returns how many are wrong."""
    device = torch.device("cuda")
    with contenders.switches(precision, "cudnn"):
        buffers = contenders.make_buffers(layer, precision, layout, device)
        calls: dict[str, Callable[[], object]] = {
            "cuDNN": contenders.peers(layer, "fprop", buffers, "cudnn"),
            "planner": contenders.ours(layer, "fprop", buffers),
        }
        expected = contenders.peers(layer, "fprop", buffers, "cudnn")()
        program = Program(layer, buffers, torch.empty_like(expected))
        if layout == "nhwc":
            made: dict[str, Variant] = dict(program.channels_last())
        else:
            made, calls["packing"] = program.planes()
        ours, wrong = variants.right(
            made, program.y, expected, precision, console, verbose=arguments.verbose
        )
        if not ours:
            return wrong
        calls |= ours
        us, _ = variants.timed(calls, arguments.row_s, most_runs=21)
        own = sorted(ours, key=us.__getitem__)
        # Again without the others: the best of many is too good by chance.
        rivals = {name: calls[name] for name in (own[0], "cuDNN", "planner")}
        again, ratios = variants.timed(rivals, arguments.row_s)
        us |= again
    packing = f"; packing {us['packing']:.1f}" if "packing" in us else ""
    console.print(
        f"{precision} {layout} {layer.name} N{layer.N} C{layer.C} {layer.H}x{layer.W} K{layer.K} "
        f"{layer.R}x{layer.S}/{layer.stride[0]} d{layer.dil[0]}: cuDNN {us['cuDNN']:.1f} us "
        f"({ratios['cuDNN'].median:.2f}), planner {us['planner']:.1f} "
        f"({ratios['planner'].median:.2f}), {layer.flops / us[own[0]] * 1e-6:.0f} TFLOP/s: "
        f"{', '.join(f'{name} {us[name]:.1f}' for name in own[:6])}{packing}",
        highlight=False, soft_wrap=True,
    )  # fmt: skip
    if arguments.stamps and layout == "nhwc":
        unsplit = next(name for name in own if not name.endswith("splits"))
        stamps = torch.zeros(8, dtype=torch.int64, device=device)
        program.channels_last()[unsplit](stamps)
        torch.cuda.synchronize()
        first, *ends = stamps.tolist()[: 1 + len(STAMPS)]
        parts = (f"{what} after {end - first}" for what, end in zip(STAMPS, ends, strict=True))
        console.print(f"  {unsplit}: {', '.join(parts)} clocks", highlight=False)
    return wrong


def main(arguments: argparse.Namespace, console: Console) -> int:
    wrong = sum(
        _measure(layer, precision, layout, arguments, console)
        for layer in variants.layers(arguments, fits)
        for precision in arguments.dtype
        for layout in arguments.layout
    )
    return int(wrong > 0)
