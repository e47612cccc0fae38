"""Part two: a small network learns to read handwritten digits, eagerly and compiled."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

from customconv.nn import Conv2d

SEED = 0
EPOCHS = 12
BATCH = 64
LEAST_ACCURACY = 0.97
TOLERANCE = 1e-4  # of outputs, relative to the largest
ACCURACY_TOLERANCE = 0.02  # of two training runs that round differently

Network = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Digits:
    """Images (N, 1, 8, 8) with values between 0 and 1, and what they show, split in two."""

    images: Tensor
    labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load(device: torch.device) -> Digits:
    """The 1,797 digits that scikit-learn ships: four in five to learn from, the rest to test."""
    source = load_digits()
    images = torch.from_numpy(source.images).float().unsqueeze(1).to(device) / 16
    labels = torch.from_numpy(source.target).to(device)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(SEED)).to(device)
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return Digits(images[train], labels[train], images[test], labels[test])


def build(convolution: type[nn.Conv2d], device: torch.device) -> nn.Sequential:
    """The network, with the same first weights whichever class convolves."""
    torch.manual_seed(SEED)
    return nn.Sequential(
        convolution(1, 32, 3, padding="same"),
        nn.ReLU(),
        convolution(32, 64, 3, padding=1, bias=False),
        nn.BatchNorm2d(64),
        nn.ReLU(),
        nn.MaxPool2d(2),
        convolution(64, 64, 3, padding=1, groups=4),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 10),
    ).to(device)


def train(model: nn.Module, network: Network, digits: Digits, tick: Callable[[], None]) -> float:
    """Trains a model, and gives its accuracy on the digits that it has not seen.

    Args:
        model: What is trained.
        network: The model as it is called: itself, or compiled.
        digits: What it learns from, and is tested on.
        tick: Called after each epoch.
    """
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    generator = torch.Generator().manual_seed(SEED)
    model.train()
    for _ in range(EPOCHS):
        order = torch.randperm(len(digits.labels), generator=generator)
        # The last, smaller batch is left out, so that a compiled network sees one size.
        for start in range(0, len(order) - BATCH + 1, BATCH):
            batch = order[start : start + BATCH].to(digits.labels.device)
            loss = functional.cross_entropy(network(digits.images[batch]), digits.labels[batch])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        tick()
    model.eval()
    with torch.no_grad():
        answers = model(digits.test_images).argmax(1)
    return float((answers == digits.test_labels).float().mean())


def outputs_differ(digits: Digits, device: torch.device) -> float:
    """The largest difference between the outputs of both classes with the same weights."""
    theirs = build(nn.Conv2d, device).eval()
    ours = build(Conv2d, device).eval()
    ours.load_state_dict(theirs.state_dict())
    with torch.no_grad():
        expected, output = theirs(digits.test_images), ours(digits.test_images)
    return float((output - expected).abs().max() / expected.abs().max())


def run(console: Console, device: torch.device, quick: bool) -> bool:
    """Trains three times, and says whether the network reads well and the runs agree.

    Args:
        console: Where to print.
        device: Where to compute.
        quick: Leave out the compiled run.
    """
    digits = load(device)
    difference = outputs_differ(digits, device)
    ours, compiled, theirs = (build(kind, device) for kind in (Conv2d, Conv2d, nn.Conv2d))
    runs: list[tuple[str, nn.Module, Network]] = [
        ("customconv.Conv2d, eager", ours, ours),
        ("customconv.Conv2d, compiled", compiled, torch.compile(compiled, fullgraph=True)),
        ("torch.nn.Conv2d, eager", theirs, theirs),
    ]
    if quick:
        del runs[1]
    console.print(f"[bold]2. digits:[/] {len(digits.labels)} to learn from, {EPOCHS} epochs")
    accuracies = []
    columns = (
        TextColumn("   {task.description:<28}"), BarColumn(), MofNCompleteColumn(),
        TimeElapsedColumn(), TextColumn("{task.fields[accuracy]}"),
    )  # fmt: skip
    with Progress(*columns, console=console) as progress:
        for name, model, network in runs:
            task = progress.add_task(name, total=EPOCHS, accuracy="")
            accuracy = train(model, network, digits, partial(progress.advance, task))
            progress.update(task, accuracy=f"test accuracy {accuracy:.2%}")
            accuracies.append(accuracy)
    checks = [
        (f"accuracy at least {LEAST_ACCURACY:.0%}", min(accuracies) >= LEAST_ACCURACY),
        (f"outputs as nn.Conv2d's to {difference:.1e}", difference <= TOLERANCE),
        (
            f"accuracies within {max(accuracies) - min(accuracies):.2%} of each other",
            max(accuracies) - min(accuracies) <= ACCURACY_TOLERANCE,
        ),
    ]
    for text, passed in checks:
        console.print(f"   {text}: {'ok' if passed else '[bold red]FAILED[/]'}")
    return all(passed for _, passed in checks)
