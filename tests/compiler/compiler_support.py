"""What the tests of the compiler share."""

from __future__ import annotations

import os
import shutil

import pytest
import torch
import torch.nn.functional as F
from torch import nn

needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "g++")), reason="Inductor needs a C++ compiler"
)


class Block(nn.Module):
    """Convolutions with all that is fused, and a residual that another convolution computes."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, 12, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(12)
        self.second = nn.Conv2d(12, 12, 3, padding=1, groups=12)
        self.side = nn.Conv2d(channels, 12, 1)
        self.side_norm = nn.BatchNorm2d(12)
        self.up = nn.ConvTranspose2d(12, 5, 2, 2)

    def forward(self, x):
        y = F.silu(self.norm(self.first(x)))
        y = F.relu(self.second(y) + self.side_norm(self.side(x)))
        return self.up(y), y.mean((2, 3))


def make(train=False, device="cpu"):
    torch.manual_seed(0)
    model = Block().to(device)
    for norm in (model.norm, model.side_norm):
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.normal_(norm.running_mean)
    return model.train(train)


def gradients(model, run, x):
    x = x.detach().clone().requires_grad_()
    outputs = run(x)
    loss = sum(y.square().sum() for y in outputs)
    return [*(y.detach() for y in outputs), *torch.autograd.grad(loss, [x, *model.parameters()])]
