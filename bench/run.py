"""`python -m bench run`: measures layers beside a peer and saves each row to disk."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import random
import re
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TypeVar

import torch
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

import customconv
from customconv.arguments import algorithms

from . import contenders, corpus, machine, results, timing, verify
from .layers import Layer, title
from .measure import Cell, floor_of, measure
from .options import minutes, several
from .results import Results, Row

Outcome = TypeVar("Outcome")
Item = TypeVar("Item")

Wanted = Callable[[Cell], bool]

HERE = Path(__file__).parent
GOLDEN = 0.6180339887498949
AHEAD = 96  # rows whose peers are compiled at a time
COMPILERS = 16  # threads that do so
MOST_BYTES = 1 << 27  # of such a row's tensors: what threads need must fit the GPU's memory
MOST_FLOPS = 2e10  # of such a row: of more, it is the GPU that takes the time
FAR_BELOW = 0.9  # of a ratio: slower by more than the clock's changes from turn to turn
METHOD = {
    "confidence": timing.CONFIDENCE,
    "l2_overwritten_times": timing.FLUSHED_L2,
    "cudnn_benchmark_limit": contenders.BENCHMARK_LIMIT,
    "fp32": "TF32 is off",
}


def add_suite_arguments(parser: argparse.ArgumentParser, suite: str) -> None:
    """Adds the options that select layers for ``chosen_layers``."""
    several(
        parser, "--suite", [*corpus.suites(), *corpus.GROUPS], suite,
        "layers, as resnet50 or, with that batch size, resnet50:64", numbered=True,
    )  # fmt: skip
    parser.add_argument("--layer", default="", help="only layers whose name contains this")
    parser.add_argument("--batch", type=int, help="the batch size of every other layer")
    parser.add_argument("--dense", action="store_true", help="only layers with one group")
    parser.add_argument("--no-bias", action="store_true", help="leave out every layer's bias")


def add_layer_arguments(parser: argparse.ArgumentParser, suite: str) -> None:
    """Adds the options that select rows: layers, precisions and layouts, or a sample of them."""
    cuda = torch.cuda.is_available()
    add_suite_arguments(parser, suite if cuda else "smoke")
    several(parser, "--dtype", [*contenders.DTYPES], "tf32,fp16" if cuda else "fp32", "precisions")
    several(parser, "--layout", [*contenders.LAYOUTS], "nchw,nhwc", "layouts")
    parser.add_argument(
        "--sample", type=int, metavar="COUNT",
        help="this many rows, spread evenly over suites, precisions, layouts and passes",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="which sample; by default 0")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    cuda = torch.cuda.is_available()
    add_layer_arguments(parser, "kernelbench_l1,resnet50")
    several(parser, "--op", contenders.OPS, "fprop", "passes")
    several(
        parser,
        "--peer",
        contenders.PEERS,
        "cudnn" if cuda else "aten",
        "what a user would otherwise run",
    )
    several(parser, "--family", algorithms(), "auto", "families of ours")
    parser.add_argument("--device", default="cuda" if cuda else "cpu", help="cuda or cpu")
    minutes(parser)
    parser.add_argument("--row-s", type=float, default=2.0, help="most seconds of timing per row")
    parser.add_argument("--out", type=Path, help="by default bench/results/DEVICE.json")
    parser.add_argument("--most-ms", type=float, help="leave out rows whose floor is longer")
    parser.add_argument(
        "--resume", action="store_true",
        help="skip rows that the file has; drop those of other sources",
    )  # fmt: skip


def spread(chosen: Sequence[Item]) -> list[Item]:
    """Orders layers, or groups of rows, so that every prefix is spread over all of them."""
    order = sorted(range(len(chosen)), key=lambda i: i * GOLDEN % 1)
    return [chosen[i] for i in order]


def sampled(todo: Iterable[Cell], count: int, seed: int) -> list[Cell]:
    """Draws rows in turn from each suite, precision, layout and pass, as long as it has more.

    The last turn, which the count may cut short, is itself spread over all of them. A smaller
    sample of the same seed is a beginning of a larger one.
    """
    generator = random.Random(seed)
    groups: dict[tuple[str, ...], list[Cell]] = {}
    for cell in todo:
        kind = cell.layer.suite, cell.precision, cell.layout, cell.op
        groups.setdefault(kind, []).append(cell)
    for group in groups.values():
        generator.shuffle(group)
    turns = itertools.zip_longest(*spread([groups[kind] for kind in sorted(groups)]))
    return [cell for turn in turns for cell in turn if cell is not None][:count]


def chosen_layers(arguments: argparse.Namespace) -> list[Layer]:
    """Lists the layers that the options select."""
    found = corpus.load(arguments.suite, arguments.batch)
    if arguments.no_bias:
        found = [replace(layer, bias=False) for layer in found]
    return [
        layer for layer in found
        if arguments.layer in layer.name and not (arguments.dense and layer.groups > 1)
    ]  # fmt: skip


def cells(arguments: argparse.Namespace, is_wanted: Wanted = lambda _: True) -> list[Cell]:
    """Lists the wanted rows in order: all kinds of a layer, then of the next; or draws a sample."""
    todo = [
        Cell(layer, precision, layout, op, peer, family)
        for layer in spread(chosen_layers(arguments))
        for op in arguments.op
        for precision in arguments.dtype
        for layout in arguments.layout
        for peer in arguments.peer
        for family in arguments.family
    ]
    todo = [cell for cell in todo if is_wanted(cell)]
    return todo if arguments.sample is None else sampled(todo, arguments.sample, arguments.seed)


def attempt(
    todo: Iterable[tuple[Cell, Callable[[], Outcome]]],
    text_of: Callable[[Outcome], str],
    console: Console,
) -> tuple[list[Outcome], int]:
    """Measures and prints what it can; returns the outcomes and how many results were wrong."""
    outcomes = []
    wrong = 0
    for cell, measured in todo:
        try:
            outcome = measured()
        except contenders.Unmeasurable:
            continue
        except verify.Wrong as error:
            wrong += 1
            what = f"{cell.layer.name} {cell.precision} {cell.layout} {cell.op}"
            console.print(f"{what}: wrong: {error}", highlight=False, soft_wrap=True)
            continue
        outcomes.append(outcome)
        console.print(text_of(outcome), highlight=False, soft_wrap=True)
    return outcomes, wrong


def gpu(console: Console) -> torch.device | None:
    """Returns the GPU that plans are timed on; None, and says so, if there is none."""
    if torch.cuda.is_available() and customconv.build_info()["with_cuda"]:
        return torch.device("cuda")
    console.print("needs a GPU: plans are timed on it")
    return None


def attempt_within(
    minutes: float | None,
    todo: Iterable[Cell],
    timed: Callable[[Cell], Outcome],
    text_of: Callable[[Outcome], str],
    console: Console,
) -> tuple[list[Outcome], int]:
    """Does what ``attempt`` does on a GPU, until so many minutes are spent."""
    budget = Budget(minutes)

    def counted(cell: Cell) -> Outcome:
        began = time.monotonic()
        try:
            return timed(cell)
        finally:
            torch.cuda.empty_cache()
            budget.spend(time.monotonic() - began)

    rest = itertools.takewhile(lambda _: budget.has_room(), todo)
    return attempt(((cell, partial(counted, cell)) for cell in rest), text_of, console)


def results_path(device: torch.device) -> Path:
    """Returns the default file: bench/results/h100.json for an "NVIDIA H100 80GB HBM3"."""
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    words = re.findall(r"[a-z0-9]+", name.lower().replace("nvidia", "").replace("geforce", ""))
    return HERE / "results" / f"{words[0]}.json"


def text_of(row: Row) -> str:
    """A row in one line."""
    problem = row["problem"]
    name = title(row["name"], problem)
    what = f"{name[:34]:34} N{problem['N']:<4}{row['precision']} {row['layout']} {row['op']}"
    bias = ", bias" if row["bias"] else ""
    if "error" in row:
        return f"{what}  {row['error']}"
    floor = row["percent_of_floor"]
    return (
        f"{what} {row['ours_ms']:9.4f} ms, {row['peer']} {row['peer_ms']:9.4f}: "
        f"{row['ratio']:5.2f} ({row['ratio_lo']:.2f}-{row['ratio_hi']:.2f})"
        f"{'' if floor is None else f', {floor:3.0f} % of the floor'}, {row['family']}{bias}"
        f"{''.join(f', {mark}' for mark in row['marks'])}"
    )


Kind = tuple[str, str, str]  # precision, layout and pass


def table_by_kind(
    values: Iterable[tuple[Kind, float]],
    heads: Sequence[str],
    cells_of: Callable[[Sequence[float]], Iterable[str]],
) -> Table:
    """Formats a row for each kind: how many values there are, and what is made of them."""
    groups: dict[Kind, list[float]] = {}
    for kind, value in values:
        groups.setdefault(kind, []).append(value)
    table = Table(box=None, header_style="dim")
    for head in ("precision", "layout", "op"):
        table.add_column(head)
    for head in heads:
        table.add_column(head, justify="right")
    for kind, found in groups.items():
        table.add_row(*kind, str(len(found)), *cells_of(found))
    return table


def summary(rows: Iterable[Row]) -> Table:
    """Formats ratios by precision, layout and pass: geometric means, and how many are below 1."""

    def cells_of(ratios: Sequence[float]) -> tuple[str, ...]:
        below = 100 * sum(ratio < 1 for ratio in ratios) / len(ratios)
        return f"{timing.geomean(ratios):.3f}", f"{below:.0f} %", f"{min(ratios):.2f}"

    values = sorted(
        ((row["precision"], row["layout"], row["op"]), row["ratio"])
        for row in rows if "error" not in row
    )  # fmt: skip
    return table_by_kind(values, ("rows", "geomean", "below 1.0", "worst"), cells_of)


def total(rows: Iterable[Row]) -> str:
    """Says in one line how all rows compare, and how many are far below 1."""
    ratios = [row["ratio"] for row in rows if "error" not in row]
    if not ratios:
        return "no rows"
    far = sum(ratio < FAR_BELOW for ratio in ratios)
    return (
        f"{len(ratios)} rows: geomean {timing.geomean(ratios):.3f}, "
        f"{100 * sum(ratio < 1 for ratio in ratios) / len(ratios):.0f} % below 1.0, "
        f"{100 * far / len(ratios):.1f} % ({far}) below {FAR_BELOW}, worst {min(ratios):.2f}"
    )


def measured_row(
    cell: Cell, device: torch.device, peaks: machine.Peaks | None, row_s: float
) -> tuple[Row, bool]:
    """Returns the row and whether a result was wrong. A row that can't be measured says why.

    PyTorch caches cuDNN's algorithms by thread and shape, and ignores its switches afterwards. So
    the untuned peer runs in a thread that has tuned nothing.
    """
    if cell.peer == "aten-heuristic":
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(_measured_row, cell, device, peaks, row_s).result()
    return _measured_row(cell, device, peaks, row_s)


def _measured_row(
    cell: Cell, device: torch.device, peaks: machine.Peaks | None, row_s: float
) -> tuple[Row, bool]:
    try:
        return measure(cell, device, peaks, row_s), False
    except contenders.Unmeasurable as why:
        return cell.identity() | {"family": "", "error": f"not measured: {why}"}, False
    except torch.cuda.OutOfMemoryError:
        return cell.identity() | {"family": "", "error": "out of memory"}, False
    except verify.Wrong as wrong:
        return cell.identity() | {"family": "", "error": f"wrong: {wrong}"}, True


def _call_peer(cell: Cell, device: torch.device) -> None:
    with torch.no_grad(), contextlib.suppress(RuntimeError):  # the row itself says what is wrong
        buffers = contenders.make_buffers(cell.layer, cell.precision, cell.layout, device)
        contenders.peers(cell.layer, cell.op, buffers, cell.peer)()
        torch.cuda.synchronize(device)


def compile_peers(cells: Iterable[Cell], device: torch.device) -> None:
    """Lets cuDNN compile what it will need for these rows, many rows at a time.

    When cuDNN first tries its algorithms for a shape it compiles some of them, on one core of the
    host, which takes most of a row's time. The process keeps what is compiled. Which algorithm is
    the fastest is kept by the thread that tried, so these threads leave that to the row, which
    tries them again, alone on the GPU.
    """
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        size = cell.layer.least_bytes(contenders.DTYPES[cell.precision].itemsize)
        known = contenders.why_not(cell.layer, cell.precision, cell.op, cell.peer, device) is None
        is_small = size <= MOST_BYTES and cell.layer.flops <= MOST_FLOPS
        if cell.peer == "cudnn" and known and is_small:
            groups.setdefault(cell.precision, []).append(cell)
    for precision, group in groups.items():  # PyTorch's switches are the whole process's
        threads = ThreadPoolExecutor(min(COMPILERS, len(group)))
        with contenders.switches(precision, "cudnn"), threads:
            list(threads.map(partial(_call_peer, device=device), group))
    torch.cuda.empty_cache()


class Budget:
    """A run's budget in minutes, and an estimate of the next row's cost."""

    def __init__(self, minutes: float | None) -> None:
        self.minutes = minutes
        self.began = time.monotonic()
        self.longest = 0.0

    def spend(self, seconds: float) -> None:
        # The longest recent row: it decays, so that one slow row does not end a run of quick ones.
        self.longest = max(seconds, 0.8 * self.longest)

    def has_room(self) -> bool:
        if self.minutes is None:
            return True
        return time.monotonic() - self.began + self.longest <= 60 * self.minutes


def run(
    todo: Iterable[Cell],
    file: Results,
    path: Path,
    device: torch.device,
    *,
    budget: Budget,
    row_s: float = 2.0,
    console: Console | None = None,
) -> tuple[int, int]:
    """Measures the cells in order and saves each; returns how many were measured and wrong."""
    console = console or Console()
    peaks = machine.peaks_of(device)
    todo = list(todo)
    wrong_rows = done = 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(),
               TimeRemainingColumn())  # fmt: skip
    with Progress(*columns, console=console) as progress:
        task = progress.add_task("rows", total=len(todo))
        for index, cell in enumerate(todo):
            if not budget.has_room():
                console.print(f"stopped for the budget of {budget.minutes:g} minutes")
                break
            if device.type == "cuda" and index % AHEAD == 0:
                compile_peers(todo[index : index + AHEAD], device)
            began = time.monotonic()
            row, wrong = measured_row(cell, device, peaks, row_s)
            if device.type == "cuda":
                torch.cuda.empty_cache()
            row |= results.version(file["meta"])
            wrong_rows += wrong
            done += 1
            file["rows"] = results.merged(file["rows"], [row])
            results.save(path, file)
            budget.spend(time.monotonic() - began)
            console.print(text_of(row), highlight=False, soft_wrap=True)
            progress.advance(task)
    return done, wrong_rows


def main(arguments: argparse.Namespace) -> int:
    device = torch.device(arguments.device)
    path: Path = arguments.out or results_path(device)
    peaks = machine.peaks_of(device)
    meta = results.facts(device) | {"method": METHOD, "peaks": peaks.as_meta() if peaks else None}
    file: Results = {"meta": meta, "rows": []}
    if path.exists():
        old = results.load(path)
        if old["meta"].get("device") != meta["device"]:
            print(f"{path} is of {old['meta'].get('device')}, not of {meta['device']}")
            return 2
        file["rows"] = [row for row in old["rows"] if row.get("sources") == meta["sources"]]
        if others := len(old["rows"]) - len(file["rows"]):
            if not arguments.resume:
                print(f"{path} has {others} rows of other sources: --resume drops them")
                return 2
            print(f"{others} rows of other sources are dropped from {path}")
    most_ms: float | None = arguments.most_ms
    if most_ms is not None and peaks is None:
        print(f"--most-ms needs the peaks of {meta['device']}, which are not known")
        return 2

    def is_short(cell: Cell) -> bool:
        return most_ms is None or peaks is None or floor_of(cell, peaks) <= most_ms

    todo = wanted = cells(arguments, is_short)
    if arguments.resume:
        have = {results.key(row) for row in file["rows"] if "error" not in row}
        todo = [cell for cell in todo if results.key(cell.identity()) not in have]
    budget = Budget(arguments.minutes)
    try:
        done, wrong = run(todo, file, path, device, budget=budget, row_s=arguments.row_s)
    except KeyboardInterrupt:
        print(f"interrupted; what was measured is in {path}")
        return 130
    keys = {results.key(cell.identity()) for cell in wanted}
    found = [row for row in file["rows"] if results.key(row) in keys]
    Console().print(summary(found))
    print(total(found))
    print(f"{done} of {len(todo)} rows, {wrong} with a wrong result, in {path}")
    return 1 if wrong else 0
