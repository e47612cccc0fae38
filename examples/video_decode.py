"""Decodes latents to a video with the decoder of a variational autoencoder.

    python examples/video_decode.py

The decoder is built as those of models of video are, with random weights: 3x3x3 convolutions that
are causal in time, so that a frame depends on no later one. ``with customconv.enabled():`` routes
what runs inside. The results are compared with PyTorch's and with results in float64.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional
from vae_decode import timed

import customconv


class CausalConv3d(nn.Conv3d):
    """A convolution that pads time in front alone, and height and width on both sides."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Takes the numbers of channels."""
        super().__init__(inputs, outputs, 3, padding=(0, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the number of frames."""
        return super().forward(functional.pad(x, (0, 0, 0, 0, 2, 0)))


class ResidualBlock(nn.Module):
    """Two convolutions, each after a norm and a SiLU, beside a shortcut."""

    def __init__(self, inputs: int, outputs: int) -> None:
        """Takes the numbers of channels."""
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, inputs), nn.GroupNorm(8, outputs)
        self.conv1, self.conv2 = CausalConv3d(inputs, outputs), CausalConv3d(outputs, outputs)
        self.shortcut = nn.Conv3d(inputs, outputs, 1) if inputs != outputs else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Keeps frames, height and width."""
        y = self.conv1(functional.silu(self.norm1(x)))
        y = self.conv2(functional.silu(self.norm2(y)))
        return self.shortcut(x) + y


def decoder(width: int) -> nn.Sequential:
    """A decoder from 16 channels to 3, with four times the frames and eight times the height."""
    channels = 4 * width
    layers: list[nn.Module] = [CausalConv3d(16, channels), ResidualBlock(channels, channels)]
    for outputs, scale in ((4, (2, 2, 2)), (2, (2, 2, 2)), (1, (1, 2, 2))):
        layers += [
            ResidualBlock(channels, outputs * width),
            nn.Upsample(scale_factor=scale),
            nn.Conv3d(outputs * width, outputs * width, (1, 3, 3), padding=(0, 1, 1)),
        ]
        channels = outputs * width
    layers += [ResidualBlock(width, width), nn.GroupNorm(8, width), nn.SiLU()]
    return nn.Sequential(*layers, CausalConv3d(width, 3))


@torch.inference_mode()
def main() -> None:
    """Decodes with PyTorch and with customconv, and compares."""
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.float16) if cuda else ("cpu", torch.float32)
    width, sizes = (96, (3, 30, 52)) if cuda else (8, (1, 3, 4))
    model = decoder(width).to(device, dtype).eval()
    latents = torch.randn(1, 16, *sizes, device=device, dtype=dtype)

    pytorchs = timed("PyTorch", lambda: model(latents))
    with customconv.enabled():
        video = timed("customconv", lambda: model(latents))
    stats = customconv.stats()
    print(stats)
    if cuda and not stats.calls:
        raise SystemExit("customconv has computed nothing")

    exact = model.double()(latents.double())
    errors = {
        name: float((result - exact).abs().max() / exact.abs().max())
        for name, result in (("PyTorch", pytorchs), ("customconv", video))
    }
    print(f"a video of {tuple(video.shape)}; largest errors beside float64:", errors)
    if not errors["customconv"] <= 2 * errors["PyTorch"] + 1e-6:
        raise SystemExit("customconv's error is more than twice PyTorch's")


if __name__ == "__main__":
    main()
