"""`python -m bench kernelbench`: KernelBench's level-1 convolutions by KernelBench's rules.

A module is right if it agrees with the reference for five seeds, each with new weights and inputs.
Its time is the mean of 100 runs between CUDA events, after three warm-up runs and one that is not
counted. The L2 cache is overwritten before each run. As in KernelBench, the reference is timed
without gradients and the module with gradients recorded. ``fast_p`` is the share of problems that
are right and more than p times as fast.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from .. import results
from ..contenders import DTYPES, switches
from ..options import minutes
from ..run import Budget
from .problems import PROBLEMS, Problem

SEEDS = (42, 43, 44, 45, 46)
WARM_UP, DISCARDED, TRIALS = 3, 1, 100
FLUSHED_BYTES = 256 << 20
TOLERANCES = {torch.float32: 1e-4, torch.float16: 1e-2, torch.bfloat16: 1e-2}
FAST = (0.5, 0.8, 1.0, 1.5, 2.0)


@dataclass(frozen=True)
class Outcome:
    """The result of one problem in one precision."""

    number: int
    name: str
    precision: str
    wrong: str  # what is wrong, or ""
    reference_ms: float
    ours_ms: float

    @property
    def speedup(self) -> float:
        return self.reference_ms / self.ours_ms


def _models(
    problem: Problem, seed: int, device: torch.device, dtype: torch.dtype
) -> tuple[nn.Module, nn.Module]:
    made = []
    for model in (problem.reference, problem.ModelNew):
        torch.manual_seed(seed)
        made.append(model(*problem.arguments).to(device, dtype))
    return made[0], made[1]


def disagreement(ours: Tensor, reference: Tensor, tolerance: float) -> str:
    """Says what is wrong with a result; empty if it is right."""
    if ours.shape != reference.shape:
        return f"shape is {tuple(ours.shape)} instead of {tuple(reference.shape)}"
    if torch.allclose(ours, reference, rtol=tolerance, atol=tolerance):
        return ""
    apart = (ours - reference).abs_().max().item()
    return f"off by up to {apart:.3g}; {tolerance:g} is allowed"


def check(problem: Problem, precision: str, device: torch.device) -> str:
    """Says what is wrong for the first seed that fails; empty if all are right.

    Where TF32 is allowed, the result may agree with the reference without TF32 instead: a result
    that is more exact than the reference is not wrong.
    """
    dtype = DTYPES[precision]
    for seed in SEEDS:
        torch.manual_seed(seed)
        x = problem.make_input(device, dtype)
        untouched = x.clone()
        reference, ours = _models(problem, seed, device, dtype)
        with torch.no_grad():
            y = ours(x)
            wrong = disagreement(y, reference(x), TOLERANCES[dtype])
            if wrong and precision == "tf32":
                with switches("fp32", "aten-heuristic"):
                    exact = reference(x)
                wrong = disagreement(y, exact, TOLERANCES[dtype]) and wrong
        if not torch.equal(x, untouched):
            wrong = "the input was written to"
        if wrong:
            return f"seed {seed}: {wrong}"
    return ""


def mean_ms(call: Callable[[], object], device: torch.device, trials: int) -> float:
    """Returns the mean time of the trials in milliseconds."""
    cuda = device.type == "cuda"
    flushed = torch.empty(FLUSHED_BYTES if cuda else 0, dtype=torch.uint8, device=device)
    for _ in range(WARM_UP):
        call()
    times = []
    for _ in range(DISCARDED + trials):
        if cuda:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            torch.cuda.synchronize(device)
            flushed.fill_(42)
            start.record()
            call()
            end.record()
            torch.cuda.synchronize(device)
            times.append(start.elapsed_time(end))
        else:
            began = time.perf_counter()
            call()
            times.append((time.perf_counter() - began) * 1e3)
    return statistics.fmean(times[DISCARDED:])


def evaluate(
    number: int, problem: Problem, precision: str, device: torch.device, trials: int
) -> Outcome:
    """Checks a module, then times it. A wrong module is timed too, but counts as wrong."""
    with switches(precision, "aten-heuristic"):
        wrong = check(problem, precision, device)
        x = problem.make_input(device, DTYPES[precision])
        reference, ours = _models(problem, SEEDS[0], device, DTYPES[precision])
        reference_ms = mean_ms(lambda: reference(x), device, trials)
        with torch.enable_grad():
            ours_ms = mean_ms(lambda: ours(x), device, trials)
    return Outcome(number, problem.name, precision, wrong, reference_ms, ours_ms)


def fast_p(outcomes: Sequence[Outcome], p: float) -> float:
    """The share of problems that are right and more than p times as fast as the reference."""
    return sum(not o.wrong and o.speedup > p for o in outcomes) / len(outcomes)


def tables(outcomes: Sequence[Outcome]) -> list[Table]:
    """Returns a table with a row per problem, and one of fast_p by precision."""
    times = Table("problem", "", "precision", box=None, header_style="dim")
    for head in ("PyTorch, ms", "ours, ms", "speedup"):
        times.add_column(head, justify="right")
    times.add_column("")
    for o in outcomes:
        numbers = f"{o.reference_ms:.4g}", f"{o.ours_ms:.4g}", f"{o.speedup:.2f}"
        times.add_row(str(o.number), o.name, o.precision, *numbers, o.wrong or "right")
    shares = Table("precision", "right", box=None, header_style="dim")
    for p in FAST:
        shares.add_column(f"fast_{p:g}", justify="right")
    for precision in dict.fromkeys(o.precision for o in outcomes):
        chosen = [o for o in outcomes if o.precision == precision]
        right = f"{sum(not o.wrong for o in chosen)} of {len(chosen)}"
        shares.add_row(precision, right, *(f"{fast_p(chosen, p):.2f}" for p in FAST))
    return [times, shares]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cuda = torch.cuda.is_available()
    parser.add_argument("--problems", default="", help="comma-separated numbers; by default all")
    parser.add_argument("--precision", default="tf32,fp16" if cuda else "fp32", help="with commas")
    parser.add_argument("--trials", type=int, default=TRIALS)
    parser.add_argument("--smaller", type=int, default=1, help="divide the batch and image sizes")
    parser.add_argument("--device", default="cuda" if cuda else "cpu")
    minutes(parser)
    parser.add_argument("--json", type=Path, help="a file for the outcomes")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    device = torch.device(arguments.device)
    numbers = [int(word) for word in arguments.problems.split(",") if word]
    precisions = arguments.precision.split(",")
    unknown = [*(set(numbers) - {*PROBLEMS}), *(set(precisions) - {*DTYPES})]
    if unknown:
        known = [*map(str, PROBLEMS), *DTYPES]
        console.print(f"no {', '.join(map(str, unknown))}: expected some of {', '.join(known)}")
        return 2
    budget = Budget(arguments.minutes)
    outcomes = []
    for number in numbers or sorted(PROBLEMS):
        for precision in precisions:
            if not budget.has_room():
                console.print(f"{number} in {precision} is not measured: the budget is spent")
                continue
            problem = PROBLEMS[number].smaller(arguments.smaller)
            outcomes.append(evaluate(number, problem, precision, device, arguments.trials))
            if device.type == "cuda":
                torch.cuda.empty_cache()
    if not outcomes:
        return 2
    for table in tables(outcomes):
        console.print(table)
    if arguments.json:
        results.save_outcomes(arguments.json, device, "outcomes", outcomes)
    return int(any(o.wrong for o in outcomes))
