"""Decodes latents to an image with the decoder of a variational autoencoder.

    python examples/vae_decode.py

The decoder has the structure of Stable Diffusion's, with random weights. On a GPU it also has the
same size, and the image is 512 by 512. ``with customconv.enabled():`` routes what runs inside. The
results are compared with PyTorch's and with results in float64.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

import customconv


class ResidualBlock(nn.Module):
    """Two convolutions, each after a norm and a SiLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Takes the numbers of channels."""
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1 = nn.Conv2d(inputs, outputs, 3, padding=1)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1)
        self.shortcut = nn.Conv2d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Keeps height and width."""
        y = self.conv1(functional.silu(self.norm1(x)))
        y = self.conv2(functional.silu(self.norm2(y)))
        return self.shortcut(x) + y


class Attention(nn.Module):
    """Attention of each pixel to all others, with one head."""

    def __init__(self, channels: int) -> None:
        """Takes the number of channels."""
        super().__init__()
        self.norm = nn.GroupNorm(8, channels)
        self.qkv, self.out = nn.Conv2d(channels, 3 * channels, 1), nn.Conv2d(channels, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        q, k, v = self.qkv(self.norm(x)).flatten(2).transpose(1, 2).chunk(3, dim=-1)
        y = functional.scaled_dot_product_attention(q, k, v)
        return x + self.out(y.transpose(1, 2).reshape(x.shape))


def decoder(width: int) -> nn.Sequential:
    """A decoder from 4 channels to 3 that is eight times as high and wide; SD 1.5 has width 128."""
    channels = 4 * width
    layers: list[nn.Module] = [nn.Conv2d(4, channels, 3, padding=1)]
    layers += [
        ResidualBlock(channels, channels), Attention(channels), ResidualBlock(channels, channels)
    ]  # fmt: skip
    for outputs in (4 * width, 4 * width, 2 * width, width):
        for _ in range(3):
            layers.append(ResidualBlock(channels, outputs))
            channels = outputs
        if channels != width:
            layers += [nn.Upsample(scale_factor=2), nn.Conv2d(channels, channels, 3, padding=1)]
    return nn.Sequential(
        *layers, nn.GroupNorm(8, width), nn.SiLU(), nn.Conv2d(width, 3, 3, padding=1)
    )


def timed(what: str, decode: Callable[[], Tensor]) -> Tensor:
    """Calls ``decode`` once to warm up and once to time it; prints the time, returns the image."""
    decode()
    synchronize = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    synchronize()
    start = time.perf_counter()
    image = decode()
    synchronize()
    print(f"{what}: {1e3 * (time.perf_counter() - start):.1f} ms")
    return image


@torch.inference_mode()
def main() -> None:
    """Decodes with PyTorch and with customconv, and compares."""
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.float16) if cuda else ("cpu", torch.float32)
    width, size = (128, 64) if cuda else (8, 8)
    model = decoder(width).to(device, dtype).eval()
    latents = torch.randn(1, 4, size, size, device=device, dtype=dtype)

    pytorchs = timed("PyTorch", lambda: model(latents))
    with customconv.enabled():
        image = timed("customconv", lambda: model(latents))
    stats = customconv.stats()
    print(stats)
    if cuda and not stats.calls:
        raise SystemExit("customconv has computed nothing")

    exact = model.double()(latents.double())
    errors = {
        name: float((result - exact).abs().max() / exact.abs().max())
        for name, result in (("PyTorch", pytorchs), ("customconv", image))
    }
    print(f"an image of {tuple(image.shape)}; largest errors beside float64:", errors)
    if not errors["customconv"] <= 2 * errors["PyTorch"] + 1e-6:
        raise SystemExit("customconv's error is more than twice PyTorch's")


if __name__ == "__main__":
    main()
