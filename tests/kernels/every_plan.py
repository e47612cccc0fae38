"""Every plan of a family that the planner weighs for a problem, forced and held against PyTorch."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

import torch
from cases import Case, Tensors, make_integers, place_all
from compute import (
    as_allowed,
    by_pytorch,
    compute,
    compute_fused,
    forced,
    fused_by_pytorch,
    poison,
    result_bytes,
)
from reference import LAYOUTS, assert_equal
from torch import Tensor

from customconv import _bind
from customconv.explain import variants

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
Only = Callable[[_bind.ConvPlan], bool] | None  # what plans are meant; None: all of the family


def of_kind(*words: str) -> Callable[[_bind.ConvPlan], bool]:
    """The family's plans of these kinds."""
    return lambda plan: plan.word in words


def plans_of(
    family: str, op: str, problem: Case, t: Tensors, only: Only = None
) -> list[_bind.ConvPlan]:
    """Those that the planner weighs."""
    with as_allowed(family):
        weighed = variants(t.x, t.w, t.bias, *problem.geometry, op)
    own = [plan for plan in weighed if plan.family == family]
    plans = {plan.name: plan for plan in own if only is None or only(plan)}
    assert plans or only, f"{family} has no plan for the {op} of {problem}"
    return list(plans.values())


def results(
    family: str,
    op: str,
    problem: Case,
    values: Tensors,
    dtypes: Iterable[torch.dtype] = DTYPES,
    *,
    only: Only = None,
    fused: bool = False,
) -> Iterator[tuple[str, _bind.ConvPlan, Tensor]]:
    """What every plan gives on the GPU, in every dtype and layout."""
    run = compute_fused if fused else functools.partial(compute, op)
    for dtype in dtypes:
        for layout in LAYOUTS:
            t = place_all(problem, values, "cuda", dtype, layout)
            for plan in plans_of(family, op, problem, t, only):
                with as_allowed(family), forced(plan):
                    poison(result_bytes(op, problem, dtype), plan.workspace_bytes)
                    actual = run(family, problem, t)
                yield f"{layout}, {plan}", plan, actual


def check_exact(
    family: str, op: str, problems: dict[str, Case], only: Only = None
) -> list[_bind.ConvPlan]:
    """Integers come out exact. Returns the plans, some for every problem."""
    plans = []
    for name, problem in problems.items():
        values = make_integers(problem)
        expected = by_pytorch(op, problem, values).cuda()
        before = len(plans)
        for what, plan, actual in results(family, op, problem, values, only=only):
            assert_equal(actual, expected.to(actual.dtype), what=f"{name}, {what}")
            plans.append(plan)
        assert len(plans) > before, f"no plan for {name}"
    return plans


def check_fused(family: str, problems: dict[str, Case], only: Only = None) -> None:
    """The same with an epilogue."""
    for name, problem in problems.items():
        values = make_integers(problem)
        expected = fused_by_pytorch(problem, values).cuda()
        found = results(family, "fprop", problem, values, only=only, fused=True)
        for what, _, actual in found:
            assert_equal(actual, expected.to(actual.dtype), what=f"{name}, {what}")


def check_reach(
    family: str,
    op: str,
    operand: str,
    problems: dict[str, Case],
    value: float = torch.nan,
    only: Only = None,
    dtype: torch.dtype = torch.float16,
) -> None:
    """A value that is no number, in a pixel, reaches the results whose taps meet it, and no other.

    A tap that meets padding there multiplies it by zero or not at all.
    """
    for name, problem in problems.items():
        values = make_integers(problem)
        clean = by_pytorch(op, problem, values).cuda()
        for place in places(problem, getattr(values, operand)):
            spoilt = with_pixel(values, operand, place, value)
            expected = by_pytorch(op, problem, spoilt).cuda()
            met = meets(op, problem, values, operand, place).cuda()
            for what, _, actual in results(family, op, problem, spoilt, (dtype,), only=only):
                where = f"{name}, {value} at {place} of {operand}, {what}"
                assert_reached(actual, clean, expected, met, where)


def assert_reached(actual: Tensor, clean: Tensor, expected: Tensor, met: Tensor, what: str) -> None:
    """Results that meet a value which is no number are as expected, the others as without it.

    Those may also be as expected where they meet it in padding.
    """
    apart = ~met & ~actual.isnan()
    assert_equal(actual, torch.where(apart, clean, expected).to(actual.dtype), what=what)


def places(problem: Case, image: Tensor) -> list[tuple[int, ...]]:
    """A pixel among others, of the first channel behind another group's, and the last of all."""
    _, c, *pixels = image.shape
    among = (min(at, size - 1) for at, size in zip((1, 3, 5)[-len(pixels) :], pixels, strict=True))
    return [(0, c // problem.groups % c, *among), tuple(size - 1 for size in image.shape)]


def with_pixel(values: Tensors, operand: str, place: tuple[int, ...], value: float) -> Tensors:
    image = getattr(values, operand).clone()
    image[place] = value
    return replace(values, **{operand: image})


def meets(op: str, problem: Case, values: Tensors, operand: str, place: tuple[int, ...]) -> Tensor:
    """Which results take in a product of that pixel."""
    ones = Tensors(
        torch.ones_like(values.x), torch.ones_like(values.w), None, torch.ones_like(values.dy)
    )
    none = replace(ones, **{operand: torch.zeros_like(getattr(ones, operand))})
    return by_pytorch(op, problem, with_pixel(none, operand, place, 1.0)) != 0
