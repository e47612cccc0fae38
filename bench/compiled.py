"""`python -m bench models --compile`: networks compiled by us, by Inductor, and not at all.

Each contender runs its own copy of a network, with the same weights and images. CUDA graphs replay
small batches of inference on both compiled sides. Before they are timed, our outputs, or the
gradients of our convolutions, are compared with PyTorch's in IEEE float32 (see evidence.py).
"""

from __future__ import annotations

import argparse
import concurrent.futures
import contextlib
import copy
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_inductor_cache

import customconv

from . import contenders, evidence, models, networks, timing
from .models import PRECISIONS, Runner
from .results import Key, Row

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


class Contender:
    """A copy of a network, compiled in one way."""

    def __init__(
        self, name: str, network: nn.Module, x: Tensor, mode: str, autocast: torch.dtype | None,
        graphs: bool,
    ) -> None:  # fmt: skip
        self.name = name
        copied = copy.deepcopy(network)
        COMPILERS[name](copied, {"mode": "reduce-overhead"} if graphs else {})
        self.call = Runner(copied, x, mode, autocast).call

    def compile(self, *, cached: bool) -> tuple[float, int]:
        """Runs it until it is compiled; returns the seconds, and how many graphs there are."""
        before = counters["stats"]["unique_graphs"]
        with contextlib.nullcontext() if cached else fresh_inductor_cache():
            began = time.monotonic()
            self._wait()
            seconds = time.monotonic() - began
        for _ in range(2):  # CUDA graphs are recorded in the second call
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


class Comparison(models.Subject):
    """The network, of which each contender has a copy."""

    def __init__(
        self, name: str, image: int, device: torch.device, others: Sequence[str], *, cached: bool
    ) -> None:  # fmt: skip
        super().__init__(name, image, device)
        self.others, self.cached = others, cached

    def _errors(self, mode: str, x: Tensor, precision: str) -> list[tuple[float, float]]:
        """Returns PyTorch's errors and those of our compiled copy."""
        autocast, float32 = PRECISIONS[precision]
        with contenders.switches("fp32", ""):
            exact = _taken(self.network, mode, x, None)
        with contenders.switches(float32, "cudnn"):
            pytorchs = _taken(self.network, mode, x, autocast)
            mine = _taken(networks.ours(self.network, "compiled"), mode, x, autocast)
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

    def compare(
        self, mode: str, precision: str, layout: str, batch: int, budget_s: float
    ) -> Outcome:
        """Checks and times one row."""
        autocast, float32 = PRECISIONS[precision]
        graphs = mode == "forward" and batch <= MOST_GRAPHED and self.device.type == "cuda"
        what = (self.name, mode, precision, layout, batch, self.image, graphs)
        memory = contenders.LAYOUTS[layout]
        x = self.images(batch).contiguous(memory_format=memory)
        self.network.to(memory_format=memory)  # type: ignore[call-overload]
        torch._dynamo.reset()
        errors = self._errors(mode, x, precision)
        torch._dynamo.reset()
        seen: dict[str, Any] = dict(zip(("pytorch_err", "ours_err"), errors[0], strict=True))
        for pytorchs, mine in errors:
            if error := evidence.wrong(mine, pytorchs, precision):
                return Outcome(*what, error, **seen)
        with contenders.switches(float32, "cudnn"):
            seen |= self._fused(mode, x, autocast)
            made = [
                Contender(each, self.network, x, mode, autocast, graphs)
                for each in ("ours", *self.others)
            ]
            costs = {each.name: each.compile(cached=self.cached) for each in made}
            if not self.cached:
                seen["compile_s"] = {each: seconds for each, (seconds, _) in costs.items()}
            seen["compiled_graphs"] = {each: count for each, (_, count) in costs.items()}
            times = timing.interleaved(
                {each.name: [each.call] for each in made}, self.device, most_runs=51,
                budget_s=budget_s,
                queue_cycles=GRAPH_QUEUE_CYCLES if graphs else timing.QUEUE_CYCLES,
            )  # fmt: skip
        medians = {each: found.median for each, found in times.times.items()}
        best = min(times.ratios, key=lambda each: times.ratios[each].median)
        ratio = times.ratios[best]
        return Outcome(
            *what, "", medians, {each: found.median for each, found in times.ratios.items()},
            ratio.median, ratio.low, ratio.high, times.times["ours"].runs, **seen,
        )  # fmt: skip


class Run(models.Run):
    """The rows of ``bench models --compile``."""

    identity = IDENTITY
    outcome = Outcome
    title = "ratios to the better peer"

    def key(self, name: str, what: models.What) -> Key:
        return name, *what, self.arguments.image

    def build(self, name: str) -> Comparison:
        arguments = self.arguments
        others = ("inductor", "eager", *(("autotune",) if name in arguments.autotune else ()))
        return Comparison(name, arguments.image, self.device, others, cached=arguments.cached)

    def text_of(self, row: Row) -> str:
        return text_of(row)


def compile_ahead(run: Run) -> None:
    """Fills Inductor's caches with what the rows need, several networks at a time."""
    arguments, todo = run.arguments, models.todo(run.arguments)
    due = [name for name in arguments.networks if any(run.due(name, what)[0] for what in todo)]
    threads = max(1, (os.cpu_count() or 1) // arguments.ahead)
    environment = os.environ | {"TORCHINDUCTOR_COMPILE_THREADS": str(threads)}

    def compiled(name: str) -> None:
        command = [
            sys.executable, "-m", "bench", "models", "--compile", "--cached", "--row-s", "0",
            "--networks", name, "--modes", ",".join(arguments.modes),
            "--layouts", ",".join(arguments.layouts),
            "--precisions", ",".join(arguments.precisions),
            "--batch", ",".join(map(str, arguments.batch)), "--image", str(arguments.image),
            "--device", arguments.device, "--autotune", ",".join(arguments.autotune),
        ]  # fmt: skip
        # What fails here fails again where its row is measured, and is that row's error.
        subprocess.run(command, env=environment, stdout=subprocess.DEVNULL, check=False)

    with concurrent.futures.ThreadPoolExecutor(arguments.ahead) as pool:
        list(pool.map(compiled, due))


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
        compile_ahead(run)
    rows = run.all()
    run.summary(rows)
    if text := compile_times(rows):
        run.print(text)
    return int(any(row["error"] for row in rows))
