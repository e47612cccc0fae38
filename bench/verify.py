"""Checks a result before it is timed: sampled elements against float64, all against the peer.

Each sampled element is computed in float64 from just the inputs that it depends on, so the whole
convolution need not run in float64.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import torch
from torch import Tensor

from .layers import Layer

SAMPLES = {"fprop": 4096, "dgrad": 4096, "wgrad": 256}
MOST_GATHERED = 1 << 26  # elements at a time: half a gigabyte in float64
MOST_COMPARED = 1 << 27

# How far an element may be off, relative to the root mean square of all. Rounding errors of sums of
# random numbers are far smaller; the errors of memory that was not written are far larger.
TOLERANCES = {"fp32": 1e-3, "tf32": 2e-2, "fp16": 5e-2, "bf16": 2e-1}


class Wrong(Exception):
    """Raised if a result is wrong."""


def poison(device: torch.device, *sizes: int) -> None:
    """Fills with NaN the memory that the next allocations of these sizes, in bytes, will get."""
    if device.type != "cuda":
        return
    blocks = [
        torch.full((max(size, 1),), 255, dtype=torch.uint8, device=device)
        for size in sizes
        for _ in range(2)
    ]
    del blocks


def sample(shape: torch.Size, count: int, seed: int = 0) -> Tensor:
    """Returns the indices of ``count`` elements, a row each: the corners, and random others."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.cartesian_prod(*(torch.tensor(sorted({0, size - 1})) for size in shape))
    others = [torch.randint(size, (count,), generator=generator) for size in shape]
    return torch.cat([corners.view(-1, len(shape)), torch.stack(others, 1)])[
        : max(count, 2 ** len(shape))
    ]


def _along(values: Tensor, axis: int, ndim: int) -> Tensor:
    """Gives values of each sample, (sample, number), an axis of their own beside others of one."""
    shape = [len(values)] + [1] * (ndim - 1)
    shape[axis] = values.shape[1]
    return values.view(shape)


def _gathered(values: Tensor, at: Sequence[Tensor], inside: Sequence[Tensor]) -> Tensor:
    """Returns the values at these indices, in float64, and zeros outside."""
    found = values[tuple(at)].double()
    for each in inside:
        found = found * each
    return found


def _channels(group: Tensor, count: int) -> Tensor:
    """Returns the channels of each sample's group, (sample, count); each group has as many."""
    return group[:, None] * count + torch.arange(count, device=group.device)


def _exact_fprop(layer: Layer, at: Tensor, x: Tensor, w: Tensor) -> Tensor:
    n, k, *places = at.unbind(1)
    ndim = x.ndim
    c = _channels(k // (layer.K // layer.groups), layer.C // layer.groups)
    indices = [n.view(-1, *[1] * (ndim - 1)), _along(c, 1, ndim)]
    inside = []
    for axis, place in enumerate(places):
        taps = torch.arange(w.shape[2 + axis], device=x.device) * layer.dil[axis]
        pixel = place[:, None] * layer.stride[axis] - layer.pad[axis] + taps
        size = x.shape[2 + axis]
        inside.append(_along((pixel >= 0) & (pixel < size), 2 + axis, ndim))
        indices.append(_along(pixel.clamp(0, size - 1), 2 + axis, ndim))
    products = _gathered(x, indices, inside) * w[k].double()
    return products.flatten(1).sum(1)


def _exact_dgrad(layer: Layer, at: Tensor, dy: Tensor, w: Tensor) -> Tensor:
    n, c, *places = at.unbind(1)
    ndim = dy.ndim
    group_c, group_k = layer.C // layer.groups, layer.K // layer.groups
    k = _channels(c // group_c, group_k)
    indices = [n.view(-1, *[1] * (ndim - 1)), _along(k, 1, ndim)]
    inside = []
    for axis, place in enumerate(places):
        taps = torch.arange(w.shape[2 + axis], device=dy.device) * layer.dil[axis]
        beyond, stride = place[:, None] + layer.pad[axis] - taps, layer.stride[axis]
        pixel, size = beyond.div(stride, rounding_mode="floor"), dy.shape[2 + axis]
        hits = (pixel * stride == beyond) & (pixel >= 0) & (pixel < size)
        inside.append(_along(hits, 2 + axis, ndim))
        indices.append(_along(pixel.clamp(0, size - 1), 2 + axis, ndim))
    filters = w[k, (c % group_c)[:, None]].double()  # (sample, k, taps)
    return (_gathered(dy, indices, inside) * filters).flatten(1).sum(1)


def _exact_wgrad(layer: Layer, at: Tensor, dy: Tensor, x: Tensor) -> Tensor:
    k, c, *taps = at.unbind(1)
    ndim = x.ndim
    group_c, group_k = layer.C // layer.groups, layer.K // layer.groups
    channel = k // group_k * group_c + c
    n = torch.arange(layer.N, device=x.device)
    indices = [n.view(1, -1, *[1] * (ndim - 2)), channel.view(-1, *[1] * (ndim - 1))]
    inside = []
    for axis, tap in enumerate(taps):
        places = torch.arange(dy.shape[2 + axis], device=x.device) * layer.stride[axis]
        pixel = places + (tap * layer.dil[axis] - layer.pad[axis])[:, None]
        size = x.shape[2 + axis]
        inside.append(_along((pixel >= 0) & (pixel < size), 2 + axis, ndim))
        indices.append(_along(pixel.clamp(0, size - 1), 2 + axis, ndim))
    products = _gathered(x, indices, inside) * dy[:, k].transpose(0, 1).double()
    return products.flatten(1).sum(1)


def exact(layer: Layer, op: str, at: Tensor, x: Tensor, w: Tensor, dy: Tensor) -> Tensor:
    """Returns the result's elements at the indices, in float64, without a bias."""
    if layer.transposed:
        layer, op = layer.as_convolution(op)
        x, dy = dy, x
    at = at.to(x.device)
    if op == "wgrad":
        terms = layer.N * prod(layer.output[2:])
        parts = at.split(max(1, MOST_GATHERED // terms))
        return torch.cat([_exact_wgrad(layer, part, dy, x) for part in parts])
    channels = (layer.C if op == "fprop" else layer.K) // layer.groups
    parts = at.split(max(1, MOST_GATHERED // (channels * prod(layer.weight[2:]))))
    if op == "fprop":
        return torch.cat([_exact_fprop(layer, part, x, w) for part in parts])
    return torch.cat([_exact_dgrad(layer, part, dy, w) for part in parts])


def relative_error(actual: Tensor, at: Tensor, expected: Tensor) -> float:
    """Returns the norm of the sampled elements' error over the norm of their exact values."""
    found = actual[tuple(at.to(actual.device).unbind(1))].double()
    error: float = ((found - expected).norm() / expected.norm().clamp(min=1e-300)).item()
    return error


def _pieces(shape: torch.Size) -> Iterator[tuple[slice, slice, slice]]:
    """Cuts a tensor into images or, where one has too many elements, along its third dimension."""
    one = max(1, shape[1:].numel())
    images, rows = max(1, MOST_COMPARED // one), max(1, MOST_COMPARED * shape[2] // one)
    for image in range(0, shape[0], images):
        for row in range(0, shape[2], rows):
            yield slice(image, image + images), slice(None), slice(row, row + rows)


def check(ours: Tensor, peer: Tensor, ours_error: float, peer_error: float, precision: str) -> None:
    """Raises ``Wrong`` if our result or the peer's is wrong."""
    limit = TOLERANCES[precision]
    for who, error in (("ours", ours_error), ("the peer's", peer_error)):
        if not error <= limit:
            raise Wrong(f"{who} is off by {error:.3g} of the exact elements' norm")
    if ours.shape != peer.shape or ours.dtype != peer.dtype:
        raise Wrong(f"{tuple(ours.shape)} {ours.dtype}, not {tuple(peer.shape)} {peer.dtype}")
    squares = sum(peer[piece].float().square().sum().item() for piece in _pieces(peer.shape))
    allowed = limit * max((squares / peer.numel()) ** 0.5, 1e-30)
    for piece in _pieces(ours.shape):
        a, b = ours[piece], peer[piece]
        apart = (a.float() - b.float()).abs_()
        if not apart.max().item() <= allowed:
            place = apart.nan_to_num(torch.inf).argmax()
            index = tuple(int(i) for i in torch.unravel_index(place, apart.shape))
            n, k, row, *rest = index
            at = (piece[0].start + n, k, piece[2].start + row, *rest)
            raise Wrong(
                f"{a[index].item():.6g} instead of the peer's {b[index].item():.6g} at {at}"
            )
