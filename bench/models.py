"""`python -m bench models`: whole networks with PyTorch's convolutions and with ours.

Forward is evaluation without gradients; a step is forward, loss, backward and SGD. Both networks
have the same weights and see the same images. Before they are timed, their outputs, or the
gradients of their convolutions, are compared with PyTorch's in IEEE float32 (see evidence.py). Our
error may be up to twice PyTorch's.
"""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

import customconv

from . import contenders, evidence, inside, networks, timing
from .kept import Rows
from .options import several
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
LAYERS_S = 60.0  # seconds for the layers of one row


@dataclass(frozen=True)
class Outcome:
    """One row: a network in one precision, layout and mode. Times are milliseconds per pass."""

    network: str
    mode: str
    precision: str
    layout: str
    batch: int
    image: int
    by: str  # how ours is run: one of networks.WAYS
    tuned: bool
    error: str = ""
    pytorch_ms: float = 0
    ours_ms: float = 0
    ratio: float = 0
    ratio_lo: float = 0
    ratio_hi: float = 0
    runs: int = 0
    pytorch_mb: float | None = None  # peak memory of a pass
    ours_mb: float | None = None
    pytorch_err: float = 0  # against IEEE float32: of outputs, or of a step's gradients
    ours_err: float = 0
    routed: int = 0  # convolution passes that our kernels computed
    fallbacks: int = 0  # calls that fell back to PyTorch


What = tuple[str, str, str, int]  # a row's mode, precision, layout and batch
IDENTITY = (
    "network", "mode", "precision", "layout", "batch", "image", "by", "tuned",
)  # fmt: skip


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


def within(by: str, call: Callable[[], Any]) -> Callable[[], Any]:
    """Returns the call, with routing on if that is how ours is run."""

    def routed() -> Any:
        with customconv.enabled():
            return call()

    return routed if by == "routed" else call


def _peak_mb(call: Callable[[], Any], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    call()  # a step's gradients stay allocated: have them in `before` each time
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


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


class Pair(Subject):
    """The network with PyTorch's convolutions and with ours."""

    def __init__(
        self,
        name: str,
        image: int,
        device: torch.device,
        by: str,
        *,
        tuned: bool = False,
    ) -> None:
        super().__init__(name, image, device)
        self.by, self.tuned = by, tuned
        self.ours = networks.ours(self.network, by)
        self.began = {key: value.clone() for key, value in self.network.state_dict().items()}
        self.expected: dict[tuple[str, int], evidence.Named] = {}

    def _errors(
        self, mode: str, precision: str, x: Tensor
    ) -> tuple[float, float, customconv.Stats]:
        """Returns PyTorch's error, our error, and the counts of what computed ours."""
        taken = evidence.gradients if mode == "step" else evidence.outputs
        key = (mode, len(x))
        if key not in self.expected:
            with contenders.switches("fp32", ""):
                self.expected[key] = taken(self.network, x)
        autocast, float32 = PRECISIONS[precision]
        with contenders.switches(float32, "cudnn"):
            pytorchs = evidence.errors(taken(self.network, x, autocast), self.expected[key])
            customconv.stats(reset=True)
            with networks.switched(self.by):
                found = taken(self.ours, x, autocast)
            counted = customconv.stats()
        mine = evidence.errors(found, self.expected[key])
        return evidence.total(pytorchs), evidence.total(mine), counted

    def _runners(self, mode: str, precision: str, x: Tensor) -> list[Runner]:
        """Returns PyTorch's runner and ours; they are one object if the networks are."""
        runners = [Runner(self.network, x, mode, PRECISIONS[precision][0])]
        if self.ours is self.network:
            runners *= 2
        else:
            runners.append(Runner(self.ours, x, mode, PRECISIONS[precision][0]))
        return runners

    @contextlib.contextmanager
    def _laid_out(self, layout: str, batch: int) -> Iterator[Tensor]:
        """Puts both networks in the layout and yields images; restores their weights at the end."""
        memory = contenders.LAYOUTS[layout]
        for network in (self.network, self.ours):
            network.to(memory_format=memory)  # type: ignore[call-overload]
        try:
            yield self.images(batch).contiguous(memory_format=memory)
        finally:
            for network in (self.network, self.ours):
                network.zero_grad(set_to_none=True)
                network.load_state_dict(self.began)

    def compare(
        self, mode: str, precision: str, layout: str, batch: int, budget_s: float
    ) -> Outcome:
        """Checks and times one row."""
        what = (self.name, mode, precision, layout, batch, self.image, self.by, self.tuned)
        with self._laid_out(layout, batch) as x:
            pytorch_err, ours_err, counted = self._errors(mode, precision, x)
            seen: dict[str, Any] = {
                "pytorch_err": pytorch_err, "ours_err": ours_err,
                "routed": sum(counted.calls.values()),
                "fallbacks": sum(counted.fallbacks.values()),
            }  # fmt: skip
            error = evidence.wrong(ours_err, pytorch_err, precision)
            if not error and self.device.type == "cuda" and not counted.calls:
                error = "no convolution was ours"
            if error:
                return Outcome(*what, error, **seen)
            with contenders.switches(PRECISIONS[precision][1], "cudnn"):
                pytorchs, mine = self._runners(mode, precision, x)
                calls = {"ours": within(self.by, mine.call), "pytorch": pytorchs.call}
                if self.tuned:
                    with customconv.tuning():
                        mine.call()
                peaks = {name: _peak_mb(call, self.device) for name, call in calls.items()}
                times = timing.interleaved(
                    {name: [call] for name, call in calls.items()},
                    self.device, most_runs=51, budget_s=budget_s,
                )  # fmt: skip
        ratio = times.ratios["pytorch"]
        return Outcome(
            *what, "", times.times["pytorch"].median, times.times["ours"].median, ratio.median,
            ratio.low, ratio.high, times.times["ours"].runs, peaks["pytorch"], peaks["ours"],
            **seen,
        )  # fmt: skip

    def layers(self, mode: str, precision: str, layout: str, batch: int) -> Row:
        """Times each convolution of a row by itself; returns the totals and those that lose most.

        A row that is bound by the host may lose time though no convolution does.
        """
        autocast, float32 = PRECISIONS[precision]
        with self._laid_out(layout, batch) as x:
            run = Runner(self.network, x, mode, autocast).call
            with contenders.switches(float32, "cudnn"):  # PyTorch caches its first choice
                calls = inside.recorded(self.network, run, float32, layout)
        found = inside.costs(calls, self.device, budget_s=LAYERS_S)
        listed = [each for each in found[:LISTED] if each.lost_ms > 0]
        return {
            "ours_ms": sum(each.calls * each.ours_ms for each in found),
            "pytorch_ms": sum(each.calls * each.pytorch_ms for each in found),
            "timed": f"{len(found)} of {len(calls)}",
            "worst": [asdict(each) | {"lost_ms": each.lost_ms} for each in listed],
        }


def text_of(row: Row) -> str:
    """Formats a row in one line."""
    what = f"{row['network']:18} {row['mode']:7} {row['precision']:8} {row['layout']}"
    what += f" N{row['batch']:<3}"
    if row["error"]:
        return f"{what} {row['error']}"
    memory = "" if row["ours_mb"] is None else f", {row['pytorch_mb']:.0f}, {row['ours_mb']:.0f} MB"
    return (
        f"{what} PyTorch {row['pytorch_ms']:8.3f} ms, ours {row['ours_ms']:8.3f}: "
        f"{row['ratio']:.3f} ({row['ratio_lo']:.3f}-{row['ratio_hi']:.3f}), "
        f"off {row['pytorch_err']:.1e}, {row['ours_err']:.1e}{memory}, "
        f"ours {row['routed']}, PyTorch's {row['fallbacks']}"
    )


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
    parser.add_argument("--budget-s", type=float, help="stop cleanly after this many seconds")
    parser.add_argument("--json", type=Path, help="a file for the outcomes")


def batches(text: str) -> list[int]:
    """Parses comma-separated positive numbers."""
    found = [int(word) for word in text.split(",")]
    if min(found) < 1:
        raise ValueError
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cuda = torch.cuda.is_available()
    several(parser, "--networks", networks.NETWORKS, ",".join(networks.USUAL), "networks")
    several(parser, "--modes", MODES, ",".join(MODES), "what is timed")
    add_common_arguments(parser)
    parser.add_argument(
        "--batch", type=batches, default=[1, 8, 64] if cuda else [2], help="comma-separated sizes"
    )
    parser.add_argument("--row-s", type=float, default=0.5, help="most seconds of timing per row")
    parser.add_argument(
        "--compile", action="store_true", help="compare customconv.compile with torch.compile"
    )
    parser.add_argument(
        "--autotune", type=lambda text: text.split(","), default=[],
        help="with --compile: networks that max-autotune compiles too",
    )  # fmt: skip
    parser.add_argument(
        "--cached", action="store_true",
        help="with --compile: take what Inductor's caches have; compile times are left out",
    )  # fmt: skip
    parser.add_argument(
        "--ahead", type=int, default=0, metavar="N",
        help="with --cached: first check and compile the rows, N at a time, in other processes",
    )  # fmt: skip
    parser.add_argument("--tuned", action="store_true", help="tune ours first")
    parser.add_argument("--resume", action="store_true", help="skip rows that the file has")
    parser.add_argument(
        "--layers", action="store_true", help="time each convolution of rows where ours is slower"
    )


def todo(arguments: argparse.Namespace) -> list[What]:
    """Lists the rows of each network; rows with the same tensor sizes are adjacent."""
    return [
        (mode, precision, layout, batch)
        for layout in arguments.layouts
        for batch in arguments.batch
        for precision in arguments.precisions
        for mode in arguments.modes
    ]


class Run:
    """One command's rows, measured in turn until its budget is spent."""

    identity: Sequence[str] = IDENTITY
    outcome: type[Any] = Outcome  # a row that failed: its identity and the error
    title = "geometric means of ratios"

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self.arguments, self.console = arguments, console
        self.device = torch.device(arguments.device)
        self.rows = Rows(arguments.json, self.device, self.identity)
        self.budget = Budget(arguments.budget_s)

    def key(self, name: str, what: What) -> Key:
        """Returns the values that identify a row."""
        arguments = self.arguments
        return name, *what, arguments.image, arguments.by, arguments.tuned

    def build(self, name: str) -> Any:
        """Builds a network's subject, whose ``compare`` measures a row."""
        arguments = self.arguments
        return Pair(name, arguments.image, self.device, arguments.by, tuned=arguments.tuned)

    def text_of(self, row: Row) -> str:
        """Formats a row in one line."""
        return text_of(row)

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
                self.print(f"stopped for the budget of {self.budget.seconds:g} s")
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


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    if arguments.compile and (arguments.layers or arguments.tuned):
        console.print("--layers and --tuned do not go with --compile")
        return 2
    if arguments.ahead and not (arguments.compile and arguments.cached):
        console.print("--ahead needs --compile and --cached")
        return 2
    if arguments.compile:
        from . import compiled

        return compiled.main(arguments, console)
    run = Run(arguments, console)
    rows = run.all()
    run.summary(rows)
    return int(any(row["error"] for row in rows))
