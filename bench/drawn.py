"""Layers that no network of `shapes.json` has, drawn by a fixed seed.

What is tuned on known layers must hold on others. The drawn layers cover what known ones rarely
have: image sides of every residue modulo 8, 1-D signals, dilations, strides on odd widths, patches,
channel counts that are no multiple of 8, and very small and very large batches.

Four more suites have what plans are timed for, and no benchmark runs: groups, and the classes in
which a wrong plan costs most; batches of large images, which take a millisecond or so; small
layers, which take some microseconds; and more of all kinds.

Two others judge releases. No plan is timed for their layers, and no price is fitted to them.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from math import prod
from typing import Any, TypeVar

from .layers import Layer

SUITE = "drawn"
TIMED_SUITE = "drawn for timings"
LARGE_SUITE = "drawn large"
TIMED_SMALL_SUITE = "drawn small"
TIMED_MORE_SUITE = "drawn more"
JUDGED_SUITE = "judged"
SMALL_SUITE = "judged small"
SEED = 20261125
TIMED_SEED = 20261127
LARGE_SEED = 20261128
TIMED_SMALL_SEED = 20261130
TIMED_MORE_SEED = 20261201
JUDGED_SEED = 20261129
SMALL_SEED = 20261229
SIDES = range(5, 71)  # of images: every residue modulo 8, several times
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
CHANNELS = (16, 32, 48, 64, 96, 128, 160, 192, 256, 320, 384, 512, 640, 768, 1024)
ODD_CHANNELS = (3, 4, 12, 19, 21, 30, 45, 91, 100, 150, 255, 365, 500, 1001)
FLOPS = (1e8, 8e10)  # of a layer's forward pass, as far as the batch sizes and the memory allow
MOST_ELEMENTS = 1 << 27  # of the input and the output together: 512 MiB in float32
LARGE_FLOPS = (1e10, 4e11)
SMALL_FLOPS = (1e6, 1e10)
MOST_LARGE_ELEMENTS = 1 << 29

Item = TypeVar("Item")


class Draw:
    """Random choices that are the same with every version of Python."""

    def __init__(self, seed: int) -> None:
        self._uniform = random.Random(seed).random  # Python promises that this sequence stays

    def chance(self, probability: float) -> bool:
        return self._uniform() < probability

    def one(self, items: Sequence[Item]) -> Item:
        return items[int(self._uniform() * len(items))]

    def between(self, low: float, high: float) -> float:
        """Returns a number whose logarithm is uniform."""
        return float(low * (high / low) ** self._uniform())

    def near(self, size: int) -> int:
        """Returns the size or, half of the time, one up to a quarter smaller or larger."""
        return size if self.chance(0.5) else round(size * self.between(0.8, 1.25))


Sizes = dict[str, Any]  # arguments of a layer
Kinds = dict[str, Callable[[Draw], Iterator[Sizes]]]


def batched(
    draw: Draw, one: Layer, among: tuple[float, float] = FLOPS, most: int = MOST_ELEMENTS
) -> Layer:
    """Returns a layer of one image with a batch size near a drawn number of FLOPs."""
    # Taps on padding included: without them, some layers would have another batch size.
    pixels = prod(one.input[2:] if one.transposed else one.output[2:])
    flops = 2 * pixels * one.C * (one.K // one.groups) * prod(one.weight[2:])
    wanted = draw.between(*among) / flops
    elements = prod(one.input[1:]) + prod(one.output[1:])
    possible = [n for n in BATCHES if n * elements <= most] or [1]
    return one.with_batch(min(possible, key=lambda n: abs(n - wanted)))


def _square(filter_: int, dilation: int = 1) -> Sizes:
    """Returns a square filter and the padding that keeps the image's size."""
    pad = dilation * (filter_ // 2)
    return {"R": filter_, "S": filter_, "pad": (pad, pad), "dil": (dilation, dilation)}


def _of_every_side(draw: Draw) -> Iterator[Sizes]:
    for side in SIDES:
        sizes = {"C": draw.one(CHANNELS), "K": draw.one(CHANNELS), "H": side, "W": side}
        if draw.chance(0.3):
            sizes["W"] = draw.near(side)
        yield sizes | _square(draw.one((1, 3, 3, 3, 5)))


def _signals(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        width = round(draw.between(300, 60_000))
        filter_ = draw.one((1, 3, 3, 5, 7, 11, 25, 41))
        stride, dilation = (draw.one((2, 4, 5)), 1) if draw.chance(0.3) else (1, draw.one((1, 3)))
        yield {
            "C": draw.one(CHANNELS[:12]), "K": draw.one(CHANNELS[:12]), "H": 1, "W": width,
            "R": 1, "S": filter_, "stride": (1, stride), "dil": (1, dilation),
            "pad": (0, dilation * (filter_ // 2)),
        }  # fmt: skip


def _dilated(draw: Draw) -> Iterator[Sizes]:
    for _ in range(30):
        side = draw.one((28, 33, 41, 60, 65, 64, 97, 128))
        sizes = {"C": draw.one(CHANNELS), "K": draw.one(CHANNELS), "H": side, "W": draw.near(side)}
        yield sizes | _square(3, draw.one((2, 2, 3, 4, 6, 12, 18)))


def _strided(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        side = draw.one((13, 15, 27, 28, 35, 55, 56, 75, 112, 147, 225))
        sizes = {"C": draw.one(CHANNELS), "K": draw.one(CHANNELS), "H": side, "W": draw.near(side)}
        filter_ = _square(draw.one((1, 2, 3, 3, 3, 4, 5)))
        if draw.chance(0.5):
            filter_["pad"] = (0, 0)
        yield sizes | filter_ | {"stride": draw.one(((2, 2), (2, 2), (3, 3), (1, 2), (2, 1)))}


def _patches(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        patch = draw.one((2, 4, 7, 8, 14, 16, 32))
        side = draw.one((96, 224, 256, 384, 518))
        channels = draw.one((1, 3, 3, 3, 4, 16, 64))
        yield {
            "C": channels, "K": draw.one((96, 128, 192, 384, 768, 1024)),
            "H": side, "W": draw.near(side), "R": patch, "S": patch, "stride": (patch, patch),
        }  # fmt: skip


def _stems(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        side, stride = draw.one((96, 225, 299, 331, 512)), draw.one((1, 2, 2))
        sizes = {"C": draw.one((1, 2, 3, 3, 4, 6)), "K": draw.one((16, 24, 32, 48, 64, 96))}
        yield sizes | _square(draw.one((3, 5, 7))) | {
            "H": side, "W": draw.near(side), "stride": (stride, stride),
        }  # fmt: skip


def _of_odd_channels(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        odd, even, side = draw.one(ODD_CHANNELS), draw.one(CHANNELS), draw.one(SIDES)
        channels = {"C": odd, "K": even} if draw.chance(0.5) else {"C": even, "K": odd}
        yield channels | _square(draw.one((1, 3, 3))) | {"H": side, "W": draw.near(side)}


def _separable(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        side, filter_ = draw.one((8, 14, 17, 28, 35, 64, 71)), draw.one((3, 5, 7, 9, 13))
        sizes = {"C": draw.one(CHANNELS), "K": draw.one(CHANNELS), "H": side, "W": draw.near(side)}
        if draw.chance(0.5):
            yield sizes | {"R": filter_, "S": 1, "pad": (filter_ // 2, 0)}
        else:
            yield sizes | {"R": 1, "S": filter_, "pad": (0, filter_ // 2)}


KINDS: Kinds = {
    "side": _of_every_side,
    "signal": _signals,
    "dilated": _dilated,
    "strided": _strided,
    "patches": _patches,
    "stem": _stems,
    "odd channels": _of_odd_channels,
    "separable": _separable,
}


def _grouped(draw: Draw) -> Iterator[Sizes]:
    for _ in range(75):
        groups, side = draw.one((2, 3, 4, 8, 16, 32, 32, 64)), draw.one(SIDES)
        sizes = {"C": groups * draw.one((2, 4, 4, 8, 8, 16, 24, 32, 48, 64, 80)), "groups": groups}
        sizes["K"] = groups * draw.one((4, 8, 16, 32, 64)) if draw.chance(0.3) else sizes["C"]
        stride = draw.one((1, 1, 1, 2))
        yield sizes | _square(draw.one((1, 3, 3, 3, 3, 5))) | {
            "H": side, "W": draw.near(side), "stride": (stride, stride),
        }  # fmt: skip


def _depthwise(draw: Draw) -> Iterator[Sizes]:
    for _ in range(75):
        channels = draw.one((*CHANNELS, *ODD_CHANNELS))
        sizes = {"C": channels, "groups": channels}
        sizes["K"] = channels * (2 if draw.chance(0.1) else 1)
        filter_, stride = draw.one((3, 3, 3, 5, 5, 7, 9, 13)), draw.one((1, 1, 1, 2))
        if draw.chance(0.2):
            yield sizes | {
                "H": 1, "W": round(draw.between(100, 8000)), "R": 1, "S": filter_,
                "pad": (0, filter_ // 2), "stride": (1, stride),
            }  # fmt: skip
        else:
            side = draw.one((7, 14, 28, 56, 112)) if draw.chance(0.4) else draw.one(SIDES)
            yield sizes | _square(filter_) | {
                "H": side, "W": draw.near(side), "stride": (stride, stride),
            }  # fmt: skip


def _transposed(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        side, filter_ = draw.one((8, 16, 23, 32, 48, 64, 96, 128)), draw.one((2, 3, 3, 4, 4, 5))
        stride = draw.one((1, 2, 2, 2, 2, 3))
        pad = draw.one((0, (filter_ - 1) // 2))
        extra = draw.one((0, stride - 1))
        yield {
            "C": draw.one(CHANNELS[:13]), "K": draw.one(CHANNELS[:13]), "H": side,
            "W": draw.near(side), "R": filter_, "S": filter_, "stride": (stride, stride),
            "pad": (pad, pad), "output_padding": (extra, extra), "transposed": True,
        }  # fmt: skip


def _strided_over_wide_images(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        sizes = {"C": draw.one(CHANNELS[2:13]), "K": draw.one(CHANNELS[2:13])}
        yield sizes | _square(draw.one((3, 3, 3, 5))) | {
            "H": draw.one((12, 24, 40, 48, 64)), "W": round(draw.between(200, 1500)),
            "stride": draw.one(((2, 2), (2, 2), (1, 2), (2, 1))),
        }  # fmt: skip


def _few_channels(draw: Draw) -> Iterator[Sizes]:
    for _ in range(30):
        few, many = draw.one((5, 6, 8, 8, 12, 16, 16, 18, 20, 24)), draw.one(CHANNELS[:8])
        channels = {"C": few, "K": many} if draw.chance(0.7) else {"C": many, "K": few}
        side, stride = round(draw.between(24, 300)), draw.one((1, 1, 1, 2))
        yield channels | _square(draw.one((3, 3, 5, 7))) | {
            "H": side, "W": draw.near(side), "stride": (stride, stride),
        }  # fmt: skip


def _overlapping_patches(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        patch = draw.one((4, 7, 8, 14, 16))
        stride = draw.one((patch, patch // 2, (patch + 1) // 2 + 1))
        side = round(draw.between(64, 600))
        yield {
            "C": draw.one((1, 2, 3, 4, 8, 16)), "K": draw.one((64, 96, 128, 192, 384, 768)),
            "H": side, "W": draw.near(side), "R": patch, "S": patch, "stride": (stride, stride),
        }  # fmt: skip


def _wide_images(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        sizes = {"C": draw.one((8, 16, 24, 32, 48, 64)), "K": draw.one((16, 32, 64, 96, 128))}
        yield sizes | _square(draw.one((1, 3, 3, 3, 5))) | {
            "H": round(draw.between(32, 512)), "W": round(draw.between(400, 2048)),
        }  # fmt: skip


TIMED_KINDS: Kinds = {
    "grouped": _grouped,
    "depthwise": _depthwise,
    "transposed": _transposed,
    "strided over wide images": _strided_over_wide_images,
    "few channels": _few_channels,
    "overlapping patches": _overlapping_patches,
    "wide images": _wide_images,
}


def _large(draw: Draw, transposed: bool, strides: Sequence[int]) -> Iterator[Sizes]:
    filters = (2, 3, 3, 3, 4, 5, 7)
    for _ in range(40):
        side, stride = draw.one((64, 96, 128, 200, 256, 384)), draw.one(strides)
        filter_ = draw.one(filters)
        while filter_ < stride:
            filter_ = draw.one(filters)
        pad = draw.one((0, (filter_ - 1) // 2))
        sizes = {
            "C": draw.one((3, 8, 16, 16, 24, 32, 64, 64, 96, 128)),
            "K": draw.one((8, 16, 24, 32, 64, 64, 96, 128, 192)),
            "H": side, "W": draw.near(side), "R": filter_, "S": filter_, "pad": (pad, pad),
            "stride": (stride, stride),
        }  # fmt: skip
        extra = draw.one((0, stride - 1))
        yield sizes | ({"transposed": True, "output_padding": (extra, extra)} if transposed else {})


LARGE_KINDS: Kinds = {
    "large": lambda draw: _large(draw, transposed=False, strides=(1,)),
    "large, strided": lambda draw: _large(draw, transposed=False, strides=(2, 2, 2, 3, 4)),
    "large, transposed": lambda draw: _large(draw, transposed=True, strides=(1, 2, 2, 2, 3)),
}


def _pointwise(draw: Draw) -> Iterator[Sizes]:
    for _ in range(90):
        usual = (7, 8, 12, 14, 16, 20, 28, 32, 40, 56, 64, 80, 112)
        side = draw.one(usual if draw.chance(0.7) else SIDES)
        channels = (*CHANNELS, 24, 40, 80, 144, 240, 480, 672, 1280, 2048)
        sizes = {"C": draw.one(channels), "K": draw.one(channels)}
        if draw.chance(0.1):
            sizes["K"] = draw.one(ODD_CHANNELS)
        yield sizes | _square(1) | {"H": side, "W": draw.near(side) if draw.chance(0.3) else side}


def _of_one_pixel(draw: Draw) -> Iterator[Sizes]:
    for _ in range(30):
        wide, narrow = draw.one((64, 128, 240, 256, 480, 512, 960, 1152, 2048)), draw.one(CHANNELS)
        if draw.chance(0.3):
            narrow = draw.one((8, 10, 20, 100, 1000))
        channels = {"C": wide, "K": narrow} if draw.chance(0.5) else {"C": narrow, "K": wide}
        yield channels | _square(1) | {"H": 1, "W": 1}


def _of_one_image(draw: Draw) -> Iterator[Sizes]:
    for _ in range(80):
        side = draw.one((7, 10, 14, 20, 28, 33, 40, 56, 65, 80, 112, 160, 224))
        sizes = {"C": draw.one(CHANNELS), "K": draw.one(CHANNELS)}
        if side >= 112:
            sizes = {"C": draw.one((3, *CHANNELS[:6])), "K": draw.one(CHANNELS[:6])}
        stride = draw.one((1, 1, 1, 2))
        yield sizes | _square(draw.one((1, 1, 3, 3, 3, 5))) | {
            "H": side, "W": draw.near(side), "stride": (stride, stride),
        }  # fmt: skip


SMALL_KINDS: Kinds = {
    "1x1": _pointwise,
    "one pixel": _of_one_pixel,
    "one image": _of_one_image,
}


def of_kinds(
    suite: str, kinds: Kinds, seed: int, among: tuple[float, float] = FLOPS,
    most: int = MOST_ELEMENTS, by: str = "bench/drawn.py",
) -> tuple[Layer, ...]:  # fmt: skip
    """Draws the layers of each kind, as sizes without a batch, and their batch sizes."""
    found = []
    for number, (kind, sizes) in enumerate(kinds.items()):
        draw = Draw(seed + number)  # a change of one kind leaves the others as they are
        for i, chosen in enumerate(sizes(draw)):
            one = Layer(suite, "", 1, **chosen, source=f"drawn by {by}")
            found.append(replace(batched(draw, one, among, most), name=f"{kind} {i}"))
    return tuple(found)


@cache
def layers() -> tuple[Layer, ...]:
    """The layers, the same ones always."""
    return of_kinds(SUITE, KINDS, SEED)


@cache
def timed_layers() -> tuple[Layer, ...]:
    """Those that plans are timed for beside all others, the same ones always."""
    return of_kinds(TIMED_SUITE, TIMED_KINDS, TIMED_SEED)


@cache
def large_layers() -> tuple[Layer, ...]:
    """Batches of large images that plans are timed for, the same ones always."""
    return of_kinds(LARGE_SUITE, LARGE_KINDS, LARGE_SEED, LARGE_FLOPS, MOST_LARGE_ELEMENTS)


def _small(suite: str, seed: int) -> tuple[Layer, ...]:
    return tuple(
        replace(layer, N=1) if layer.name.startswith("one image") else layer
        for layer in of_kinds(suite, SMALL_KINDS, seed, SMALL_FLOPS)
    )


@cache
def small_layers() -> tuple[Layer, ...]:
    """Small layers that plans are timed for, the same ones always."""
    return _small(TIMED_SMALL_SUITE, TIMED_SMALL_SEED)


@cache
def more_layers() -> tuple[Layer, ...]:
    """More layers of all kinds that plans are timed for, the same ones always."""
    return of_kinds(TIMED_MORE_SUITE, KINDS | TIMED_KINDS, TIMED_MORE_SEED)


@cache
def judged_layers() -> tuple[Layer, ...]:
    """Those that releases are judged by, the same ones always: of all kinds, then small ones."""
    return of_kinds(JUDGED_SUITE, KINDS | TIMED_KINDS, JUDGED_SEED) + _small(
        SMALL_SUITE, SMALL_SEED
    )
