"""KernelBench's level-1 convolutions in two dimensions, with the sizes of its commit 423217d.

https://github.com/ScalingIntelligence/KernelBench
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import nn

from . import models


@dataclass(frozen=True)
class Problem:
    """A problem; ``ModelNew`` is our module for it."""

    name: str
    ModelNew: type[models.Model]
    arguments: tuple[Any, ...]  # of the constructor
    input: tuple[int, int, int, int]

    @property
    def reference(self) -> type[models.Model]:
        """The same module of PyTorch's own layers."""
        made = type(self.ModelNew.__name__, (self.ModelNew,), {"layer": nn.Conv2d})
        return cast("type[models.Model]", made)

    def smaller(self, divisor: int) -> Problem:
        """With the batch, and both sides of the images, divided; 32 pixels at least."""
        n, c, h, w = self.input
        sizes = max(1, n // divisor), c, max(32, h // divisor), max(32, w // divisor)
        return self if divisor == 1 else Problem(self.name, self.ModelNew, self.arguments, sizes)

    def make_input(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Uniform numbers, as there."""
        return torch.rand(self.input, device=device).to(dtype)


PROBLEMS = {
    50: Problem("AlexNet's first layer", models.FirstLayer, (1000,), (256, 3, 224, 224)),
    55: Problem("3x3, wide images", models.Dense, (64, 128, 3), (8, 64, 512, 1024)),
    56: Problem("5x7, tall images", models.Dense, (64, 128, (5, 7)), (8, 64, 512, 256)),
    62: Problem("5x9", models.Dense, (32, 64, (5, 9)), (8, 32, 512, 512)),
    63: Problem("3x3, large images", models.Dense, (16, 128, 3), (16, 16, 1024, 1024)),
    80: Problem(
        "5x9, dilated, padded", models.Dilated, (32, 64, (5, 9), 1, (2, 4), (2, 3)),
        (8, 32, 512, 512),
    ),
    82: Problem("depthwise 3x3", models.Depthwise, (64, 3, 1, 0), (16, 64, 512, 512)),
    83: Problem("depthwise 3x1", models.DepthwiseColumn, (8, 3, 1, 0, 1), (64, 8, 512, 512)),
    84: Problem(
        "depthwise 3x3, wide images", models.DepthwiseMultiplied, (128, 128, 3, 1, 0),
        (64, 128, 256, 512),
    ),
    85: Problem(
        "depthwise 3x7", models.DepthwiseAsymmetric,
        (128, 128, 3, 7, 1, 1, 0, 0, 1, 1, 128), (32, 128, 128, 256),
    ),
    86: Problem("separable 3x3", models.Separable, (64, 128, 3, 1, 1, 1), (16, 64, 512, 512)),
    87: Problem("pointwise", models.Pointwise, (64, 128), (16, 64, 1024, 1024)),
}  # fmt: skip

# conv_transpose2d is no operator of ours yet.
TRANSPOSED = (57, 65, 69, 71, 75, 78, 81)
