"""The planner over recorded timings: which timed plans it still weighs, and which one it picks."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from customconv import _bind

from . import timings
from .measure import Cell
from .timings import Timings

Floats = NDArray[np.float64]
Key = tuple[str, str, int, str, str, str]  # of a cell: suite, name, N, precision, layout, op


@dataclass(frozen=True)
class Replayed:
    """A cell's plans that were timed and are still planned, and what they took."""

    cell: Cell
    held_out: bool
    plans: list[_bind.ConvPlan]
    ms: Floats

    @property
    def key(self) -> Key:
        """What tells cells apart."""
        cell, layer = self.cell, self.cell.layer
        return layer.suite, layer.name, layer.N, cell.precision, cell.layout, cell.op

    @property
    def pick(self) -> int:
        """The number of the plan that the planner picks."""
        return int(np.argmin([plan.predicted_ms for plan in self.plans]))

    @property
    def lost(self) -> float:
        """The time of the plan that the planner picks over that of the fastest."""
        return float(self.ms[self.pick] / np.min(self.ms))


def problem_of(cell: Cell) -> _bind.ConvProblem:
    """The planner's problem of a cell."""
    layer, op = cell.layer, cell.op
    if layer.transposed:
        layer, op = layer.as_convolution(op)
    dtype = {"fp16": "float16", "bf16": "bfloat16"}.get(cell.precision, "float32")
    stride, pad, dil, groups = layer.geometry
    return _bind.ConvProblem(
        op=op, dtype=dtype, input=layer.input, weight=layer.weight, stride=stride, padding=pad,
        dilation=dil, groups=groups, channels_last=cell.layout == "nhwc",
        tf32=cell.precision == "tf32",
    )  # fmt: skip


def _chosen(name: str) -> str:
    """What a plan's name says of choices: stages follow from them and from shared memory's size."""
    return " ".join(word for word in name.split() if not word.startswith(("stages=", "slots=")))


def replay(timed: Sequence[Timings]) -> list[Replayed]:
    """Plans each cell again, and keeps the plans that were timed, if with other stages."""
    found = []
    for each in timed:
        planned = _bind.plans(problem_of(each.cell))
        known = {_chosen(plan.name): plan for plan in planned}
        known |= {plan.name: plan for plan in planned}
        times: dict[str, float] = {}
        for which, took in each.times.items():
            plan = known.get(which) or known.get(_chosen(which))
            if plan is not None and (plan.name == which or plan.name not in times):
                times[plan.name] = took
        plans = [known[which] for which in times]
        ms = np.array([*times.values()])
        if plans:
            layer = each.cell.layer
            held_out = timings.is_held_out(layer.suite, layer.name)
            found.append(Replayed(each.cell, held_out, plans, ms))
    return found


@functools.cache
def recorded() -> list[Replayed]:
    """The cells of the timings in the repository."""
    return replay(timings.read()[1])
