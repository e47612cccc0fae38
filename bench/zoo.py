"""`python -m bench zoo`: checks networks of all families with our convolutions against float32.

For each network, layout and precision it computes the outputs in evaluation mode and the gradients
of all convolutions and of the input (see evidence.py) on small images: by PyTorch, and by ours,
routed, converted or compiled. Our error against IEEE float32 may be up to twice PyTorch's. Compiled
networks compute a batch norm's statistics with the convolution in front of it, so there batch norms
normalise by the batch's statistics, and the running ones are checked, too.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from concurrent.futures.process import BrokenProcessPool
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
from .network_rows import PRECISIONS
from .options import minutes, several
from .results import Row
from .run import Budget
from .workers import workers

IDENTITY = ("network", "precision", "layout", "by")
Way = tuple[str, str, str]  # precision, layout, and how ours is run
Errors = Mapping[str, Mapping[str, float]]  # by what is checked, then by tensor


@dataclass(frozen=True)
class Check:
    """One row: a network in one precision and layout. Errors are relative to IEEE float32."""

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
    routed: int = 0  # convolution passes that our kernels computed
    fallbacks: int = 0  # calls that fell back to PyTorch


class Missing(Exception):
    """Raised if the installed packages lack a network or cannot run it."""


def updates(by: str) -> bool:
    """Whether batch norms are in training mode when ours is run in this way."""
    return by == "compiled"


def taken(
    network: nn.Module, x: Tensor, autocast: torch.dtype | None, *, updating: bool
) -> dict[str, Named]:
    """Returns what is checked: outputs, gradients and, if batch norms update them, statistics."""
    outputs = evidence.outputs(network, x, autocast)
    if not updating:
        return {"outputs": outputs, "gradients": evidence.gradients(network, x, autocast)}
    gradients, running = evidence.trained(network, x, autocast)
    found = {"outputs": outputs, "gradients": gradients, "running statistics": running}
    return {what: tensors for what, tensors in found.items() if tensors}


def worst_of(ours: Mapping[str, float], pytorch: Mapping[str, float]) -> str:
    """Formats the three tensors whose error is furthest above PyTorch's."""
    worst = sorted(ours, key=lambda name: pytorch[name] - ours[name])[:3]
    return ", ".join(f"{name} {ours[name]:.2g} for {pytorch[name]:.2g}" for name in worst)


def judged(ours: Errors, pytorch: Errors, precision: str) -> str:
    """Says what is wrong with our outputs, gradients or running statistics, or is empty."""
    for what, mine in ours.items():
        wrong = evidence.wrong(evidence.total(mine), evidence.total(pytorch[what]), precision)
        if wrong:
            return f"{what} {wrong} ({worst_of(mine, pytorch[what])})"
    return ""


class Subject:
    """A network on a device, with its results in IEEE float32, and the checks that are due."""

    def __init__(
        self, architecture: Architecture, device: torch.device, todo: Sequence[Way]
    ) -> None:
        self.architecture, self.device, self.todo = architecture, device, todo
        try:
            self.network = evidence.awakened(architecture.network()).to(device)
            self.x = architecture.input(device)
            with contenders.switches("fp32", ""):
                evidence.settled(self.network, self.x)
                self.expected = {
                    updating: taken(self.network, self.x, None, updating=updating)
                    for updating in {updates(by) for *_, by in todo}
                }
        except (
            RuntimeError, ValueError, TypeError, AttributeError, AssertionError, ImportError
        ) as error:  # fmt: skip
            raise Missing(f"{type(error).__name__}: {error}") from error

    def _errors(self, network: nn.Module, layout: str, precision: str, updating: bool) -> Errors:
        autocast, float32 = PRECISIONS[precision]
        networks.lay_out(network, layout)
        with contenders.switches(float32, ""):
            found = taken(network, networks.laid_out(self.x, layout), autocast, updating=updating)
        expected = self.expected[updating]
        return {what: evidence.errors(found[what], tensors) for what, tensors in expected.items()}

    def checks(self) -> Iterator[Check]:
        """Yields a check for each precision, layout and way of running ours."""
        ways: dict[str, nn.Module] = {}
        pytorch: dict[tuple[str, str, bool], Errors] = {}
        for precision, layout, by in self.todo:
            what = self.architecture.name, self.architecture.family, precision, layout, by
            updating = updates(by)
            key = precision, layout, updating
            if key not in pytorch:
                pytorch[key] = self._errors(self.network, layout, precision, updating)
            theirs = pytorch[key]
            customconv.stats(reset=True)
            try:
                if by not in ways:
                    ways[by] = networks.ours(self.network, by)
                with networks.switched(by):
                    ours = self._errors(ways[by], layout, precision, updating)
            except Exception as error:  # any error is a failure of the check
                yield Check(*what, f"{type(error).__name__}: {error}")
                continue
            counted = customconv.stats()
            wrong = judged(ours, theirs, precision)
            routable = by != "converted" and self.device.type == "cuda"
            if not wrong and routable and not counted.calls:
                wrong = "no convolution was ours"
            errors = (
                evidence.total(theirs["outputs"]), evidence.total(ours["outputs"]),
                evidence.total(theirs["gradients"]), evidence.total(ours["gradients"]),
            )  # fmt: skip
            counts = sum(counted.calls.values()), sum(counted.fallbacks.values())
            yield Check(*what, wrong, *errors, *counts)


def text_of(rows: Sequence[Row]) -> str:
    """Formats a network's rows in one line: how many are right, and the largest errors."""

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
    """Whether an error exceeds MOST_ERROR times PyTorch's, even if it is always allowed."""
    return any(
        row[f"ours_{what}_err"] > evidence.MOST_ERROR * row[f"pytorch_{what}_err"]
        for what in ("output", "gradient")
    )


def summary(rows: Sequence[Row], missing: Sequence[str]) -> str:
    """Says how many networks and rows there are, and how many are wrong."""
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
    """Parses comma-separated names of architectures."""
    names = set(text.split(","))
    if unknown := names - {architecture.name for architecture in ARCHITECTURES}:
        raise argparse.ArgumentTypeError(f"no network {', '.join(sorted(unknown))}")
    return [architecture for architecture in ARCHITECTURES if architecture.name in names]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cuda = torch.cuda.is_available()
    parser.add_argument(
        "--networks", type=named, default=list(ARCHITECTURES), metavar="NAMES",
        help="comma-separated names from architectures.py; by default all",
    )  # fmt: skip
    several(parser, "--layouts", contenders.LAYOUTS, ",".join(contenders.LAYOUTS), "layouts")
    several(parser, "--precisions", PRECISIONS, "tf32,amp-fp16" if cuda else "fp32", "precisions")
    several(parser, "--by", networks.WAYS, "routed,converted", "how ours is run")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    minutes(parser)
    parser.add_argument("--resume", action="store_true", help="skip rows that the file has")
    parser.add_argument("--json", type=Path, help="a file for the rows")
    parser.add_argument(
        "--workers", type=int, default=1, help="how many networks are checked at a time"
    )


Due = Mapping[Architecture, Sequence[Way]]


def _checks(name: str, device: torch.device, todo: Sequence[Way]) -> list[Check]:
    """Checks a network in another process. Its result is a list, which can be pickled."""
    (architecture,) = named(name)
    return list(Subject(architecture, device, todo).checks())


def checked(
    due: Due, device: torch.device, count: int, budget: Budget
) -> Iterator[tuple[Architecture, Iterator[Check]]]:
    """Yields networks with their checks, until the budget is spent.

    They come in order or, by ``count`` workers, as they are done. Where packages lack a network,
    ``Missing`` is raised when its checks are asked for.
    """

    def here(architecture: Architecture) -> Iterator[Check]:
        yield from Subject(architecture, device, due[architecture]).checks()

    def there(architecture: Architecture, future: Future[list[Check]]) -> Iterator[Check]:
        try:
            yield from future.result()
        except BrokenProcessPool:
            for precision, layout, way in due[architecture]:
                what = architecture.name, architecture.family, precision, layout, way
                yield Check(*what, "a process ended early, this one or one beside it")

    if count == 1:
        for architecture in due:
            if not budget.has_room():
                return
            yield architecture, here(architecture)
        return
    with workers(count) as pool:
        futures = {pool.submit(_checks, each.name, device, due[each]): each for each in due}
        for future in as_completed(futures):
            yield futures[future], there(futures[future], future)
            if not budget.has_room():
                return


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    rows = Rows(arguments.json, device, IDENTITY)
    budget = Budget(arguments.minutes)
    ways = [
        (precision, layout, by)
        for layout in arguments.layouts
        for precision in arguments.precisions
        for by in arguments.by
    ]
    due, missing, wanted = {}, [], []

    def print_(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for architecture in arguments.networks:
        todo = [way for way in ways
                if not (arguments.resume and rows.get(architecture.name, *way))]  # fmt: skip
        if todo:
            due[architecture] = todo
        else:
            wanted += [(architecture.name, *way) for way in ways]
    began = time.monotonic()
    left = set(due)
    for architecture, checks in checked(due, device, arguments.workers, budget):
        left.discard(architecture)
        try:
            for check in checks:
                rows.add(asdict(check))
                if check.error:
                    print_(f"  {check.precision} {check.layout} {check.by}: {check.error}")
        except Missing as why:
            missing.append(architecture.name)
            print_(f"{architecture.name:34} left out: {why}")
            continue
        keys = [(architecture.name, *way) for way in ways]
        wanted += keys
        print_(text_of([rows.rows[key] for key in keys]))
        if device.type == "cuda":
            torch.cuda.synchronize()  # raises errors that a failure left pending
            torch.cuda.empty_cache()
        budget.spend(time.monotonic() - began)
        began = time.monotonic()
    if left:
        print_(f"stopped for the budget of {budget.minutes:g} minutes")
    found = [rows.rows[key] for key in wanted if key in rows.rows]
    print_(summary(found, missing))
    return int(any(row["error"] for row in found))
