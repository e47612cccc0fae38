"""`python -m bench host`: what one eager call costs the host, ours and PyTorch's.

The convolution is so small that the GPU waits for the host. Calls come in batches, contenders take
turns, and the host waits for the GPU only between batches. Without a GPU the same is timed on the
CPU, where the convolution itself is part of every time.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

import customconv

from . import results

Call = Callable[[], object]

GEOMETRY = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
BASELINE, MODULE_BASELINE = "F.conv2d", "nn.Conv2d"


@dataclass(frozen=True)
class Cost:
    """Microseconds of one call: median and quartiles; the ratio to PyTorch's of the same kind."""

    mode: str
    call: str
    us: float
    low: float
    high: float
    ratio: float


def calls(x: Tensor, w: Tensor, b: Tensor) -> dict[str, Call]:
    """PyTorch's own calls, and ours in every form that a user may write."""
    op = torch.ops.customconv.conv2d
    pytorchs = torch.nn.Conv2d(8, 8, 3, padding=1, device=x.device)
    ours = customconv.Conv2d(8, 8, 3, padding=1, device=x.device)
    for module in (pytorchs, ours):
        module.weight, module.bias = torch.nn.Parameter(w), torch.nn.Parameter(b)
        module.requires_grad_(w.requires_grad)
    found: dict[str, Call] = {
        BASELINE: lambda: functional.conv2d(x, w, b, 1, 1, 1, 1),
        "op": lambda: op(x, w, b, **GEOMETRY),
        "op, positional": lambda: op(x, w, b, 1, 1, 1, 1),
        "op, pairs": lambda: op(x, w, b, (1, 1), (1, 1), (1, 1), 1),
        "customconv.conv2d": lambda: customconv.conv2d(x, w, b, 1, 1, 1, 1),
        MODULE_BASELINE: lambda: pytorchs(x),
        "customconv.Conv2d": lambda: ours(x),
    }
    candidates = customconv.explain(x, w, b, *GEOMETRY.values()).candidates
    for family in (each.family for each in candidates if each.plan or each.family == "aten"):
        found[f"op, {family}"] = lambda f=family: op(x, w, b, **GEOMETRY, algorithm=f)  # type: ignore[misc]
    return found


def with_backward(call: Callable[[], object]) -> Call:
    """The call and the backward pass of its result, as a training step does it."""
    result = call()
    assert isinstance(result, Tensor)
    grad_output = torch.ones_like(result)
    return lambda: torch.autograd.backward(call(), grad_output)  # type: ignore[arg-type]


def replays(found: Mapping[str, Call]) -> dict[str, Call]:
    """A replay of a CUDA graph that holds the call, for each that a user would capture."""
    graphs: dict[str, Call] = {}
    for name in (BASELINE, "op"):
        found[name]()  # libraries set themselves up in a first call, which no graph can hold
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found[name]()
        graphs[name] = graph.replay
    return graphs


def measure(found: Mapping[str, Call], batch: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of a call in each round, the contenders taking turns."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds + 2):  # two to warm up
        for name, call in found.items():
            wait()
            start = time.perf_counter()
            for _ in range(batch):
                call()
            times[name].append((time.perf_counter() - start) / batch * 1e6)
    wait()
    return {name: values[2:] for name, values in times.items()}


def costs(mode: str, times: Mapping[str, list[float]]) -> list[Cost]:
    """The rounds' medians; a ratio is of each round's own pair."""
    found = []
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        base = times[MODULE_BASELINE if name.endswith("Conv2d") else BASELINE]
        ratio = statistics.median(a / b for a, b in zip(values, base, strict=True))
        found.append(Cost(mode, name, median, low, high, ratio))
    return found


def table(found: list[Cost]) -> Table:
    """One mode's costs."""
    made = Table("call", title=found[0].mode, title_justify="left", box=None, header_style="dim")
    for head in ("us", "quartiles", "ratio"):
        made.add_column(head, justify="right")
    for cost in found:
        span = f"{cost.low:.2f} - {cost.high:.2f}"
        made.add_row(cost.call, f"{cost.us:.2f}", span, f"{cost.ratio:.3f}")
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, help="a file to write the costs to")
    parser.add_argument("--batch", type=int, default=200, help="calls between two waits")
    parser.add_argument("--rounds", type=int, default=30, help="batches of each contender")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    cuda = torch.cuda.is_available() and customconv.build_info()["with_cuda"]
    device = torch.device("cuda" if cuda else "cpu")
    if not cuda:
        torch.set_num_threads(1)
        console.print("no GPU: the CPU's own work is in every time")

    def tensors(requires_grad: bool) -> list[Tensor]:
        shapes = ((1, 8, 8, 8), (8, 8, 3, 3), (8,))
        return [torch.randn(s, device=device, requires_grad=requires_grad) for s in shapes]

    plain, recorded = calls(*tensors(False)), calls(*tensors(True))
    modes: dict[str, Mapping[str, Call]] = {
        "no gradient": plain,
        "forward, gradient recorded": recorded,
        "forward and backward": {name: with_backward(call) for name, call in recorded.items()},
    }
    found = []
    gc.disable()
    try:
        for mode, contenders_ in modes.items():
            batch = max(1, arguments.batch // (2 if mode == "forward and backward" else 1))
            with torch.set_grad_enabled(mode != "no gradient"):
                found.append(costs(mode, measure(contenders_, batch, arguments.rounds)))
        if cuda:
            with torch.no_grad():
                times = measure(replays(plain), arguments.batch, arguments.rounds)
            found.append(costs("replay of a CUDA graph", times))
    finally:
        gc.enable()
    for mode_costs in found:
        console.print(table(mode_costs))
    if arguments.json:
        rows = (cost for mode_costs in found for cost in mode_costs)
        results.save_outcomes(arguments.json, device, "rows", rows)
    return 0
