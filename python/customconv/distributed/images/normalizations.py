"""Norms and dropout."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import functional as F

from . import norms
from .exchange import Line, shared
from .rowed import Rowed, along_others, is_sharded, named, pixels, rule, unwrapped, wrapped


@rule(F.layer_norm, torch.layer_norm, *named("rms_norm", F, torch))
def layer_norm(line: Line, func: Any, input: Any, normalized_shape: Sequence[int], *args: Any,
               **kwargs: Any) -> Any:  # fmt: skip
    """Normalizes the last dimensions."""
    if not is_sharded(input, line):
        return NotImplemented
    rowed = unwrapped(input)
    if rowed.axis >= -len(normalized_shape):
        return NotImplemented

    def own(value: Any) -> Any:
        return shared(value, line) if isinstance(value, Tensor) else value

    return along_others(
        line,
        func,
        rowed,
        normalized_shape,
        *map(own, args),
        **{name: own(each) for name, each in kwargs.items()},
    )


@rule(F.group_norm, torch.group_norm)
def group_norm(
    line: Line, func: Any, input: Any, num_groups: int, weight: Tensor | None = None,
    bias: Tensor | None = None, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Each image's groups of channels, over the pixels of all ranks."""
    rowed = pixels(input, input.dim() - 2, line)
    if rowed is None:
        return NotImplemented
    if input.shape[1] % num_groups:
        raise RuntimeError(
            "Expected number of channels in input to be divisible by num_groups, but got input of "
            f"shape {list(input.shape)} and num_groups={num_groups}"
        )
    return per_image(line, rowed, num_groups, weight, bias, eps)[0]


def per_image(
    line: Line, rowed: Rowed, groups: int, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[DTensor, Tensor, Tensor]:
    """A norm of each image's groups of channels; and what ``normalize`` says of them."""
    x = rowed.local
    images = x.shape[0]
    one = x.reshape(1, images * x.shape[1], *x.shape[2:])
    w, b = (shared(each, line) for each in (weight, bias))
    if images != 1:
        w, b = (each if each is None else each.repeat(images) for each in (w, b))
    rows = x.shape[rowed.dim]
    found, mean, rstd = norms.normalize(one, images * groups, w, b, eps, rows, rowed.size, line)
    return wrapped(Rowed(found.reshape(x.shape), rowed.axis, rowed.size), line), mean, rstd


def unbiased(rstd: Tensor, eps: float, rowed: Rowed, images: int) -> Tensor:
    """The variance as PyTorch keeps it, over the pixels of so many images."""
    sizes = list(rowed.local.shape)
    sizes[rowed.dim] = rowed.size
    pixels = images * math.prod(sizes[2:])
    return (rstd.pow(-2) - eps) * (pixels / (pixels - 1) if pixels > 1 else math.inf)


def keep(
    running_mean: Tensor | None, running_var: Tensor | None, mean: Tensor, variance: Tensor,
    momentum: float,
) -> None:  # fmt: skip
    """Moves running statistics towards new ones."""
    with torch.no_grad():
        for running, new in ((running_mean, mean), (running_var, variance)):
            if running is not None:
                running.lerp_(new.to(running.dtype), momentum)


@rule(F.instance_norm, torch.instance_norm)
def instance_norm(
    line: Line, func: Any, input: Any, running_mean: Tensor | None = None,
    running_var: Tensor | None = None, weight: Tensor | None = None, bias: Tensor | None = None,
    use_input_stats: bool = True, momentum: float = 0.1, eps: float = 1e-5, *_: Any,
) -> Any:  # fmt: skip
    """Each image's channels, over the pixels of all ranks."""
    rowed = pixels(input, input.dim() - 2, line)
    if rowed is None:
        return NotImplemented
    if not use_input_stats:
        affine = [shared(each, line) for each in (weight, bias)]
        return along_others(
            line, F.instance_norm, rowed, running_mean, running_var, *affine, False, momentum, eps
        )
    if math.prod(input.shape[2:]) == 1:
        return NotImplemented  # PyTorch raises
    channels = input.shape[1]
    result, mean, rstd = per_image(line, rowed, channels, weight, bias, eps)
    mean, variance = (
        each.view(-1, channels).mean(0) for each in (mean, unbiased(rstd, eps, rowed, 1))
    )
    keep(running_mean, running_var, mean, variance, momentum)
    return result


@rule(F.batch_norm)
def batch_norm(
    line: Line, func: Any, input: Any, running_mean: Tensor | None, running_var: Tensor | None,
    weight: Tensor | None = None, bias: Tensor | None = None, training: bool = False,
    momentum: float = 0.1, eps: float = 1e-5,
) -> Any:  # fmt: skip
    """Channels, over the pixels of all ranks."""
    rowed = pixels(input, input.dim() - 2, line)
    if rowed is None:
        return NotImplemented
    w, b = (shared(each, line) for each in (weight, bias))
    if not training:
        return along_others(
            line, func, rowed, running_mean, running_var, w, b, False, momentum, eps
        )
    x = rowed.local
    images = input.shape[0]
    if images * math.prod(input.shape[2:]) == 1:
        return NotImplemented  # PyTorch raises
    found, mean, rstd = norms.normalize(
        x, x.shape[1], w, b, eps, x.shape[rowed.dim], rowed.size, line
    )
    keep(running_mean, running_var, mean, unbiased(rstd, eps, rowed, images), momentum)
    return wrapped(Rowed(found, rowed.axis, rowed.size), line)


@rule(F.dropout, torch.dropout, *named("rand_like randn_like bernoulli", torch))
def random(line: Line, func: Any, *args: Any, **kwargs: Any) -> Any:
    """DTensor has the same numbers on all ranks, of which each takes its own."""
    return func(*args, **kwargs)


@rule(F.dropout1d, F.dropout2d, F.dropout3d)
def channel_dropout(line: Line, func: Any, input: Any, p: float = 0.5, training: bool = True,
                    inplace: bool = False) -> Any:  # fmt: skip
    """Whole channels, of which the first rank chooses for all."""
    rowed = pixels(input, input.dim() - 2, line)
    if rowed is None:
        return NotImplemented
    if not training or p == 0.0:
        return input
    if inplace:
        return NotImplemented
    ones = torch.ones(
        [*input.shape[:2], *[1] * (input.dim() - 2)], dtype=input.dtype, device=rowed.local.device
    )
    mask = func(ones, p)
    torch.distributed.broadcast(mask, group=line.group, group_src=0)
    return wrapped(Rowed(rowed.local * mask, rowed.axis, rowed.size), line)
