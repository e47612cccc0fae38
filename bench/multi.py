"""`python -m bench multi`: a decoder whose images several GPUs share, and data-parallel training.

The decoder of Stable Diffusion's autoencoder runs on one GPU, and with its images sharded by
``customconv.distributed.spatial`` on several. Results are compared with those in float64.

ResNet-50 is trained under autocast, by ``DistributedDataParallel`` with images of its own on each
GPU. Steps with PyTorch's convolutions and with ours take turns.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
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

    model: str
    precision: str
    layout: str
    image: int
    batch: int
    gpus: int
    repeats: int
    tf32: bool


@dataclass(frozen=True)
class Training:
    """Steps of a network that each GPU trains with images of its own.

    Attributes:
        gpus: How many GPUs there are.
        batch: The images of each.
        pytorch: The median time of a step, of the slowest GPU.
        ours: The same, routed.
        ratio: The median of how many times as long PyTorch's step takes as ours behind it.
        lo: The lower quartile.
        hi: The upper quartile.
    """

    precision: str
    layout: str
    gpus: int
    batch: int
    pytorch: float
    ours: float
    ratio: float
    lo: float
    hi: float


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
    (times,) = timed_in_turns([call], repeats)
    return times


def timed_in_turns(calls: Sequence[Callable[[], Any]], repeats: int) -> list[list[float]]:
    """The same of several calls, one repetition of each after the other."""
    for call in calls:
        for _ in range(3):
            call()
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(repeats):
        for call, own in zip(calls, times, strict=True):
            start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            dist.barrier()
            torch.cuda.synchronize()
            start.record()
            call()
            stop.record()
            torch.cuda.synchronize()
            of_ranks = torch.tensor(start.elapsed_time(stop), device="cuda")
            dist.all_reduce(of_ranks, dist.ReduceOp.MAX)
            own.append(float(of_ranks))
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


def decoded(asked: Asked) -> list[Outcome]:
    """Decodes in all ways."""
    exact = None
    if dist.get_rank() == 0:
        with torch.no_grad():
            exact = decoder().to("cuda", torch.float64)(latents(asked).to("cuda", torch.float64))
        torch.cuda.empty_cache()
    names = ["spatial"] if asked.gpus > 1 else ["ours", "pytorch", "spatial"]
    return [measured(asked, exact, by, graphs) for by in names for graphs in (False, True)]


def trained(asked: Asked) -> list[Training]:
    """Trains ResNet-50."""
    layout = LAYOUTS[asked.layout]
    network = networks.build("resnet50").train().to("cuda")
    network = network.to(memory_format=layout)  # type: ignore[call-overload]
    parallel = nn.parallel.DistributedDataParallel(network, [torch.cuda.current_device()])
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    torch.manual_seed(dist.get_rank())
    x = torch.randn(asked.batch, 3, 224, 224, device="cuda").contiguous(memory_format=layout)
    kinds = torch.randint(1000, (asked.batch,), device="cuda")
    dtype = PRECISIONS[asked.precision]

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cuda", dtype, enabled=dtype != torch.float32):
            loss = nn.functional.cross_entropy(parallel(x), kinds)
        loss.backward()
        optimizer.step()

    def routed() -> None:
        with customconv.enabled():
            step()

    pytorch, ours = timed_in_turns([step, routed], asked.repeats)
    lo, ratio, hi = statistics.quantiles([a / b for a, b in zip(pytorch, ours, strict=True)], n=4)
    medians = statistics.median(pytorch), statistics.median(ours)
    return [
        Training(asked.precision, asked.layout, asked.gpus, asked.batch, *medians, ratio, lo, hi)
    ]


MODELS = {"decoder": decoded, "resnet50": trained}


def rank(number: int, asked: Asked, store: str, results_file: str) -> None:
    """What each rank does; the first one writes the outcomes."""
    torch.cuda.set_device(number)
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = torch.backends.cuda.matmul.allow_tf32 = asked.tf32
    dist.init_process_group(
        "nccl", init_method=f"file://{store}", rank=number, world_size=asked.gpus, timeout=TIMEOUT
    )
    outcomes = MODELS[asked.model](asked)
    if number == 0:
        torch.save(outcomes, results_file)
    dist.destroy_process_group()


def run(asked: Asked) -> list[Any]:
    """Starts the ranks and waits for them."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "outcomes"
        spawn(rank, (asked, str(Path(folder) / "store"), str(file)), asked.gpus)
        outcomes: list[Any] = torch.load(file, weights_only=False)
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


def training_table(outcomes: Sequence[Training]) -> Table:
    """How many times as long PyTorch's steps take as ours."""
    found = Table("ResNet-50", "GPUs", "images a GPU", "PyTorch, ms", "ours, ms", "ratio")
    for each in outcomes:
        found.add_row(
            f"{each.precision} {each.layout}", str(each.gpus), str(each.batch),
            f"{each.pytorch:.2f}", f"{each.ours:.2f}",
            f"{each.ratio:.3f} ({each.lo:.3f} to {each.hi:.3f})",
        )  # fmt: skip
    return found


def add_arguments(parser: argparse.ArgumentParser) -> None:
    several(parser, "--gpus", ("1", "2", "4", "8"), "1,2", "numbers of GPUs, with 1 among them")
    several(parser, "--model", MODELS, "decoder", "what to run")
    several(parser, "--precision", PRECISIONS, "bf16", "precisions")
    several(parser, "--layout", LAYOUTS, "nchw,nhwc", "memory formats")
    parser.add_argument("--image", type=int, default=1024, help="height and width of the image")
    parser.add_argument("--batch", type=int, help="images: 1 of the decoder, 128 a GPU in training")
    parser.add_argument("--repeats", type=int, default=20, help="repetitions that are timed")
    parser.add_argument("--tf32", action="store_true", help="allow TF32 in fp32")
    parser.add_argument("--json", type=Path, help="a file to write the outcomes to")


def main(arguments: argparse.Namespace) -> int:
    console = Console()
    counts = sorted({1, *map(int, arguments.gpus)})
    if torch.cuda.device_count() < counts[-1]:
        console.print(f"there are {torch.cuda.device_count()} GPUs, and {counts[-1]} are asked for")
        return 2
    outcomes: dict[str, list[Any]] = {model: [] for model in arguments.model}
    for model, precision, layout, gpus in itertools.product(
        arguments.model, arguments.precision, arguments.layout, counts
    ):
        batch = arguments.batch or (1 if model == "decoder" else 128)
        outcomes[model] += run(
            Asked(
                model, precision, layout, arguments.image, batch, gpus, arguments.repeats,
                arguments.tf32,
            )
        )  # fmt: skip
        if arguments.json:
            rows = [each for of_model in outcomes.values() for each in of_model]
            results.save_outcomes(arguments.json, torch.device("cuda"), "multi", rows)
    for model, of_model in outcomes.items():
        console.print(table(of_model) if model == "decoder" else training_table(of_model))
    return 0
