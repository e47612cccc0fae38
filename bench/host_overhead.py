"""Host time of one eager call, beside PyTorch's: python bench/host_overhead.py [--json PATH].

The convolution is so small that the GPU waits for the host. Calls come in batches, contenders take
turns, and the host waits for the GPU only between batches. Without a GPU the same is timed on the
CPU, where the convolution itself is part of every time.
"""

from __future__ import annotations

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional

import customconv

Call = Callable[[], torch.Tensor]

GEOMETRY = {"stride": 1, "padding": 1, "dilation": 1, "groups": 1}
BASELINE = "F.conv2d"
MODULE_BASELINE = "nn.Conv2d"


def contenders(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> dict[str, Call]:
    """PyTorch's own calls first: the others are compared with them."""
    op = torch.ops.customconv.conv2d
    pytorchs = torch.nn.Conv2d(8, 8, 3, padding=1, device=x.device)
    ours = customconv.Conv2d(8, 8, 3, padding=1, device=x.device)
    for module in (pytorchs, ours):
        module.weight, module.bias = torch.nn.Parameter(w), torch.nn.Parameter(b)
        module.requires_grad_(w.requires_grad)
    calls: dict[str, Call] = {
        BASELINE: lambda: functional.conv2d(x, w, b, **GEOMETRY),
        "op": lambda: op(x, w, b, **GEOMETRY),
        "op, positional": lambda: op(x, w, b, 1, 1, 1, 1),
        "op, pairs": lambda: op(x, w, b, (1, 1), (1, 1), (1, 1), 1),
        "customconv.conv2d": lambda: customconv.conv2d(x, w, b, **GEOMETRY),
        MODULE_BASELINE: lambda: pytorchs(x),
        "customconv.Conv2d": lambda: ours(x),
    }
    for family in ("direct", "im2col", "tiled", "aten") if x.is_cuda else ("aten",):
        calls[f"op, {family}"] = lambda f=family: op(x, w, b, **GEOMETRY, algorithm=f)
    return calls


def with_backward(call: Call) -> Call:
    """The call and the backward pass of its result, as a training step does it."""
    grad_output = torch.ones_like(call())
    return lambda: torch.autograd.backward(call(), grad_output)


def measure(calls: dict[str, Call], batch: int, rounds: int) -> dict[str, list[float]]:
    """Microseconds of a call in each round, the contenders taking turns."""
    wait = torch.cuda.synchronize if torch.cuda.is_available() else lambda: None
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds + 2):  # two to warm up
        for name, call in calls.items():
            wait()
            start = time.perf_counter()
            for _ in range(batch):
                call()
            times[name].append((time.perf_counter() - start) / batch * 1e6)
    wait()
    return {name: values[2:] for name, values in times.items()}


def report(mode: str, times: dict[str, list[float]]) -> list[dict[str, Any]]:
    """Prints a table: median, quartiles, and the ratio to PyTorch's call of the same kind."""
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"\n{mode}\n{'call':<20} {'us':>8} {'quartiles':>17} {'ratio':>7}")
    rows = []
    for name, values in times.items():
        low, _, high = statistics.quantiles(values, n=4)
        base = MODULE_BASELINE if name.endswith("Conv2d") else BASELINE
        # Of each round's own pair: what slows the machine down for a while slows both.
        pairs = zip(values, times[base], strict=True)
        ratio = statistics.median(ours / pytorchs for ours, pytorchs in pairs)
        print(f"{name:<20} {medians[name]:8.2f} {low:8.2f} {high:8.2f} {ratio:7.3f}")
        rows.append(
            {"mode": mode, "call": name, "us": medians[name], "quartiles": [low, high],
             "ratio": ratio, "to": base}
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--json", type=Path, help="a file to write the times to")
    parser.add_argument("--batch", type=int, default=200, help="calls between two waits")
    parser.add_argument("--rounds", type=int, default=30, help="batches of each contender")
    arguments = parser.parse_args()

    cuda = torch.cuda.is_available() and customconv.build_info()["with_cuda"]
    if cuda:
        name = torch.cuda.get_device_name()
    else:
        torch.set_num_threads(1)
        name = "no GPU: the CPU's own work is in every time"
    print(f"{name}; torch {torch.__version__}; {arguments.rounds} batches of {arguments.batch}")

    def tensors(requires_grad: bool) -> list[torch.Tensor]:
        shapes = ((1, 8, 8, 8), (8, 8, 3, 3), (8,))
        device = "cuda" if cuda else "cpu"
        return [torch.randn(s, device=device, requires_grad=requires_grad) for s in shapes]

    plain, recorded = contenders(*tensors(False)), contenders(*tensors(True))
    both = {name: with_backward(call) for name, call in recorded.items()}
    rows = []
    gc.disable()
    with torch.no_grad():
        rows += report("no gradient", measure(plain, arguments.batch, arguments.rounds))
    rows += report(
        "forward, gradient recorded", measure(recorded, arguments.batch, arguments.rounds)
    )
    rows += report("forward and backward", measure(both, arguments.batch // 2, arguments.rounds))
    if arguments.json:
        facts = {"device": name, "torch": torch.__version__, "rows": rows}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
