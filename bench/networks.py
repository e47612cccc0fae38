"""Whole networks with random weights, and how they are made to use our convolutions."""

from __future__ import annotations

import contextlib
import copy
import functools
import importlib
from collections.abc import Callable
from typing import Any

import timm
import torch
import torchvision
from torch import Tensor, nn
from torch.nn import functional

import customconv

from . import chains, contenders


class UNet(nn.Module):
    """A U-Net (Ronneberger et al., 2015) with padded 3x3 convolutions.

    Takes (N, 3, H, W), where H and W are multiples of 16, and returns (N, 1, H, W).
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


class Residual(nn.Module):
    """Two 3x3 convolutions behind group norm and SiLU, added to the input."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for size in (channels, width):
            layers += [
                nn.GroupNorm(32, size, eps=1e-6),
                nn.SiLU(),
                nn.Conv2d(size, width, 3, padding=1),
            ]
        self.layers = nn.Sequential(*layers)
        self.shortcut = nn.Conv2d(channels, width, 1) if channels != width else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.shortcut(x) + self.layers(x)
        return y


class Attention(nn.Module):
    """Attention of one head among all pixels, added to the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(32, width, eps=1e-6)
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        pixels = self.norm(x).flatten(2).transpose(1, 2)
        queries, keys, values = (
            project(pixels).unsqueeze(1) for project in (self.query, self.key, self.value)
        )
        found = functional.scaled_dot_product_attention(queries, keys, values).squeeze(1)
        y: Tensor = x + self.out(found).transpose(1, 2).reshape(x.shape)
        return y


class VaeDecoder(nn.Module):
    """The decoder of Stable Diffusion 1.5's autoencoder (Rombach et al., 2022).

    Takes latents (N, 4, H, W) and returns images (N, 3, 8 H, 8 W).
    """

    in_channels, upscale = 4, 8

    def __init__(self, widths: tuple[int, ...] = (512, 512, 256, 128), depth: int = 3) -> None:
        super().__init__()
        first = widths[0]
        layers: list[nn.Module] = [
            nn.Conv2d(self.in_channels, self.in_channels, 1),
            nn.Conv2d(self.in_channels, first, 3, padding=1),
            Residual(first, first),
            Attention(first),
            Residual(first, first),
        ]
        channels = first
        for level, width in enumerate(widths):
            for _ in range(depth):
                layers.append(Residual(channels, width))
                channels = width
            if level + 1 < len(widths):
                layers += [
                    nn.Upsample(scale_factor=2.0),
                    nn.Conv2d(width, width, 3, padding=1),
                ]
        layers += [
            nn.GroupNorm(32, channels, eps=1e-6),
            nn.SiLU(),
            nn.Conv2d(channels, 3, 3, padding=1),
        ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.layers(x)
        return y


class UNet3d(nn.Module):
    """A U-Net as nnU-Net builds it for volumes: strided 3x3x3 convolutions, 2x2x2 transposed ones.

    Takes (N, channels, D, H, W), multiples of 2 to the number of levels, less one; returns
    (N, classes, D, H, W).
    """

    def __init__(
        self, widths: tuple[int, ...] = (32, 64, 128, 256, 320), channels: int = 4, classes: int = 3
    ) -> None:
        super().__init__()
        self.channels = channels
        self.down = nn.ModuleList()
        self.rise = nn.ModuleList()
        self.up = nn.ModuleList()
        before = channels
        for level, width in enumerate(widths):
            self.down.append(self._pair(before, width, 2 if level else 1))
            before = width
        for width in reversed(widths[:-1]):
            self.rise.append(nn.ConvTranspose3d(before, width, 2, 2))
            self.up.append(self._pair(2 * width, width, 1))
            before = width
        self.head = nn.Conv3d(before, classes, 1)

    @staticmethod
    def _pair(channels: int, width: int, stride: int) -> nn.Sequential:
        layers: list[nn.Module] = []
        for size, step in ((channels, stride), (width, 1)):
            layers += [
                nn.Conv3d(size, width, 3, step, 1),
                nn.InstanceNorm3d(width, affine=True),
                nn.LeakyReLU(0.01, inplace=True),
            ]
        return nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        kept = []
        for pair in self.down:
            x = pair(x)
            kept.append(x)
        for rise, pair, other in zip(self.rise, self.up, reversed(kept[:-1]), strict=True):
            x = pair(torch.cat([rise(x), other], 1))
        y: Tensor = self.head(x)
        return y


class Video(nn.Module):
    """A network that sees videos of so many frames: (N, 3, frames, H, W)."""

    def __init__(self, network: nn.Module, frames: int) -> None:
        super().__init__()
        self.network, self.frames = network, frames

    def forward(self, x: Tensor) -> Tensor:
        found = self.network(x)
        y: Tensor = getattr(found, "sample", found)  # of the outputs of diffusers' networks
        return y


def video(name: str, frames: int = 16) -> nn.Module:
    """Builds torchvision's network for videos of that name."""
    return Video(torchvision.models.get_model(name, weights=None), frames)


def wan_vae(frames: int = 9, **sizes: Any) -> nn.Module:
    """Builds Wan's autoencoder of videos, for 4 k + 1 frames and images of multiples of 8.

    Raises:
        ImportError: There is no package diffusers.
    """
    network = importlib.import_module("diffusers").AutoencoderKLWan(**sizes)
    return Video(network, frames)


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "resnet50": lambda: torchvision.models.resnet50(),
    "resnext50_32x4d": lambda: torchvision.models.resnext50_32x4d(),
    "regnet_y_3_2gf": lambda: torchvision.models.regnet_y_3_2gf(),
    "convnext_tiny": lambda: torchvision.models.convnext_tiny(),
    "mobilenetv3_large": lambda: timm.create_model("mobilenetv3_large_100"),
    "efficientnet_b0": lambda: timm.create_model("efficientnet_b0"),
    "densenet121": lambda: torchvision.models.densenet121(),
    "inception_v3": lambda: timm.create_model("inception_v3"),
    "hrnet_w18": lambda: timm.create_model("hrnet_w18"),
    "vgg16": lambda: torchvision.models.vgg16(),
    "fcn_resnet50": lambda: torchvision.models.segmentation.fcn_resnet50(
        weights=None, weights_backbone=None
    ),
    "unet": lambda: UNet(),
    "sd15_vae_decoder": lambda: VaeDecoder(),
    "unet3d": lambda: UNet3d(),
    "r3d_18": lambda: video("r3d_18"),
    "swin3d_t": lambda: video("swin3d_t"),
    "wan_vae": lambda: wan_vae(),
    **{name: functools.partial(chains.build, name) for name in chains.CHAINS},
}

# Networks of volumes, of which a batch is small.
OF_VOLUMES = ("unet3d", "r3d_18", "swin3d_t", "wan_vae")

# What is timed by default. The decoder is for a few large images.
USUAL = tuple(
    name for name in NETWORKS
    if name not in ("sd15_vae_decoder", *OF_VOLUMES, *chains.CHAINS)
)  # fmt: skip

# routed: PyTorch's modules, run while customconv.enable() is in effect. converted: a copy with our
# modules. compiled: a copy that customconv.compile compiles when it first runs.
WAYS = ("routed", "converted", "compiled")


def quiet(network: nn.Module) -> nn.Module:
    """Turns dropout off, so that two passes agree; returns the network."""
    for module in network.modules():
        if isinstance(module, nn.modules.dropout._DropoutNd):
            module.p = 0.0
        if type(module).__name__ in ("StochasticDepth", "DropPath"):
            module.p = module.drop_prob = 0.0  # type: ignore[assignment]
        if isinstance(getattr(module, "drop_rate", None), float):  # for functional.dropout
            module.drop_rate = 0.0  # type: ignore[assignment]
    return network


def build(name: str) -> nn.Module:
    """Builds a network, with the same weights every time and dropout off."""
    torch.manual_seed(0)
    return quiet(NETWORKS[name]())


def input_shape(network: nn.Module, batch: int, image: int) -> tuple[int, ...]:
    """Shape of what a network takes, to see or to make images of this height and width.

    Chains have images of their own size. Videos have as many frames as the network sees, and other
    volumes are cubes.
    """
    if isinstance(network, Video):
        return batch, 3, network.frames, image, image
    if isinstance(network, UNet3d):
        return batch, network.channels, image, image, image
    if isinstance(network, chains.Chain):
        return batch, network.channels, network.size, network.size
    if isinstance(network, VaeDecoder):
        size = image // network.upscale
        return batch, network.in_channels, size, size
    return batch, 3, image, image


def laid_out(x: Tensor, layout: str) -> Tensor:
    """Returns the tensor in a layout; "nhwc" means channels last, whatever its dimensions."""
    if layout == "nchw":
        return x.contiguous()
    if x.ndim == 3:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.contiguous(memory_format=contenders.LAST[x.ndim])


def lay_out(network: nn.Module, layout: str) -> None:
    """Puts the network's filters in a layout, also of a network with filters of 4 and 5 dimensions.

    ``nn.Module.to`` knows only one of both.
    """
    for parameter in network.parameters():
        if parameter.ndim in contenders.LAST:
            memory = contenders.memory_format(layout, parameter.ndim)
            parameter.data = parameter.data.to(memory_format=memory)


def ours(network: nn.Module, by: str) -> nn.Module:
    """Returns the network that runs as ours: itself, or a converted or compiled copy."""
    if by == "routed":
        return network
    copied = copy.deepcopy(network)
    if by == "converted":
        return customconv.convert(copied)[0]
    copied.compile(backend=customconv.compiler.backend)
    return copied


def switched(by: str) -> contextlib.AbstractContextManager[None]:
    """Returns the context in which that network runs, including its backward pass."""
    return customconv.enabled() if by == "routed" else contextlib.nullcontext()
