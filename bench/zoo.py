"""`python -m bench zoo`: architectures of all families by our convolutions, held against float32.

For each network, layout and precision: the outputs in evaluation, and the gradients of all
convolutions and of the input (see evidence.py), by PyTorch and by ours, routed and converted, on
small images. Ours may be off from PyTorch in IEEE float32 twice as far as PyTorch itself.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from torch import Tensor, nn

import customconv

from . import contenders, evidence, networks
from .architectures import ARCHITECTURES, Architecture
from .evidence import Named
from .kept import Rows
from .models import PRECISIONS
from .options import several
from .results import Row
from .run import Budget

IDENTITY = ("network", "precision", "layout", "by")
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's dimensions


@dataclass(frozen=True)
class Check:
    """One network in one precision and layout; errors are shares of IEEE float32's norm."""

    network: str
    family: str
    precision: str
    layout: str
    by: str
    error: str = ""
    pytorch_output_err: float = 0
    ours_output_err: float = 0
    pytorch_gradient_err: float = 0
    ours_gradient_err: float = 0
    routed: int = 0  # passes of convolutions that kernels of ours computed
    fallbacks: int = 0  # and calls that PyTorch computed in their place


class Missing(Exception):
    """A network that this version of its package does not have, or cannot run."""


def laid_out(x: Tensor, layout: str) -> Tensor:
    """The input in a layout; of sound, the channels of a moment side by side."""
    if layout == "nchw":
        return x.contiguous()
    if x.ndim == 3:
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    return x.contiguous(memory_format=LAST[x.ndim])


def lay_out(network: nn.Module, layout: str) -> None:
    """Moves its filters to a layout."""
    for parameter in network.parameters():
        if parameter.ndim in LAST:
            parameter.data = laid_out(parameter.data, layout)


def taken(network: nn.Module, x: Tensor, autocast: torch.dtype | None) -> tuple[Named, Named]:
    """Outputs and gradients."""
    return evidence.outputs(network, x, autocast), evidence.gradients(network, x, autocast)


def worst_of(ours: Mapping[str, float], pytorch: Mapping[str, float]) -> str:
    """The tensors in which ours is most off beside PyTorch's, for people."""
    worst = sorted(ours, key=lambda name: pytorch[name] - ours[name])[:3]
    return ", ".join(f"{name} {ours[name]:.2g} for {pytorch[name]:.2g}" for name in worst)


def judged(
    ours: Sequence[Mapping[str, float]], pytorch: Sequence[Mapping[str, float]], precision: str
) -> str:
    """What is wrong with our outputs or gradients, or nothing."""
    for what, mine, theirs in zip(("outputs", "gradients"), ours, pytorch, strict=True):
        wrong = evidence.wrong(evidence.total(mine), evidence.total(theirs), precision)
        if wrong:
            return f"{what} {wrong} ({worst_of(mine, theirs)})"
    return ""


class Subject:
    """A network on a device, with what it computes in IEEE float32."""

    def __init__(self, architecture: Architecture, device: torch.device) -> None:
        self.architecture, self.device = architecture, device
        try:
            self.network = evidence.awakened(architecture.network()).to(device)
            self.x = architecture.input(device)
            with contenders.switches("fp32", ""):
                evidence.settled(self.network, self.x)
                self.expected = taken(self.network, self.x, None)
        except (RuntimeError, ValueError, TypeError, AttributeError, AssertionError) as error:
            raise Missing(f"{type(error).__name__}: {error}") from error

    def _errors(
        self, network: nn.Module, layout: str, precision: str
    ) -> tuple[dict[str, float], dict[str, float]]:
        """The errors of outputs and of gradients, each by name."""
        autocast, float32 = PRECISIONS[precision]
        lay_out(network, layout)
        with contenders.switches(float32, ""):
            outputs, gradients = taken(network, laid_out(self.x, layout), autocast)
        return (
            evidence.errors(outputs, self.expected[0]),
            evidence.errors(gradients, self.expected[1]),
        )

    def checks(self, todo: Iterable[tuple[str, str, str]]) -> Iterator[Check]:
        """Checks by precision, layout and way; those of a layout and precision stand together."""
        ways: dict[str, nn.Module] = {}
        pytorch = {}
        for precision, layout, by in todo:
            what = self.architecture.name, self.architecture.family, precision, layout, by
            if (precision, layout) not in pytorch:
                pytorch[precision, layout] = self._errors(self.network, layout, precision)
            theirs = pytorch[precision, layout]
            customconv.stats(reset=True)
            try:
                if by not in ways:
                    ways[by] = networks.ours(self.network, by)
                with networks.switched(by):
                    ours = self._errors(ways[by], layout, precision)
            except Exception as error:  # whatever a user would see is a failure of the check
                yield Check(*what, f"{type(error).__name__}: {error}")
                continue
            counted = customconv.stats()
            wrong = judged(ours, theirs, precision)
            routable = by == "routed" and self.device.type == "cuda" and self.x.ndim < 5
            if not wrong and routable and not counted.calls:
                wrong = "no convolution was ours"
            errors = (
                evidence.total(theirs[0]), evidence.total(ours[0]),
                evidence.total(theirs[1]), evidence.total(ours[1]),
            )  # fmt: skip
            counts = sum(counted.calls.values()), sum(counted.fallbacks.values())
            yield Check(*what, wrong, *errors, *counts)


def text_of(rows: Sequence[Row]) -> str:
    """All rows of a network in one line: how many are right, and the largest errors."""

    def most(what: str) -> str:
        worst = max(rows, key=lambda row: float(row[f"ours_{what}_err"]))
        return f"{worst[f'ours_{what}_err']:.1e} for {worst[f'pytorch_{what}_err']:.1e}"

    right = sum(not row["error"] for row in rows)
    ours, others = (sum(row[part] for row in rows) for part in ("routed", "fallbacks"))
    return (
        f"{rows[0]['network']:34} {right} of {len(rows)}, outputs off {most('output')}, "
        f"gradients {most('gradient')}; ours {ours}, PyTorch's {others}"
    )


def over(row: Row) -> bool:
    """Whether an error is over what is allowed beside PyTorch's, were nothing always allowed."""
    return any(
        row[f"ours_{what}_err"] > evidence.MOST_ERROR * row[f"pytorch_{what}_err"]
        for what in ("output", "gradient")
    )


def summary(rows: Sequence[Row], missing: Sequence[str]) -> str:
    """How many networks and rows there are, and how many are not right."""
    counted = {row["network"]: row["family"] for row in rows}
    wrong = [row for row in rows if row["error"]]
    small = sum(over(row) for row in rows if not row["error"])
    text = (
        f"{len(counted)} networks of {len(set(counted.values()))} families, {len(rows)} rows, "
        f"{len(wrong)} wrong; {small} within the rounding of a network, though over "
        f"{evidence.MOST_ERROR:g} times PyTorch's"
    )
    return text + (f"; left out: {', '.join(missing)}" if missing else "")


def named(text: str) -> list[Architecture]:
    """The architectures of these names."""
    names = set(text.split(","))
    if unknown := names - {architecture.name for architecture in ARCHITECTURES}:
        raise argparse.ArgumentTypeError(f"no network {', '.join(sorted(unknown))}")
    return [architecture for architecture in ARCHITECTURES if architecture.name in names]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cuda = torch.cuda.is_available()
    parser.add_argument(
        "--networks", type=named, default=list(ARCHITECTURES), metavar="NAMES",
        help="some of architectures.py, with commas between; by default all",
    )  # fmt: skip
    several(parser, "--layouts", contenders.LAYOUTS, ",".join(contenders.LAYOUTS), "layouts")
    several(parser, "--precisions", PRECISIONS, "tf32,amp-fp16" if cuda else "fp32", "precisions")
    several(parser, "--by", networks.WAYS, ",".join(networks.WAYS), "how ours is run")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--budget-s", type=float, help="stop cleanly after so many seconds")
    parser.add_argument("--resume", action="store_true", help="leave out rows that the file has")
    parser.add_argument("--json", type=Path, help="a file for the rows")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    rows = Rows(arguments.json, device, IDENTITY)
    budget = Budget(arguments.budget_s)
    ways = [
        (precision, layout, by)
        for layout in arguments.layouts
        for precision in arguments.precisions
        for by in arguments.by
    ]
    missing, wanted = [], []

    def print_(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for architecture in arguments.networks:
        keys = [(architecture.name, *way) for way in ways]
        todo = [way for way, key in zip(ways, keys, strict=True)
                if not (arguments.resume and rows.get(*key))]  # fmt: skip
        if todo and not budget.has_room():
            print_(f"stopped for the budget of {budget.seconds:g} s")
            break
        wanted += keys
        if not todo:
            continue
        began = time.monotonic()
        try:
            for check in Subject(architecture, device).checks(todo):
                rows.add(asdict(check))
                if check.error:
                    print_(f"  {check.precision} {check.layout} {check.by}: {check.error}")
        except Missing as why:
            missing.append(architecture.name)
            print_(f"{architecture.name:34} left out: {why}")
            continue
        print_(text_of([rows.rows[key] for key in keys]))
        if device.type == "cuda":
            torch.cuda.synchronize()  # raises what an earlier failure has left
            torch.cuda.empty_cache()
        budget.spend(time.monotonic() - began)
    found = [rows.rows[key] for key in wanted if key in rows.rows]
    print_(summary(found, missing))
    return int(any(row["error"] for row in found))
