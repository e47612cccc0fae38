"""Short chains that begin with a convolution, in the style of KernelBench's level 2.

They are written from the descriptions in its list of problems (Ouyang et al., 2025): what follows
the convolution, and its sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional


@dataclass(frozen=True)
class Description:
    """What a chain is.

    Attributes:
        channels: of the input.
        width: channels of the convolution's output.
        size: height and width of the input.
        after: what follows the convolution.
        kernel: height and width of the filters.
        geometry: keywords of ``Conv2d``, or of ``ConvTranspose2d``.
        transposed: whether the convolution is transposed.
    """

    channels: int
    width: int
    size: int
    after: Callable[[Chain, Tensor], Tensor]
    kernel: int = 3
    geometry: dict[str, Any] = field(default_factory=dict)
    transposed: bool = False


class Chain(nn.Module):
    """A convolution, and what follows it.

    Takes (N, channels, size, size).
    """

    def __init__(self, what: Description) -> None:
        super().__init__()
        self.channels, self.size = what.channels, what.size
        kind = nn.ConvTranspose2d if what.transposed else nn.Conv2d
        self.convolution = kind(what.channels, what.width, what.kernel, **what.geometry)
        self.norm = nn.BatchNorm2d(what.width)
        self.groups = nn.GroupNorm(8, what.width)
        self.vector = nn.Parameter(torch.randn(what.width, 1, 1))
        self.factor = nn.Parameter(torch.randn(what.width, 1, 1))
        self.after = what.after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self, self.convolution(x))


def _hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp((x + 3) / 6, min=0, max=1)


def _clamped_twice(m: Chain, x: Tensor) -> Tensor:
    return torch.clamp(torch.clamp(x + m.vector, 0, 1) * 2, 0, 1) / 2


def _normed_residual(m: Chain, x: Tensor) -> Tensor:
    return torch.logsumexp(x + functional.hardswish(torch.tanh(m.groups(x))), 1, keepdim=True)


# Twice as many pixels along each side.
_DOUBLED = {"stride": 2, "padding": 1, "output_padding": 1}

_PLAIN: dict[str, Description] = {
    "relu_bias": Description(64, 128, 128, lambda m, x: torch.relu(x) + m.vector),
    "subtract_hardswish_pool_mish": Description(
        64, 128, 128,
        lambda m, x: functional.mish(functional.max_pool2d(functional.hardswish(x - 0.5), 2)),
    ),
    "multiply_leaky_relu_gelu": Description(
        64, 64, 128, lambda m, x: functional.gelu(functional.leaky_relu(x * m.vector))
    ),
    "relu_hardswish": Description(8, 64, 128, lambda m, x: _hardswish(torch.relu(x))),
    "divide_leaky_relu": Description(
        8, 64, 128, lambda m, x: functional.leaky_relu(x / 2, 0.01)
    ),
    "batch_norm_scaling": Description(8, 64, 128, lambda m, x: m.norm(x) * 2),
    "add_scale_sigmoid_group_norm": Description(
        8, 32, 256, lambda m, x: m.groups(torch.sigmoid((x + m.vector) * m.factor))
    ),
    "gelu_global_pool": Description(
        8, 64, 256, lambda m, x: functional.adaptive_avg_pool2d(functional.gelu(x), 1).flatten(1)
    ),
    "min_tanh_tanh": Description(
        16, 64, 256, lambda m, x: torch.tanh(torch.tanh(x.amin(1, keepdim=True)))
    ),
    "tanh_scaling_bias_max_pool": Description(
        8, 64, 256, lambda m, x: functional.max_pool2d(torch.tanh(x) * 2 + m.vector, 4)
    ),
    "pool_sigmoid_sum": Description(
        8, 64, 256,
        lambda m, x: torch.sigmoid(functional.avg_pool2d(x, 4)).sum((1, 2, 3)),
    ),
    "group_norm_residual_logsumexp": Description(8, 64, 128, _normed_residual),
}  # fmt: skip

_TRANSPOSED: dict[str, Description] = {
    "subtract_tanh": Description(
        64, 64, 128, lambda m, x: torch.tanh(x - m.vector), 4, _DOUBLED
    ),
    "bias_clamp_scaling_divide": Description(64, 64, 128, _clamped_twice, 3, _DOUBLED),
    "gelu_group_norm": Description(64, 64, 128, lambda m, x: m.groups(functional.gelu(x))),
    "mish_add_hardtanh_scaling": Description(
        64, 64, 128, lambda m, x: functional.hardtanh(functional.mish(x) + 0.5) * 2, 3, _DOUBLED
    ),
    "max_pool_hardtanh_mean_tanh": Description(
        64, 64, 256,
        lambda m, x: torch.tanh(
            functional.hardtanh(functional.max_pool2d(x, 2)).mean((2, 3), keepdim=True)
        ),
        3, {"padding": 1},
    ),
    "global_pool_bias_logsumexp": Description(
        64, 128, 128,
        lambda m, x: torch.logsumexp(x.mean((2, 3), keepdim=True) + m.vector, 1).sum((1, 2)) * 10,
    ),
    "softmax_bias_scaling_sigmoid": Description(
        64, 128, 64, lambda m, x: torch.sigmoid((x.softmax(1) + m.vector) * 2), 4, _DOUBLED
    ),
    "min_mean_gelu_add": Description(
        64, 128, 128,
        lambda m, x: functional.gelu(x.amin(1, keepdim=True).mean(2, keepdim=True)) + m.vector,
        3, _DOUBLED,
    ),
    "batch_norm_tanh_max_pool_group_norm": Description(
        64, 128, 64, lambda m, x: m.groups(functional.max_pool2d(torch.tanh(m.norm(x)), 2)),
        5, {"padding": 1},
    ),
    "add_min_gelu_multiply": Description(
        64, 128, 64, lambda m, x: functional.gelu(torch.clamp(x + 0.5, max=0)) * 2, 4, {"stride": 2}
    ),
    "multiply_global_pool": Description(
        64, 128, 128, lambda m, x: (x * 0.5).mean((2, 3), keepdim=True).mean((2, 3)), 3, _DOUBLED
    ),
    "batch_norm_relu": Description(
        128, 64, 128, lambda m, x: torch.relu(m.norm(x)), 2, {"stride": 2}
    ),
}  # fmt: skip

CHAINS = {f"chain_{name}": what for name, what in _PLAIN.items()} | {
    f"chain_transposed_{name}": replace(what, transposed=True) for name, what in _TRANSPOSED.items()
}


def build(name: str) -> nn.Module:
    """Builds a chain by its name."""
    return Chain(CHAINS[name])
