"""Part one: a photograph through a bank of classical filters."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from rich.console import Console
from skimage import data
from torch import Tensor
from torch.nn import functional

TOLERANCE = 1e-4  # of values between 0 and 1

Convolve = Callable[[Tensor, Tensor], Tensor]  # an image (C, H, W) by a kernel (R, S), to its size


def gaussian(sigma: float) -> Tensor:
    """A round bell, of sum 1."""
    radius = math.ceil(3 * sigma)
    x = torch.arange(-radius, radius + 1, dtype=torch.float64)
    line = torch.exp(-(x**2) / (2 * sigma**2))
    kernel = torch.outer(line, line)
    return kernel / kernel.sum()


def delta(size: int) -> Tensor:
    """The kernel that changes nothing."""
    kernel = torch.zeros(size, size, dtype=torch.float64)
    kernel[size // 2, size // 2] = 1
    return kernel


def motion(length: int, degrees: float) -> Tensor:
    """A line through the middle, of sum 1: what a moving camera sees."""
    kernel = torch.zeros(length, length, dtype=torch.float64)
    angle = math.radians(degrees)
    for step in torch.linspace(-0.5, 0.5, 8 * length, dtype=torch.float64).tolist():
        across, up = step * (length - 1) * math.cos(angle), step * (length - 1) * math.sin(angle)
        kernel[round(length // 2 - up), round(length // 2 + across)] += 1
    return kernel / kernel.sum()


def gabor(degrees: float, sigma: float = 3.0, wavelength: float = 7.0) -> Tensor:
    """A wave under a bell: answers to stripes of one direction."""
    radius = math.ceil(3 * sigma)
    x = torch.arange(-radius, radius + 1, dtype=torch.float64)
    angle = math.radians(degrees)
    along = x[None, :] * math.cos(angle) + x[:, None] * math.sin(angle)
    kernel = gaussian(sigma) * torch.cos(2 * math.pi * along / wavelength)
    return kernel - gaussian(sigma) * kernel.sum()


SOBEL_X = torch.tensor([[-1, 0, 1], [-2, 0, 2], [-1, 0, 1]], dtype=torch.float64) / 4
LAPLACIAN = torch.tensor([[0, 1, 0], [1, -4, 1], [0, 1, 0]], dtype=torch.float64)
EMBOSS = torch.tensor([[-2, -1, 0], [-1, 1, 1], [0, 1, 2]], dtype=torch.float64)


def pictures(photo: Tensor, convolve: Convolve) -> list[tuple[str, Tensor]]:
    """The photograph (3, H, W) through each filter, with its title."""
    grey = (photo * photo.new_tensor([0.299, 0.587, 0.114])[:, None, None]).sum(0, keepdim=True)
    unsharp = 2.5 * delta(13) - 1.5 * gaussian(2.0)
    difference = functional.pad(gaussian(1.0), [3] * 4) - gaussian(2.0)
    edges = torch.hypot(convolve(grey, SOBEL_X), convolve(grey, SOBEL_X.T))
    stripes = torch.stack([convolve(grey, gabor(angle)) for angle in (0, 45, 90, 135)])
    return [
        ("Photograph", photo),
        ("Gaussian blur, 25 x 25", convolve(photo, gaussian(4.0))),
        ("Motion blur, 31 x 31", convolve(photo, motion(31, 30))),
        ("Unsharp mask, 13 x 13", convolve(photo, unsharp)),
        ("Sobel magnitude, 3 x 3", 2.5 * edges),
        ("Laplacian, 3 x 3", 0.5 + 1.5 * convolve(grey, LAPLACIAN)),
        ("Difference of Gaussians", 0.5 + 4 * convolve(grey, difference)),
        ("Emboss, 3 x 3", convolve(grey, EMBOSS - delta(3)) / 2 + 0.5),
        ("Gabor, 4 directions", 12 * stripes.abs().amax(0)),
    ]


def sheet(tiles: list[tuple[str, Tensor]], footer: str, columns: int = 3) -> Image.Image:
    """The pictures side by side, each under its title."""
    height, width = tiles[0][1].shape[-2:]
    gap, title, font = 16, 34, ImageFont.load_default(20)
    rows = math.ceil(len(tiles) / columns)
    size = (gap + columns * (width + gap), gap + rows * (title + height + gap) + title)
    canvas = Image.new("RGB", size, (250, 250, 248))
    draw = ImageDraw.Draw(canvas)
    for index, (name, picture) in enumerate(tiles):
        left = gap + index % columns * (width + gap)
        top = gap + index // columns * (title + height + gap)
        pixels = picture.detach().cpu().clamp(0, 1).expand(3, -1, -1).permute(1, 2, 0)
        draw.text((left, top), name, (30, 30, 30), font)
        canvas.paste(Image.fromarray((pixels * 255).byte().numpy()), (left, top + title))
    draw.text((gap, size[1] - title), footer, (110, 110, 110), ImageFont.load_default(16))
    return canvas


def run(console: Console, out: Path, device: torch.device) -> bool:
    """Writes the contact sheet, and says whether every pixel agrees with ``F.conv2d``.

    Args:
        console: Where to print.
        out: The folder that the picture is written to.
        device: Where to compute.
    """
    errors: list[float] = []

    def convolve(image: Tensor, kernel: Tensor) -> Tensor:
        channels, (rows, columns) = image.shape[0], kernel.shape
        image = functional.pad(image, [columns // 2] * 2 + [rows // 2] * 2, mode="reflect")
        weight = kernel.to(image).expand(channels, 1, -1, -1).contiguous()
        output: Tensor = torch.ops.customconv.conv2d(image, weight, groups=channels)
        reference = functional.conv2d(image, weight, groups=channels)
        errors.append(float((output - reference).abs().max()))
        return output

    pixels = torch.from_numpy(np.array(data.astronaut()))  # type: ignore[no-untyped-call]
    photo = pixels.to(device).permute(2, 0, 1).float() / 255
    tiles = pictures(photo, convolve)
    error, passed = max(errors), max(errors) <= TOLERANCE
    verdict = f"largest difference from F.conv2d: {error:.1e}"
    out.mkdir(parents=True, exist_ok=True)
    path = out / "photo.png"
    sheet(tiles, f"torch.ops.customconv.conv2d on {device.type}; {verdict}").save(path)
    console.print(f"[bold]1. photograph:[/] {len(errors)} convolutions")
    console.print(
        f"   {verdict} (at most {TOLERANCE:.0e}): {'ok' if passed else '[bold red]FAILED[/]'}"
    )
    console.print(f"   look at {path}", soft_wrap=True, markup=False)
    return passed
