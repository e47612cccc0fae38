"""Turns a spectrogram into a waveform with ordinary, dilated and transposed 1-D convolutions.

    python examples/audio.py

The generator has the structure of HiFi-GAN's, with random weights. ``conv1d`` and
``conv_transpose1d`` are routed too, as 2-D convolutions with a height of one. The waveform and the
gradients of a loss are compared with PyTorch's.
"""

import time

import torch
from torch import Tensor, nn
from torch.nn import functional

import customconv


class ResidualBlock(nn.Module):
    """Dilated convolutions, each beside a shortcut."""

    def __init__(self, channels: int, kernel: int) -> None:
        """Takes the number of channels and the length of the filters."""
        super().__init__()
        self.layers = nn.ModuleList(
            nn.Conv1d(channels, channels, kernel, padding="same", dilation=dilation)
            for dilation in (1, 3, 5)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Keeps the shape."""
        for layer in self.layers:
            x = x + layer(functional.leaky_relu(x, 0.1))
        return x


class Generator(nn.Module):
    """Each stage makes the signal longer with a transposed convolution, then refines it."""

    def __init__(self, width: int, strides: tuple[int, ...] = (8, 8, 2, 2)) -> None:
        """Takes the number of channels of the first stage; each later stage halves it."""
        super().__init__()
        self.first = nn.Conv1d(80, width, 7, padding=3)
        self.longer, self.blocks = nn.ModuleList(), nn.ModuleList()
        for stride in strides:
            self.longer.append(
                nn.ConvTranspose1d(width, width // 2, 2 * stride, stride, padding=stride // 2)
            )
            width //= 2
            self.blocks.append(nn.ModuleList(ResidualBlock(width, k) for k in (3, 7, 11)))
        self.last = nn.Conv1d(width, 1, 7, padding=3)

    def forward(self, spectrogram: Tensor) -> Tensor:
        """From (N, 80, frames) to (N, 1, frames * 256)."""
        x = self.first(spectrogram)
        for longer, blocks in zip(self.longer, self.blocks, strict=True):
            x = longer(functional.leaky_relu(x, 0.1))
            x = sum(block(x) for block in blocks) / len(blocks)
        return torch.tanh(self.last(functional.leaky_relu(x)))


def step(model: Generator, spectrogram: Tensor) -> tuple[float, Tensor, list[Tensor]]:
    """Returns the milliseconds of a forward and backward pass, the waveform and the gradients."""
    for _ in range(2):  # the first step warms up
        if spectrogram.is_cuda:
            torch.cuda.synchronize()
        start = time.perf_counter()
        waveform = model(spectrogram)
        gradients = torch.autograd.grad(waveform.square().mean(), list(model.parameters()))
        if spectrogram.is_cuda:
            torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start), waveform.detach(), list(gradients)


def main() -> None:
    """Runs a step with PyTorch and with customconv, and compares."""
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    width, batch, frames = (512, 8, 64) if cuda else (32, 1, 8)
    device = "cuda" if cuda else "cpu"
    model = Generator(width).to(device)
    spectrogram = torch.randn(batch, 80, frames, device=device)

    expected_ms, expected, expected_gradients = step(model, spectrogram)
    with customconv.enabled():
        ms, waveform, gradients = step(model, spectrogram)
    stats = customconv.stats()
    print(stats)
    if cuda and not stats.calls:
        raise SystemExit("customconv has computed nothing")
    print(f"{waveform.shape[-1]} samples; PyTorch {expected_ms:.1f} ms, customconv {ms:.1f} ms")

    def differ(a: Tensor, b: Tensor) -> float:
        return float((a - b).abs().max() / b.abs().max())

    waveform_differs = differ(waveform, expected)
    gradients_differ = max(map(differ, gradients, expected_gradients))
    print(f"largest difference: waveform {waveform_differs:.1e}, gradients {gradients_differ:.1e}")
    if not max(waveform_differs, gradients_differ) < 2e-2:  # TF32 keeps three digits
        raise SystemExit("customconv and PyTorch disagree")


if __name__ == "__main__":
    main()
