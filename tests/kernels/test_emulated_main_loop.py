"""The main loop of `implicit_gemm`, run on the CPU, in TF32.

A GPU runs all plans of more problems (`test_variants.py`). Here are some of each kind, which take
the kernels' ways through copies, barriers and clusters.
"""

from __future__ import annotations

import random

import emulation_build as build
import pytest
import torch
from cases import Tensors, case, make_integers, output_shape, place_all
from compute import by_pytorch, exact
from emulated import Emulated, Plan
from reference import LAYOUTS, Problem, assert_equal

pytestmark = pytest.mark.skipif(build.toolkit() is None, reason="no CUDA toolkit for its headers")

PASSES = ("fprop", "dgrad")
MOST_PLANS = 12  # of a problem, in each layout
MOST_ERROR = 1e-3  # of operands that are rounded to TF32

PROBLEMS = {
    "3x3": case((2, 40, 9, 8), (72, 40, 3, 3), padding=1),
    "pointwise": case((2, 64, 6, 7), (70, 64, 1, 1)),
    "strided": case((1, 24, 11, 13), (64, 24, 3, 3), stride=2, padding=1),
    "dilated": case((1, 33, 10, 9), (33, 33, 3, 3), padding=2, dilation=2),
    "few_channels": case((1, 3, 14, 15), (32, 3, 5, 5), stride=2, padding=2),
    "eight_channels": case((2, 8, 9, 7), (16, 8, 3, 3), padding=1),
    "patches": case((1, 3, 12, 12), (32, 3, 4, 4), stride=4),
    "groups": case((1, 64, 6, 6), (128, 32, 3, 3), padding=1, groups=2),
    "many_terms": case((1, 520, 5, 5), (64, 520, 3, 3), padding=1),
}  # fmt: skip


@pytest.fixture(scope="session")
def main_loop(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(build.built(tmp_path_factory, "main_loop"))


def some(plans: list[Plan], seed: int) -> list[Plan]:
    """Of different variants, with sums that are split or not."""
    random.Random(seed).shuffle(plans)
    kinds = {(plan.variant, plan.splits > 1): plan for plan in plans}
    return list(kinds.values())[:MOST_PLANS]


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_exact(main_loop: Emulated, name: str, op: str):
    problem = PROBLEMS[name]
    values = make_integers(problem)
    values = Tensors(values.x, values.w, None, values.dy)
    expected = by_pytorch(op, problem, values)
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        plans = main_loop.plans(op, problem, t)
        assert plans
        for plan in some(plans, seed):
            actual = main_loop.compute(op, problem, t, plan)
            assert_equal(actual, expected.float(), what=f"{name}, {op}, {layout}, {plan}")


def normal(problem: Problem) -> Tensors:
    torch.manual_seed(3)
    dy = torch.randn(output_shape(problem))
    return Tensors(torch.randn(problem.input), torch.randn(problem.weight), None, dy)


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", PROBLEMS)
def test_errors_are_those_of_tf32(main_loop: Emulated, name: str, op: str):
    problem = PROBLEMS[name]
    values = normal(problem)
    expected = exact(op, problem, values)
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, values, "cpu", torch.float32, layout)
        for plan in some(main_loop.plans(op, problem, t), seed):
            off = (main_loop.compute(op, problem, t, plan) - expected).square().mean().sqrt()
            error = float(off / expected.square().mean().sqrt())
            assert error <= MOST_ERROR, f"{name}, {op}, {layout}, {plan}"
