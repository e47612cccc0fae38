"""Times plans of one problem on a GPU, and PyTorch's own convolution beside them.

Each result is compared with PyTorch's before it is timed. The contenders take turns, each from a
cold cache, and the median of their times counts.
"""

from __future__ import annotations

import math
import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _bind

DTYPES = {
    "float64": torch.float64, "float32": torch.float32,
    "float16": torch.float16, "bfloat16": torch.bfloat16,
}  # fmt: skip

# How far an element may be from PyTorch's, relative to its own size and the root mean square of all
# together. Rounding errors of sums of random numbers are far smaller, those of wrong sums larger.
TOLERANCES = {"float64": 1e-9, "float32": 1e-3, "tf32": 2e-2, "float16": 1e-2, "bfloat16": 5e-2}

FEWEST_TURNS = 5
MOST_TURNS = 25
BUDGET_S = 0.3  # for one problem; after that no further turn begins
FLUSHED_L2 = 4  # multiple of the L2 cache's size that is overwritten before each run
QUEUE_CYCLES = 200_000  # keep the GPU busy while the host queues a call: 0.1 ms


@dataclass(frozen=True)
class Measured:
    """The times of one problem in milliseconds.

    Attributes:
        ms: Of each plan; None where its result was wrong.
        pytorch_ms: Of PyTorch's own convolution; None where it is no alternative to the plans.
        pytorch_fits: Whether PyTorch's own computes in the precision that was settled on, so that
            it may be chosen.
    """

    ms: tuple[float | None, ...]
    pytorch_ms: float | None
    pytorch_fits: bool


class Operands:
    """Tensors that lie as a problem says, of normal random numbers."""

    def __init__(self, problem: _bind.ConvProblem, device: torch.device) -> None:
        """Allocates them, with a generator of their own.

        Raises:
            torch.OutOfMemoryError: They do not fit into the device's memory.
        """
        self.fields = problem.fields
        self.op, self.dtype, self.device = self.fields["op"], DTYPES[self.fields["dtype"]], device
        self.generator = torch.Generator(device).manual_seed(0)
        f = self.fields
        group_c, group_k = f["C"] // f["groups"], f["K"] // f["groups"]
        # Results are of order one, so that no type overflows.
        x, w, y = (self._extents(names) for names in ("DHW", "TRS", "OPQ"))
        w_scale = ((group_k if self.op == "dgrad" else group_c) * math.prod(w)) ** -0.5
        y_scale = (f["N"] * math.prod(y)) ** -0.5 if self.op == "wgrad" else 1.0
        self.x = self._tensor("x", (f["N"], f["C"], *x), 1.0)
        self.w = self._tensor("w", (f["K"], group_c, *w), w_scale)
        self.y = self._tensor("y", (f["N"], f["K"], *y), y_scale)
        self.result = {"fprop": self.y, "dgrad": self.x, "wgrad": self.w}[self.op]
        self.bias = self._normal(self.result.shape[1]) if f["bias"] else None
        self.residual = torch.empty_like(self.result) if f["residual"] else None
        if self.residual is not None:
            self.residual.normal_(generator=self.generator)

    def _normal(self, count: int, scale: float = 1.0) -> Tensor:
        values = torch.empty(count, dtype=self.dtype, device=self.device)
        return values.normal_(0, scale, generator=self.generator)

    def _extents(self, names: str) -> list[int]:
        """Depth, height and width, the first where the problem has one."""
        return [self.fields[name] for name in names if name in self.fields]

    def _tensor(self, name: str, sizes: tuple[int, ...], scale: float) -> Tensor:
        strides = self.fields[f"{name}_strides"]
        if len(sizes) == 5:  # the planner's strides have the depth last, and 0 for a depth of one
            n, c, h, w, d = strides
            strides = n, c, d if sizes[2] > 1 else h * sizes[3], h, w
        last = sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
        shift = 0 if self.fields[f"{name}_aligned"] else 1
        # The memory is filled, not the view: elements of an expanded tensor share theirs.
        return self._normal(last + 1 + shift, scale).as_strided(sizes, strides, shift)

    def by_plan(self, settled: _bind.ConvProblem, plan: _bind.ConvPlan) -> None:
        """Runs a plan, which overwrites ``result``."""
        torch.ops.customconv._run_plan(
            settled.text, plan.name, self.x, self.w, self.y, self.bias, self.residual
        )

    def by_pytorch(self, problem: _bind.ConvProblem) -> Tensor:
        """The same by PyTorch's operators, with deterministic algorithms alone."""
        result: Tensor = torch.ops.customconv._aten_pass(
            problem.text, self.x, self.w, self.y, self.bias
        )
        if self.residual is not None:
            result = result.add_(self.residual)
        return result.relu_() if self.fields["epilogue_passes"] else result


@contextmanager
def float32_precision(tf32: bool) -> Iterator[None]:
    """Sets PyTorch's switch for convolutions in float32.

    These are the functions behind ``torch.backends.cudnn.conv.fp32_precision``, which may be
    frozen.
    """
    switch, wanted = ("cuda", "conv"), "tf32" if tf32 else "ieee"
    before = torch._C._get_fp32_precision_getter(*switch)
    if before != wanted:
        torch._C._set_fp32_precision_setter(*switch, wanted)
    try:
        yield
    finally:
        if before != wanted:
            torch._C._set_fp32_precision_setter(*switch, before)


def agrees(result: Tensor, expected: Tensor, tolerance: float) -> bool:
    """Whether every element is within the tolerance; NaN is not."""
    wide = torch.promote_types(expected.dtype, torch.float32)
    exact = expected.to(wide)
    error = (result.to(wide) - exact).abs_()
    bound = exact.abs().add_(exact.square().mean().sqrt()).mul_(tolerance)
    return bool((error <= bound).all())


def measure(
    device_index: int,
    problem: _bind.ConvProblem,
    settled: _bind.ConvProblem,
    plans: Sequence[_bind.ConvPlan],
) -> Measured:
    """Checks and times plans, and PyTorch's own convolution under the user's switches.

    Args:
        device_index: The index of the GPU.
        problem: What was recorded.
        settled: The same in the precision that the planner settles on.
        plans: Plans of ``settled``.

    Returns:
        The medians. A plan with a wrong result has none, and a warning says so.

    Raises:
        torch.OutOfMemoryError: The tensors do not fit beside what is there.
        RuntimeError: PyTorch cannot compute the problem.
    """
    device = torch.device("cuda", device_index)
    fields = problem.fields
    rounds = settled.fields["tf32"]
    with torch.cuda.device(device), torch.no_grad(), torch.autocast("cuda", enabled=False):
        operands = Operands(problem, device)
        with float32_precision(tf32=False):
            expected = operands.by_pytorch(problem)
        # Where TF32 is allowed and IEEE was settled on, PyTorch might round, and other views of the
        # same numbers would not be rounded. A fused problem is not PyTorch's to compute: it would
        # take several operators.
        fits = fields["epilogue_passes"] == 0 and rounds == fields["tf32"]
        with float32_precision(fields["tf32"]):
            tolerance = TOLERANCES["tf32" if rounds else fields["dtype"]]
            right = [_is_right(operands, settled, plan, expected, tolerance) for plan in plans]
            del expected
            calls: list[Callable[[], object]] = [
                lambda plan=plan: operands.by_plan(settled, plan)  # type: ignore[misc]
                for plan, good in zip(plans, right, strict=True)
                if good
            ]
            times = iter(_times([*calls, lambda: operands.by_pytorch(problem)], device))
    ms = tuple(next(times) if good else None for good in right)
    return Measured(ms, next(times), fits)


def _is_right(
    operands: Operands,
    settled: _bind.ConvProblem,
    plan: _bind.ConvPlan,
    expected: Tensor,
    tolerance: float,
) -> bool:
    operands.result.fill_(float("nan"))  # of what a kernel leaves out
    operands.by_plan(settled, plan)
    if agrees(operands.result, expected, tolerance):
        return True
    warnings.warn(
        f"a plan is left out, because its result is wrong: {plan} for {settled}", stacklevel=2
    )
    return False


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _times(calls: Sequence[Callable[[], object]], device: torch.device) -> list[float]:
    """The median time of each call in milliseconds."""
    l2 = torch.cuda.get_device_properties(device).L2_cache_size
    flushed = torch.empty(FLUSHED_L2 * l2, dtype=torch.uint8, device=device)
    times: list[list[float]] = [[] for _ in calls]
    began = time.monotonic()
    for turn in range(MOST_TURNS):
        marks = []
        for call in calls:
            start, end = (_event() for _ in range(2))
            flushed.zero_()
            torch.cuda._sleep(QUEUE_CYCLES)  # type: ignore[no-untyped-call]
            start.record()
            call()
            end.record()
            marks.append((start, end))
        torch.cuda.synchronize(device)
        if turn > 0:  # the first turn warms up
            for taken, (start, end) in zip(times, marks, strict=True):
                taken.append(start.elapsed_time(end))
        if turn >= FEWEST_TURNS and time.monotonic() - began > BUDGET_S:
            break
    return [statistics.median(taken) for taken in times]
