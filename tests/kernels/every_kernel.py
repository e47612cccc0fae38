"""Runs every kernel of every family on small problems, checked, for compute-sanitizer to watch.

A plain script: pytest would only be in the way. Each tensor gets memory of its own from CUDA, so
that an access past its end is one past an allocation's. Arguments name families, or "bias" for the
gradients of biases, and dtypes; all of them run where none is named. See docs/testing.md.
"""

from __future__ import annotations

import os

os.environ["PYTORCH_NO_CUDA_MEMORY_CACHING"] = "1"

import itertools
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import torch
from cases import CASES, Case, Tensors, make_integers, output_shape, place_all
from compute import (
    DTYPES,
    PASSES,
    as_allowed,
    by_mma_sync,
    by_pytorch,
    compute,
    compute_fused,
    forced,
    fused_by_pytorch,
    is_foreseen,
    plan_of,
    runs_of,
    small_cases,
    takes,
)
from reference import ALL_FAMILIES, LAYOUTS, assert_equal, float32_precision, layout_of

from customconv import _bind
from customconv.explain import variants

# Families that have kernels for each kind of case.
IN_EVERY_DTYPE = ("tiled", "implicit_gemm", "depthwise", "grouped", "col2im")
BY_EVERY_KERNEL = ("depthwise",)


def chosen_runs(cases: dict[str, Case]) -> list[tuple[str, str, str, torch.dtype]]:
    """Every case, family and pass: by some families in every dtype, by the others in one of theirs
    after the other.
    """
    runs = runs_of(cases)
    dtypes: dict[tuple[str, str, str], list[torch.dtype]] = {}
    for name, family, op, dtype in runs:
        dtypes.setdefault((name, family, op), []).append(dtype)
    turns = {key: some[turn % len(some)] for turn, (key, some) in enumerate(dtypes.items())}
    return [run for run in runs if run[1] in IN_EVERY_DTYPE or run[3] == turns[run[:3]]]


def cheapest(op: str, case: Case, tensors: Tensors, family: str) -> list[_bind.ConvPlan]:
    """The cheapest plan of each kernel of a family, and of joined phases."""
    best: dict[tuple[str, bool], _bind.ConvPlan] = {}
    plans = variants(tensors.x, tensors.w, tensors.bias, *case.geometry, op)
    for plan in sorted(plans, key=lambda plan: plan.predicted_ms):
        if plan.family == family:
            best.setdefault((plan.label, plan.fields.get("joined", False)), plan)
    return list(best.values())


def run_cases(families: list[str], dtypes: Sequence[torch.dtype]) -> Counter[str]:
    """Everything but the kernels is done on the CPU."""
    kernels: Counter[str] = Counter()
    cases = small_cases(CASES)
    values = {name: make_integers(case) for name, case in cases.items()}
    expected = {}
    numbers = {name: number for number, name in enumerate(cases)}
    for name, family, op, dtype in chosen_runs(cases):
        if family not in families or dtype not in dtypes:
            continue
        case = cases[name]
        if (name, op) not in expected:
            expected[name, op] = by_pytorch(op, case, values[name])
        # Neighbouring cases, passes and dtypes lie differently.
        layout = LAYOUTS[(numbers[name] + PASSES.index(op) + DTYPES.index(dtype)) % 2]
        tensors = place_all(case, values[name], "cuda", dtype, layout)
        with as_allowed(family):
            if not takes(op, family, case, tensors):
                continue
            plan = plan_of(op, family, case, tensors)
            result = compute(op, family, case, tensors)
        what = f"{name}, {layout}, {plan}"
        assert_equal(result.cpu(), expected[name, op].to(dtype), what=what)
        kernels[f"{family} {op} {plan.label} {str(dtype)[6:]}"] += 1
        if family == "implicit_gemm":
            with as_allowed(family), by_mma_sync(op, case, tensors) as other:
                actual = compute(op, family, case, tensors).cpu()
            assert_equal(actual, expected[name, op].to(dtype), what=f"{name}, {layout}, {other}")
            if other is not None:
                kernels[f"{family} {op} {other.label} {str(dtype)[6:]}"] += 1
        if family in BY_EVERY_KERNEL and is_foreseen(op, case):
            for other in cheapest(op, case, tensors, family):
                if other.label == plan.label:
                    continue
                with forced(other):
                    actual = compute(op, family, case, tensors).cpu()
                what = f"{name}, {layout}, {other}"
                assert_equal(actual, expected[name, op].to(dtype), what=what)
                kernels[f"{family} {op} {other.label} {str(dtype)[6:]}"] += 1
        if family == "implicit_gemm" and dtype == torch.float32 and is_foreseen(op, case):
            with float32_precision("ieee"):
                for strict in cheapest(op, case, tensors, family):
                    with forced(strict):
                        actual = compute(op, family, case, tensors).cpu()
                    what = f"{name}, {layout}, {strict}"
                    assert_equal(actual, expected[name, op].to(dtype), what=what)
                    kernels[f"{family} {op} {strict.label} strict"] += 1
        if op == "fprop" and plan.fuses:
            # A residual that does not lie as the output, or unaligned, would be PyTorch's to add.
            tensors = replace(tensors, dy=torch.empty_like(result).copy_(tensors.dy))
            with as_allowed(family):
                actual = compute_fused(family, case, tensors).cpu()
            expected_fused = fused_by_pytorch(case, values[name]).to(dtype)
            assert_equal(actual, expected_fused, what=f"{what}, fused")
            kernels[f"{family} fused {plan.label} {str(dtype)[6:]}"] += 1
    return kernels


def run_wide(families: list[str], dtypes: Sequence[torch.dtype]) -> Counter[str]:
    """The kernels with 64-bit offsets: a tensor of 2^31 elements that are all in one place."""
    kernels: Counter[str] = Counter()
    cases = (
        Case((1, 2, 1 << 15, 1 << 15), (3, 2, 2, 3), stride=(4000, 3000)),
        Case((1, 2, 2, 1 << 15, 1 << 15), (3, 2, 2, 2, 3), stride=(1, 4000, 3000)),
    )
    for case, dtype, layout in itertools.product(cases, dtypes, LAYOUTS):
        near = Case((1, 2, *case.weight[2:]), case.weight, stride=case.stride)
        shape = output_shape(case)
        values = make_integers(near)
        x = torch.ones([1] * len(shape), dtype=dtype).cuda().expand(case.input)
        in_layout = layout_of(layout, len(shape))
        w = values.w.to(dtype).to(memory_format=in_layout).cuda()
        # Every window sees the same ones, so every output is the sum of a filter.
        one = Tensors(torch.ones(near.input, dtype=torch.float64), values.w, values.bias, values.dy)
        output = by_pytorch("fprop", near, one).to(dtype)
        dy = torch.ones(shape, dtype=dtype).cuda().to(memory_format=in_layout)
        t = Tensors(x, w, values.bias.to(dtype).cuda(), dy)
        pixels = prod(shape[2:])
        expected = {"fprop": output.expand(shape), "wgrad": torch.full_like(values.w, pixels)}
        for name, family, op, _ in runs_of({f"wide {case.dims}-D": case}, (dtype,)):
            if family not in families or op not in expected:
                continue  # the other result would be of 2^31 elements
            with as_allowed(family):
                if not takes(op, family, case, t):
                    continue
                plan = plan_of(op, family, case, t)
                assert plan.fields.get("wide", True), plan
                actual = compute(op, family, case, t).cpu()
            assert_equal(actual, expected[op].to(dtype), what=f"{name}, {plan}")
            kernels[f"{family} {op} {plan.label} {str(dtype)[6:]}, 64-bit offsets"] += 1
    return kernels


def run_bias(dtypes: Sequence[torch.dtype]) -> Counter[str]:
    """Gradients of biases, by vectors of every width, in one share and in several."""
    kernels: Counter[str] = Counter()
    images = [(3, 5, 3, 3), (2, 6, 5, 2), (2, 12, 2, 6), (40, 264, 4, 6), (2, 9, 1, 1)]
    shapes = [*images, (3, 5, 2, 3, 3), (2, 12, 3, 2, 6)]
    for dtype, layout, shape in itertools.product(dtypes, LAYOUTS, shapes):
        if dtype == torch.float64:  # PyTorch's
            continue
        dims = len(shape) - 2
        dy = torch.randint(-2, 3, shape).to(dtype)
        dy = dy.contiguous(memory_format=layout_of(layout, len(shape)))
        x, w = torch.zeros_like(dy[:, :1]), torch.zeros(shape[1], 1, *[1] * dims, dtype=dtype)
        geometry = [1] * dims, [0] * dims, [1] * dims, 1
        backward = getattr(torch.ops.customconv, f"conv{dims}d_backward")
        tensors = (t.cuda() for t in (dy, x, w))
        actual = backward(*tensors, *geometry, [False, False, True])[2]
        expected = dy.double().sum((0, *range(2, len(shape)))).to(dtype)
        assert_equal(actual.cpu(), expected, what=f"bias of {shape}, {layout}")
        kernels[f"bias {str(dtype)[6:]}"] += 1
    return kernels


def main() -> int:
    if not torch.cuda.is_available():
        print("needs a GPU")
        return 2
    known = {*ALL_FAMILIES, "bias"}
    named = {str(dtype)[6:]: dtype for dtype in DTYPES}
    if unknown := set(sys.argv[1:]) - known - set(named):
        print(f"unknown families or dtypes: {', '.join(sorted(unknown))}")
        return 2
    families = [name for name in sys.argv[1:] if name in known] or list(known)
    dtypes = [named[name] for name in sys.argv[1:] if name in named] or DTYPES
    start = time.time()
    kernels = run_cases(families, dtypes) + run_wide(families, dtypes)
    if "bias" in families:
        kernels += run_bias(dtypes)
    for kernel, count in sorted(kernels.items()):
        print(f"{count:5}  {kernel}")
    print(f"{sum(kernels.values())} results, all exact, in {time.time() - start:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
