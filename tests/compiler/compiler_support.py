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


# Convolutions, batch norms and transposed convolutions, of images and of volumes.
KINDS = {
    2: (nn.Conv2d, nn.BatchNorm2d, nn.ConvTranspose2d),
    3: (nn.Conv3d, nn.BatchNorm3d, nn.ConvTranspose3d),
}


class Block(nn.Module):
    """Convolutions with all that is fused, and a residual that another convolution computes."""

    def __init__(self, channels: int = 8, dims: int = 2) -> None:
        super().__init__()
        conv, norm, up = KINDS[dims]
        self.first = conv(channels, 12, 3, padding=1, bias=False)
        self.norm = norm(12)
        self.second = conv(12, 12, 3, padding=1, groups=12)
        self.side = conv(channels, 12, 1)
        self.side_norm = norm(12)
        self.up = up(12, 5, 2, 2)

    def forward(self, x):
        y = F.silu(self.norm(self.first(x)))
        y = F.relu(self.second(y) + self.side_norm(self.side(x)))
        return self.up(y), y.flatten(2).mean(2)


def make(train=False, device="cpu", dims=2):
    torch.manual_seed(0)
    model = Block(dims=dims).to(device)
    for norm in (model.norm, model.side_norm):
        nn.init.uniform_(norm.running_var, 0.5, 2.0)
        nn.init.normal_(norm.running_mean)
    return model.train(train)


def gradients(model, run, x):
    x = x.detach().clone().requires_grad_()
    outputs = run(x)
    loss = sum(y.square().sum() for y in outputs)
    return [*(y.detach() for y in outputs), *torch.autograd.grad(loss, [x, *model.parameters()])]
