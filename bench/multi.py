"""`python -m bench multi`: a decoder whose images several GPUs share.

The decoder of Stable Diffusion's autoencoder runs on one GPU, and with its images sharded by
``customconv.distributed.spatial`` on several. Results are compared with those in float64.
"""

from __future__ import annotations

import argparse
import datetime
import statistics
import tempfile
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

import customconv
import customconv.distributed

from . import networks, results
from .options import several

TIMEOUT = datetime.timedelta(seconds=120)
PRECISIONS = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


@dataclass(frozen=True)
class Outcome:
    """One way to decode an image.

    Attributes:
        gpus: How many GPUs share it.
        by: "pytorch" and "ours" are the model as it is; "spatial" is sharded, also on one GPU.
        graphs: Whether a CUDA graph replays it.
        ms: The median time, of the slowest GPU.
        lo: The lower quartile.
        hi: The upper quartile.
        peak_mb: The most memory that a GPU had allocated, parameters and input too.
        received_mb: What a GPU received from the others, at most.
        error: The root of the mean squared distance to the float64 result, over its own.
    """

    precision: str
    layout: str
    image: int
    gpus: int
    by: str
    graphs: bool
    ms: float
    lo: float
    hi: float
    peak_mb: float
    received_mb: float
    error: float


@dataclass(frozen=True)
class Asked:
    """What all ranks measure."""

    precision: str
    layout: str
    image: int
    batch: int
    gpus: int
    repeats: int
    tf32: bool


def decoder() -> nn.Module:
    """The decoder on this rank's GPU, with the same weights on each."""
    return networks.build("sd15_vae_decoder").eval().requires_grad_(False)


def latents(asked: Asked) -> Tensor:
    """The same on each rank."""
    size = asked.image // networks.VaeDecoder.upscale
    return torch.randn(
        asked.batch, networks.VaeDecoder.in_channels, size, size,
        generator=torch.Generator().manual_seed(1),
    )  # fmt: skip


def timed(call: Callable[[], Any], repeats: int) -> list[float]:
    """Milliseconds of each repetition, from the moment when all ranks have come to it."""
    for _ in range(3):
        call()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        dist.barrier()
        torch.cuda.synchronize()
        start.record()
        call()
        stop.record()
        torch.cuda.synchronize()
        of_ranks = torch.tensor(start.elapsed_time(stop), device="cuda")
        dist.all_reduce(of_ranks, dist.ReduceOp.MAX)
        times.append(float(of_ranks))
    return times


def peak(call: Callable[[], Any]) -> float:
    """The most memory that a rank has allocated during a call, in MB."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    call()
    torch.cuda.synchronize()
    most = torch.tensor(torch.cuda.max_memory_allocated() / 1e6, device="cuda")
    dist.all_reduce(most, dist.ReduceOp.MAX)
    return float(most)


def captured(call: Callable[[], Tensor]) -> tuple[Callable[[], Any], Tensor]:
    """A call that replays a CUDA graph, and where it leaves its result."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        call()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = call()
    return graph.replay, result


def measured(asked: Asked, exact: Tensor | None, by: str, graphs: bool) -> Outcome:
    """Decodes in one way."""
    network = decoder().to("cuda", PRECISIONS[asked.precision])
    network = network.to(memory_format=LAYOUTS[asked.layout])  # type: ignore[call-overload]
    x = latents(asked).to("cuda", PRECISIONS[asked.precision])
    x = x.contiguous(memory_format=LAYOUTS[asked.layout])
    if by == "spatial":
        mesh = init_device_mesh("cuda", (asked.gpus,))
        customconv.distributed.spatial(network, mesh, gather=False)

    def call() -> Any:
        with torch.no_grad(), customconv.enabled() if by == "ours" else nullcontext():
            return network(x)

    def whole(found: Any) -> Tensor:
        return found.full_tensor() if by == "spatial" else found  # type: ignore[no-any-return]

    result = whole(call())
    received = 0.0
    if by == "spatial":
        customconv.distributed.spatial_report(network, reset=True)
        call()
        received = customconv.distributed.spatial_report(network).bytes / 1e6
    most = peak(call)
    run: Callable[[], Any] = call
    if graphs:
        run, kept = captured(call)
        run()
        result = whole(kept)
    times = timed(run, asked.repeats)
    error = 0.0
    if exact is not None:
        error = float((result.double() - exact).norm() / exact.norm())
    lo, middle, hi = statistics.quantiles(times, n=4)
    return Outcome(
        asked.precision, asked.layout, asked.image, asked.gpus, by, graphs, middle, lo, hi, most,
        received, error,
    )  # fmt: skip


def rank(number: int, asked: Asked, store: str, results_file: str) -> None:
    """What each rank does; the first one writes the outcomes."""
    torch.cuda.set_device(number)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = asked.tf32
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=number, world_size=asked.gpus, timeout=TIMEOUT
    )
    exact = None
    if number == 0:
        with torch.no_grad():
            exact = decoder().to("cuda", torch.float64)(latents(asked).to("cuda", torch.float64))
        torch.cuda.empty_cache()
    names = ["spatial"] if asked.gpus > 1 else ["ours", "pytorch", "spatial"]
    outcomes = [measured(asked, exact, by, graphs) for by in names for graphs in (False, True)]
    if number == 0:
        torch.save(outcomes, results_file)
    dist.destroy_process_group()


def run(asked: Asked) -> list[Outcome]:
    """Starts the ranks and waits for them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes"
        spawn(rank, (asked, str(Path(folder) / "store"), str(file)), asked.gpus)
        outcomes: list[Outcome] = torch.load(file, weights_only=False)
        return outcomes


def table(outcomes: Sequence[Outcome]) -> Table:
    """Times beside those of ours on one GPU without a graph."""
    found = Table("", "GPUs", "graph", "ms", "speed", "efficiency", "MB a GPU", "received", "error")
    for each in outcomes:
        one = next(
            other for other in outcomes
            if (other.precision, other.layout, other.gpus, other.by, other.graphs)
            == (each.precision, each.layout, 1, "ours", False)
        )  # fmt: skip
        speed = one.ms / each.ms
        found.add_row(
            f"{each.by} {each.precision} {each.layout} {each.image}", str(each.gpus),
            "yes" if each.graphs else "no", f"{each.ms:.2f} ({each.lo:.2f} to {each.hi:.2f})",
            f"{speed:.2f}", f"{speed / each.gpus:.2f}",
            f"{each.peak_mb:.0f} ({each.peak_mb / one.peak_mb:.2f})", f"{each.received_mb:.1f}",
            f"{each.error:.2e}",
        )  # fmt: skip
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several(parser, "--gpus", ("1", "2", "4", "8"), "1,2", "numbers of GPUs, with 1 among them")
    several(parser, "--precision", PRECISIONS, "bf16", "precisions")
    several(parser, "--layout", LAYOUTS, "nchw,nhwc", "memory formats")
    parser.add_argument("--image", type=int, default=1024, help="height and width of the image")
    parser.add_argument("--batch", type=int, default=1, help="images")
    parser.add_argument("--repeats", type=int, default=20, help="repetitions that are timed")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in fp32")
    parser.add_argument("--json", type=Path, help="a file to write the outcomes to")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    counts = sorted({1, *map(int, arguments.gpus)})
    if torch.cuda.device_count() < counts[-1]:
        console.print(f"there are {torch.cuda.device_count()} GPUs, and {counts[-1]} are asked for")
        return 2
    outcomes: list[Outcome] = []
    for precision in arguments.precision:
        for layout in arguments.layout:
            for gpus in counts:
                outcomes += run(
                    Asked(
                        precision, layout, arguments.image, arguments.batch, gpus,
                        arguments.repeats, arguments.tf32,
                    )
                )  # fmt: skip
                if arguments.json:
                    results.save_outcomes(arguments.json, torch.device("cuda"), "multi", outcomes)
    console.print(table(outcomes))
    return 0
