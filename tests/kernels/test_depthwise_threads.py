"""Every plan of threads for depthwise problems, in all three passes."""

from __future__ import annotations

import pytest
from cases import case
from compute import PASSES
from every_plan import check_exact, check_fused, check_reach, of_kind

from customconv import _bind


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
    "3x3_strided_even": depthwise(2, 6, 30, 28, (3, 3), stride=2),
    "3x3_far": depthwise(2, 8, 40, 33, (3, 3), stride=(3, 2), padding=2, dilation=(2, 1)),
    "2x3": depthwise(2, 8, 12, 17, (2, 3), padding=(0, 1)),
    "5x5": depthwise(2, 20, 17, 28, (5, 5), padding=2),
    "5x5_odd": depthwise(2, 6, 17, 23, (5, 5), padding=2),
    "5x5_even": depthwise(2, 6, 17, 22, (5, 5), padding=2),
    "5x5_strided": depthwise(2, 8, 23, 28, (5, 5), stride=2, padding=2),
    "7x7": depthwise(2, 12, 19, 20, (7, 7), padding=3),
    "7x7_odd": depthwise(2, 5, 14, 14, (7, 7), padding=3),
    "7x7_strided": depthwise(1, 8, 24, 22, (7, 7), stride=2, padding=3),
    "4x5": depthwise(2, 5, 18, 24, (4, 5), padding=2),
    # Several turns of each walk.
    "9x9_strided": depthwise(2, 8, 31, 29, (9, 9), stride=2, padding=4),
    "11x9_strided_odd": depthwise(2, 7, 30, 27, (11, 9), stride=2, padding=(5, 3)),
    "9x9_multiplied": depthwise(2, 3, 21, 24, (9, 9), 2, stride=2, padding=4),
    "3x7": depthwise(2, 8, 16, 40, (3, 7)),
    "9x1": depthwise(2, 8, 30, 12, (9, 1), padding=(4, 0)),
    "1x4": depthwise(2, 16, 1, 64, (1, 4), padding=(0, 3)),
    "1x4_odd": depthwise(3, 9, 1, 301, (1, 4)),
    "1x4_rows": depthwise(2, 8, 13, 43, (1, 4), stride=(2, 1), padding=(1, 2)),
    "1x4_strided": depthwise(2, 8, 1, 61, (1, 4), stride=(1, 2), padding=(0, 1)),
    "1x4_dilated": depthwise(2, 8, 1, 61, (1, 4), padding=(0, 6), dilation=(1, 3)),
    "1x8": depthwise(2, 12, 1, 59, (1, 8), padding=(0, 4)),
    "1x31": depthwise(2, 8, 1, 77, (1, 31), padding=(0, 15)),
    "1x31_even": depthwise(1, 20, 1, 96, (1, 31), padding=(0, 15)),
    "1x128": depthwise(2, 8, 1, 131, (1, 128), padding=(0, 127)),
    "4x1": depthwise(2, 16, 61, 1, (4, 1), padding=(3, 0)),
    "row_of_3x3": depthwise(2, 8, 1, 45, (3, 3), padding=1),
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
ORDERS = set(_bind.plan_words()["depthwise", "threads"]["order"])
OWN = of_kind("threads")
# For NaN: a filter of each kind.
REACHES = {
    name: PROBLEMS[name]
    for name in ("3x3", "3x3_odd", "3x3_strided", "5x5", "5x5_strided", "7x7", "3x7", "17x19",
                 "1x4", "1x31", "1x11")
}  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_every_plan_is_exact(op):
    plans = check_exact("depthwise", op, PROBLEMS, OWN)
    assert {plan.fields["order"] for plan in plans} == ORDERS


@pytest.mark.gpu
def test_every_plan_fuses():
    check_fused("depthwise", PROBLEMS, OWN)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "operand"), [("fprop", "x"), ("dgrad", "dy"), ("wgrad", "x"), ("wgrad", "dy")]
)
def test_nan_reaches_what_its_taps_meet(op, operand):
    check_reach("depthwise", op, operand, REACHES, only=OWN)
