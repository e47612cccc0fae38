"""float32 that is not rounded, on tensor cores: integers, errors, and what is not finite."""

from __future__ import annotations

import itertools
import random

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
    spoil,
)
from reference import (
    LAYOUTS,
    assert_equal,
    assert_same_kinds,
    float32_precision,
    is_of_3xtf32,
    norm_error,
)
from torch import Tensor

from customconv import _bind
from customconv.explain import variants

pytestmark = pytest.mark.gpu

PROBLEMS = {
    "taps": case((3, 40, 19, 17), (72, 40, 3, 3), padding=(1, 1)),
    "one_tap": case((2, 64, 14, 14), (130, 64, 1, 1)),
    "strided": case((2, 48, 21, 23), (64, 48, 3, 3), stride=(2, 2), padding=(1, 1)),
    "dilated": case((1, 33, 24, 24), (65, 33, 3, 3), padding=(2, 2), dilation=(2, 2)),
    "few_channels": case((2, 3, 30, 28), (64, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
    "few_in_odd_rows": case((5, 3, 21, 19), (32, 3, 3, 3), stride=(2, 2), padding=(0, 1)),
    "few_to_few": case((2, 3, 21, 19), (30, 3, 3, 3), padding=(1, 1)),
    "eight_channels": case((2, 8, 20, 20), (16, 8, 5, 5), padding=(2, 2)),
    "patches": case((2, 3, 32, 32), (48, 3, 4, 4), stride=(4, 4)),
    "groups": case((2, 128, 12, 12), (192, 64, 3, 3), padding=(1, 1), groups=2),
    "row": case((2, 24, 1, 300), (32, 24, 1, 9), padding=(0, 4)),
    "many_images": case((40, 20, 9, 9), (36, 20, 3, 3), padding=(1, 1)),
    "large_image": case((1, 8, 140, 260), (16, 8, 3, 3), stride=(2, 1), padding=(1, 2)),
    "planes": case((2, 20, 12, 16), (40, 20, 3, 3), padding=(1, 1)),
    "pointwise_planes": case((3, 48, 8, 8), (130, 48, 1, 1)),
    "wide_planes": case((1, 16, 96, 96), (24, 16, 1, 1)),
    "many_terms": case((1, 512, 9, 9), (64, 512, 3, 3), padding=(1, 1)),
}  # fmt: skip
WEIGHT_KINDS = ("wgrad_planes", "wgrad_registers")
DATA = ("normal", "large_mean", "cancelling", "wide_range", "tiny")
MOST_OF_A_KIND = 3
MOST_ERROR = 2e-7  # relative to the root mean square of the exact result
LONG_SUM_ERROR = 3e-7


def plans_of(op: str, problem: Case, t: Tensors) -> list[_bind.ConvPlan]:
    """Plans of halves: all kinds, and of each a few."""
    with float32_precision("ieee"):
        weighed = variants(t.x, t.w, t.bias, *problem.geometry, op)
    plans = {plan.name: plan for plan in weighed if is_of_3xtf32(plan)}
    kinds: dict[str, list[_bind.ConvPlan]] = {}
    for plan in plans.values():
        kinds.setdefault(plan.kind, []).append(plan)
    generator = random.Random(len(plans))
    return [
        plan
        for of_kind in kinds.values()
        for plan in generator.sample(of_kind, min(MOST_OF_A_KIND, len(of_kind)))
    ]


def run(op: str, problem: Case, t: Tensors, plan: _bind.ConvPlan) -> Tensor:
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
    assert plans
    for plan in plans:
        assert_equal(run(op, problem, t, plan), expected.float(), what=f"{plan}")


def test_every_kernel_has_a_plan():
    found = set()
    for problem in PROBLEMS.values():
        values = make_integers(problem)
        for op, layout in itertools.product(("fprop", "dgrad", "wgrad"), LAYOUTS):
            t = place_all(problem, values, "cuda", torch.float32, layout)
            for plan in plans_of(op, problem, t):
                own = "joined" if plan.word == "main_loop" else "kernel"
                found.add((plan.label, plan.fields[own]))
    words = {word: _bind.plan_words()["implicit_gemm", word] for word in WEIGHT_KINDS}
    kernels = [(word, name) for word, fields in words.items() for name in fields["kernel"]]
    weights = {(f"{word} {name}", name) for word, name in kernels if name.startswith("3xTF32-")}
    assert len(weights) == 5
    loaders = [f"main_loop {loader}" for loader in ("im2col", "halo", "planes")]
    assert found == weights | set(itertools.product(loaders, (False, True)))


def test_every_tile_of_the_main_loop_has_a_plan():
    """Of forward passes, and of input gradients."""
    for op in ("fprop", "dgrad"):
        found = set()
        for problem, layout in itertools.product(PROBLEMS.values(), LAYOUTS):
            t = place_all(problem, make_integers(problem), "cuda", torch.float32, layout)
            plans = plans_of(op, problem, t)
            own = [plan.fields for plan in plans if plan.word == "main_loop"]
            found |= {(fields["loader"], fields["tile"]) for fields in own}
        tiles = {(loader, tile) for loader, tile in _bind.main_loop_tiles() if "3xTF32" in tile}
        assert found == tiles, op


def numbers(problem: Case, data: str, op: str) -> Tensors:
    """Random values. Cancelling ones: a mean of 100 meets what sums to zero.

    Tiny ones have low halves that are subnormal, which tensor cores take as zero; what they meet
    is large.
    """

    def make(shape: tuple[int, ...]) -> Tensor:
        values = torch.randn(shape, device="cuda", dtype=torch.float64)
        if data == "large_mean":
            values = values + 5
        elif data == "wide_range":
            exponents = torch.empty_like(values).uniform_(-12, 12)
            values = values * 10**exponents
        return values

    x, w, dy = make(problem.input), make(problem.weight), make(output_shape(problem))
    if data == "cancelling":
        if op == "dgrad":
            dy = dy + 100
            groups = w.unflatten(0, (problem.groups, -1))
            w = (groups - groups.mean(1, keepdim=True)).flatten(0, 1)
        else:
            x = x + 100
            w = w - w.mean((1, 2, 3), keepdim=True)
            dy = dy - dy.mean((0, 2, 3), keepdim=True)
    elif data == "tiny":
        x, w, dy = x * 1e-37, w * 1e37, dy * (1e-37 if op == "dgrad" else 1e37)
    return Tensors(x.float(), w.float(), None, dy.float())


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_are_those_of_float32(name, op, data):
    """At most cuDNN's own, or 2e-7; or 3e-7 of weight gradients that sum images side by side.

    Where sums cancel, the last bits that halves lack count, the more the shorter a sum is: at most
    2.5 times cuDNN's. Numbers below 2e-35 may keep their high halves alone.
    """
    problem = PROBLEMS[name]
    torch.manual_seed(5)
    values = numbers(problem, data, op)
    expected = exact(op, problem, values)
    with float32_precision("ieee"):
        theirs = norm_error(by_pytorch(op, problem, values), expected)
    most = {"cancelling": 2.5 * theirs, "tiny": 2.0**-12}.get(data, max(theirs, MOST_ERROR))
    for layout in LAYOUTS:
        t = place_all(problem, values, "cuda", torch.float32, layout)
        for plan in plans_of(op, problem, t):
            ours = norm_error(run(op, problem, t, plan), expected)
            bound = max(most, LONG_SUM_ERROR) if plan.fields.get("packing") == "images" else most
            assert ours <= bound, f"{layout} {plan}: {ours:.2e}, {theirs:.2e}"


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
        values = numbers(problem, "normal", op)
        spoil(op, values, where, value, 1)
        expected = exact(op, problem, values).float()
        for layout in LAYOUTS:
            t = place_all(problem, values, "cuda", torch.float32, layout)
            for plan in plans_of(op, problem, t):
                actual = run(op, problem, t, plan)
                assert_same_kinds(actual, expected, what=f"{name} {layout} {plan}")


def test_results_are_the_same_from_run_to_run():
    for problem in PROBLEMS.values():
        for op in ("fprop", "dgrad", "wgrad"):
            values = numbers(problem, "normal", op)
            t = place_all(problem, values, "cuda", torch.float32, torch.contiguous_format)
            for plan in plans_of(op, problem, t):
                first = run(op, problem, t, plan).clone()
                assert all(torch.equal(run(op, problem, t, plan), first) for _ in range(3))
