"""Whole networks with random weights, and the same with every convolution ours."""

from __future__ import annotations

import copy

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

import customconv

CLASSES = 1000


class UNet(nn.Module):
    """A U-Net (Ronneberger et al., 2015) of padded 3x3 convolutions; images of any multiple of 16.

    Takes (N, 3, H, W), gives (N, 1, H, W).
    """

    def __init__(self, widths: tuple[int, ...] = (64, 128, 256, 512, 1024)) -> None:
        super().__init__()
        self.down = nn.ModuleList()
        self.up = nn.ModuleList()
        channels = 3
        for width in widths:
            self.down.append(self._pair(channels, width))
            channels = width
        for width in reversed(widths[:-1]):
            self.up.append(self._pair(channels + width, width))
            channels = width
        self.head = nn.Conv2d(channels, 1, 1)

    @staticmethod
    def _pair(channels: int, width: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for size in (channels, width):
            layers += [
                nn.Conv2d(size, width, 3, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for level, pair in enumerate(self.down):
            x = pair(functional.max_pool2d(x, 2) if level else x)
            kept.append(x)
        for pair, other in zip(self.up, reversed(kept[:-1]), strict=True):
            x = pair(torch.cat([functional.interpolate(x, scale_factor=2.0), other], 1))
        y: Tensor = self.head(x)
        return y


NETWORKS = {
    "resnet50": lambda: torchvision.models.resnet50(),
    "convnext_tiny": lambda: torchvision.models.convnext_tiny(),
    "mobilenetv3_large": lambda: timm.create_model("mobilenetv3_large_100"),
    "efficientnet_b0": lambda: timm.create_model("efficientnet_b0"),
    "unet": lambda: UNet(),
}


def build(name: str) -> nn.Module:
    """A network with weights that are the same each time; dropout is off, so that runs agree."""
    torch.manual_seed(0)
    network: nn.Module = NETWORKS[name]()
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if type(module).__name__ in ("StochasticDepth", "DropPath"):
            module.p = module.drop_prob = 0.0  # type: ignore[assignment]
    return network


def with_our_convolutions(network: nn.Module) -> nn.Module:
    """A copy of which every ``nn.Conv2d`` is a ``customconv.Conv2d``, with the same parameters."""
    network = copy.deepcopy(network)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            # A subclass without a state of its own: the instance stays, and what others hold of it.
            # Of timm's own subclasses, only those that convolve as nn.Conv2d does.
            if type(module)._conv_forward is nn.Conv2d._conv_forward and (
                type(module).forward is nn.Conv2d.forward
            ):
                module.__class__ = customconv.Conv2d
    return network


def convolutions(network: nn.Module) -> tuple[int, int]:
    """How many convolutions are ours, and how many there are."""
    found = [module for module in network.modules() if isinstance(module, nn.Conv2d)]
    return sum(isinstance(module, customconv.Conv2d) for module in found), len(found)
