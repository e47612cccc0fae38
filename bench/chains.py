"""Short chains that begin with a convolution, in the style of KernelBench's level 2.

They are written from the descriptions in its list of problems (Ouyang et al., 2025): what follows
the convolution, and its sizes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional


class Chain(nn.Module):
    """A 3x3 convolution without padding, and what follows it.

    Takes (N, channels, size, size).
    """

    def __init__(
        self, channels: int, width: int, size: int, after: Callable[[Chain, Tensor], Tensor]
    ) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        self.convolution = nn.Conv2d(channels, width, 3)
        self.norm = nn.BatchNorm2d(width)
        self.groups = nn.GroupNorm(8, width)
        self.vector = nn.Parameter(torch.randn(width, 1, 1))
        self.factor = nn.Parameter(torch.randn(width, 1, 1))
        self.after = after

    def forward(self, x: Tensor) -> Tensor:
        return self.after(self, self.convolution(x))


def _hardswish(x: Tensor) -> Tensor:
    return x * torch.clamp((x + 3) / 6, min=0, max=1)


# Input channels, output channels, height and width, and what follows.
CHAINS: dict[str, tuple[int, int, int, Callable[[Chain, Tensor], Tensor]]] = {
    "chain_relu_bias": (64, 128, 128, lambda m, x: torch.relu(x) + m.vector),
    "chain_subtract_hardswish_pool_mish": (
        64, 128, 128,
        lambda m, x: functional.mish(functional.max_pool2d(functional.hardswish(x - 0.5), 2)),
    ),
    "chain_multiply_leaky_relu_gelu": (
        64, 64, 128, lambda m, x: functional.gelu(functional.leaky_relu(x * m.vector))
    ),
    "chain_relu_hardswish": (8, 64, 128, lambda m, x: _hardswish(torch.relu(x))),
    "chain_divide_leaky_relu": (8, 64, 128, lambda m, x: functional.leaky_relu(x / 2, 0.01)),
    "chain_batch_norm_scaling": (8, 64, 128, lambda m, x: m.norm(x) * 2),
    "chain_add_scale_sigmoid_group_norm": (
        8, 32, 256, lambda m, x: m.groups(torch.sigmoid((x + m.vector) * m.factor))
    ),
    "chain_gelu_global_pool": (
        8, 64, 256, lambda m, x: functional.adaptive_avg_pool2d(functional.gelu(x), 1).flatten(1)
    ),
}  # fmt: skip


def build(name: str) -> nn.Module:
    """Builds a chain by its name."""
    return Chain(*CHAINS[name])
