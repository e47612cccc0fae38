"""`python -m bench models`: whole networks beside the same with every convolution ours.

Forward is evaluation without gradients; a step is forward, loss, backward and SGD. Both networks
have the same weights and see the same images. Before they are timed, their outputs, or the loss
and the first convolution's gradient, are held against PyTorch's in IEEE float32: a network
amplifies rounding from layer to layer, so ours may be off twice as far as PyTorch's own.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from . import contenders, networks, results, timing
from .options import several

# Autocast's dtype, and PyTorch's float32 switch.
PRECISIONS: dict[str, tuple[torch.dtype | None, str]] = {
    "fp32": (None, "fp32"),
    "tf32": (None, "tf32"),
    "amp-fp16": (torch.float16, "tf32"),
    "amp-bf16": (torch.bfloat16, "tf32"),
}
MODES = ("forward", "step")
MOST_ERROR = 2.0  # over PyTorch's own
ALWAYS_ALLOWED = 0.02  # of the norm: what IEEE float32 comes to after a whole network and back


@dataclass(frozen=True)
class Outcome:
    """Of one network in one precision, layout and mode; times are milliseconds of a pass."""

    network: str
    mode: str
    precision: str
    layout: str
    batch: int
    error: str = ""
    pytorch_ms: float = 0
    ours_ms: float = 0
    ratio: float = 0
    ratio_lo: float = 0
    ratio_hi: float = 0
    pytorch_mb: float | None = None  # the most memory that a pass takes
    ours_mb: float | None = None
    pytorch_err: float = 0  # of the norm of PyTorch's in IEEE float32
    ours_err: float = 0


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
        self.optimizer = torch.optim.SGD(network.parameters(), lr=1e-3)
        self.call: Callable[[], Tensor] = self.step if mode == "step" else self.forward

    def _output(self) -> Tensor:
        device = self.x.device.type
        with torch.autocast(device, dtype=self.autocast, enabled=self.autocast is not None):
            output: Tensor = self.network(self.x)
            return output

    def forward(self) -> Tensor:
        with torch.no_grad():
            return self._output()

    def loss(self, output: Tensor) -> Tensor:
        return output.float().square().mean()

    def step(self) -> Tensor:
        with torch.enable_grad():
            self.optimizer.zero_grad(set_to_none=True)
            loss = self.loss(self._output())
            self.scaler.scale(loss).backward()
            self.scaler.step(self.optimizer)
            self.scaler.update()
        return loss.detach()

    def evidence(self, mode: str) -> Tensor:
        """What must agree: the output, or after a step the loss and a gradient."""
        if mode == "forward":
            return self.forward().float().flatten()
        state = {name: value.clone() for name, value in self.network.state_dict().items()}
        loss = self.step()
        first = next(m for m in self.network.modules() if isinstance(m, nn.Conv2d))
        assert first.weight.grad is not None
        gradient = first.weight.grad.float().flatten()
        self.network.load_state_dict(state)
        return torch.cat([loss.float().view(1), gradient / gradient.norm().clamp(min=1e-30)])


def _peak_mb(call: Callable[[], Tensor], device: torch.device) -> float | None:
    if device.type != "cuda":
        return None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    call()
    torch.cuda.synchronize(device)
    return (torch.cuda.max_memory_allocated(device) - before) / 2**20


def compare(
    name: str, mode: str, precision: str, layout: str, batch: int, image: int,
    device: torch.device, *, compiled: bool = False, budget_s: float = 5.0,
) -> Outcome:  # fmt: skip
    """Checks and times one network."""
    autocast, float32 = PRECISIONS[precision]
    memory = contenders.LAYOUTS[layout]
    what = (name, mode, precision, layout, batch)
    network = networks.build(name).to(device).to(memory_format=memory)  # type: ignore[call-overload]
    ours = networks.with_our_convolutions(network)
    x = torch.randn(batch, 3, image, image, device=device).contiguous(memory_format=memory)
    with contenders.switches("fp32", "cudnn"):
        expected = Runner(network, x, mode, None).evidence(mode)
    with contenders.switches(float32, "cudnn"):
        pytorchs, mine = (Runner(n, x, mode, autocast) for n in (network, ours))
        pytorch_err, ours_err = (
            ((runner.evidence(mode) - expected).norm() / expected.norm()).item()
            for runner in (pytorchs, mine)
        )
        del expected
        if not ours_err <= max(MOST_ERROR * pytorch_err, ALWAYS_ALLOWED):
            error = f"off by {ours_err:.3g}, PyTorch by {pytorch_err:.3g}"
            return Outcome(*what, error, pytorch_err=pytorch_err, ours_err=ours_err)
        if compiled:
            for runner in (pytorchs, mine):
                runner.network = torch.compile(runner.network)  # type: ignore[assignment]
        peaks = []
        for runner in (pytorchs, mine):
            runner.call()
            peaks.append(_peak_mb(runner.call, device))
        calls = {"ours": [mine.call], "pytorch": [pytorchs.call]}
        times = timing.interleaved(calls, device, most_runs=51, budget_s=budget_s)
    ratio = times.ratios["pytorch"]
    return Outcome(
        *what, "", times.times["pytorch"].median, times.times["ours"].median, ratio.median,
        ratio.low, ratio.high, peaks[0], peaks[1], pytorch_err, ours_err,
    )  # fmt: skip


def table(outcomes: list[Outcome]) -> Table:
    heads = ("PyTorch, ms", "ours, ms", "ratio", "images/s", "PyTorch, MB", "ours, MB",
             "PyTorch's error", "ours")  # fmt: skip
    made = Table("network", "mode", "precision", "layout", box=None, header_style="dim")
    for head in heads:
        made.add_column(head, justify="right")
    for o in outcomes:
        cells: tuple[str, ...] = (o.error,)
        if not o.error:
            memory = ("" if mb is None else f"{mb:.0f}" for mb in (o.pytorch_mb, o.ours_mb))
            cells = (
                f"{o.pytorch_ms:.2f}", f"{o.ours_ms:.2f}",
                f"{o.ratio:.2f} ({o.ratio_lo:.2f}-{o.ratio_hi:.2f})",
                f"{o.batch / o.ours_ms * 1e3:.0f}", *memory,
                f"{o.pytorch_err:.2g}", f"{o.ours_err:.2g}",
            )  # fmt: skip
        made.add_row(o.network, o.mode, o.precision, o.layout, *cells)
    return made


def add_common_arguments(parser: argparse.ArgumentParser) -> None:
    """How networks run, and where to."""
    cuda = torch.cuda.is_available()
    several(parser, "--layouts", contenders.LAYOUTS, ",".join(contenders.LAYOUTS), "layouts")
    several(parser, "--precisions", PRECISIONS, "tf32,amp-fp16" if cuda else "fp32", "precisions")
    parser.add_argument("--batch", type=int, default=64 if cuda else 2)
    parser.add_argument("--image", type=int, default=224 if cuda else 32, help="its sides")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    parser.add_argument("--budget-s", type=float, help="begin nothing after so many seconds")
    parser.add_argument("--json", type=Path, help="a file for the outcomes")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several(parser, "--networks", networks.NETWORKS, ",".join(networks.NETWORKS), "networks")
    several(parser, "--modes", MODES, ",".join(MODES), "what is timed")
    add_common_arguments(parser)
    parser.add_argument("--compile", action="store_true", help="both by torch.compile")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    began = time.monotonic()
    outcomes = []
    todo = [
        (name, mode, precision, layout)
        for name in arguments.networks
        for mode in arguments.modes
        for precision in arguments.precisions
        for layout in arguments.layouts
    ]
    for what in todo:
        if arguments.budget_s and time.monotonic() - began > arguments.budget_s:
            console.print(f"stopped for the budget of {arguments.budget_s:g} s")
            break
        sizes = arguments.batch, arguments.image, device
        try:
            outcome = compare(*what, *sizes, compiled=arguments.compile)
        except torch.cuda.OutOfMemoryError:
            outcome = Outcome(*what, arguments.batch, error="out of memory")
        outcomes.append(outcome)
        if device.type == "cuda":
            torch.cuda.empty_cache()
        ratio = outcome.error or f"{outcome.ratio:.2f}"
        console.print(" ".join(what), ratio, highlight=False)
    console.print(table(outcomes))
    if arguments.json:
        results.save_outcomes(arguments.json, device, "outcomes", outcomes)
    return int(any(o.error for o in outcomes))
