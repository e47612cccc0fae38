"""Every plan that the planner weighs for a depthwise problem of planes computes it."""

from __future__ import annotations

import pytest
from cases import output_shape
from compute import PASSES
from every_plan import check_exact, check_fused, check_reach, of_kind
from test_depthwise_threads import depthwise

OWN = of_kind("planes")
# Planes and bands of rows; rows that begin anywhere in a word; tiles that end anywhere in 16 bytes.
PROBLEMS = {
    "7x7 images": depthwise(5, 37, 7, 7, (3, 3), padding=1),
    "14x14 images": depthwise(3, 40, 14, 14, (3, 3), padding=1),
    "two columns": depthwise(2, 9, 19, 2, (3, 3), padding=1),
    "one pixel": depthwise(3, 11, 1, 1, (3, 3), padding=1),
    "odd rows": depthwise(2, 7, 29, 31, (3, 3), padding=1),
    "without padding": depthwise(2, 12, 21, 32, (3, 3)),
    "full padding": depthwise(2, 12, 12, 23, (3, 3), padding=2),
    "bands": depthwise(1, 3, 75, 141, (3, 3), padding=1),
    "long rows": depthwise(1, 2, 9, 1501, (3, 3), padding=1),
    "strided": depthwise(2, 24, 28, 28, (3, 3), stride=2, padding=1),
    "strided, odd": depthwise(3, 9, 15, 17, (3, 3), stride=2, padding=1),
    "strided, even padding": depthwise(2, 6, 30, 27, (3, 3), stride=2),
    "strided, bands": depthwise(1, 3, 131, 154, (3, 3), stride=2, padding=1),
    "5x5": depthwise(2, 20, 17, 28, (5, 5), padding=2),
    "5x5, strided": depthwise(2, 8, 23, 29, (5, 5), stride=2, padding=2),
    "7x7": depthwise(2, 12, 14, 14, (7, 7), padding=3),
    "7x7, odd": depthwise(2, 5, 19, 21, (7, 7), padding=(3, 2)),
    "7x7, strided": depthwise(1, 8, 24, 22, (7, 7), stride=2, padding=3),
}
REACHES = {name: PROBLEMS[name] for name in ("14x14 images", "odd rows", "strided, odd", "7x7")}


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("op", PASSES)
def test_every_plan_is_exact(op, name):
    plans = check_exact("depthwise", op, {name: PROBLEMS[name]}, OWN)
    height = {"dgrad": PROBLEMS[name].input[2]}.get(op, output_shape(PROBLEMS[name])[2])
    rows = {plan.fields["tile"][1] for plan in plans}
    assert min(rows) < height or "bands" not in name


@pytest.mark.gpu
@pytest.mark.parametrize("padding", [(1, 2), (2, 1), (0, 1)])
def test_strided_gradients_of_unlike_paddings_are_exact(padding):
    problem = depthwise(2, 24, 28, 30, (3, 3), stride=2, padding=padding)
    check_exact("depthwise", "dgrad", {f"padding {padding}": problem})


@pytest.mark.gpu
def test_every_plan_fuses():
    check_fused("depthwise", PROBLEMS, OWN)


@pytest.mark.gpu
@pytest.mark.parametrize("name", REACHES)
@pytest.mark.parametrize(
    ("op", "operand"), [("fprop", "x"), ("dgrad", "dy"), ("wgrad", "x"), ("wgrad", "dy")]
)
def test_nan_reaches_what_its_taps_meet(op, operand, name):
    check_reach("depthwise", op, operand, {name: REACHES[name]}, only=OWN)
