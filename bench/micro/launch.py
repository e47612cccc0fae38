"""What a kernel costs before it does anything: by shared memory, parameters, clusters and code."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial

import torch
from rich.console import Console
from rich.table import Table

from bench import timing

from . import build

# Bytes of parameters, blocks for each SM (0: one block in all), threads, KB of shared memory, and
# blocks of a cluster.
EMPTY = (
    (64, 0, 32, 0, 1), (64, 1, 128, 0, 1), (64, 1, 384, 0, 1), (64, 1, 384, 100, 1),
    (64, 1, 384, 227, 1), (1024, 1, 384, 227, 1), (2048, 1, 384, 227, 1), (4000, 1, 384, 227, 1),
    (64, 1, 384, 227, 2), (64, 1, 384, 227, 4), (64, 4, 384, 227, 1), (64, 4, 384, 100, 1),
    (64, 8, 128, 0, 1),
)  # fmt: skip
CODE_KB = (1, 4, 16, 64)
CODE_BLOCKS = ((0, 32), (1, 32), (1, 384))  # blocks for each SM, threads


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--budget-s", type=float, default=4.0, help="seconds of timing")


def main(arguments: argparse.Namespace, console: Console) -> int:
    program = build.load("launch")
    device = torch.device("cuda")
    sms = torch.cuda.get_device_properties(device).multi_processor_count

    def empty(size: int, blocks: int, threads: int, shared: int, cluster: int) -> None:
        status = program.launch_empty(size, blocks, threads, shared, cluster, build.stream())
        build.check(status, "empty kernel")

    def straight(kilobytes: int, blocks: int, threads: int) -> None:
        build.check(program.launch_straight(kilobytes, blocks, threads, build.stream()), "code")

    calls: dict[str, Callable[[], None]] = {}
    for size, of_sm, threads, kilobytes, cluster in EMPTY:
        blocks = max(1, of_sm * sms // cluster * cluster)
        name = (
            f"empty: {size} B of parameters, {blocks} x {threads} threads, {kilobytes} KB of "
            f"shared memory, clusters of {cluster}"
        )
        calls[name] = partial(empty, size, blocks, threads, kilobytes << 10, cluster)
    for kilobytes in CODE_KB:
        for of_sm, threads in CODE_BLOCKS:
            blocks = max(1, of_sm * sms)
            name = f"{kilobytes} KB of code that each warp runs once, {blocks} x {threads} threads"
            calls[name] = partial(straight, kilobytes, blocks, threads)
    times = timing.interleaved(
        {name: [call] for name, call in calls.items()}, device, most_runs=51,
        budget_s=arguments.budget_s,
    ).times  # fmt: skip
    table = Table("kernel", "us", "quartiles", box=None, header_style="dim")
    for name, time in times.items():
        quartiles = f"{time.low * 1e3:.2f}-{time.high * 1e3:.2f}"
        table.add_row(name, f"{time.median * 1e3:.2f}", quartiles)
    console.print(table)
    return 0
