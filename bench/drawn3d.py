"""Layers of volumes that no network of `conv3d_layers.json` has, drawn by a fixed seed.

The kinds are those that networks have: autoencoders of videos, which pad before they convolve, with
a few frames at a time or with a whole clip; medical images; recognition of actions; patches. Others
are what known layers rarely have: widths of every residue, odd channel counts, dilations.

One suite judges releases: no plan is timed for its layers. The other has what plans are timed for,
and no benchmark runs it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

from .drawn import CHANNELS, ODD_CHANNELS, SIDES, Draw, Kinds, Sizes, of_kinds
from .layers import Layer

TIMED_SUITE = "drawn volumes"
JUDGED_SUITE = "judged volumes"
TIMED_SEED = 20261205
JUDGED_SEED = 20261207
FLOPS = (1e9, 3e11)  # of a layer's forward pass, as far as the batch sizes and the memory allow
VIDEO_FLOPS = (1e10, 1e12)  # of a layer of one video
MOST_ELEMENTS = 1 << 28  # of the input and the output together: 1 GiB in float32
WIDE = (96, 128, 192, 256, 320, 384, 512, 640, 768, 1024)
MEDICAL = (16, 24, 32, 48, 64, 96, 128, 192, 256, 320)
FEW = (1, 2, 3, 3, 4, 12, 12, 16, 32, 48, 48)


def _volume(deep: int, high: int, wide: int) -> Sizes:
    return {"D": deep, "H": high, "W": wide}


def _filter(taps: tuple[int, int, int], pads: bool = True, dilation: int = 1) -> Sizes:
    """Returns a filter and, if it pads, the padding that keeps the volume's size."""
    pad = tuple(dilation * (t // 2) if pads else 0 for t in taps)
    return {"T": taps[0], "R": taps[1], "S": taps[2], "pad": pad, "dil": (dilation,) * 3}


def _cube(filter_: int, pads: bool = True, dilation: int = 1) -> Sizes:
    return _filter((filter_,) * 3, pads, dilation)


def _framed(draw: Draw, sizes: Sizes, taps: int, outputs: int) -> Sizes:
    """Adds a height and a width, 8 k + 2 each, so that a pass has about a drawn number of FLOPs."""
    area = draw.between(*VIDEO_FLOPS) / (2 * taps * sizes["C"] * sizes["K"] * outputs)
    area = min(area, MOST_ELEMENTS / (sizes["D"] * (sizes["C"] + sizes["K"])))
    side = min(max(area**0.5 / 8, 2), 150)
    return sizes | {
        "H": 8 * round(side) + 2,
        "W": 8 * max(2, round(draw.between(0.7, 1.8) * side)) + 2,
    }


def _of_few_frames(draw: Draw) -> Iterator[Sizes]:
    for _ in range(50):
        channels, deep = draw.one(WIDE), draw.one((3, 4, 4, 6, 6, 10))
        sizes: Sizes = {
            "C": channels,
            "K": channels if draw.chance(0.7) else draw.one(WIDE),
            "D": deep,
        }
        yield _framed(draw, sizes | _cube(3, pads=False), 27, deep - 2)


def _of_a_clip(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        channels, deep = draw.one(WIDE[:7]), round(draw.between(33, 131))
        sizes: Sizes = {"C": channels, "K": channels, "D": deep} | _cube(3)
        pads = draw.one(((0, 1, 1), (0, 0, 0), (1, 1, 1)))
        yield _framed(draw, sizes | {"pad": pads}, 27, deep)


def _of_frames_or_of_time(draw: Draw) -> Iterator[Sizes]:
    for _ in range(30):
        sizes: Sizes = {
            "C": draw.one(WIDE),
            "K": draw.one(WIDE),
            "D": draw.one((1, 3, 4, 6, 17, 33)),
        }
        taps = draw.one(((1, 1, 1), (3, 1, 1), (3, 1, 1), (1, 3, 3)))
        filter_ = _filter(taps, pads=taps[0] > sizes["D"] or draw.chance(0.4))
        sizes = _framed(draw, sizes | filter_, taps[0] * taps[1] * taps[2], sizes["D"])
        if taps == (1, 3, 3) and draw.chance(0.6):
            sizes["stride"] = (1, 2, 2)
        elif taps == (3, 1, 1) and sizes["D"] > 3 and draw.chance(0.3):
            sizes["stride"] = (2, 1, 1)
        yield sizes


def _of_few_outputs(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        few, many, deep = draw.one(FEW), draw.one(WIDE[:7]), draw.one((3, 4, 6, 17))
        channels = {"C": many, "K": few} if draw.chance(0.7) else {"C": few, "K": many}
        yield _framed(draw, channels | {"D": deep} | _cube(3, draw.chance(0.3)), 27, deep)


def _medical(draw: Draw) -> Iterator[Sizes]:
    for _ in range(50):
        side = draw.one((4, 6, 8, 10, 12, 16, 20, 24, 32, 40, 48, 64, 80, 96, 128))
        channels = MEDICAL if side <= 48 else MEDICAL[:5]
        sizes: Sizes = {"C": draw.one(channels), "K": draw.one(channels)}
        if draw.chance(0.15):
            sizes |= {"C": draw.one((1, 1, 2, 4))}
        elif draw.chance(0.15):
            sizes |= {"K": draw.one((2, 3, 4, 14, 105))} | _cube(1)
        sizes = _cube(draw.one((1, 3, 3, 3, 3))) | sizes
        if draw.chance(0.15):
            sizes |= _filter((1, 3, 3))
        if draw.chance(0.25):
            sizes["stride"] = draw.one(((2, 2, 2), (2, 2, 2), (1, 2, 2)))
        yield sizes | _volume(draw.near(side), side, side if draw.chance(0.6) else draw.near(side))


def _upsampled(draw: Draw) -> Iterator[Sizes]:
    for _ in range(25):
        side = draw.one((4, 6, 8, 12, 16, 24, 32, 48, 64))
        channels = MEDICAL if side <= 32 else MEDICAL[:5]
        sizes: Sizes = {"C": draw.one(channels), "K": draw.one(channels), "transposed": True}
        filter_ = draw.one((2, 2, 2, 2, 3, 4))
        sizes |= _cube(filter_, pads=False) | {"stride": (2, 2, 2)}
        if filter_ > 2:
            extra = draw.one((0, 1)) if filter_ == 3 else 0
            sizes |= {"pad": (1, 1, 1), "output_padding": (extra,) * 3}
        elif draw.chance(0.2):
            sizes |= _filter((1, 2, 2), pads=False) | {"stride": (1, 2, 2)}
        yield sizes | _volume(draw.near(side), side, draw.near(side))


def _action(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        side = draw.one((7, 14, 28, 56, 112))
        channels = CHANNELS if side <= 28 else CHANNELS[:8]
        sizes: Sizes = {"C": draw.one(channels), "K": draw.one(channels)}
        taps = draw.one(((1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3), (5, 1, 1)))
        if draw.chance(0.15):
            side, taps = (
                224 if draw.chance(0.5) else 112,
                draw.one(((1, 7, 7), (3, 7, 7), (5, 7, 7))),
            )
            sizes = {"C": 3, "K": draw.one((8, 24, 45, 64)), "stride": (1, 2, 2)}
        elif draw.chance(0.25):
            sizes["stride"] = draw.one(((1, 2, 2), (2, 2, 2), (2, 1, 1)))
        yield sizes | _filter(taps) | _volume(draw.one((4, 8, 13, 16, 32)), side, side)


def _grouped(draw: Draw) -> Iterator[Sizes]:
    for _ in range(40):
        side = draw.one((7, 8, 10, 14, 16, 28, 32, 56, 64))
        if draw.chance(0.6):
            channels = draw.one((*MEDICAL, 54, 108, 216, 432))
            sizes: Sizes = {"C": channels, "K": channels, "groups": channels}
            sizes |= _cube(draw.one((3, 3, 3, 5, 5, 7)))
            if draw.chance(0.2):
                sizes |= _filter(draw.one(((3, 1, 1), (1, 3, 3), (5, 1, 1))))
        else:
            groups = draw.one((2, 4, 8, 32))
            sizes = {"C": groups * draw.one((4, 8, 16, 32)), "groups": groups} | _cube(3)
            sizes["K"] = sizes["C"]
        if draw.chance(0.25):
            sizes["stride"] = draw.one(((1, 2, 2), (2, 2, 2)))
        yield sizes | _volume(draw.one((4, 8, 16, side)), side, draw.near(side))


def _patches(draw: Draw) -> Iterator[Sizes]:
    for _ in range(25):
        taps = draw.one(((2, 16, 16), (2, 14, 14), (1, 14, 14), (1, 2, 2), (2, 4, 4), (16, 16, 16),
                         (4, 4, 4), (2, 2, 2), (1, 16, 16)))  # fmt: skip
        is_one = draw.chance(0.3)  # the filter is the whole volume, as where patches are cut before
        along = (1, 1, 1) if is_one else (draw.one((1, 4, 8)), *(draw.one((8, 14, 16, 24)),) * 2)
        small = max(taps) <= 4
        yield {
            "C": draw.one((16, 16, 48, 64)) if small else draw.one((1, 3, 3, 3, 4)),
            "K": draw.one((96, 384, 768, 1024, 1152, 1280, 1536, 3072)),
            **_volume(*(t * n for t, n in zip(taps, along, strict=True))),
            **_filter(taps, pads=False),
            "stride": taps,
            "bias": draw.chance(0.6),
        }


def _of_every_width(draw: Draw) -> Iterator[Sizes]:
    for side in SIDES:
        sizes: Sizes = {"C": draw.one(CHANNELS[:12]), "K": draw.one(CHANNELS[:12])}
        deep, high = round(draw.between(2, 34)), draw.near(side)
        taps = draw.one(((3, 3, 3), (3, 3, 3), (1, 3, 3), (3, 1, 1), (1, 1, 1), (2, 3, 3)))
        yield sizes | _filter(taps) | _volume(deep, high, side)


def _of_odd_channels(draw: Draw) -> Iterator[Sizes]:
    for _ in range(30):
        odd, even, side = draw.one(ODD_CHANNELS), draw.one(CHANNELS[:12]), draw.one(SIDES)
        channels = {"C": odd, "K": even} if draw.chance(0.5) else {"C": even, "K": odd}
        deep = round(draw.between(2, 34))
        yield channels | _cube(draw.one((1, 3, 3))) | _volume(deep, draw.near(side), side)


def _dilated(draw: Draw) -> Iterator[Sizes]:
    for _ in range(20):
        side = draw.one((12, 16, 24, 28, 33, 48))
        sizes: Sizes = {"C": draw.one(CHANNELS[:10]), "K": draw.one(CHANNELS[:10])}
        dilation, taps = draw.one((2, 2, 3, 4)), draw.one(((3, 3, 3), (3, 3, 3), (3, 1, 1)))
        yield (
            sizes | _filter(taps, True, dilation) | _volume(side, draw.near(side), draw.near(side))
        )


KINDS: Kinds = {
    "few frames": _of_few_frames,
    "clip": _of_a_clip,
    "frames or time": _of_frames_or_of_time,
    "few outputs": _of_few_outputs,
    "medical": _medical,
    "upsampled": _upsampled,
    "action": _action,
    "grouped": _grouped,
    "patches": _patches,
    "width": _of_every_width,
    "odd channels": _of_odd_channels,
    "dilated": _dilated,
}
# The largest batches of kinds that have small ones.
MOST_VOLUMES = {
    "few frames": 1, "clip": 1, "frames or time": 1, "few outputs": 1, "medical": 4,
    "upsampled": 4, "action": 64,
}  # fmt: skip
PATCHES = 16  # times as many volumes if each is one patch


def _of_its_batch(layer: Layer) -> Layer:
    kind = layer.name.rpartition(" ")[0]
    if kind == "patches" and layer.input[2:] == layer.weight[2:]:
        return layer.with_batch(PATCHES * layer.N)
    return layer.with_batch(min(layer.N, MOST_VOLUMES.get(kind, layer.N)))


def _drawn(suite: str, seed: int) -> dict[str, Layer]:
    """Draws a suite's layers; returns each once, by its sizes."""
    found: dict[str, Layer] = {}
    for layer in of_kinds(suite, KINDS, seed, FLOPS, MOST_ELEMENTS, by="bench/drawn3d.py"):
        chosen = _of_its_batch(layer)
        found.setdefault(str(chosen.problem()), chosen)
    return found


@cache
def timed_layers() -> tuple[Layer, ...]:
    """Those that plans are timed for, the same ones always."""
    return tuple(_drawn(TIMED_SUITE, TIMED_SEED).values())


@cache
def judged_layers() -> tuple[Layer, ...]:
    """Those that releases are judged by, the same ones always."""
    timed = _drawn(TIMED_SUITE, TIMED_SEED).keys()
    found = _drawn(JUDGED_SUITE, JUDGED_SEED)
    return tuple(layer for sizes, layer in found.items() if sizes not in timed)
