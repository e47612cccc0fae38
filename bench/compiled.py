"""`python -m bench models --compile`: networks compiled by us, by Inductor, and not at all.

Each contender runs its own copy of a network, with the same weights and images. CUDA graphs replay
small batches of inference on both compiled sides. Before they are timed, our outputs, or the
gradients of our convolutions, are compared with PyTorch's in IEEE float32 (see evidence.py).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import gc
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import as_completed
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch._inductor.utils import fresh_inductor_cache

import customconv

from . import contenders, evidence, network_rows, networks, timing
from .network_rows import PRECISIONS, Runner, Subject, What
from .results import Key, Row
from .workers import workers

# How each contender compiles a network in place.
COMPILERS: dict[str, Callable[[nn.Module, dict[str, Any]], None]] = {
    "ours": lambda network, options: network.compile(
        backend=customconv.compiler.backend, **options
    ),
    "inductor": lambda network, options: network.compile(**options),
    "autotune": lambda network, options: network.compile(
        mode="max-autotune" if options else "max-autotune-no-cudagraphs"
    ),
    "eager": lambda network, options: None,
}
OTHERS = "inductor", "eager"  # and "autotune" where it is asked for
REPLAYED = 3  # the first call whose CUDA graph was recorded before
MOST_GRAPHED = 8  # images of the largest batch that CUDA graphs replay
GRAPH_QUEUE_CYCLES = 4_000_000  # 2 ms: a graph's time is the GPU's, which the host keeps ahead of

IDENTITY = ("network", "mode", "precision", "layout", "batch", "image")


@dataclass(frozen=True)
class Outcome:
    """One row: a network in one precision, layout and mode. Times are milliseconds per pass."""

    network: str
    mode: str
    precision: str
    layout: str
    batch: int
    image: int
    graphs: bool = False  # whether CUDA graphs replay it
    error: str = ""
    ms: dict[str, float] = field(default_factory=dict)
    ratios: dict[str, float] = field(default_factory=dict)  # of others' times to ours
    ratio: float = 0  # of the best other's time to ours
    ratio_lo: float = 0
    ratio_hi: float = 0
    runs: int = 0
    compile_s: dict[str, float] = field(default_factory=dict)
    compiled_graphs: dict[str, int] = field(default_factory=dict)
    fused: int = 0  # convolutions with something else in one kernel
    convolutions: int = 0
    pytorch_err: float = 0  # against IEEE float32: of outputs, or of a step's gradients
    ours_err: float = 0


def compiled_copy(name: str, network: nn.Module, graphs: bool) -> nn.Module:
    """Returns a contender's copy of a network."""
    copied = copy.deepcopy(network)
    COMPILERS[name](copied, {"mode": "reduce-overhead"} if graphs else {})
    return copied


class Contender:
    """A copy of a network, compiled in one way."""

    def __init__(
        self, name: str, network: nn.Module, x: Tensor, mode: str, autocast: torch.dtype | None,
        graphs: bool,
    ) -> None:  # fmt: skip
        self.name = name
        self.call = Runner(compiled_copy(name, network, graphs), x, mode, autocast).call

    def compile(self, *, cached: bool) -> tuple[float, int]:
        """Runs it until it is compiled; returns the seconds, and how many graphs there are."""
        before = counters["stats"]["unique_graphs"]
        with contextlib.nullcontext() if cached else fresh_inductor_cache():
            began = time.monotonic()
            self._wait()
            seconds = time.monotonic() - began
        for _ in range(REPLAYED - 1):
            self._wait()
        return seconds, counters["stats"]["unique_graphs"] - before

    def _wait(self) -> None:
        self.call()
        if torch.cuda.is_available():
            torch.cuda.synchronize()


def _taken(
    network: nn.Module, mode: str, x: Tensor, autocast: torch.dtype | None
) -> Sequence[evidence.Named]:
    """Returns outputs, or a step's gradients and running statistics."""
    if mode == "forward":
        return [evidence.outputs(network, x, autocast)]
    return [found for found in evidence.trained(network, x, autocast) if found]


class Comparison(Subject):
    """The network, of which each contender has a copy."""

    def __init__(
        self, name: str, image: int, device: torch.device, others: Sequence[str], *, cached: bool,
        checked: Mapping[What, Outcome] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(name, image, device)
        self.others, self.cached = others, cached
        self.checked = checked or {}

    def _errors(
        self, mode: str, x: Tensor, precision: str, graphs: bool
    ) -> list[tuple[float, float]]:
        """Returns PyTorch's errors and those of our compiled copy."""
        autocast, float32 = PRECISIONS[precision]
        with contenders.switches("fp32", ""):
            exact = _taken(self.network, mode, x, None)
        with contenders.switches(float32, "cudnn"):
            pytorchs = _taken(self.network, mode, x, autocast)
            ours = compiled_copy("ours", self.network, graphs)
            for _ in range(REPLAYED if graphs else 1):
                mine = _taken(ours, mode, x, autocast)
        return [
            (evidence.total(evidence.errors(a, expected)),
             evidence.total(evidence.errors(b, expected)))
            for a, b, expected in zip(pytorchs, mine, exact, strict=True)
        ]  # fmt: skip

    def _fused(self, mode: str, x: Tensor, autocast: torch.dtype | None) -> dict[str, int]:
        """Counts the convolutions, and those with something else in one kernel."""
        self.network.train(mode == "step")
        with torch.set_grad_enabled(mode == "step"), evidence.autocast_of(x, autocast):
            report = customconv.explain_compile(self.network, x, quiet=True)
        fused = sum(len(each.parts) > 1 for each in report.convolutions)
        return {"fused": fused, "convolutions": len(report.convolutions)}

    def _laid_out(self, layout: str, batch: int) -> Tensor:
        """Puts the network in the layout, forgets what was compiled, and returns images."""
        networks.lay_out(self.network, layout)
        torch._dynamo.reset()
        return networks.laid_out(self.images(batch), layout)

    def check(self, mode: str, precision: str, layout: str, batch: int) -> Outcome:
        """Returns a row without times: whether it is right, and what is fused."""
        graphs = mode == "forward" and batch <= MOST_GRAPHED and self.device.type == "cuda"
        outcome = Outcome(self.name, mode, precision, layout, batch, self.image, graphs)
        x = self._laid_out(layout, batch)
        errors = self._errors(mode, x, precision, graphs)
        seen: dict[str, Any] = dict(zip(("pytorch_err", "ours_err"), errors[0], strict=True))
        for pytorchs, mine in errors:
            if error := evidence.wrong(mine, pytorchs, precision):
                return replace(outcome, error=error, **seen)
        autocast, float32 = PRECISIONS[precision]
        with contenders.switches(float32, "cudnn"):
            seen |= self._fused(mode, x, autocast)
        return replace(outcome, **seen)

    def _compiled(self, of: Outcome) -> tuple[list[Contender], dict[str, tuple[float, int]]]:
        """Returns a row's contenders, and each one's seconds of compiling and graphs."""
        x = self._laid_out(of.layout, of.batch)
        autocast, _ = PRECISIONS[of.precision]
        made = [
            Contender(each, self.network, x, of.mode, autocast, of.graphs)
            for each in ("ours", *self.others)
        ]
        return made, {each.name: each.compile(cached=self.cached) for each in made}

    def prepare(self, *what: Any) -> Outcome:
        """Checks a row, and fills Inductor's caches with what its contenders need."""
        checked = self.check(*what)
        if not checked.error:
            with contenders.switches(PRECISIONS[checked.precision][1], "cudnn"):
                self._compiled(checked)
        return checked

    def compare(
        self, mode: str, precision: str, layout: str, batch: int, budget_s: float
    ) -> Outcome:
        """Checks a row, unless that is done, and times it."""
        what = mode, precision, layout, batch
        checked = self.checked.get(what) or self.check(*what)
        if checked.error:
            return checked
        with contenders.switches(PRECISIONS[precision][1], "cudnn"):
            made, costs = self._compiled(checked)
            times = timing.interleaved(
                {each.name: [each.call] for each in made}, self.device, most_runs=51,
                budget_s=budget_s,
                queue_cycles=GRAPH_QUEUE_CYCLES if checked.graphs else timing.QUEUE_CYCLES,
            )  # fmt: skip
        best = min(times.ratios, key=lambda each: times.ratios[each].median)
        ratio = times.ratios[best]
        seconds = {} if self.cached else {each: seconds for each, (seconds, _) in costs.items()}
        return replace(
            checked,
            ms={each: found.median for each, found in times.times.items()},
            ratios={each: found.median for each, found in times.ratios.items()},
            ratio=ratio.median, ratio_lo=ratio.low, ratio_hi=ratio.high,
            runs=times.times["ours"].runs, compile_s=seconds,
            compiled_graphs={each: count for each, (_, count) in costs.items()},
        )  # fmt: skip


class Run(network_rows.Run):
    """The rows of ``bench models --compile``."""

    identity = IDENTITY
    outcome = Outcome
    title = "ratios to the better peer"

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        super().__init__(arguments, console)
        self.checked: dict[str, dict[What, Outcome]] = {}  # ahead, by network

    def key(self, name: str, what: What) -> Key:
        return name, *what, self.arguments.image

    def build(self, name: str) -> Comparison:
        arguments = self.arguments
        others = (*OTHERS, "autotune") if name in arguments.autotune else OTHERS
        return Comparison(
            name, arguments.image, self.device, others, cached=arguments.cached,
            checked=self.checked.get(name),
        )  # fmt: skip

    def text_of(self, row: Row) -> str:
        return text_of(row)


@functools.lru_cache(maxsize=1)
def _built(name: str, image: int, device: str) -> Comparison:
    # Without max-autotune, which chooses kernels by time: that needs an idle GPU.
    return Comparison(name, image, torch.device(device), OTHERS, cached=True)


def _prepared(name: str, what: What, image: int, device: str) -> Outcome:
    """Prepares a row in another process."""
    try:
        return _built(name, image, device).prepare(*what)
    finally:
        torch._dynamo.reset()
        gc.collect()
        torch.cuda.empty_cache()


def prepare_ahead(run: Run) -> None:
    """Checks and compiles the rows that are due, several at a time, in other processes."""
    arguments, todo = run.arguments, network_rows.todo(run.arguments)
    rows = [(name, what) for name in arguments.networks for what in todo if run.due(name, what)[0]]
    with workers(arguments.ahead) as pool:
        prepared = {
            pool.submit(_prepared, *row, arguments.image, arguments.device): row for row in rows
        }
        for future in as_completed(prepared):
            name, what = prepared[future]
            # What fails here fails again where the row is measured, and is its error.
            if future.exception() is None:
                run.checked.setdefault(name, {})[what] = future.result()
    # Triton kernels' configurations were chosen by time, while others used the GPU.
    for choice in Path(cache_dir()).rglob("*.best_config"):
        choice.unlink(missing_ok=True)


def text_of(row: Row) -> str:
    """Formats a row in one line."""
    what = f"{row['network']:18} {row['mode']:7} {row['precision']:8} {row['layout']}"
    what += f" N{row['batch']:<3}{'graphs' if row['graphs'] else '':6}"
    if row["error"]:
        return f"{what} {row['error']}"
    times = ", ".join(f"{name} {ms:.3f}" for name, ms in row["ms"].items())
    compiled = ", ".join(f"{name} {s:.0f}" for name, s in row["compile_s"].items() if s >= 1)
    return (
        f"{what} {row['ratio']:.3f} ({row['ratio_lo']:.3f}-{row['ratio_hi']:.3f}) of {times} ms, "
        + (f"compiled in {compiled} s, " if compiled else "")
        + f"{row['fused']} of {row['convolutions']} fused, "
        f"off {row['pytorch_err']:.1e}, {row['ours_err']:.1e}"
    )


def compile_times(rows: Sequence[Row]) -> str:
    """Says how our compile times compare with Inductor's; empty where none were taken."""
    ratios = [row["compile_s"]["ours"] / row["compile_s"]["inductor"]
              for row in rows if not row["error"] and row["compile_s"]]  # fmt: skip
    if not ratios:
        return ""
    return (
        f"compile times over Inductor's: {timing.geomean(ratios):.2f} in the geometric mean, "
        f"{max(ratios):.2f} at most"
    )


def main(arguments: argparse.Namespace, console: Console) -> int:
    """Measures the rows of each network until the budget is spent."""
    run = Run(arguments, console)
    if arguments.ahead:
        prepare_ahead(run)
    rows = run.all()
    run.summary(rows)
    if text := compile_times(rows):
        run.print(text)
    return int(any(row["error"] for row in rows))
