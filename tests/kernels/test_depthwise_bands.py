"""Every plan that the planner weighs for filters as bands computes it."""

from __future__ import annotations

import pytest
import torch
from cases import case
from every_plan import check_exact, check_fused, check_reach, of_kind

OWN = of_kind("bands", "band_gradients")
PASSES = ("fprop", "dgrad", "wgrad")


def depthwise(images, channels, height, width, taps, padding):
    return case((images, channels, height, width), (channels, 1, *taps), groups=channels,
                padding=padding)  # fmt: skip


# Rows of every alignment, bands of every number of blocks and of several sections.
PROBLEMS = {
    "5x5": depthwise(2, 20, 17, 28, (5, 5), 2),
    "5x5_odd": depthwise(3, 4, 17, 23, (5, 5), 2),
    "7x7": depthwise(2, 12, 19, 24, (7, 7), 3),
    "7x7_odd": depthwise(2, 5, 15, 18, (7, 7), 3),  # channels-last element by element
    "7x7_small": depthwise(19, 8, 7, 7, (7, 7), 3),
    "7x7_valid": depthwise(2, 16, 30, 30, (7, 7), 0),
    "7x7_full": depthwise(2, 4, 9, 10, (7, 7), 6),
    "4x8_even": depthwise(1, 8, 21, 32, (4, 8), (1, 4)),
    "13x13": depthwise(2, 8, 14, 14, (13, 13), 6),
    "1x31": depthwise(2, 8, 3, 77, (1, 31), (0, 15)),
    "31x1": depthwise(2, 8, 45, 12, (31, 1), (15, 0)),
    "17x19": depthwise(1, 8, 26, 32, (17, 19), (8, 9)),
    "31x31": depthwise(1, 4, 33, 40, (31, 31), 15),
    "5x51": depthwise(2, 8, 20, 56, (5, 51), (2, 25)),
    "wide": depthwise(1, 4, 60, 136, (9, 9), 4),
    "pixels": depthwise(5, 16, 1, 1, (5, 5), 2),
}
# For NaN: a filter of each kind.
REACHES = {name: PROBLEMS[name] for name in ("7x7", "7x7_valid", "5x5_odd", "17x19", "5x51")}


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_every_plan_is_exact(op):
    plans = check_exact("depthwise", op, PROBLEMS, OWN)
    assert {plan.fields["source"] for plan in plans} == {"planes", "vectors"}


@pytest.mark.gpu
def test_every_plan_fuses():
    check_fused("depthwise", PROBLEMS, OWN)


@pytest.mark.gpu
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize(
    ("op", "operand"), [("fprop", "x"), ("dgrad", "dy"), ("wgrad", "x"), ("wgrad", "dy")]
)
def test_what_is_not_finite_reaches_what_its_taps_meet(op, operand, value):
    check_reach("depthwise", op, operand, REACHES, value, OWN)
