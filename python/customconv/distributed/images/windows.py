"""Poolings, changes of size and paddings."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from .convolution import values
from .exchange import Line, fetch
from .rowed import Rowed, is_sharded, named, pixels, rule, unwrapped, wrapped
from .rows import Part, Rows, Steps, Window, count
from .shapes import total


def read(rowed: Rowed, parts: Sequence[Part], line: Line) -> Tensor:
    """The rows that this rank's part of a result is computed from."""
    return fetch(rowed.local, rowed.dim, rowed.size, [each.read for each in parts], line)


def cut(computed: Tensor, rowed: Rowed, part: Part, size: int, line: Line) -> DTensor:
    """The rows that are wanted, of those that were computed."""
    dim = computed.dim() + rowed.axis
    wanted = computed.narrow(dim, part.wanted[0] - part.computed[0], count(part.wanted))
    return wrapped(Rowed(wanted, rowed.axis, size), line)


POOLINGS = {
    **{each: 1 for each in named("max_pool1d avg_pool1d lp_pool1d", F, torch)},
    **{each: 2 for each in named("max_pool2d avg_pool2d lp_pool2d", F, torch)},
    **{each: 3 for each in named("max_pool3d avg_pool3d lp_pool3d", F, torch)},
}


@rule(*POOLINGS)
def pool(line: Line, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A pooling reads from a whole window in front, so that its own padding is cut off."""
    rowed = pixels(input, POOLINGS[func], line)
    if rowed is None or kwargs.get("return_indices"):
        return NotImplemented
    lp = func.__name__.startswith("lp_")
    is_max = "max" in func.__name__
    names = ["kernel_size", "stride"]
    names += [] if lp else ["padding"]
    names += ["dilation", "ceil_mode"] if is_max else ["ceil_mode"]
    given = dict(zip(names, args[1:] if lp else args, strict=False)) | kwargs
    if is_max and len(args) > len(names):
        return NotImplemented  # of which one returns indices

    def along_axis(name: str, default: Any) -> int:
        value = given.get(name)
        value = default if value is None or value == [] else value
        return int(values(value, POOLINGS[func])[rowed.axis])

    taps = along_axis("kernel_size", None)
    window = Window(
        taps, along_axis("stride", taps), along_axis("padding", 0), along_axis("dilation", 1)
    )
    outer = torch.empty(input.shape, dtype=input.dtype, device="meta")
    result = func(outer, *args, **kwargs).shape[rowed.axis]

    def part(outputs: Rows) -> Part:
        if not count(outputs):  # one window, of which nothing is wanted
            return Part((0, 0), (0, 0), (0, min(rowed.size, window.span + 1)))
        first = max(0, outputs[0] - -(-window.padding // window.stride))
        stop = min(rowed.size, window.read_by(outputs)[1])
        return Part(outputs, (first, outputs[1]), (first * window.stride, stop))

    parts = [part(rows) for rows in line.shards(result)]
    computed = func(read(rowed, parts, line), *args, **kwargs)
    return cut(computed, rowed, parts[line.rank], result, line)


@rule(*named("adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d", F))
def adaptive_avg_pool(line: Line, func: Any, input: Any, output_size: Any) -> Any:
    """A mean of all rows, or of equal numbers of them."""
    spatial = int(func.__name__[-2])
    rowed = pixels(input, spatial, line)
    if rowed is None:
        return NotImplemented
    sizes = [input.shape[d - spatial] if given is None else given for d, given in
             enumerate(values(output_size, spatial))]  # fmt: skip
    if sizes[rowed.axis] == 1:
        own, wide = list(sizes), torch.float64 if input.dtype == torch.float64 else torch.float32
        own[rowed.axis] = rowed.local.shape[rowed.axis]
        columns = func(rowed.local.to(wide), own) if rowed.local.numel() else rowed.local.new_zeros(
            [*rowed.local.shape[:-spatial], *own], dtype=wide)  # fmt: skip
        mean = total(line, Rowed(columns, rowed.axis, rowed.size), rowed.dim, True, True, None)
        return mean.to(input.dtype)
    if rowed.size % sizes[rowed.axis]:
        return NotImplemented
    return resized(line, rowed, sizes, 0, func)


def resized(
    line: Line, rowed: Rowed, sizes: Sequence[int], margin: int,
    computes: Callable[[Tensor, list[int]], Tensor],
) -> Any:  # fmt: skip
    """A change of size that is the same again after a whole number of rows."""
    size = sizes[rowed.axis]
    steps = Steps.between(rowed.size, size, margin)
    parts = [steps.part(rows, rowed.size) for rows in line.shards(size)]
    own = list(sizes)
    own[rowed.axis] = count(parts[line.rank].computed)
    rows = read(rowed, parts, line)
    if own[rowed.axis] == 0:
        empty = rows.new_empty([*rows.shape[: -len(own)], *own])
        return wrapped(Rowed(empty, rowed.axis, size), line)
    return cut(computes(rows, own), rowed, parts[line.rank], size, line)


@rule(F.interpolate, F.upsample)
def interpolate(
    line: Line, func: Any, input: Any, size: Any = None, scale_factor: Any = None,
    mode: str = "nearest", align_corners: bool | None = None,
    recompute_scale_factor: bool | None = None, antialias: bool = False,
) -> Any:  # fmt: skip
    """Where the scale is the ratio of sizes, any step of it gives the same."""
    margins = {"nearest": 0, "nearest-exact": 0, "area": 0, "linear": 1, "bilinear": 1,
               "trilinear": 1, "bicubic": 2}  # fmt: skip
    spatial = input.dim() - 2
    rowed = pixels(input, spatial, line)
    if rowed is None or mode not in margins or align_corners or antialias:
        return NotImplemented
    if (size is None) == (scale_factor is None):
        return NotImplemented  # PyTorch raises
    before = list(input.shape[2:])
    if size is not None:
        sizes = list(values(size, spatial))
    else:
        one = isinstance(scale_factor, float)
        factors = (scale_factor,) * spatial if one else values(scale_factor, spatial)
        exact = [old * float(factor) for old, factor in zip(before, factors, strict=True)]
        sizes = [math.floor(each) for each in exact]
        if sizes != exact and not recompute_scale_factor:
            return NotImplemented
    if mode == "area" and before[rowed.axis] % sizes[rowed.axis]:
        return NotImplemented
    return resized(
        line, rowed, sizes, margins[mode],
        lambda x, own: F.interpolate(x, own, mode=mode, align_corners=align_corners),
    )  # fmt: skip


@rule(*named("pixel_shuffle pixel_unshuffle", F, torch))
def pixel_shuffle(line: Line, func: Any, input: Any, factor: int) -> Any:
    """Rows become several, or several rows one."""
    rowed = pixels(input, 2, line)
    if rowed is None:
        return NotImplemented
    splits = func.__name__ == "pixel_shuffle"
    func(torch.empty(input.shape, device="meta"), factor)  # PyTorch's errors
    size = rowed.size * factor if splits else rowed.size // factor
    steps = Steps(1, factor, 0) if splits else Steps(factor, 1, 0)
    parts = [steps.part(rows, rowed.size) for rows in line.shards(size)]
    return cut(func(read(rowed, parts, line), factor), rowed, parts[line.rank], size, line)


@rule(F.pad)
def pad(
    line: Line, func: Any, input: Any, pad: Sequence[int], mode: str = "constant",
    value: float | None = None,
) -> Any:  # fmt: skip
    """Rows of a constant, or of the image itself, on either side."""
    if not is_sharded(input, line):
        return NotImplemented
    rowed = unwrapped(input)
    func(torch.empty(input.shape, device="meta", dtype=input.dtype), pad, mode, value)
    ends = list(pad) + [0] * (2 * input.dim() - len(pad))
    where = 2 * (-rowed.axis - 1)
    front, behind = ends[where : where + 2]
    ends[where : where + 2] = [0, 0]
    ends = ends[: len(pad)]
    local = rowed.local
    if any(ends):
        has_rows = local.numel() > 0
        local = (
            F.pad(local, ends, mode, value)
            if has_rows
            else local.new_empty(padded_shape(local, ends))
        )
    if front == behind == 0:
        return wrapped(Rowed(local, rowed.axis, rowed.size), line)
    size = rowed.size + front + behind
    sources: dict[str, Callable[[int], int | None]] = {
        "reflect": lambda row: (rowed.size - 1) - abs((rowed.size - 1) - abs(row)),
        "replicate": lambda row: min(max(row, 0), rowed.size - 1),
        "circular": lambda row: row % rowed.size,
        "constant": lambda row: row if 0 <= row < rowed.size else None,
    }
    source = sources[mode]
    wanted = [[source(row - front) for row in range(*rows)] for rows in line.shards(size)]
    there = [[row for row in rows if row is not None] for rows in wanted]
    bounds = [(min(rows), max(rows) + 1) if rows else (0, 0) for rows in there]
    got = fetch(local, rowed.dim, rowed.size, bounds, line)
    own = wanted[line.rank]
    if mode == "constant":
        kept = there[line.rank]
        missing = own.index(kept[0]) if kept else 0
        edge = [0] * (2 * input.dim())
        edge[where] = missing
        edge[where + 1] = len(own) - missing - len(kept)
        result = F.pad(got, edge, mode, value)
    else:
        first = bounds[line.rank][0]
        index = torch.tensor([row - first for row in own if row is not None], device=got.device,
                             dtype=torch.long)  # fmt: skip
        result = got.index_select(rowed.dim, index)
    return wrapped(Rowed(result, rowed.axis, size), line)


def padded_shape(local: Tensor, ends: Sequence[int]) -> list[int]:
    """The sizes of a tensor after a padding."""
    shape = list(local.shape)
    for d in range(len(ends) // 2):
        shape[-1 - d] += ends[2 * d] + ends[2 * d + 1]
    return shape
