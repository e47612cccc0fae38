"""`python -m bench models`: whole networks with PyTorch's convolutions and with ours.

Forward is evaluation without gradients; a step is forward, loss, backward and SGD. Both networks
have the same weights and see the same images. Before they are timed, their outputs, or the
gradients of their convolutions, are compared with PyTorch's in IEEE float32 (see evidence.py). Our
error may be up to twice PyTorch's.
"""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import torch
from rich.console import Console
from torch import Tensor

import customconv

from . import compiled, contenders, evidence, inside, network_rows, networks, timing
from .network_rows import LISTED, MODES, PRECISIONS, Runner, Subject, What
from .options import several
from .results import Key, Row

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


IDENTITY = (
    "network", "mode", "precision", "layout", "batch", "image", "by", "tuned",
)  # fmt: skip


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
        for network in (self.network, self.ours):
            networks.lay_out(network, layout)
        try:
            yield networks.laid_out(self.images(batch), layout)
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
    network_rows.add_common_arguments(parser)
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


class Run(network_rows.Run):
    """The rows of ``bench models``."""

    identity = IDENTITY
    outcome = Outcome
    title = "geometric means of ratios"

    def key(self, name: str, what: What) -> Key:
        arguments = self.arguments
        return name, *what, arguments.image, arguments.by, arguments.tuned

    def build(self, name: str) -> Pair:
        arguments = self.arguments
        return Pair(name, arguments.image, self.device, arguments.by, tuned=arguments.tuned)

    def text_of(self, row: Row) -> str:
        return text_of(row)


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    if arguments.compile and (arguments.layers or arguments.tuned):
        console.print("--layers and --tuned do not go with --compile")
        return 2
    if arguments.ahead and not (arguments.compile and arguments.cached):
        console.print("--ahead needs --compile and --cached")
        return 2
    if arguments.compile:
        return compiled.main(arguments, console)
    run = Run(arguments, console)
    rows = run.all()
    run.summary(rows)
    return int(any(row["error"] for row in rows))
