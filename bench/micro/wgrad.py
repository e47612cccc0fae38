"""Weight gradients on runs of positions, channels-last, beside cuDNN and our planner."""

from __future__ import annotations

import argparse
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

WAVES = (1, 2, 3)  # of blocks, by splits


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several(parser, "--suite", corpus.suites(), "resnet50:64,vgg16,odd", "layers", numbered=True)
    parser.add_argument("--layer", default="", help="only layers whose name contains this")
    parser.add_argument("--batch", type=int, help="the batch size of every other layer")
    parser.add_argument("--row-s", type=float, default=0.3, help="seconds of timing for a layer")
    parser.add_argument("--most", type=int, default=1000, help="layers, spread over all")


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


def variants(
    program: CDLL, layer: Layer, buffers: Buffers, dw: Tensor
) -> dict[str, Callable[[], int]]:
    """Returns the calls, by the number of splits; each returns a status."""
    sms = torch.cuda.get_device_properties(dw.device).multi_processor_count
    slabs = (1, 1) if layer.R == 3 else (2, 4)
    tiles = -(-layer.K // (64 * slabs[0])) * -(-layer.C // (64 * slabs[1]))

    def run(splits: int, sums: Tensor) -> int:
        status: int = program.convolve_wgrad(
            build.pointer(buffers.x), build.pointer(buffers.dy), build.pointer(dw),
            build.pointer(sums), layer.N, layer.C, layer.H, layer.W, layer.K, layer.R,
            layer.pad[0], layer.dil[0], splits, build.stream(),
        )  # fmt: skip
        return status

    found: dict[str, Callable[[], int]] = {}
    for splits in dict.fromkeys(max(1, waves * sms // tiles) for waves in WAVES):
        sums = torch.empty(splits * dw.numel(), device=dw.device)
        found[f"{splits} splits"] = partial(run, splits, sums)
    return found


def main(arguments: argparse.Namespace, console: Console) -> int:
    program = build.load("wgrad")
    device = torch.device("cuda")
    wrong = 0
    layers = [
        replace(layer, bias=False) for layer in corpus.load(arguments.suite, arguments.batch)
        if arguments.layer in layer.name and fits(layer)
    ]  # fmt: skip
    for layer in spread(layers)[: arguments.most]:
        with contenders.switches("fp16", "cudnn"):
            buffers = contenders.make_buffers(layer, "fp16", "nhwc", device)
            calls: dict[str, Callable[[], object]] = {
                "cuDNN": contenders.peers(layer, "wgrad", buffers, "cudnn"),
                "planner": contenders.ours(layer, "wgrad", buffers),
            }
            expected = contenders.peers(layer, "wgrad", buffers, "cudnn")()
            dw = torch.empty_like(expected, memory_format=torch.channels_last)
            for name, call in variants(program, layer, buffers, dw).items():
                dw.fill_(torch.nan)
                status = call()
                torch.cuda.synchronize()
                if status >= 2000:
                    continue
                try:
                    if status != 0:
                        raise verify.Wrong(f"status {status}")
                    verify.check(dw, expected, 0, 0, "fp16")
                except verify.Wrong as error:
                    wrong += 1
                    console.print(f"  {name}: wrong: {error}")
                    continue
                calls[name] = call
            times = timing.interleaved(
                {name: [call] for name, call in calls.items()}, device, most_runs=21,
                budget_s=arguments.row_s,
            ).times  # fmt: skip
        us = {name: time.median * 1e3 for name, time in times.items()}
        own = sorted((name for name in us if name.endswith("splits")), key=us.__getitem__)
        if own:
            console.print(
                f"{layer.name} N{layer.N} C{layer.C} {layer.H}x{layer.W} K{layer.K} "
                f"{layer.R}x{layer.S} d{layer.dil[0]}: cuDNN {us['cuDNN']:.1f} us, planner "
                f"{us['planner']:.1f}, {', '.join(f'{name} {us[name]:.1f}' for name in own)}; "
                f"{layer.flops / us[own[0]] * 1e-6:.0f} TFLOP/s",
                highlight=False, soft_wrap=True,
            )  # fmt: skip
        torch.cuda.empty_cache()
    return int(wrong > 0)
