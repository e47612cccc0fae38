"""Converts a trained network for inference, and replays it as a CUDA graph.

    python examples/infer.py

``customconv.convert`` replaces the convolutions with this package's modules, which keep the same
parameters. Here it also folds the batch norms into them and sets the layout that suits tensor
cores. A CUDA graph then launches the whole network with one call. On a CPU there is no graph. The
logits are compared with PyTorch's.
"""

import time
from collections.abc import Callable

import torch
from torch import Tensor, nn

import customconv


class Block(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        """Takes the numbers of channels, and the stride of the first convolution."""
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
            )

    def forward(self, x: Tensor) -> Tensor:
        """Divides height and width by the stride."""
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.shortcut(x))


def network(width: int) -> nn.Sequential:
    """A ResNet-18 if the width is 64."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, 2, padding=3, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
        nn.MaxPool2d(3, 2, padding=1),
    ]  # fmt: skip
    for stage in range(4):
        outputs = width << stage
        layers += [
            Block(outputs if stage == 0 else outputs // 2, outputs, 1 if stage == 0 else 2),
            Block(outputs, outputs, 1),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(outputs, 1000))


def milliseconds(call: Callable[[], object], repeats: int) -> float:
    """Returns the mean time of a call."""
    call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - start) / repeats


def captured(model: nn.Module, like: Tensor) -> Callable[[Tensor], Tensor]:
    """Captures the model in a CUDA graph for one input shape. Each call overwrites the output."""
    input = like.clone()
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):  # warms up, as PyTorch's documentation asks
        for _ in range(3):
            model(input)
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = model(input)

    def replay(images: Tensor) -> Tensor:
        input.copy_(images)
        graph.replay()
        return output

    return replay


@torch.no_grad()
def main() -> None:
    """Runs PyTorch's network and the converted one, and compares."""
    torch.manual_seed(0)
    cuda = torch.cuda.is_available()
    device, dtype = ("cuda", torch.float16) if cuda else ("cpu", torch.float32)
    width, batch, size, repeats = (64, 8, 224, 50) if cuda else (8, 2, 64, 3)
    model = network(width).to(device)
    for _ in range(3):  # gives the batch norms their statistics
        model(torch.randn(batch, 3, size, size, device=device))
    model = model.to(dtype).eval()
    images = torch.randn(batch, 3, size, size, device=device, dtype=dtype)

    expected = model(images)
    times = {"PyTorch": milliseconds(lambda: model(images), repeats)}

    converted, report = customconv.convert(model, fold_batchnorm=True, channels_last=True)
    print(f"{len(report.replaced)} convolutions replaced, {len(report.folded)} norms folded")
    infer = captured(converted, images) if cuda else converted
    logits = infer(images)
    times["converted, CUDA graph" if cuda else "converted"] = milliseconds(
        lambda: infer(images), repeats
    )
    stats = customconv.stats()
    print(stats)
    if cuda and not stats.calls:
        raise SystemExit("customconv has computed nothing")
    print(", ".join(f"{name}: {time:.3f} ms" for name, time in times.items()))

    difference = float((logits - expected).abs().max() / expected.abs().max())
    print(f"largest difference of a logit: {difference:.1e}")
    if not difference < (1e-2 if cuda else 1e-5):
        raise SystemExit("the converted network and PyTorch's disagree")


if __name__ == "__main__":
    main()
