"""KernelBench's level-1 2-D convolutions, with the sizes of its commit 423217d.

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
        """The same module with PyTorch's layers."""
        layers = {"layer": nn.Conv2d, "transposed_layer": nn.ConvTranspose2d}
        made = type(self.ModelNew.__name__, (self.ModelNew,), layers)
        return cast("type[models.Model]", made)

    def smaller(self, divisor: int) -> Problem:
        """Divides the batch size and the image sides, the latter to no less than 32 pixels."""
        n, c, h, w = self.input
        sizes = max(1, n // divisor), c, max(32, h // divisor), max(32, w // divisor)
        return self if divisor == 1 else Problem(self.name, self.ModelNew, self.arguments, sizes)

    def make_input(self, device: torch.device, dtype: torch.dtype) -> torch.Tensor:
        """Returns uniform random numbers, as KernelBench does."""
        return torch.rand(self.input, device=device).to(dtype)


PROBLEMS = {
    50: Problem("AlexNet's first layer", models.FirstLayer, (1000,), (256, 3, 224, 224)),
    55: Problem("3x3, wide images", models.Dense, (64, 128, 3), (8, 64, 512, 1024)),
    56: Problem("5x7, tall images", models.Dense, (64, 128, (5, 7)), (8, 64, 512, 256)),
    57: Problem("transposed 3x3", models.Transposed, (64, 64, 3), (8, 64, 1024, 1024)),
    62: Problem("5x9", models.Dense, (32, 64, (5, 9)), (8, 32, 512, 512)),
    63: Problem("3x3, large images", models.Dense, (16, 128, 3), (16, 16, 1024, 1024)),
    65: Problem("transposed 3x7", models.Transposed, (64, 64, (3, 7)), (8, 64, 512, 512)),
    69: Problem(
        "transposed 3x5, wide images", models.TransposedByPairs, (64, 128, (3, 5)),
        (64, 64, 128, 256),
    ),
    71: Problem(
        "transposed 3x3, wide images", models.Transposed, (32, 32, 3), (8, 32, 512, 1024)
    ),
    75: Problem(
        "transposed 3x5, strided, grouped", models.TransposedGrouped,
        (32, 64, (3, 5), (2, 3), (1, 2), (2, 1), 4), (16, 32, 128, 256),
    ),
    78: Problem(
        "transposed 3x7, padded", models.TransposedPadded, (32, 32, (3, 7), (1, 1), (1, 3)),
        (8, 32, 512, 1024),
    ),
    80: Problem(
        "5x9, dilated, padded", models.Dilated, (32, 64, (5, 9), 1, (2, 4), (2, 3)),
        (8, 32, 512, 512),
    ),
    81: Problem(
        "transposed 3x3, strided, dilated", models.TransposedDilated, (32, 64, 3, 5, 1, 2),
        (16, 32, 64, 128),
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
