"""The main loop of `implicit_gemm` run on the CPU, in TF32 and float32.

A GPU runs all plans of more problems (`test_variants.py`, `test_strict_float32.py`). Here are some
of each kind, which take the kernels' ways through copies, barriers and clusters.
"""

from __future__ import annotations

import random
from pathlib import Path

import emulation_build as build
import pytest
import torch
from cases import Tensors, case, make_integers, output_shape, place_all
from compute import by_pytorch, exact
from emulated import Emulated, Plan
from reference import LAYOUTS, Problem, assert_equal
from torch import Tensor

pytestmark = pytest.mark.skipif(build.toolkit() is None, reason="no CUDA toolkit for its headers")

PASSES = {True: ("fprop", "dgrad"), False: ("fprop", "dgrad", "wgrad")}  # of TF32, and strict ones
KINDS = [
    pytest.param(op, tf32, id=f"{op}-{'tf32' if tf32 else 'strict'}")
    for tf32, ops in PASSES.items()
    for op in ops
]
MOST_PLANS = 12  # of a problem, in each layout
MOST_ERROR = {True: 1e-3, False: 2e-7}  # of operands that are rounded to TF32, and of others

PROBLEMS = {
    "3x3": case((2, 40, 9, 8), (72, 40, 3, 3), padding=1),
    "pointwise": case((2, 64, 6, 7), (70, 64, 1, 1)),
    "strided": case((1, 24, 11, 13), (64, 24, 3, 3), stride=2, padding=1),
    "dilated": case((1, 33, 10, 9), (33, 33, 3, 3), padding=2, dilation=2),
    "few_channels": case((1, 3, 14, 15), (32, 3, 5, 5), stride=2, padding=2),
    "eight_channels": case((2, 8, 9, 7), (16, 8, 3, 3), padding=1),
    "patches": case((1, 3, 12, 12), (32, 3, 4, 4), stride=4),
    "groups": case((1, 64, 6, 6), (128, 32, 3, 3), padding=1, groups=2),
    "planes": case((2, 20, 12, 16), (40, 20, 3, 3), padding=1),
    "pointwise_planes": case((3, 48, 8, 8), (130, 48, 1, 1)),
    "strips": case((1, 12, 9, 72), (16, 12, 3, 3), padding=1),
    "many_images": case((40, 8, 5, 5), (16, 8, 3, 3), padding=1),
    "wide": case((1, 4, 6, 260), (8, 4, 3, 3), stride=(2, 1), padding=(1, 2)),
    "many_terms": case((1, 520, 5, 5), (64, 520, 3, 3), padding=1),
}  # fmt: skip


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build.built(tmp_path_factory, "main_loop")


def some(plans: list[Plan], seed: int) -> list[Plan]:
    """Of different variants, with sums that are split or not."""
    random.Random(seed).shuffle(plans)
    kinds = {(plan.variant, plan.splits > 1): plan for plan in plans}
    return list(kinds.values())[:MOST_PLANS]


@pytest.mark.parametrize(("op", "tf32"), KINDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_exact(library: Path, name: str, op: str, tf32: bool):
    main_loop = Emulated(library, tf32=tf32)
    problem = PROBLEMS[name]
    values = make_integers(problem)
    values = Tensors(values.x, values.w, None, values.dy)
    expected = by_pytorch(op, problem, values)
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        plans = main_loop.plans(op, problem, t)
        assert plans or (op == "wgrad" and problem.groups > 1)
        for plan in some(plans, seed):
            actual = main_loop.compute(op, problem, t, plan)
            assert_equal(actual, expected.float(), what=f"{name}, {op}, {layout}, {plan}")


def normal(problem: Problem) -> Tensors:
    torch.manual_seed(3)
    dy = torch.randn(output_shape(problem))
    return Tensors(torch.randn(problem.input), torch.randn(problem.weight), None, dy)


@pytest.mark.parametrize(("op", "tf32"), KINDS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_are_those_of_the_precision(library: Path, name: str, op: str, tf32: bool):
    """Though the emulation does not cut what it adds, as tensor cores do."""
    main_loop = Emulated(library, tf32=tf32)
    problem = PROBLEMS[name]
    values = normal(problem)
    expected = exact(op, problem, values)

    def error(actual: Tensor) -> float:
        off = (actual - expected).square().mean().sqrt()
        return float(off / expected.square().mean().sqrt())

    most = max(MOST_ERROR[tf32], 2 * error(by_pytorch(op, problem, values)))
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        for plan in some(main_loop.plans(op, problem, t), seed):
            actual = main_loop.compute(op, problem, t, plan)
            assert error(actual) <= most, f"{name}, {op}, {layout}, {plan}"


@pytest.mark.parametrize("value", [torch.inf, -torch.inf, torch.nan])
@pytest.mark.parametrize("where", ["image", "filter", "both"])
@pytest.mark.parametrize("op", PASSES[False])
@pytest.mark.parametrize("name", ["3x3", "pointwise", "strided", "patches", "groups", "planes"])
def test_what_is_not_finite_is_as_in_float32(
    library: Path, name: str, op: str, where: str, value: float
):
    """Infinity times a low half of zero would not be a number."""
    main_loop = Emulated(library, tf32=False)
    problem = PROBLEMS[name]
    values = normal(problem)
    image = values.dy if op == "dgrad" else values.x
    filters = values.dy if op == "wgrad" else values.w
    if where != "filter":
        image[0, 1, image.shape[2] // 2, image.shape[3] // 2] = value
    if where != "image":
        filters[0, 1, 0, 0] = value
    expected = exact(op, problem, values).float()
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        for plan in some(main_loop.plans(op, problem, t), seed)[:2]:
            actual = main_loop.compute(op, problem, t, plan)
            for kind in (torch.isnan, torch.isposinf, torch.isneginf):
                what = f"{kind.__name__}, {layout}, {plan}"
                assert torch.equal(kind(actual), kind(expected)), what
