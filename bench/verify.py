"""Checks a result before it is timed: sampled elements against float64, all against the peer.

Each sampled element is computed in float64 from just the inputs that it depends on, so the whole
convolution need not run in float64.
"""

from __future__ import annotations

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
    """Returns the indices of ``count`` elements, (count, 4): the corners, and random others."""
    generator = torch.Generator().manual_seed(seed)
    corners = torch.cartesian_prod(*(torch.tensor(sorted({0, size - 1})) for size in shape))
    others = [torch.randint(size, (count,), generator=generator) for size in shape]
    return torch.cat([corners.view(-1, len(shape)), torch.stack(others, 1)])[: max(count, 16)]


def _taps(layer: Layer, device: torch.device) -> tuple[Tensor, Tensor]:
    r = torch.arange(layer.R, device=device) * layer.dil[0]
    s = torch.arange(layer.S, device=device) * layer.dil[1]
    return r, s


def _exact_fprop(layer: Layer, at: Tensor, x: Tensor, w: Tensor) -> Tensor:
    n, k, p, q = at.unbind(1)
    group_c = layer.C // layer.groups
    r, s = _taps(layer, x.device)
    c = (k // (layer.K // layer.groups))[:, None] * group_c + torch.arange(group_c, device=x.device)
    h = p[:, None] * layer.stride[0] - layer.pad[0] + r
    v = q[:, None] * layer.stride[1] - layer.pad[1] + s
    inside = ((h >= 0) & (h < layer.H))[:, :, None] & ((v >= 0) & (v < layer.W))[:, None, :]
    h, v = h.clamp(0, layer.H - 1), v.clamp(0, layer.W - 1)
    found = x[n[:, None, None, None], c[:, :, None, None], h[:, None, :, None], v[:, None, None, :]]
    products = found.double() * inside[:, None] * w[k].double()
    return products.sum((1, 2, 3))


def _exact_dgrad(layer: Layer, at: Tensor, dy: Tensor, w: Tensor) -> Tensor:
    n, c, h, v = at.unbind(1)
    group_c, group_k = layer.C // layer.groups, layer.K // layer.groups
    r, s = _taps(layer, dy.device)
    k = (c // group_c)[:, None] * group_k + torch.arange(group_k, device=dy.device)
    below, right = h[:, None] + layer.pad[0] - r, v[:, None] + layer.pad[1] - s
    p, q = (
        below.div(layer.stride[0], rounding_mode="floor"),
        right.div(layer.stride[1], rounding_mode="floor"),
    )
    hits_p = (p * layer.stride[0] == below) & (p >= 0) & (p < layer.P)
    hits_q = (q * layer.stride[1] == right) & (q >= 0) & (q < layer.Q)
    p, q = p.clamp(0, layer.P - 1), q.clamp(0, layer.Q - 1)
    found = dy[
        n[:, None, None, None], k[:, :, None, None], p[:, None, :, None], q[:, None, None, :]
    ]
    inside = hits_p[:, None, :, None] & hits_q[:, None, None, :]
    filters = w[k, (c % group_c)[:, None]].double()  # (sample, k, R, S)
    return (found.double() * inside * filters).sum((1, 2, 3))


def _exact_wgrad(layer: Layer, at: Tensor, dy: Tensor, x: Tensor) -> Tensor:
    k, c, r, s = at.unbind(1)
    group_c, group_k = layer.C // layer.groups, layer.K // layer.groups
    channel = k // group_k * group_c + c
    p, q = torch.arange(layer.P, device=x.device), torch.arange(layer.Q, device=x.device)
    h = p * layer.stride[0] + (r * layer.dil[0] - layer.pad[0])[:, None]
    v = q * layer.stride[1] + (s * layer.dil[1] - layer.pad[1])[:, None]
    inside = ((h >= 0) & (h < layer.H))[:, :, None] & ((v >= 0) & (v < layer.W))[:, None, :]
    h, v = h.clamp(0, layer.H - 1), v.clamp(0, layer.W - 1)
    n = torch.arange(layer.N, device=x.device)
    found = x[n[:, None, None], channel[:, None, None, None], h[:, None, :, None], v[:, None, None]]
    products = found.double() * inside[:, None] * dy[:, k].transpose(0, 1).double()
    return products.sum((1, 2, 3))


def exact(layer: Layer, op: str, at: Tensor, x: Tensor, w: Tensor, dy: Tensor) -> Tensor:
    """Returns the result's elements at the indices, in float64, without a bias."""
    if layer.transposed:
        layer, op = layer.as_convolution(op)
        x, dy = dy, x
    at = at.to(x.device)
    if op == "wgrad":
        terms = layer.N * layer.P * layer.Q
        parts = at.split(max(1, MOST_GATHERED // terms))
        return torch.cat([_exact_wgrad(layer, part, dy, x) for part in parts])
    terms = layer.R * layer.S * (layer.C if op == "fprop" else layer.K) // layer.groups
    parts = at.split(max(1, MOST_GATHERED // terms))
    if op == "fprop":
        return torch.cat([_exact_fprop(layer, part, x, w) for part in parts])
    return torch.cat([_exact_dgrad(layer, part, dy, w) for part in parts])


def relative_error(actual: Tensor, at: Tensor, expected: Tensor) -> float:
    """Returns the norm of the sampled elements' error over the norm of their exact values."""
    found = actual[tuple(at.to(actual.device).unbind(1))].double()
    error: float = ((found - expected).norm() / expected.norm().clamp(min=1e-300)).item()
    return error


def check(ours: Tensor, peer: Tensor, ours_error: float, peer_error: float, precision: str) -> None:
    """Raises ``Wrong`` if our result or the peer's is wrong."""
    limit = TOLERANCES[precision]
    for who, error in (("ours", ours_error), ("the peer's", peer_error)):
        if not error <= limit:
            raise Wrong(f"{who} is off by {error:.3g} of the exact elements' norm")
    if ours.shape != peer.shape or ours.dtype != peer.dtype:
        raise Wrong(f"{tuple(ours.shape)} {ours.dtype}, not {tuple(peer.shape)} {peer.dtype}")
    images = max(1, MOST_COMPARED // max(1, ours[:1].numel()))
    squares = sum(part.float().square().sum().item() for part in peer.split(images))
    allowed = limit * max((squares / peer.numel()) ** 0.5, 1e-30)
    first = 0
    for a, b in zip(ours.split(images), peer.split(images), strict=True):
        apart = (a.float() - b.float()).abs_()
        if not apart.max().item() <= allowed:
            place = apart.nan_to_num(torch.inf).argmax()
            index = tuple(int(i) for i in torch.unravel_index(place, apart.shape))
            at = (first + index[0], *index[1:])
            raise Wrong(
                f"{a[index].item():.6g} instead of the peer's {b[index].item():.6g} at {at}"
            )
        first += images
