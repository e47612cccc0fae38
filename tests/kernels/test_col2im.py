"""Every plan that the planner weighs for an input gradient by col2im computes it."""

from __future__ import annotations

import pytest
from cases import case
from every_plan import check_exact, check_reach

PROBLEMS = {
    "7x7, strided": case((3, 3, 33, 40), (64, 3, 7, 7), stride=2, padding=3),
    "one channel": case((2, 1, 31, 70), (32, 1, 5, 20), stride=2),
    "3x3": case((2, 3, 28, 32), (64, 3, 3, 3), padding=1),
    "odd": case((2, 2, 21, 75), (19, 2, 3, 4), padding=(1, 2)),
    "11x11": case((2, 3, 45, 63), (40, 3, 11, 11), stride=4, padding=2),
    "patches": case((2, 3, 32, 48), (72, 3, 8, 8), stride=8),
    "phases without taps": case((2, 9, 31, 43), (24, 9, 3, 3), stride=5, padding=1, dilation=2),
    "dilated": case((2, 4, 40, 40), (24, 4, 3, 3), padding=(5, 7), dilation=(5, 7)),
    "dilated, strided": case((2, 4, 30, 41), (9, 4, 3, 5), stride=(3, 2), padding=4,
                             dilation=(2, 3)),
    "many channels": case((2, 70, 14, 15), (40, 70, 3, 3), stride=2, padding=1),
    "long rows": case((1, 3, 5, 700), (16, 3, 3, 33), stride=(1, 3), padding=(1, 16)),
    "one pixel": case((2, 3, 1, 1), (16, 3, 1, 1)),
}  # fmt: skip
REACHES = ("7x7, strided", "odd", "11x11", "phases without taps", "dilated, strided")


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_plan_is_exact(name):
    check_exact("col2im", "dgrad", {name: PROBLEMS[name]})


@pytest.mark.gpu
@pytest.mark.parametrize("name", REACHES)
def test_nan_reaches_the_gradients_whose_taps_meet_it_alone(name):
    check_reach("col2im", "dgrad", "dy", {name: PROBLEMS[name]})
