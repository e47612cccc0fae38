"""`python -m bench host`: the host time of one eager call, ours and PyTorch's.

The convolution is so small that the GPU waits for the host. Calls come in batches, contenders take
turns, and the host waits for the GPU only between batches. Without a GPU the calls run on the CPU:
then the times include the convolution itself, and nothing is routed.

To measure what importing customconv costs while routing is off, processes that did import it take
turns with processes that never do (bare.py). There are several of each, as equal processes differ.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn import functional

import customconv

from . import bare, results
from .bare import MODES, REPLAY, Call
from .options import several

GEOMETRY = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
SHORTER = 8  # batches whose least time counts are that much shorter, and as many more
FUNCTIONS: dict[int, Callable[..., Tensor]] = {
    1: functional.conv1d, 2: functional.conv2d, 3: functional.conv3d,
}  # fmt: skip
LISTS = {2: "pairs", 3: "triples"}


def baseline(dims: int) -> str:
    """PyTorch's call, which the others are compared with."""
    return f"F.conv{dims}d"


def routed(dims: int) -> str:
    """The same call, made while routing is on."""
    return f"F.conv{dims}d, routed"


@dataclass(frozen=True)
class Cost:
    """Microseconds per call, median and quartiles, and the ratio to PyTorch's call of that kind."""

    mode: str
    call: str
    us: float
    low: float
    high: float
    ratio: float


@dataclass(frozen=True)
class Presence:
    """Microseconds of `F.conv2d` in processes without customconv, and in others with routing off.

    A process's time is the least of its rounds: what disturbs a call only adds to it. The two times
    are medians over processes, ``more_us`` is their difference, and ``spread_us`` is the largest
    difference between processes of one kind.
    """

    mode: str
    without_us: float
    off_us: float
    more_us: float
    spread_us: float


def calls(x: Tensor, w: Tensor, b: Tensor) -> dict[str, Call]:
    """Returns PyTorch's own calls, and ours in every form that a user may write.

    There is no operator of signals: that of images computes them, with a height of one.
    """
    dims = w.ndim - 2
    forward, function = FUNCTIONS[dims], getattr(customconv, f"conv{dims}d")
    pytorchs = getattr(torch.nn, f"Conv{dims}d")(8, 8, 3, padding=1, device=x.device)
    ours = getattr(customconv, f"Conv{dims}d")(8, 8, 3, padding=1, device=x.device)
    for module in (pytorchs, ours):
        module.weight, module.bias = torch.nn.Parameter(w), torch.nn.Parameter(b)
        module.requires_grad_(w.requires_grad)
    found: dict[str, Call] = {
        baseline(dims): lambda: forward(x, w, b, 1, 1, 1, 1),
        routed(dims): lambda: forward(x, w, b, 1, 1, 1, 1),
    }
    if dims > 1:
        op, ones = getattr(torch.ops.customconv, f"conv{dims}d"), (1,) * dims
        found |= {
            "op": lambda: op(x, w, b, **GEOMETRY),
            "op, positional": lambda: op(x, w, b, 1, 1, 1, 1),
            f"op, {LISTS[dims]}": lambda: op(x, w, b, ones, ones, ones, 1),
        }
    found |= {
        f"customconv.conv{dims}d": lambda: function(x, w, b, 1, 1, 1, 1),
        f"nn.Conv{dims}d": lambda: pytorchs(x),
        f"customconv.Conv{dims}d": lambda: ours(x),
    }
    if dims > 1:
        candidates = customconv.explain(x, w, b, *GEOMETRY.values()).candidates
        for family in (each.family for each in candidates if each.plan or each.family == "aten"):
            found[f"op, {family}"] = lambda f=family: op(x, w, b, **GEOMETRY, algorithm=f)  # type: ignore[misc]
    return found


def switched(name: str) -> contextlib.AbstractContextManager[None]:
    """Returns the context that a contender runs in: routing is on for the routed one."""
    return customconv.enabled() if name.endswith(", routed") else contextlib.nullcontext()


def replays(found: Mapping[str, Call]) -> dict[str, Call]:
    """Returns CUDA graph replays of the calls that a user would capture."""
    graphs: dict[str, Call] = {}
    for name in found:
        if name != "op" and not name.startswith("F."):
            continue
        with switched(name):
            graphs[name] = bare.replayed(found[name])
    return graphs


def measure(found: Mapping[str, Call], batch: int, rounds: int) -> dict[str, list[float]]:
    """Returns microseconds per call in each round; the contenders take turns."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times: dict[str, list[float]] = {name: [] for name in found}
    for _ in range(rounds + 2):  # two to warm up
        for name, call in found.items():
            with switched(name):
                times[name].append(bare.microseconds(call, batch, wait))
    wait()
    return {name: values[2:] for name, values in times.items()}


class Process:
    """Another process that times `F.conv2d`, with customconv imported or not."""

    def __init__(self, *words: str) -> None:
        self.child = subprocess.Popen(
            [sys.executable, "-m", "bench.bare", *words], cwd=results.ROOT, text=True,
            stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        )  # fmt: skip

    def _line(self) -> str:
        assert self.child.stdout is not None
        if not (line := self.child.stdout.readline()):
            raise RuntimeError(f"a process of bench.bare ended with status {self.child.wait()}")
        return line

    def wait(self) -> None:
        """Waits until the process is ready."""
        while self._line() != "ready\n":
            pass

    def us(self, mode: str, batch: int) -> float:
        """Has the process make ``batch`` calls, and returns microseconds per call."""
        assert self.child.stdin is not None
        print(mode, batch, file=self.child.stdin, flush=True)
        return float(self._line())

    def end(self) -> None:
        """Ends the process and waits for it."""
        self.child.communicate()


@contextlib.contextmanager
def processes(count: int) -> Iterator[tuple[list[Process], list[Process]]]:
    """Starts ``count`` processes without customconv and as many with it; yields them when ready."""
    without, off = ([Process(*words) for _ in range(count)] for words in ((), ("customconv",)))
    try:
        for process in (*without, *off):
            process.wait()
        yield without, off
    finally:
        for process in (*without, *off):
            process.end()


def presence(mode: str, without: Sequence[list[float]], off: Sequence[list[float]]) -> Presence:
    """Compares the least times of processes of both kinds; each list holds one process's rounds."""
    least = [[min(rounds) for rounds in kind] for kind in (without, off)]
    bare_us, off_us = map(statistics.median, least)
    spread = max(max(kind) - min(kind) for kind in least)
    return Presence(mode, bare_us, off_us, off_us - bare_us, spread)


def presences(modes: Sequence[str], batch: int, rounds: int, count: int) -> list[Presence]:
    """Measures what importing customconv costs in each mode; both kinds of process take turns."""
    with processes(count) as kinds:
        turns = [process for pair in zip(*kinds, strict=True) for process in pair]
        found = []
        for mode in modes:
            times: dict[Process, list[float]] = {process: [] for process in turns}
            for number in range(rounds + 2):  # two to warm up
                for process in turns if number % 2 else reversed(turns):
                    times[process].append(process.us(mode, batch))
            found.append(
                presence(mode, *([times[process][2:] for process in kind] for kind in kinds))
            )
    return found


def costs(mode: str, times: Mapping[str, list[float]], dims: int = 2) -> list[Cost]:
    """Returns the medians of the rounds; ratios are formed round by round."""
    module = f"nn.Conv{dims}d"
    found = []
    for name, values in times.items():
        low, median, high = statistics.quantiles(values, n=4)
        base = times[module if name.endswith(f"Conv{dims}d") else baseline(dims)]
        ratio = statistics.median(a / b for a, b in zip(values, base, strict=True))
        found.append(Cost(mode, name, median, low, high, ratio))
    return found


def measured(device: torch.device, dims: int, batch: int, rounds: int) -> list[list[Cost]]:
    """Measures the calls of so many dimensions in each mode."""
    plain, recorded = (calls(*bare.tensors(device, gradient, dims)) for gradient in (False, True))
    backward = {}
    for name, call in recorded.items():
        backward[name] = bare.with_backward(call)
    batches = (batch, batch, max(1, batch // 2))
    found = []
    for mode, contenders, each in zip(MODES, (plain, recorded, backward), batches, strict=True):
        with torch.set_grad_enabled(mode != MODES[0]):
            found.append(costs(mode, measure(contenders, each, rounds), dims))
    if device.type == "cuda":
        with torch.no_grad():
            times = measure(replays(plain), batch, rounds)
        found.append(costs(REPLAY, times, dims))
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


def presence_table(found: Sequence[Presence]) -> Table:
    """What importing customconv costs in each mode."""
    made = Table("mode", title="F.conv2d while routing is off", title_justify="left", box=None,
                 header_style="dim")  # fmt: skip
    for head in ("without us", "with us", "more", "equal ones apart"):
        made.add_column(head, justify="right", no_wrap=True)
    for each in found:
        made.add_row(
            each.mode, f"{each.without_us:.3f}", f"{each.off_us:.3f}", f"{each.more_us:+.3f}",
            f"{each.spread_us:.3f}",
        )  # fmt: skip
    return made


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, help="a file to write the costs to")
    several(
        parser, "--dims", map(str, FUNCTIONS), "2",
        "convolutions of signals, images or volumes: of so many dimensions",
    )  # fmt: skip
    parser.add_argument("--batch", type=int, default=200, help="calls per batch")
    parser.add_argument("--rounds", type=int, default=30, help="batches of each contender")
    parser.add_argument(
        "--processes", type=int, default=4,
        help="processes without customconv, and as many with routing off, which convolve images; "
        "0 skips this",
    )  # fmt: skip


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    cuda = torch.cuda.is_available() and customconv.build_info()["with_cuda"]
    device = torch.device("cuda" if cuda else "cpu")
    if not cuda:
        torch.set_num_threads(1)
        console.print("no GPU: the CPU's own work is in every time")

    found = []
    gc.disable()
    try:
        for dims in map(int, arguments.dims):
            found += measured(device, dims, arguments.batch, arguments.rounds)
    finally:
        gc.enable()
    modes = [*MODES, REPLAY] if cuda else MODES
    count = arguments.processes
    short = max(1, arguments.batch // SHORTER)
    beside = presences(modes, short, arguments.rounds * SHORTER, count) if count else []
    for mode_costs in found:
        console.print(table(mode_costs))
    if beside:
        console.print(presence_table(beside))
    if arguments.json:
        rows = [asdict(cost) for mode_costs in found for cost in mode_costs]
        held = {"rows": rows, "presence": [asdict(each) for each in beside]}
        arguments.json.write_text(json.dumps(results.facts(device) | held, indent=1) + "\n")
    return 0
