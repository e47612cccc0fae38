"""Kernels of `implicit_gemm`, run on the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from cases import Tensors
from compute import PASSES
from every_plan import DTYPES
from reference import Problem
from torch import Tensor


class _Asked(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_int64 * 5) for name in ("input", "weight")),
        *((name, ctypes.c_int64 * 3) for name in ("stride", "padding", "dilation")),
        ("groups", ctypes.c_int64),
        *((name, ctypes.c_int64 * 5) for name in ("x_strides", "w_strides", "y_strides")),
        *((name, ctypes.c_int64) for name in ("dtype", "pass", "tf32", "batch_invariant")),
    ]


def _depth_last(numbers: Sequence[int], spatial: int, without: int) -> tuple[int, ...]:
    """Numbers for each dimension with the depth at the end; `without` stands for an image's."""
    if spatial == 2:
        return (*numbers, without)
    place = len(numbers) - 3
    return (*numbers[:place], *numbers[place + 1 :], numbers[place])


class _Found(ctypes.Structure):
    _fields_ = [
        ("fields", ctypes.c_char * 256),
        ("kind", ctypes.c_char * 256),
        ("splits", ctypes.c_int64),
    ]


@dataclass(frozen=True)
class Plan:
    """A plan that the planner weighs: the `number`-th of its problem."""

    number: int
    fields: str  # as its name has them
    kind: str  # those that are no sizes
    splits: int


class Statistics(NamedTuple):
    """Of each part of an output: means and squared distances from them, and how many pixels."""

    moments: Tensor
    counts: Tensor


class Emulated:
    """A built library, of passes with TF32 or without, perhaps of batches that do not matter."""

    def __init__(self, library: Path, *, tf32: bool = True, batch_invariant: bool = False) -> None:
        self._tf32 = tf32
        self._batch_invariant = batch_invariant
        self._library = ctypes.CDLL(str(library))
        self._library.list_plans.restype = ctypes.c_int64
        self._library.count_statistics.restype = ctypes.c_int64
        self._library.compute.restype = ctypes.c_char_p

    def plans(self, op: str, problem: Problem, t: Tensors) -> list[Plan]:
        """All that are weighed for tensors that lie so."""
        asked = self._asked(op, problem, t)
        count = self._library.list_plans(ctypes.byref(asked), None, ctypes.c_int64(0))
        found = (_Found * count)()
        self._library.list_plans(ctypes.byref(asked), found, ctypes.c_int64(count))
        return [
            Plan(i, plan.fields.decode(), plan.kind.decode(), plan.splits)
            for i, plan in enumerate(found)
        ]

    def statistics(self, problem: Problem, t: Tensors, plan: Plan) -> Statistics | None:
        """Memory without numbers for the statistics that a plan leaves of an output, if it does."""
        asked = self._asked("fprop", problem, t)
        count = self._library.count_statistics(ctypes.byref(asked), ctypes.c_int64(plan.number))
        if count == 0:
            return None
        moments = torch.full((count, problem.weight[0], 2), torch.nan)
        return Statistics(moments, torch.full((count,), torch.nan))

    def compute(
        self, op: str, problem: Problem, t: Tensors, plan: Plan, parts: Statistics | None = None
    ) -> Tensor:
        """The output or a gradient, in memory that held no numbers; with its statistics in parts.

        Raises:
            RuntimeError: the kernel did what a GPU does not take, or threads wait for ever.
        """
        place = PASSES.index(op)
        operands = [t.dy, t.x, t.w]  # what each pass computes
        result = operands[place] = torch.full_like(operands[place], torch.nan)
        y, x, w = operands
        error = self._library.compute(
            ctypes.byref(self._asked(op, problem, t)),
            ctypes.c_int64(plan.number),
            *(ctypes.c_void_p(tensor.data_ptr()) for tensor in (x, w, y)),
            *(ctypes.c_void_p(parts and each.data_ptr()) for each in parts or (None, None)),
        )
        if error is not None:
            raise RuntimeError(error.decode())
        return result

    def _asked(self, op: str, problem: Problem, t: Tensors) -> _Asked:
        spatial = len(problem.input) - 2
        stride, padding, dilation, groups = problem.geometry
        return _Asked(
            _depth_last(problem.input, spatial, 1),
            _depth_last(problem.weight, spatial, 1),
            _depth_last(stride, spatial, 1),
            _depth_last(padding, spatial, 0),
            _depth_last(dilation, spatial, 1),
            groups,
            *(_depth_last(each.stride(), spatial, 0) for each in (t.x, t.w, t.dy)),
            DTYPES.index(t.x.dtype),
            PASSES.index(op),
            int(self._tf32),
            int(self._batch_invariant),
        )
