"""`python -m bench models --compile`: networks compiled by us, by Inductor, and not at all.

Each contender runs its own copy of a network, with the same weights and images. CUDA graphs replay
small batches of inference on both compiled sides. Before they are timed, our outputs, or the
gradients of our convolutions, are compared with PyTorch's in IEEE float32 (see evidence.py).
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from rich.console import Console
from torch import Tensor, nn
from torch._dynamo.utils import counters
from torch._inductor.utils import fresh_inductor_cache

import customconv

from . import contenders, evidence, networks, timing
from .kept import Rows
from .models import PRECISIONS, SETTLING, Runner, means
from .results import Row
from .run import Budget

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
    graphs: bool
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
        torch.cuda.synchronize()
        before = counters["stats"]["unique_graphs"]
        with contextlib.nullcontext() if cached else fresh_inductor_cache():
            began = time.monotonic()
            self.call()
            torch.cuda.synchronize()
            seconds = time.monotonic() - began
        for _ in range(2):  # CUDA graphs are recorded in the second call
            self.call()
        torch.cuda.synchronize()
        return seconds, counters["stats"]["unique_graphs"] - before


def compare(
    name: str, network: nn.Module, mode: str, precision: str, layout: str, batch: int, image: int,
    budget_s: float, others: Sequence[str], cached: bool,
) -> Outcome:  # fmt: skip
    """Checks and times one row."""
    autocast, float32 = PRECISIONS[precision]
    graphs = mode == "forward" and batch <= MOST_GRAPHED
    what = (name, mode, precision, layout, batch, image, graphs)
    memory = contenders.LAYOUTS[layout]
    device = next(network.parameters()).device
    generator = torch.Generator(device).manual_seed(1)
    shape = networks.input_shape(network, batch, image)
    x = torch.randn(shape, device=device, generator=generator).contiguous(memory_format=memory)
    taken = evidence.gradients if mode == "step" else evidence.outputs
    seen: dict[str, Any] = {}
    torch._dynamo.reset()
    network.to(memory_format=memory)  # type: ignore[call-overload]
    with contenders.switches("fp32", ""):
        exact = taken(network, x)
    with contenders.switches(float32, "cudnn"):
        pytorchs = evidence.errors(taken(network, x, autocast), exact)
        mine = evidence.errors(taken(networks.ours(network, "compiled"), x, autocast), exact)
        seen |= {"pytorch_err": evidence.total(pytorchs), "ours_err": evidence.total(mine)}
        torch._dynamo.reset()
        if error := evidence.wrong(seen["ours_err"], seen["pytorch_err"], precision):
            return Outcome(*what, error, **seen)
        network.train(mode == "step")
        with (
            torch.set_grad_enabled(mode == "step"),
            torch.autocast(device.type, dtype=autocast, enabled=autocast is not None),
        ):
            report = customconv.explain_compile(network, x, quiet=True)
        seen["fused"] = sum(len(each.parts) > 1 for each in report.convolutions)
        seen["convolutions"] = len(report.convolutions)
        made = [Contender(each, network, x, mode, autocast, graphs) for each in ("ours", *others)]
        costs = {each.name: each.compile(cached=cached) for each in made}
        if not cached:
            seen["compile_s"] = {each: seconds for each, (seconds, _) in costs.items()}
        seen["compiled_graphs"] = {each: count for each, (_, count) in costs.items()}
        times = timing.interleaved(
            {each.name: [each.call] for each in made}, device, most_runs=51, budget_s=budget_s,
            queue_cycles=GRAPH_QUEUE_CYCLES if graphs else timing.QUEUE_CYCLES,
        )  # fmt: skip
    medians = {each: found.median for each, found in times.times.items()}
    best = min(times.ratios, key=lambda each: times.ratios[each].median)
    ratio = times.ratios[best]
    return Outcome(
        *what, "", medians, {each: found.median for each, found in times.ratios.items()},
        ratio.median, ratio.low, ratio.high, times.times["ours"].runs, **seen,
    )  # fmt: skip


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


def main(arguments: argparse.Namespace, todo: Sequence[tuple[str, str, str, int]]) -> int:
    """Measures the rows of each network until the budget is spent."""
    console = Console()
    device = torch.device(arguments.device)
    kept = Rows(arguments.json, device, IDENTITY)
    budget = Budget(arguments.budget_s)
    wanted: list[Row] = []

    def say(text: str) -> None:
        console.print(text, highlight=False, soft_wrap=True)

    for name in arguments.networks:
        network = evidence.awakened(networks.build(name)).to(device)
        images = torch.randn(networks.input_shape(network, SETTLING, arguments.image)).to(device)
        with contenders.switches("fp32", ""):
            evidence.settled(network, images)
        others = ("inductor", "eager", *(("autotune",) if name in arguments.autotune else ()))
        for mode, precision, layout, batch in todo:
            key = (name, mode, precision, layout, batch, arguments.image)
            if arguments.resume and kept.get(*key) is not None:
                wanted.append(kept.rows[key])
                continue
            if not budget.has_room():
                say(f"stopped for the budget of {budget.seconds:g} s")
                break
            began = time.monotonic()
            try:
                row = asdict(compare(
                    name, network, mode, precision, layout, batch, arguments.image,
                    arguments.row_s, others, arguments.cached,
                ))  # fmt: skip
            except Exception as error:  # any error becomes the row's outcome
                text = f"{type(error).__name__}: {error}"
                row = asdict(Outcome(*key, graphs=False, error=text[:500]))
            kept.add(row)
            wanted.append(row)
            say(text_of(row))
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            budget.spend(time.monotonic() - began)
    console.print(means(wanted, "ratios to the better peer"))
    for row in sorted(wanted, key=lambda row: float(row["ratio"])):
        if row["error"] or row["ratio"] < 1:
            say(text_of(row))
    return int(any(row["error"] for row in wanted))
