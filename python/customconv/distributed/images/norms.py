"""Group, instance and batch norms of images that are sharded along a spatial dimension."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from .exchange import Line, every, needs_gradient, summed
from .rows import count

# A norm is computed for each image's channels, as images of one batch whose channels they are.
# Statistics of several of them, or of several ranks, are joined from means and variances, in a
# fixed order.


def _wide(x: Tensor) -> torch.dtype:
    return torch.float64 if x.dtype == torch.float64 else torch.float32


def _by_kernels(x: Tensor) -> bool:
    """Whether the kernels of ``SyncBatchNorm`` take a tensor: in one pass, and in float32."""
    return x.is_cuda and x.dtype != torch.float64 and x.numel() > 0


def _statistics(
    x: Tensor, groups: int, rows: int, size: int, eps: float, line: Line
) -> tuple[Tensor, Tensor]:
    """Mean and ``1 / sqrt(variance + eps)`` of groups of channels, over the rows of all ranks."""
    channels = x.shape[1]
    filled = sum(count(each) > 0 for each in line.shards(size))
    pixels = x.numel() // channels
    if x.is_cuda and x.dtype != torch.float64:
        mean, invstd = (
            torch.batch_norm_stats(x, eps)
            if pixels
            else torch.zeros(2, channels, device=x.device).unbind()
        )
        own = torch.stack([mean, invstd, torch.full_like(mean, pixels)])
        # The channels of a group are joined as those of several ranks are.
        of_parts = every(own, line)[:filled].view(filled, 3, groups, -1).permute(1, 0, 3, 2)
        means, invstds, pixels_of = of_parts.reshape(3, -1, groups).unbind()
        return torch.batch_norm_gather_stats_with_counts(
            means, means, invstds, None, None, 0.0, eps, pixels_of[:, 0].contiguous()
        )
    others = [d for d in range(x.dim()) if d != 1]
    if pixels:
        variance, mean = torch.var_mean(x.to(_wide(x)), others, correction=0)
    else:
        variance = mean = torch.zeros(channels, dtype=_wide(x), device=x.device)
    own = torch.stack([mean, variance, torch.full_like(mean, rows / size)])
    means, variances, shares = every(own, line).unbind(1)

    def grouped(terms: Tensor) -> Tensor:
        return (terms * shares).sum(0).view(groups, -1).mean(1)

    of_group = grouped(means)
    apart = means - of_group.repeat_interleave(channels // groups)
    return of_group, (grouped(variances + apart.square()) + eps).rsqrt()


def _sums(grad: Tensor, x: Tensor, mean: Tensor) -> tuple[Tensor, Tensor]:
    """For each channel the sum of the gradient, and of its products with ``x - mean``."""
    if _by_kernels(x):
        total, of_products, _, _ = torch.batch_norm_backward_reduce(
            grad, x, mean, torch.ones_like(mean), None, True, False, False
        )
        return total, of_products
    others = [d for d in range(x.dim()) if d != 1]
    wide = grad.to(_wide(x))
    centred = x.to(_wide(x)) - _along_channels(mean, x)
    return wide.sum(others), (wide * centred).sum(others)


def _of_channels(values: Tensor, x: Tensor) -> Tensor:
    """Numbers of groups, for each of their channels."""
    each = x.shape[1] // len(values)
    return values.repeat_interleave(each) if each > 1 else values


def _along_channels(values: Tensor, x: Tensor) -> Tensor:
    return values.view(1, -1, *[1] * (x.dim() - 2))


def _normalized(
    x: Tensor, mean: Tensor, rstd: Tensor, weight: Tensor | None, bias: Tensor | None
) -> Tensor:
    """``(x - mean) * rstd * weight + bias`` with numbers for each channel, in the type of ``x``."""
    if not x.numel():
        return torch.empty_like(x)
    if _by_kernels(x):
        return torch.batch_norm_elemt(x, weight, bias, mean, rstd, 0.0)
    scale = rstd if weight is None else rstd * weight
    found = (x - _along_channels(mean, x)) * _along_channels(scale, x)
    return (found if bias is None else found + _along_channels(bias, x)).to(x.dtype)


class _Normalize(torch.autograd.Function):
    """``(x - mean) * rstd`` of groups of channels, mean and ``rstd``; times weight, plus bias."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, groups: int, rows: int, size: int, eps: float, line: Line
    ) -> tuple[Tensor, Tensor, Tensor]:
        mean, rstd = _statistics(x, groups, rows, size, eps, line)
        means, rstds = _of_channels(mean, x), _of_channels(rstd, x)
        of_group = x.numel() // groups
        ctx.pixels = of_group * size // rows if rows else 1  # of no rows it has no use
        ctx.groups, ctx.line, ctx.where = groups, line, line.where
        ctx.save_for_backward(x, means, rstds)
        ctx.mark_non_differentiable(mean, rstd)
        return _normalized(x, means, rstds, None, None), mean, rstd

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor, _mean: Tensor, _rstd: Tensor) -> tuple[Tensor | None, ...]:
        x, mean, rstd = ctx.saved_tensors
        each = x.shape[1] // ctx.groups
        with ctx.line.at(ctx.where):
            sums = torch.stack(_sums(grad, x, mean)) if x.numel() else rstd.new_zeros(2, len(rstd))
            of_groups = summed(sums, ctx.line).view(2, ctx.groups, each).sum(2)
        total, of_products = of_groups.repeat_interleave(each, dim=1)
        return _gradient(grad, x, mean, rstd, total, of_products, ctx.pixels), *[None] * 5


def _gradient(
    grad: Tensor, x: Tensor, mean: Tensor, rstd: Tensor, total: Tensor, of_products: Tensor,
    pixels: int,
) -> Tensor:  # fmt: skip
    """``(grad - total / pixels - (x - mean) * rstd^2 * of_products / pixels) * rstd``."""
    if not x.numel():
        return torch.empty_like(x)
    if _by_kernels(x):
        counted = torch.full((1,), pixels, dtype=torch.int32, device=x.device)
        return torch.batch_norm_backward_elemt(
            grad, x, mean, rstd, None, total, of_products, counted
        )
    slope = _along_channels(rstd.square() * of_products / pixels, x)
    found = grad - _along_channels(total / pixels, x) - (x - _along_channels(mean, x)) * slope
    return (found * _along_channels(rstd, x)).to(x.dtype)


def normalize(
    x: Tensor, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float, rows: int,
    size: int, line: Line,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Normalizes groups of channels over the pixels of all ranks.

    Args:
        x: This rank's rows of images, (B, C, ...); a group has its channels of all B.
        groups: The number of groups.
        weight: What channels are multiplied by, of shape (C,), the same on each rank.
        bias: What is added to them.
        eps: What is added to the variance.
        rows: The rows of this rank.
        size: The rows of all.
        line: The ranks.

    Returns:
        This rank's rows of the result; and of each group the mean, and
        ``1 / sqrt(variance + eps)``.
    """
    if needs_gradient(x, weight, bias):
        found, mean, rstd = _Normalize.apply(  # type: ignore[no-untyped-call]
            x, groups, rows, size, eps, line
        )
        if weight is not None:
            found = found * _along_channels(weight, x)
        if bias is not None:
            found = found + _along_channels(bias, x)
        return found.to(x.dtype), mean, rstd
    wide = [None if each is None else each.to(_wide(x)) for each in (weight, bias)]
    mean, rstd = _statistics(x, groups, rows, size, eps, line)
    found = _normalized(x, _of_channels(mean, x), _of_channels(rstd, x), *wide)
    return found, mean, rstd
