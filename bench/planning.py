"""`python -m bench planning`: what it takes to plan a convolution.

Every cell of the recorded timings is planned again, some times over. A cell's time is its least:
what disturbs a call only adds to it. That needs no GPU.
"""

from __future__ import annotations

import argparse
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from rich.console import Console
from rich.table import Table

from customconv import _bind

from . import contenders, replayed, timings

ROUNDS = 9
PERCENTILE = 95
WANTED_US = {"fprop": 100, "dgrad": 100, "wgrad": 500}  # of that percentile


def measure(problems: Sequence[_bind.ConvProblem], rounds: int = ROUNDS) -> dict[str, list[float]]:
    """Microseconds that it takes to plan each problem, by pass."""
    least = [float("inf")] * len(problems)
    for _ in range(rounds):
        for i, problem in enumerate(problems):
            begun = time.perf_counter_ns()
            _bind.plan(problem)
            least[i] = min(least[i], (time.perf_counter_ns() - begun) / 1e3)
    by_pass = defaultdict(list)
    for problem, us in zip(problems, least, strict=True):
        by_pass[problem.fields["op"]].append(us)
    return dict(by_pass)


def slow(times: Iterable[float]) -> float:
    """What all but the slowest few take no longer than."""
    return float(np.percentile(list(times), PERCENTILE))


def table(by_pass: Mapping[str, Sequence[float]]) -> Table:
    """Times for people to read."""
    lines = Table(box=None, header_style="dim")
    for head in ("pass", "cells", "median, us", f"{PERCENTILE}th percentile", "wanted"):
        lines.add_column(head, justify="left" if head == "pass" else "right")
    for op in contenders.OPS:
        if times := by_pass.get(op):
            cells = (len(times), np.median(times), slow(times), WANTED_US[op])
            lines.add_row(op, *(f"{cell:.0f}" for cell in cells))
    return lines


def recorded() -> list[_bind.ConvProblem]:
    """The problems of the recorded timings."""
    return [replayed.problem_of(each.cell) for each in timings.read()[1]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="how often a cell is planned")


def main(arguments: argparse.Namespace) -> int:
    Console().print(table(measure(recorded(), arguments.rounds)))
    return 0
