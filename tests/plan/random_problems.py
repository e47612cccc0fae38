"""Random problems for the planner, from a pixel to images of more than 2^31 elements."""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Callable, Iterator
from typing import Any

from customconv import _bind

Draw = Callable[[random.Random], dict[str, Any]]

PASSES = ("fprop", "dgrad", "wgrad")
DTYPES = ("float64", "float32", "float16", "bfloat16")

DEVICES = {
    "H100": _bind.DeviceProperties(),
    "A100": _bind.DeviceProperties(
        capability=(8, 0), sm_count=108, clock_ghz=1.41, bandwidth_gb_s=1555.0,
        l2_bytes=40 << 20, shared_bytes_block=163 << 10,
    ),
    "laptop of 8.6": _bind.DeviceProperties(
        capability=(8, 6), sm_count=20, clock_ghz=1.5, bandwidth_gb_s=192.0,
        l2_bytes=2 << 20, shared_bytes_block=99 << 10,
    ),
    "consumer 12.0": _bind.DeviceProperties(
        capability=(12, 0), sm_count=36, clock_ghz=2.5, bandwidth_gb_s=448.0,
        l2_bytes=24 << 20, shared_bytes_block=99 << 10,
    ),
    "48 KiB of shared memory": _bind.DeviceProperties(
        capability=(8, 6), sm_count=20, clock_ghz=1.5, bandwidth_gb_s=192.0,
        l2_bytes=2 << 20, shared_bytes_block=48 << 10,
    ),
}  # fmt: skip


def problem(**arguments: Any) -> _bind.ConvProblem:
    return _bind.ConvProblem(**arguments)


def _extent(rng: random.Random) -> int:
    """Mostly an ordinary image, at times one pixel, an odd width, or a side of a huge image."""
    kind = rng.random()
    if kind < 0.1:
        return 1
    if kind < 0.2:
        return rng.choice((959, 1023, 1024, 1025))
    if kind < 0.25:
        return rng.randint(10_000, 70_000)
    return round(2 ** rng.uniform(0, 9))


def _until_possible(draw: Draw) -> Draw:
    """Draws again where the kernel is larger than the padded image."""

    @functools.wraps(draw)
    def drawn(rng: random.Random) -> dict[str, Any]:
        while True:
            arguments = draw(rng)
            try:
                problem(**arguments)
            except ValueError:
                continue
            return arguments

    return drawn


@_until_possible
def random_arguments(rng: random.Random) -> dict[str, Any]:
    """Arguments of a ConvProblem; any that can be."""
    group_c = rng.choice((1, 1, 2, 3, 4, 7, 8, 16, 31, 32, 64, 192, 512))
    group_k = rng.choice((1, 1, 2, 3, 5, 8, 16, 33, 64, 128, 512))
    groups = rng.choice((1, 1, 1, 2, 3, 8, 32, 256))
    taps = [rng.choice((1, 1, 2, 3, 3, 3, 4, 5, 7, 9, 11, 31)) for _ in range(2)]
    dilation = [rng.choice((1, 1, 1, 2, 3, 50)) for _ in range(2)]
    shape = (rng.choice((1, 2, 3, 8, 50, 1000)), group_c * groups, _extent(rng), _extent(rng))
    return {
        "op": rng.choice(PASSES),
        "dtype": rng.choice(DTYPES),
        "input": shape,
        "weight": (group_k * groups, group_c, *taps),
        "stride": [rng.choice((1, 1, 1, 2, 3, 7)) for _ in range(2)],
        "padding": [rng.randint(0, t * d) for t, d in zip(taps, dilation, strict=True)],
        "dilation": dilation,
        "groups": groups,
        "channels_last": rng.random() < 0.5,
        "bias": rng.random() < 0.5,
        "tf32": rng.random() < 0.5,
    }


@_until_possible
def random_volume(rng: random.Random) -> dict[str, Any]:
    """Arguments of a ConvProblem of volumes; many are 2-D in memory."""
    group_c = rng.choice((1, 2, 3, 4, 8, 16, 31, 64, 96, 384))
    group_k = rng.choice((1, 3, 8, 16, 33, 96, 512))
    groups = rng.choice((1, 1, 1, 1, 2, 32))
    image = [rng.choice((1, 3, 4, 6, 17, 131)), _extent(rng), _extent(rng)]
    taps = rng.choice(
        ([1, 1, 1], [3, 1, 1], [1, 3, 3], [3, 3, 3], [2, 2, 2], [2, 14, 14], [5, 3, 1],
         [7, 7, 7])
    )  # fmt: skip
    dilation = [rng.choice((1, 1, 1, 2, 9)) for _ in taps]
    stride = [rng.choice((1, 1, 1, 2, 7)) for _ in taps]
    padding = [
        rng.choice((0, d * (t - 1) // 2, t * d)) for t, d in zip(taps, dilation, strict=True)
    ]
    if rng.random() < 0.1:  # patches
        stride, padding, dilation = taps, [0, 0, 0], [1, 1, 1]
        image = taps if rng.random() < 0.5 else image
    return {
        "op": rng.choice(PASSES),
        "dtype": rng.choice(DTYPES),
        "input": (rng.choice((1, 1, 2, 8, 100)), group_c * groups, *image),
        "weight": (group_k * groups, group_c, *taps),
        "stride": stride,
        "padding": padding,
        "dilation": dilation,
        "groups": groups,
        "channels_last": rng.random() < 0.5,
        "bias": rng.random() < 0.5,
        "tf32": rng.random() < 0.5,
    }


def arguments(seed: int, count: int) -> Iterator[dict[str, Any]]:
    """Those of random problems, of layers with few channels, dense, grouped, depthwise, and of a
    quarter as many volumes.
    """
    rng = random.Random(seed)
    for _ in range(count):
        yield random_arguments(rng)
    volumes = random.Random(f"{seed} of volumes")
    for _ in range(count // 4):
        yield random_volume(volumes)
    filters = ((1, 1, 0), (3, 1, 1), (3, 2, 0), (3, 2, 1), (7, 1, 3), (7, 2, 3))
    channels = ((3, 1), (128, 1), (128, 8), (128, 128))
    layers = itertools.product(PASSES, ("float16", "float32"), (False, True), filters, channels)
    for op, dtype, channels_last, (taps, stride, padding), (inputs, groups) in layers:
        yield {
            "op": op, "dtype": dtype, "input": (4, inputs, 28, 28),
            "weight": (128, inputs // groups, taps, taps), "stride": (stride, stride),
            "padding": (padding, padding), "groups": groups, "channels_last": channels_last,
            "tf32": taps < 7,
        }  # fmt: skip


def weight_count(arguments: dict[str, Any]) -> int:
    return math.prod(arguments["weight"])


def accumulator_bytes(arguments: dict[str, Any]) -> int:
    return 8 if arguments["dtype"] == "float64" else 4


def fields(plan: _bind.ConvPlan) -> tuple[Any, ...]:
    """All that a plan says."""
    return (
        plan.name, plan.blocks, plan.threads, plan.shared_bytes, plan.workspace_bytes, plan.fuses,
        plan.predicted_ms,
    )  # fmt: skip
