"""float32 that is not rounded, on tensor cores: integers, errors, and what is not finite."""

from __future__ import annotations

import pytest
import torch
from cases import Case, Tensors, case, make_integers, output_shape, place_all
from compute import (
    by_pytorch,
    compute,
    compute_fused,
    exact,
    forced,
    fused_by_pytorch,
    poison,
    result_bytes,
)
from reference import LAYOUTS, assert_equal, float32_precision
from torch import Tensor

from customconv import _C

pytestmark = pytest.mark.gpu

PROBLEMS = {
    "taps": case((3, 40, 19, 17), (72, 40, 3, 3), padding=(1, 1)),
    "one_tap": case((2, 64, 14, 14), (130, 64, 1, 1)),
    "strided": case((2, 48, 21, 23), (64, 48, 3, 3), stride=(2, 2), padding=(1, 1)),
    "dilated": case((1, 33, 24, 24), (65, 33, 3, 3), padding=(2, 2), dilation=(2, 2)),
    "few_channels": case((2, 3, 30, 28), (64, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
    "eight_channels": case((2, 8, 20, 20), (16, 8, 5, 5), padding=(2, 2)),
    "patches": case((2, 3, 32, 32), (48, 3, 4, 4), stride=(4, 4)),
    "groups": case((2, 128, 12, 12), (192, 64, 3, 3), padding=(1, 1), groups=2),
    "row": case((2, 24, 1, 300), (32, 24, 1, 9), padding=(0, 4)),
    "many_images": case((40, 20, 9, 9), (36, 20, 3, 3), padding=(1, 1)),
    "large_image": case((1, 8, 140, 260), (16, 8, 3, 3), stride=(2, 1), padding=(1, 2)),
    "planes": case((2, 20, 12, 16), (40, 20, 3, 3), padding=(1, 1)),
    "pointwise_planes": case((3, 48, 8, 8), (130, 48, 1, 1)),
    "many_terms": case((1, 512, 9, 9), (64, 512, 3, 3), padding=(1, 1)),
}  # fmt: skip
DATA = ("normal", "large_mean", "cancelling", "wide_range")
MOST_ERROR = 2e-7  # relative to the root mean square of the exact result


def plans_of(op: str, problem: Case, t: Tensors) -> list[_C.ConvPlan]:
    """Plans of halves that differ in more than their grid."""
    with float32_precision("ieee"):
        weighed = _C.variants(t.x, t.w, t.bias, *problem.geometry, op)
    plans = {
        (plan.variant_index, *plan.tile, plan.splits): plan
        for plan in weighed
        if plan.variant.startswith("3xTF32")
    }
    return list(plans.values())


def run(op: str, problem: Case, t: Tensors, plan: _C.ConvPlan) -> Tensor:
    fused = op == "fused"
    with float32_precision("ieee"), forced(plan):
        poison(result_bytes("fprop" if fused else op, problem, torch.float32), plan.workspace_bytes)
        if fused:
            return compute_fused("implicit_gemm", problem, t)
        return compute(op, "implicit_gemm", problem, t)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad", "fused"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_exact(name, op, layout):
    problem = PROBLEMS[name]
    values = make_integers(problem)
    expected = (
        fused_by_pytorch(problem, values) if op == "fused" else by_pytorch(op, problem, values)
    ).cuda()
    t = place_all(problem, values, "cuda", torch.float32, layout)
    plans = plans_of("fprop" if op == "fused" else op, problem, t)
    assert plans or (op == "wgrad" and problem.groups > 1)
    for plan in plans:
        assert_equal(run(op, problem, t, plan), expected.float(), what=f"{plan}")


def numbers(problem: Case, data: str) -> Tensors:
    def make(shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, device="cuda", dtype=torch.float64)
        if data == "large_mean":
            values = values + 5
        elif data == "cancelling":
            values = values + 100 * torch.randn(shape[:1] + (1,) * 3, device="cuda").sign()
        elif data == "wide_range":
            exponents = torch.empty_like(values).uniform_(-12, 12)
            values = values * 10**exponents
        return values.float()

    return Tensors(make(problem.input), make(problem.weight), None, make(output_shape(problem)))


def error(actual: Tensor, expected: Tensor) -> float:
    off = (actual.double() - expected).square().mean().sqrt()
    return float(off / expected.square().mean().sqrt())


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_are_those_of_float32(name, op, data):
    """At most cuDNN's own, or 2e-7."""
    problem = PROBLEMS[name]
    torch.manual_seed(5)
    values = numbers(problem, data)
    expected = exact(op, problem, values)
    with float32_precision("ieee"):
        theirs = error(by_pytorch(op, problem, values), expected)
    for layout in LAYOUTS:
        t = place_all(problem, values, "cuda", torch.float32, layout)
        for plan in plans_of(op, problem, t):
            ours = error(run(op, problem, t, plan), expected)
            assert ours <= max(theirs, MOST_ERROR), f"{layout} {plan}: {ours:.2e}, {theirs:.2e}"


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan"), 3.4e38, -3.4e38])
@pytest.mark.parametrize("where", ["image", "filter", "both"])
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
def test_what_is_not_finite_is_as_in_float32(op, where, value):
    """Infinity times a low half of zero, and overflow, in sums of all kinds."""
    if where == "both" and abs(value) < float("inf"):
        pytest.skip("the order of a sum decides whether it overflows")
    for name in ("taps", "strided", "one_tap", "patches", "groups", "planes"):
        problem = PROBLEMS[name]
        torch.manual_seed(6)
        values = numbers(problem, "normal")
        image = values.dy if op == "dgrad" else values.x
        filters = values.dy if op == "wgrad" else values.w
        if where != "filter":
            image[0, 1, image.shape[2] // 2, image.shape[3] // 2] = value
        if where != "image":
            filters[1, 1, 0, 0] = value
        expected = exact(op, problem, values).float()
        for layout in LAYOUTS:
            t = place_all(problem, values, "cuda", torch.float32, layout)
            for plan in plans_of(op, problem, t):
                actual = run(op, problem, t, plan)
                for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                    same = torch.equal(kind(actual), kind(expected))
                    assert same, f"{name} {layout} {plan}: {kind.__name__}"


def test_results_are_the_same_from_run_to_run():
    for problem in PROBLEMS.values():
        values = numbers(problem, "normal")
        t = place_all(problem, values, "cuda", torch.float32, torch.contiguous_format)
        for op in ("fprop", "dgrad", "wgrad"):
            for plan in plans_of(op, problem, t):
                first = run(op, problem, t, plan).clone()
                assert all(torch.equal(run(op, problem, t, plan), first) for _ in range(3))
