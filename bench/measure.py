"""Measures one row: checks it first, then times it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import contenders, machine, timing, verify
from .contenders import Buffers
from .layers import Layer, title
from .results import Row
from .timing import Call

MOST_SETS = 4  # of buffers
WIDE_SPREAD = 0.03  # half the width of the ratio's interval, relative to the ratio
IMPLAUSIBLE = 10.0


@dataclass(frozen=True)
class Cell:
    """A layer, and how it is measured."""

    layer: Layer
    precision: str
    layout: str
    op: str
    peer: str
    family: str = "auto"  # the family that is asked for

    def identity(self) -> Row:
        return {
            "suite": self.layer.suite, "name": self.layer.name, "problem": self.layer.problem(),
            "dtype": str(contenders.DTYPES[self.precision]).removeprefix("torch."),
            "bias": self.layer.bias, "precision": self.precision, "layout": self.layout,
            "op": self.op, "peer": self.peer,
            "forced": None if self.family == "auto" else self.family,
        }  # fmt: skip


@dataclass(frozen=True)
class LayerOutcome:
    """The layer that was measured; subclasses add the results."""

    suite: str
    name: str
    problem: dict[str, Any]
    precision: str
    layout: str

    @property
    def what(self) -> str:
        """The layer as text of one column's width."""
        name = title(self.name, self.problem)
        return f"{name[:34]:34} N{self.problem['N']:<4}{self.precision} {self.layout}"


@contextlib.contextmanager
def prepared(cell: Cell, device: torch.device) -> Iterator[Buffers]:
    """Sets PyTorch's switches for a cell and yields its first buffers.

    Raises:
        contenders.Unmeasurable: The row cannot be measured.
    """
    reason = contenders.why_not(cell.layer, cell.precision, cell.op, cell.peer, device)
    if reason is not None:
        raise contenders.Unmeasurable(reason)
    with contenders.switches(cell.precision, cell.peer):
        yield contenders.make_buffers(cell.layer, cell.precision, cell.layout, device)


def buffer_sets(cell: Cell, first: Buffers, device: torch.device) -> list[Buffers]:
    """Returns buffers to use in turn, so that none is in the L2 cache when its turn comes."""
    count = 1
    if device.type == "cuda":
        dtype = contenders.DTYPES[cell.precision]
        size = cell.layer.least_bytes(dtype.itemsize)
        l2 = torch.cuda.get_device_properties(device).L2_cache_size
        count = 1 if size > l2 else min(MOST_SETS, -(-2 * l2 // size))
    others = (
        contenders.make_buffers(cell.layer, cell.precision, cell.layout, device)
        for _ in range(count - 1)
    )
    return [first, *others]


def exact_sample(cell: Cell, buffers: Buffers, result: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the indices of sampled elements and their exact values in float64."""
    at = verify.sample(result.shape, verify.SAMPLES[cell.op])
    exact = verify.exact(cell.layer, cell.op, at, buffers.x, buffers.w, buffers.dy)
    if cell.op == "fprop" and buffers.bias is not None:
        exact = exact + buffers.bias.double()[at[:, 1].to(exact.device)]
    return at, exact


def _memory_beside_the_result(call: Call, device: torch.device) -> tuple[Tensor, float | None]:
    """Returns the result and the peak memory in MB that the call took beside it."""
    if device.type != "cuda":
        return call(), None
    torch.cuda.synchronize(device)
    before = torch.cuda.memory_allocated(device)
    torch.cuda.reset_peak_memory_stats(device)
    result = call()
    torch.cuda.synchronize(device)
    most = torch.cuda.max_memory_allocated(device)
    return result, (most - before - result.numel() * result.element_size()) / 2**20


def _verified(cell: Cell, buffers: Buffers, device: torch.device) -> Row:
    """Checks both results; returns errors and extra memory, or raises ``verify.Wrong``."""
    ours = contenders.ours(cell.layer, cell.op, buffers, cell.family)
    peer = contenders.peers(cell.layer, cell.op, buffers, cell.peer)
    began = time.monotonic()
    expected = peer()  # the peer tries its algorithms in this call
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    tuning_s = time.monotonic() - began
    bytes_ = expected.numel() * expected.element_size()
    del expected
    expected, peer_extra = _memory_beside_the_result(peer, device)

    ours()
    verify.poison(device, bytes_)
    result, ours_extra = _memory_beside_the_result(ours, device)

    at, exact = exact_sample(cell, buffers, result)
    ours_err = verify.relative_error(result, at, exact)
    peer_err = verify.relative_error(expected, at, exact)
    verify.check(result, expected, ours_err, peer_err, cell.precision)
    return {
        "ours_err": ours_err, "peer_err": peer_err,
        "ours_extra_mb": ours_extra, "peer_extra_mb": peer_extra, "peer_tuning_s": tuning_s,
    }  # fmt: skip


def _timed(
    cell: Cell, first: Buffers, device: torch.device, budget_s: float
) -> tuple[timing.Measurement, list[str]]:
    """Returns the times, and marks for the GPU's state before and after."""
    sets = buffer_sets(cell, first, device)
    calls = {
        "ours": [contenders.ours(cell.layer, cell.op, b, cell.family) for b in sets],
        "peer": [contenders.peers(cell.layer, cell.op, b, cell.peer) for b in sets],
    }
    before = machine.state_of(device)
    found = timing.interleaved(calls, device, budget_s=budget_s)
    after = machine.state_of(device)
    states = [state for state in (before, after) if state is not None]
    marks = ["throttled"] if any(state.heat for state in states) else []
    marks += ["power cap"] if any(state.power_cap for state in states) else []
    return found, marks


def _least_bytes(cell: Cell) -> int:
    return cell.layer.least_bytes(contenders.DTYPES[cell.precision].itemsize, cell.op)


def floor_of(cell: Cell, peaks: machine.Peaks) -> float:
    """Returns a row's floor in milliseconds."""
    return machine.floor_ms(cell.layer.flops, _least_bytes(cell), cell.precision, peaks)


def _limits(cell: Cell, peaks: machine.Peaks | None, ours_ms: float, peer_ms: float) -> Row:
    """Returns our rates, and how close both are to the floor."""
    row: dict[str, Any] = {
        "tflops": cell.layer.flops / ours_ms * 1e-9, "gb_s": _least_bytes(cell) / ours_ms * 1e-6,
        "floor_ms": None, "percent_of_floor": None, "peer_percent_of_floor": None,
    }  # fmt: skip
    if peaks is not None:
        floor = floor_of(cell, peaks)
        row |= {
            "floor_ms": floor,
            "percent_of_floor": 100 * floor / ours_ms,
            "peer_percent_of_floor": 100 * floor / peer_ms,
        }
    return row


def measure(
    cell: Cell, device: torch.device, peaks: machine.Peaks | None, budget_s: float = 2.0
) -> Row:
    """Checks and times one row.

    Raises:
        contenders.Unmeasurable: The row cannot be measured.
        verify.Wrong: A result is wrong.
    """
    layer = cell.layer
    with prepared(cell, device) as buffers:
        try:
            family, plan = contenders.plan_of(layer, cell.op, buffers, cell.family)
        except RuntimeError as error:
            raise contenders.Unmeasurable(str(error)) from error
        row = cell.identity() | _verified(cell, buffers, device)
        found, marks = _timed(cell, buffers, device, budget_s)
        if found.ratios["peer"].median > IMPLAUSIBLE:
            buffers = contenders.make_buffers(layer, cell.precision, cell.layout, device)
            _verified(cell, buffers, device)
            found, marks = _timed(cell, buffers, device, budget_s)
            marks.append("implausible")
    ratio, ours, peer = found.ratios["peer"], found.times["ours"], found.times["peer"]
    if ratio.width > WIDE_SPREAD:
        marks.append("wide spread")
    return row | {
        "family": family, "plan": plan,
        "ours_ms": ours.median, "ours_low": ours.low, "ours_high": ours.high,
        "peer_ms": peer.median, "peer_low": peer.low, "peer_high": peer.high,
        "ratio": ratio.median, "ratio_lo": ratio.low, "ratio_hi": ratio.high,
        "runs": ours.runs, "marks": marks,
        **_limits(cell, peaks, ours.median, peer.median),
    }  # fmt: skip
