"""What the commands that measure whole networks share: passes, subjects, and rows in turn."""

from __future__ import annotations

import abc
import argparse
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from . import contenders, evidence, networks
from .kept import Rows
from .options import minutes, several
from .results import Key, Row
from .run import Budget
from .timing import geomean

# Autocast's dtype, and PyTorch's float32 switch.
PRECISIONS: dict[str, tuple[torch.dtype | None, str]] = {
    "fp32": (None, "fp32"),
    "tf32": (None, "tf32"),
    "amp-fp16": (torch.float16, "tf32"),
    "amp-bf16": (torch.bfloat16, "tf32"),
}
MODES = ("forward", "step")
SETTLING = 8  # images for the batch norms' statistics
LISTED = 10  # how many of a row's layers are listed, those that lose most time

What = tuple[str, str, str, int]  # a row's mode, precision, layout and batch


class Runner:
    """A network, its images, and one pass of it as a call."""

    def __init__(
        self, network: nn.Module, x: Tensor, mode: str, autocast: torch.dtype | None
    ) -> None:
        self.network = network.train(mode == "step")
        self.x = x
        self.autocast = autocast
        scaled = autocast == torch.float16
        self.scaler = torch.amp.grad_scaler.GradScaler(x.device.type, enabled=scaled)
        # The rate is tiny, so that weights hardly change however long a step is timed.
        self.optimizer = torch.optim.SGD(network.parameters(), lr=1e-6)
        self.call: Callable[[], Any] = self.step if mode == "step" else self.forward

    def _output(self) -> Any:
        with evidence.autocast_of(self.x, self.autocast):
            return self.network(self.x)

    def forward(self) -> Any:
        with torch.no_grad():
            return self._output()

    def loss(self, output: Any) -> Tensor:
        return torch.stack([y.float().square().mean() for y in evidence.leaves(output)]).sum()

    def step(self) -> Tensor:
        with torch.enable_grad():
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self._output())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()


class Subject:
    """A network on a device, built once for all rows."""

    def __init__(self, name: str, image: int, device: torch.device) -> None:
        self.name, self.image, self.device = name, image, device
        self.network = evidence.awakened(networks.build(name)).to(device)
        with contenders.switches("fp32", ""):
            evidence.settled(self.network, self.images(SETTLING))

    def images(self, batch: int) -> Tensor:
        generator = torch.Generator(self.device).manual_seed(1)
        shape = networks.input_shape(self.network, batch, self.image)
        return torch.randn(shape, device=self.device, generator=generator)


def layers_text(found: Row, most: int = LISTED) -> Iterator[str]:
    """Formats what a row's convolutions cost, line by line."""
    yield (
        f"  convolutions alone: PyTorch {found['pytorch_ms']:.3f} ms, ours "
        f"{found['ours_ms']:.3f} ({found['timed']} timed)"
    )
    for each in found["worst"][:most]:
        yield (
            f"  {each['lost_ms']:+8.3f} ms: {each['calls']} x {each['op']} {each['name']} "
            f"({each['shape']}), {each['family']} {each['ours_ms']:.4f}, "
            f"PyTorch {each['pytorch_ms']:.4f}"
        )


def means(rows: Sequence[Row], title: str = "geometric means of ratios") -> Table:
    """Geometric means of the ratios and the number of networks in each, a column per batch size."""
    right = [row for row in rows if not row["error"]]
    batches = sorted({row["batch"] for row in rows})
    made = Table(title=title, title_justify="left", box=None, header_style="dim")
    for head in ("mode", "precision", "layout"):
        made.add_column(head)
    for batch in batches:
        made.add_column(f"N {batch}", justify="right")
    for kind in dict.fromkeys((row["mode"], row["precision"], row["layout"]) for row in rows):
        cells = []
        for batch in batches:
            ratios = [
                row["ratio"] for row in right
                if (row["mode"], row["precision"], row["layout"], row["batch"]) == (*kind, batch)
            ]  # fmt: skip
            cells.append(f"{geomean(ratios):.3f} ({len(ratios)})" if ratios else "")
        made.add_row(*kind, *cells)
    return made


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options that say how networks run."""
    cuda = torch.cuda.is_available()
    several(parser, "--layouts", contenders.LAYOUTS, ",".join(contenders.LAYOUTS), "layouts")
    several(parser, "--precisions", PRECISIONS, "tf32,amp-fp16" if cuda else "fp32", "precisions")
    parser.add_argument("--by", choices=networks.WAYS, default="routed", help="how ours is run")
    parser.add_argument("--image", type=int, default=224 if cuda else 32, help="height and width")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    minutes(parser)
    parser.add_argument("--json", type=Path, help="a file for the outcomes")


def todo(arguments: argparse.Namespace) -> list[What]:
    """Lists the rows of each network; rows with the same tensor sizes are adjacent."""
    return [
        (mode, precision, layout, batch)
        for layout in arguments.layouts
        for batch in arguments.batch
        for precision in arguments.precisions
        for mode in arguments.modes
    ]


class Run(abc.ABC):
    """One command's rows, measured in turn until its budget is spent."""

    identity: ClassVar[Sequence[str]]  # the values of a row that identify it
    outcome: ClassVar[type[Any]]  # a row that failed: its identity and the error
    title: ClassVar[str]  # of the table of means

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self.arguments, self.console = arguments, console
        self.device = torch.device(arguments.device)
        self.rows = Rows(arguments.json, self.device, self.identity)
        self.budget = Budget(arguments.minutes)

    @abc.abstractmethod
    def key(self, name: str, what: What) -> Key:
        """Returns the values that identify a row."""

    @abc.abstractmethod
    def build(self, name: str) -> Any:
        """Builds a network's subject, whose ``compare`` measures a row."""

    @abc.abstractmethod
    def text_of(self, row: Row) -> str:
        """Formats a row in one line."""

    def due(self, name: str, what: What) -> tuple[bool, bool]:
        """Returns whether to measure a row, and whether its layers may be timed."""
        row = self.rows.get(*self.key(name, what)) if self.arguments.resume else None
        if row is None:
            return True, bool(self.arguments.layers)
        slower = row["ratio"] < 1 and "layers" not in row
        return False, bool(self.arguments.layers and slower)

    def print(self, text: str) -> None:
        self.console.print(text, highlight=False, soft_wrap=True)

    def network(self, name: str, todo: Iterable[What]) -> bool:
        """Measures a network's rows; returns whether there was time for all."""
        arguments = self.arguments
        built = None
        for what in todo:
            measured, layers = self.due(name, what)
            if not (measured or layers):
                continue
            if not self.budget.has_room():
                self.print(f"stopped for the budget of {self.budget.minutes:g} minutes")
                return False
            began = time.monotonic()
            key = self.key(name, what)
            try:
                built = built or self.build(name)
                if measured:
                    self.rows.add(asdict(built.compare(*what, arguments.row_s)))
                row = self.rows.rows[key]
                self.print(self.text_of(row))
                if layers and not row["error"] and row["ratio"] < 1:
                    self.rows.add(row | {"layers": (found := built.layers(*what))})
                    for line in layers_text(found):
                        self.print(line)
            except Exception as error:  # any error becomes the row's outcome
                short = isinstance(error, torch.cuda.OutOfMemoryError)
                text = "out of memory" if short else f"{type(error).__name__}: {error}"
                self.rows.add(asdict(self.outcome(*key, error=text)))
                self.print(self.text_of(self.rows.rows[key]))
            if self.device.type == "cuda":
                torch.cuda.synchronize()  # raises errors that a failure left pending
                torch.cuda.empty_cache()
            self.budget.spend(time.monotonic() - began)
        return True

    def summary(self, rows: Sequence[Row]) -> None:
        """Prints the means, then the rows that are slower than PyTorch's or wrong."""
        self.console.print(means(rows, self.title))
        for row in sorted(rows, key=lambda row: float(row["ratio"])):
            if row["error"] or row["ratio"] < 1:
                self.print(self.text_of(row))
                for line in layers_text(row["layers"], 2) if "layers" in row else ():
                    self.print(line)

    def all(self) -> list[Row]:
        """Measures all rows that the command asks for, and returns those that there are."""
        rows = todo(self.arguments)
        for name in self.arguments.networks:
            if not self.network(name, rows):
                break
        wanted = [self.key(name, what) for name in self.arguments.networks for what in rows]
        return [self.rows.rows[key] for key in wanted if key in self.rows.rows]
