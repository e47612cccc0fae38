"""Times of the portable families beside PyTorch's: python bench/portable_families.py [--json PATH].

For each layer, dtype, layout and pass: every family that can compute it, the planner's choice, and
PyTorch with cudnn.benchmark. Each is checked before it is timed. They take turns, the L2 cache is
overwritten before each run, and the median of the runs is told, with what the plan predicted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

import customconv


class Layer(NamedTuple):
    input: tuple[int, int, int, int]
    weight: tuple[int, int, int, int]
    stride: int = 1
    padding: tuple[int, int] = (0, 0)
    groups: int = 1

    @property
    def geometry(self) -> tuple[tuple[int, int], tuple[int, int], tuple[int, int], int]:
        return (self.stride, self.stride), self.padding, (1, 1), self.groups


LAYERS = {
    # What the library began with.
    "original 5x9": Layer((8, 32, 512, 512), (64, 32, 5, 9)),
    "original 5x7": Layer((8, 64, 512, 256), (128, 64, 5, 7)),
    "original 3x3": Layer((16, 16, 1024, 1024), (128, 16, 3, 3)),
    # Image classifiers.
    "stem 7x7 s2": Layer((32, 3, 224, 224), (64, 3, 7, 7), 2, (3, 3)),
    "3x3 64": Layer((32, 64, 56, 56), (64, 64, 3, 3), 1, (1, 1)),
    "3x3 256": Layer((32, 256, 14, 14), (256, 256, 3, 3), 1, (1, 1)),
    "3x3 s2": Layer((32, 128, 56, 56), (128, 128, 3, 3), 2, (1, 1)),
    "1x1": Layer((32, 256, 56, 56), (64, 256, 1, 1)),
    "1x1 s2": Layer((32, 256, 56, 56), (512, 256, 1, 1), 2),
    "grouped 32x4d": Layer((32, 128, 56, 56), (128, 4, 3, 3), 1, (1, 1), 32),
    "depthwise 3x3": Layer((32, 144, 56, 56), (144, 1, 3, 3), 1, (1, 1), 144),
    "depthwise 7x7": Layer((32, 96, 56, 56), (96, 1, 7, 7), 1, (3, 3), 96),
    # One image; a decoder; audio.
    "batch 1": Layer((1, 512, 14, 14), (512, 512, 3, 3), 1, (1, 1)),
    "decoder": Layer((1, 512, 64, 64), (512, 512, 3, 3), 1, (1, 1)),
    "959 wide": Layer((8, 32, 80, 959), (32, 32, 3, 3), 1, (1, 1)),
}
PRECISIONS = {"float32": torch.float32, "tf32": torch.float32, "float16": torch.float16}
# Of the largest value: the products' rounding, at the length of these sums.
TOLERANCES = {"float32": 1e-4, "tf32": 1e-2, "float16": 1e-2}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
PASSES = ("fprop", "dgrad", "wgrad")
FAMILIES = ("direct", "im2col", "tiled")
MOST_PREDICTED_MS = 200
FLUSHED_BYTES = 256 << 20

Call = Callable[[], Tensor]


def pytorchs(op: str, layer: Layer, x: Tensor, w: Tensor, dy: Tensor) -> Call:
    stride, padding, dilation, groups = layer.geometry
    if op == "fprop":
        return lambda: functional.conv2d(x, w, None, stride, padding, dilation, groups)
    mask = [op == "dgrad", op == "wgrad", False]
    return lambda: torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, dilation, False, [0, 0], groups, mask
    )[0 if op == "dgrad" else 1]


def ours(op: str, layer: Layer, x: Tensor, w: Tensor, dy: Tensor, algorithm: str) -> Call:
    if op == "fprop":
        return lambda: torch.ops.customconv.conv2d(x, w, None, *layer.geometry, algorithm=algorithm)
    mask = [op == "dgrad", op == "wgrad", False]
    return lambda: torch.ops.customconv.conv2d_backward(
        dy, x, w, *layer.geometry, mask, algorithm=algorithm
    )[0 if op == "dgrad" else 1]


def measure(calls: dict[str, Call], runs: int) -> dict[str, float]:
    """Milliseconds, the median of the runs, which take turns."""
    flushed = torch.empty(FLUSHED_BYTES, dtype=torch.uint8, device="cuda")
    events: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {n: [] for n in calls}
    for _ in range(runs):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            flushed.zero_()  # meanwhile the host queues the call
            start.record()
            call()
            end.record()
            events[name].append((start, end))
        torch.cuda.synchronize()
    return {
        name: statistics.median(start.elapsed_time(end) for start, end in pairs)
        for name, pairs in events.items()
    }


def compare(op: str, layer: Layer, precision: str, layout: str) -> dict[str, Any]:
    """One row of the table: times, and predictions of the plans."""
    dtype = PRECISIONS[precision]

    def normal(shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, device="cuda", dtype=dtype)
        return values.to(memory_format=LAYOUTS[layout])

    x, w = normal(layer.input), normal(layer.weight)
    p, q = (
        (size + 2 * pad - taps) // layer.stride + 1
        for size, pad, taps in zip(layer.input[2:], layer.padding, layer.weight[2:], strict=True)
    )
    dy = normal((layer.input[0], layer.weight[0], p, q))

    # PyTorch's result in float32, with no algorithms tried.
    torch.backends.cudnn.benchmark = False
    torch.backends.cudnn.allow_tf32 = False
    expected = pytorchs(op, layer, x.float(), w.float(), dy.float())()
    torch.backends.cudnn.benchmark = True
    torch.backends.cudnn.allow_tf32 = precision == "tf32"

    planned = customconv.explain(x, w, None, *layer.geometry, op=op)
    predicted = {c.family: c.plan.predicted_ms for c in planned.candidates
                 if c.plan and c.family in FAMILIES}  # fmt: skip

    calls = {"pytorch": pytorchs(op, layer, x, w, dy)}
    calls["auto"] = ours(op, layer, x, w, dy, "auto")
    for family, ms in predicted.items():
        if ms <= MOST_PREDICTED_MS:
            calls[family] = ours(op, layer, x, w, dy, family)

    largest = expected.abs().max()
    wrong = []
    for name, call in calls.items():
        # The first call, too, in which PyTorch tries its algorithms.
        error = (call() - expected).abs().max() / largest
        if not error <= TOLERANCES[precision]:
            wrong.append(f"{name} is off by {error:.2g}")
    del expected

    first = measure(calls, 1)
    runs = 3 if max(first.values()) > 20 else 9
    times = measure(calls, runs)
    return {"op": op, "precision": precision, "layout": layout, "ms": times,
            "predicted_ms": predicted, "auto": planned.family, "wrong": wrong}  # fmt: skip


def text_of(row: dict[str, Any]) -> str:
    """One line: PyTorch's time, the choice's, and each family's with its prediction."""
    cells = [f"{row['layer']:<14} {row['op']} {row['precision']:<7} {row['layout']}"]
    cells.append(f"{row['ms']['pytorch']:9.3f} {row['ms']['auto']:9.3f} {row['auto']:<6}")
    for family in FAMILIES:
        ms, predicted = (row[key].get(family) for key in ("ms", "predicted_ms"))
        cells.append(
            f"{'-' if ms is None else f'{ms:.3f}':>9} "
            f"{'' if predicted is None else f'({predicted:.3g})':<9}"
        )
    return " ".join(cells + row["wrong"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split(":")[0])
    parser.add_argument("--json", type=Path, help="a file to write the times to")
    parser.add_argument("--budget-s", type=float, default=240, help="stop after so many seconds")
    parser.add_argument("--layers", nargs="*", default=list(LAYERS), choices=LAYERS)
    parser.add_argument("--precisions", nargs="*", default=list(PRECISIONS), choices=PRECISIONS)
    parser.add_argument("--layouts", nargs="*", default=list(LAYOUTS), choices=LAYOUTS)
    parser.add_argument("--passes", nargs="*", default=list(PASSES), choices=PASSES)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        parser.exit(2, "needs a GPU\n")

    device = torch.cuda.get_device_name()
    print(f"{device}; torch {torch.__version__}; milliseconds, predictions in brackets")
    head = f"{'pytorch':>9} {'auto':>9} {'':<6}" + "".join(f" {f:>9} {'':<9}" for f in FAMILIES)
    print(f"{'':<33} {head}")
    started, rows, complete = time.monotonic(), [], True
    # The variety first: every layer in one precision, layout and pass, before the next of these.
    for op in arguments.passes:
        for precision in arguments.precisions:
            for layout in arguments.layouts:
                for name in arguments.layers:
                    if time.monotonic() - started > arguments.budget_s:
                        complete = False
                        break
                    rows.append({"layer": name, **compare(op, LAYERS[name], precision, layout)})
                    print(text_of(rows[-1]), flush=True)
    if not complete:
        print(f"stopped after {arguments.budget_s:g} s")
    if arguments.json:
        facts = {"device": device, "torch": torch.__version__, "complete": complete, "rows": rows}
        arguments.json.write_text(json.dumps(facts, indent=1) + "\n")
    wrong = sum(bool(row["wrong"]) for row in rows)
    parser.exit(1 if wrong else 0, f"{wrong} of {len(rows)} rows have a wrong result\n")


if __name__ == "__main__":
    main()
