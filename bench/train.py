"""`python -m bench train`: whether a network learns with our convolutions as with PyTorch's.

One number that is rounded differently makes two trainings drift apart, so ours may differ from
PyTorch's as much as PyTorch's differ from each other. PyTorch trains several times, on the same
images in the same order: first from the weights that ours starts with, then from copies whose
weights are each off by a random rounding error of the precision. The distance of two loss curves is
the root mean square of their differences, with losses averaged over WINDOW steps. Ours passes if
its distance to the nearest of PyTorch's curves is at most MOST_DISTANCE times the largest distance
between two of these.
"""

from __future__ import annotations

import argparse
import copy
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from . import contenders, network_rows, networks, results
from .network_rows import PRECISIONS, Runner
from .options import several
from .run import Budget

# Unit roundoff: half the relative distance between neighbouring numbers.
ROUNDING = {"fp32": 2.0**-24, "tf32": 2.0**-11, "amp-fp16": 2.0**-11, "amp-bf16": 2.0**-9}
WINDOW = 10
MOST_DISTANCE = 1.5
LEARNED = 0.9  # the loss must fall below this share of its start, or nothing was learned

KINDS = 64  # of images, each a coarse pattern with noise
COARSE = 8  # the pattern's height and width
NOISE = 1.0
LEARNING_RATE = 0.1 / 256  # per image of a batch
# Share of the steps over which the rate grows to its full value (Goyal et al., 2017). Without it,
# losses first jump by more than they later fall, and even equal trainings drift apart.
WARM_UP = 0.5
CLASSIFIERS = [
    name for name in networks.NETWORKS
    if name not in ("fcn_resnet50", "unet", *networks.OF_VOLUMES)
]  # fmt: skip


@dataclass(frozen=True)
class Outcome:
    """One network in one precision and layout. A curve holds the loss of each step."""

    network: str
    precision: str
    layout: str
    batch: int
    ours: list[float]
    pytorch: list[list[float]]
    distance: float  # from ours to the nearest of PyTorch's
    spread: float  # the largest distance between two of PyTorch's
    error: str = ""


class Pupil(Runner):
    """A network that is trained to tell the kinds of images apart."""

    def __init__(self, network: nn.Module, batch: int, image: int, precision: str, layout: str):
        device = next(network.parameters()).device
        self.generator = torch.Generator(device)
        self.batch, self.image, self.layout = batch, image, layout
        shape = KINDS, 3, COARSE, COARSE
        self.patterns = torch.randn(shape, device=device, generator=self.generator.manual_seed(0))
        super().__init__(network, self.look(1), "step", PRECISIONS[precision][0])
        self.optimizer = torch.optim.SGD(
            network.parameters(), LEARNING_RATE * batch, momentum=0.9, weight_decay=1e-4
        )

    def look(self, number: int) -> Tensor:
        """Returns a step's images and sets ``self.kinds``; both are the same for every pupil."""
        generator = self.generator.manual_seed(number)
        device = generator.device
        self.kinds = torch.randint(KINDS, (self.batch,), device=device, generator=generator)
        patterns = functional.interpolate(self.patterns[self.kinds], (self.image, self.image))
        noise = torch.randn(patterns.shape, device=device, generator=generator)
        return networks.laid_out(patterns + NOISE * noise, self.layout)

    def loss(self, output: Tensor) -> Tensor:
        return functional.cross_entropy(output.float(), self.kinds)

    def curve(self, steps: int) -> list[float]:
        found = []
        (group,) = self.optimizer.param_groups
        for number in range(1, steps + 1):
            group["lr"] = LEARNING_RATE * self.batch * min(1, number / (WARM_UP * steps))
            self.x = self.look(number)
            found.append(self.step())
        losses: list[float] = torch.stack(found).tolist()
        return losses


def rounded(network: nn.Module, unit: float, seed: int) -> nn.Module:
    """Returns a copy with each weight off at random, by at most ``unit`` relative to itself."""
    network = copy.deepcopy(network)
    torch.manual_seed(seed)
    with torch.no_grad():
        for weight in network.parameters():
            weight.mul_(1 + unit * (2 * torch.rand_like(weight) - 1))
    return network


def smooth(curve: Sequence[float]) -> Tensor:
    losses = torch.tensor(curve, dtype=torch.float64)
    return losses.unfold(0, min(WINDOW, len(curve)), 1).mean(-1)


def distance(a: Sequence[float], b: Sequence[float]) -> float:
    return (smooth(a) - smooth(b)).square().mean().sqrt().item()


def judged(ours: Sequence[float], pytorch: Sequence[Sequence[float]]) -> tuple[float, float, str]:
    """Returns our distance, PyTorch's spread, and what is wrong (empty if nothing is)."""
    ours_off = min(distance(ours, curve) for curve in pytorch)
    spread = max(distance(a, b) for a, b in itertools.combinations(pytorch, 2))
    curve = smooth(pytorch[0])
    error = ""
    if not curve[-1] < LEARNED * curve[0]:
        error = f"PyTorch's loss went from {curve[0]:.3g} to {curve[-1]:.3g}: it learned nothing"
    elif not ours_off <= MOST_DISTANCE * spread:
        error = f"off by {ours_off:.3g}, PyTorch's from each other by {spread:.3g}"
    return ours_off, spread, error


def compare(
    name: str, precision: str, layout: str, batch: int, image: int, device: torch.device,
    *, steps: int, runs: int, by: str = "routed",
) -> Outcome:  # fmt: skip
    """Trains one network with our convolutions once, and with PyTorch's several times."""
    network = networks.build(name).to(device)
    networks.lay_out(network, layout)

    def curve(pupil: nn.Module) -> list[float]:
        return Pupil(pupil, batch, image, precision, layout).curve(steps)

    with contenders.switches(PRECISIONS[precision][1], "cudnn"):
        with networks.switched(by):
            ours = curve(networks.ours(rounded(network, 0, 0), by))
        pytorch = [
            curve(rounded(network, ROUNDING[precision] if seed else 0, seed))
            for seed in range(runs)
        ]
    return Outcome(name, precision, layout, batch, ours, pytorch, *judged(ours, pytorch))


def table(outcomes: list[Outcome]) -> Table:
    made = Table("network", "precision", "layout", box=None, header_style="dim")
    for head in ("steps", "loss at first", "PyTorch's at last", "ours", "PyTorch's spread", "ours"):
        made.add_column(head, justify="right")
    for o in outcomes:
        last = sorted(smooth(curve)[-1].item() for curve in o.pytorch)
        made.add_row(
            o.network, o.precision, o.layout, str(len(o.ours)), f"{smooth(o.ours)[0]:.3f}",
            f"{last[0]:.3f}-{last[-1]:.3f}", f"{smooth(o.ours)[-1]:.3f}", f"{o.spread:.3g}",
            f"{o.distance:.3g} {o.error}".rstrip(),
        )  # fmt: skip
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several(parser, "--networks", CLASSIFIERS, "resnet50", "networks")
    network_rows.add_common_arguments(parser)
    parser.add_argument("--batch", type=int, default=64 if torch.cuda.is_available() else 2)
    parser.add_argument("--steps", type=int, default=200, help="steps of each training")
    parser.add_argument("--runs", type=int, default=3, help="trainings by PyTorch, at least 2")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    budget = Budget(arguments.minutes)
    outcomes = []
    for what in itertools.product(arguments.networks, arguments.precisions, arguments.layouts):
        if not budget.has_room():
            console.print(f"stopped for the budget of {budget.minutes:g} minutes")
            break
        outcome = compare(
            *what, arguments.batch, arguments.image, device,
            steps=arguments.steps, runs=max(2, arguments.runs), by=arguments.by,
        )  # fmt: skip
        outcomes.append(outcome)
        console.print(" ".join(what), outcome.error or "alike", highlight=False)
    console.print(table(outcomes))
    if arguments.json:
        results.save_outcomes(arguments.json, device, "outcomes", outcomes)
    return int(any(o.error for o in outcomes))
