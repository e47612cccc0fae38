"""The kernels of weight gradients, run on the CPU: any machine that has CUDA's headers tests them.

A GPU runs all plans of more problems (`test_implicit_gemm_wgrad.py`). Here are some of each kind,
which take the kernels' ways through copies, barriers and clusters.
"""

from __future__ import annotations

import random

import emulation_build as build
import pytest
import torch
from cases import case, make_integers, place_all
from compute import by_pytorch
from emulated import Emulated, Plan
from every_plan import DTYPES, assert_reached, meets, places, with_pixel
from reference import LAYOUTS, assert_equal

pytestmark = pytest.mark.skipif(build.toolkit() is None, reason="no CUDA toolkit for its headers")

MOST_PLANS = 4  # of a problem, in each dtype and layout

PROBLEMS = {
    "3x3": case((2, 64, 9, 16), (72, 64, 3, 3), padding=1),
    "3x3_small": case((3, 136, 7, 7), (64, 136, 3, 3), padding=1),
    "strided": case((2, 72, 15, 21), (64, 72, 3, 3), stride=2, padding=1),
    "strided_rows": case((1, 64, 11, 14), (64, 64, 4, 2), stride=(3, 1), padding=1),
    "dilated": case((1, 72, 13, 12), (64, 72, 3, 2), padding=2, dilation=(2, 3)),
    "5x5": case((1, 40, 12, 13), (136, 40, 5, 5), stride=2, padding=2),
    "pointwise": case((3, 136, 14, 14), (136, 136, 1, 1)),
    "pointwise_odd": case((4, 64, 7, 7), (520, 64, 1, 1)),
    "pointwise_strided": case((2, 64, 13, 14), (64, 64, 1, 1), stride=2),
    "groups": case((2, 128, 9, 9), (128, 64, 3, 3), padding=1, groups=2),
    "few": case((2, 3, 13, 22), (64, 3, 5, 7), stride=2, padding=2),
    "many_tiles": case((32, 64, 8, 8), (64, 64, 1, 3), padding=(0, 1)),  # of each thread block
    "filled": case((2, 19, 9, 15), (21, 19, 3, 3), padding=1),
    "other_weight_layout": case((2, 64, 7, 8), (64, 64, 2, 3), padding=1, other_weight_layout=True),
}  # fmt: skip


@pytest.fixture(scope="session")
def gradients(tmp_path_factory: pytest.TempPathFactory) -> Emulated:
    return Emulated(build.built(tmp_path_factory, "weight_gradients"))


def some(plans: list[Plan], seed: int) -> list[Plan]:
    """Plans of different kinds. Another seed gives others."""
    random.Random(seed).shuffle(plans)
    kinds = {plan.kind: plan for plan in plans}
    return list(kinds.values())[:MOST_PLANS]


@pytest.mark.parametrize("layout", LAYOUTS, ids=str)
@pytest.mark.parametrize("name", PROBLEMS)
def test_integers_are_exact(gradients: Emulated, name: str, layout: torch.memory_format):
    problem = PROBLEMS[name]
    values = make_integers(problem)
    expected = by_pytorch("wgrad", problem, values)
    for seed, dtype in enumerate(DTYPES):
        t = place_all(problem, values, "cpu", dtype, layout)
        plans = gradients.plans("wgrad", problem, t)
        assert plans or dtype != torch.float16, "every problem has a plan in 16 bits"
        for plan in some(plans, seed):
            actual = gradients.compute("wgrad", problem, t, plan)
            assert_equal(actual, expected.to(dtype), what=f"{name}, {dtype}, {layout}, {plan}")


@pytest.mark.parametrize("operand", ["x", "dy"])
@pytest.mark.parametrize("name", ["3x3_small", "strided", "pointwise_odd", "groups", "few"])
def test_nan_reaches_the_results_that_meet_it(gradients: Emulated, name: str, operand: str):
    """And no other, whatever tiles hold beside a tensor's pixels."""
    problem = PROBLEMS[name]
    values = make_integers(problem)
    clean = by_pytorch("wgrad", problem, values)
    place = places(problem, getattr(values, operand))[0]
    spoilt = with_pixel(values, operand, place, torch.nan)
    expected = by_pytorch("wgrad", problem, spoilt)
    met = meets("wgrad", problem, values, operand, place)
    for seed, layout in enumerate(LAYOUTS):
        t = place_all(problem, spoilt, "cpu", torch.float16, layout)
        for plan in some(gradients.plans("wgrad", problem, t), seed):
            actual = gradients.compute("wgrad", problem, t, plan)
            what = f"{name}, {operand}, {layout}, {plan}"
            assert_reached(actual, clean, expected, met, what)
