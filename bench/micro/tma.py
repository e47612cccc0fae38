"""How fast TMA loads pixels (rows of channels) from the L2 cache into shared memory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table

from . import build

N, H, W, C = 8, 64, 64, 256  # a tensor of 16 bits that fits the L2 cache
STEPS = 400  # stages that each block loads
CLUSTERED_BY_FOUR = 120  # blocks that run at once as clusters of four, on an H100


@dataclass(frozen=True)
class Load:
    """How a stage is loaded: by `copies`, each of width x height pixels of so many channels.

    The last channels or rows of a copy do not exist where the tensor has fewer.
    """

    mode: str
    channels: int = 64
    width: int = 64
    height: int = 1
    copies: int = 4
    share: int = 1  # blocks of a cluster that each load a part for all of them
    blocks: int = 0  # 0: all SMs
    tensor_channels: int = C
    tensor_height: int = H


def loads() -> Iterator[Load]:
    for channels in (64, 32, 16):
        for mode in ("box", "im2col"):
            yield Load(mode, channels)
    for width, height in ((8, 1), (8, 8), (16, 4), (16, 16), (32, 1), (32, 4), (64, 4)):
        yield Load("box", 64, width, height, max(1, 256 // (width * height)))
    for pixels, copies in ((32, 8), (128, 2), (256, 1)):
        yield Load("im2col", 64, pixels, 1, copies)
    for mode in ("box", "im2col"):
        for share in (2, 4):
            yield Load(mode, share=share)
        yield Load(mode, blocks=1)
    for channels in (16, 32, 64):
        for tensor_channels in (8, 16, 24, 32, 48, 64, 72, 80, 96, 104, 128):
            for mode, width in (("box", 64), ("box", 1), ("im2col", 64)):
                yield Load(mode, channels, width, 64 // width, tensor_channels=tensor_channels)
    for height in (8, 16, 32, 48):
        yield Load("box", 64, 1, 64, tensor_channels=64, tensor_height=height)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    del parser


def main(arguments: argparse.Namespace, console: Console) -> int:
    del arguments
    program = build.load("tma")
    device = torch.device("cuda")
    sms = torch.cuda.get_device_properties(device).multi_processor_count
    memory = torch.randn(N * H * W * C, device=device).half()
    clocks = torch.zeros(sms, dtype=torch.int64, device=device)
    table = Table("mode", "tensor's rows", "channels", "bytes of a row", "pixels of a copy",
                  "copies", "blocks that share", "blocks", "clocks per row", "B/clk", box=None,
                  header_style="dim")  # fmt: skip
    for load in loads():
        blocks = load.blocks or (sms if load.share < 4 else CLUSTERED_BY_FOUR)
        for _ in range(3):  # the last time the tensor is in the L2 cache
            status = program.measure_loads(
                build.pointer(memory), N, load.tensor_height, W, load.tensor_channels,
                load.channels, int(load.mode == "im2col"), load.width, load.height, load.copies,
                STEPS, load.share, blocks, build.pointer(clocks), build.stream(),
            )  # fmt: skip
            build.check(status, f"{load}")
        torch.cuda.synchronize()
        rows = STEPS * load.copies * load.width * load.height
        each = clocks[:blocks].double().mean().item() / rows
        size = load.channels * 2
        table.add_row(
            load.mode, str(load.tensor_height), str(load.tensor_channels), str(size),
            f"{load.width} x {load.height}", str(load.copies), str(load.share), str(blocks),
            f"{each:.2f}", f"{size / each:.1f}",
        )  # fmt: skip
    console.print(table)
    return 0
