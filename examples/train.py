"""Trains a network with mixed precision and torch.compile; customconv computes its convolutions.

    python examples/train.py

One line, ``customconv.enable()``, is all that the program needs. For comparison, the same network
is first trained with PyTorch alone. The images are synthetic: a pattern for each class, and noise.
"""

import time

import torch
from torch import nn

import customconv

CLASSES = 10


def network() -> nn.Module:
    """A small network with an ordinary, a depthwise, a grouped and a pointwise convolution."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 32, 5, padding=2, groups=32), nn.Conv2d(32, 64, 1), nn.GELU(),
        nn.Conv2d(64, 64, 3, stride=2, padding=1, groups=4), nn.BatchNorm2d(64), nn.ReLU(),
        nn.Conv2d(64, 128, 3, stride=2, padding=1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, CLASSES),
    )  # fmt: skip


def train(device: torch.device, batch: int, size: int, steps: int) -> list[float]:
    """Trains with a fixed seed, prints the loss and the time of a step, and returns the losses."""
    torch.manual_seed(0)
    patterns = torch.randn(CLASSES, 3, size, size, device=device)
    plain = network().to(device)
    model = torch.compile(plain)
    optimizer = torch.optim.AdamW(plain.parameters(), lr=3e-3)
    cuda = device.type == "cuda"
    scaler = torch.amp.GradScaler(device.type, enabled=cuda)
    dtype = torch.float16 if cuda else torch.bfloat16

    losses, start = [], 0.0
    for step in range(steps):
        if step == 2:  # the first two compile
            start = time.perf_counter()
        labels = torch.randint(CLASSES, (batch,), device=device)
        images = patterns[labels] + torch.randn(batch, 3, size, size, device=device)
        with torch.autocast(device.type, dtype):
            loss = nn.functional.cross_entropy(model(images), labels)
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
        losses.append(loss.item())
    milliseconds = 1e3 * (time.perf_counter() - start) / (steps - 2)
    print(f"  loss {losses[0]:.3f} -> {losses[-1]:.3f}, {milliseconds:.2f} ms a step")
    return losses


def main() -> None:
    """Trains twice and compares the losses."""
    cuda = torch.cuda.is_available()
    device = torch.device("cuda" if cuda else "cpu")
    batch, size, steps = (256, 64, 100) if cuda else (16, 16, 30)

    print("PyTorch alone")
    expected = train(device, batch, size, steps)

    customconv.enable()
    print("with customconv.enable()")
    losses = train(device, batch, size, steps)

    stats = customconv.stats()
    print(stats)
    if cuda and not stats.calls:
        raise SystemExit("customconv has computed nothing")
    if abs(losses[0] - expected[0]) > 1e-2 * expected[0]:
        raise SystemExit(f"the first losses differ: {losses[0]} and {expected[0]}")
    for name, (first, *_, last) in {"PyTorch": expected, "customconv": losses}.items():
        if not last < first / 2:
            raise SystemExit(f"{name} has not learned: its loss went from {first} to {last}")
    print("the losses agree")


if __name__ == "__main__":
    main()
