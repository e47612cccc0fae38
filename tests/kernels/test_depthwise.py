"""Every plan that the planner weighs for a depthwise problem computes it, in all three passes."""

from __future__ import annotations

import pytest
import torch
from cases import case, make_integers, place_all
from compute import (
    PASSES,
    by_pytorch,
    compute,
    compute_fused,
    fused_by_pytorch,
    poison,
    result_bytes,
)
from reference import LAYOUTS, assert_equal

from customconv import _C


def depthwise(images, channels, height, width, taps, multiplier=1, **geometry):
    weight = (channels * multiplier, 1, *taps)
    return case((images, channels, height, width), weight, groups=channels, **geometry)


# Rows of every alignment, paddings of every window, filters of one turn and of several.
PROBLEMS = {
    "3x3": depthwise(2, 40, 29, 24, (3, 3), padding=1),
    "3x3_valid": depthwise(2, 12, 21, 32, (3, 3)),
    "3x3_odd": depthwise(3, 7, 18, 19, (3, 3), padding=1),
    "3x3_even": depthwise(3, 9, 18, 30, (3, 3), padding=1),
    "3x3_strided": depthwise(2, 24, 31, 26, (3, 3), stride=2, padding=1),
    "3x3_far": depthwise(2, 8, 40, 33, (3, 3), stride=(3, 2), padding=2, dilation=(2, 1)),
    "2x3": depthwise(2, 8, 12, 17, (2, 3), padding=(0, 1)),
    "5x5": depthwise(2, 20, 17, 28, (5, 5), padding=2),
    "5x5_odd": depthwise(2, 6, 17, 23, (5, 5), padding=2),
    "5x5_strided": depthwise(2, 8, 23, 28, (5, 5), stride=2, padding=2),
    "7x7": depthwise(2, 12, 19, 20, (7, 7), padding=3),
    "7x7_odd": depthwise(2, 5, 14, 14, (7, 7), padding=3),
    "7x7_strided": depthwise(1, 8, 24, 22, (7, 7), stride=2, padding=3),
    "3x7": depthwise(2, 8, 16, 40, (3, 7)),
    "9x1": depthwise(2, 8, 30, 12, (9, 1), padding=(4, 0)),
    "1x11": depthwise(2, 4, 1, 50, (1, 11), padding=(0, 5)),
    "17x19": depthwise(1, 8, 26, 32, (17, 19), padding=(8, 9)),
    "17x18_even": depthwise(1, 3, 26, 30, (17, 18), padding=(8, 9)),
    "31x31": depthwise(1, 4, 33, 37, (31, 31), padding=15),
    "pointwise": depthwise(2, 12, 9, 11, (1, 1)),
    "multiplier": depthwise(2, 6, 15, 16, (3, 3), 3, padding=1),
    "one_channel": depthwise(2, 1, 15, 16, (3, 5), 20, padding=1),
    "pixels": depthwise(5, 16, 1, 1, (3, 3), padding=1),
    "many_images": depthwise(41, 24, 7, 7, (3, 3), padding=1),
}
DTYPES = (torch.float32, torch.float16, torch.bfloat16)
VARIANTS = {"planes", "channels", "elements", "windows", "patches"}


@pytest.fixture(autouse=True)
def forces_nothing_afterwards():
    yield
    _C.force_plan(None)


def plans_of(problem, op, t):
    plans = _C.variants(t.x, t.w, t.bias, *problem.geometry, op)
    return {
        (plan.variant_index, *plan.tile, plan.splits): plan
        for plan in plans
        if plan.family == "depthwise"
    }.values()


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_every_variant_is_exact(op):
    found: set[str] = set()
    for name, problem in PROBLEMS.items():
        values = make_integers(problem)
        expected = by_pytorch(op, problem, values).cuda()
        for dtype in DTYPES:
            for layout in LAYOUTS:
                t = place_all(problem, values, "cuda", dtype, layout)
                plans = plans_of(problem, op, t)
                assert plans, name
                for plan in plans:
                    _C.force_plan(plan)
                    poison(result_bytes(op, problem, dtype), plan.workspace_bytes)
                    actual = compute(op, "depthwise", problem, t)
                    _C.force_plan(None)
                    what = f"{name}, {layout}, {plan.variant}, tile {plan.tile}, {plan}"
                    assert_equal(actual, expected.to(dtype), what=what)
                    found.add(plan.variant)
    assert found == VARIANTS


@pytest.mark.gpu
def test_every_variant_fuses():
    for name, problem in PROBLEMS.items():
        values = make_integers(problem)
        expected = fused_by_pytorch(problem, values).cuda()
        for dtype in DTYPES:
            for layout in LAYOUTS:
                t = place_all(problem, values, "cuda", dtype, layout)
                for plan in plans_of(problem, "fprop", t):
                    _C.force_plan(plan)
                    fused = compute_fused("depthwise", problem, t)
                    _C.force_plan(None)
                    what = f"{name}, {layout}, {plan.variant}, tile {plan.tile}, {plan}"
                    assert_equal(fused, expected.to(dtype), what=what)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_what_is_not_reached_does_not_matter(layout):
    """NaN in a pixel reaches the outputs whose taps meet it, and no other."""
    for name in ("3x3", "3x3_odd", "5x5", "7x7", "3x7", "17x19"):
        problem = PROBLEMS[name]
        t = place_all(problem, make_integers(problem), "cuda", torch.float16, layout)
        clean = compute("fprop", "depthwise", problem, t)
        t.x[0, 1, 3, 5] = torch.nan
        for plan in plans_of(problem, "fprop", t):
            _C.force_plan(plan)
            actual = compute("fprop", "depthwise", problem, t)
            _C.force_plan(None)
            expected = torch.nn.functional.conv2d(
                t.x.double(), t.w.double(), None, *problem.geometry
            ).isnan()
            what = f"{name}, {plan.variant}, tile {plan.tile}"
            assert torch.equal(actual.isnan(), expected), what
            assert_equal(actual[~expected], clean[~expected], what=what)
