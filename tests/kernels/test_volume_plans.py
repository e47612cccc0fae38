"""Every plan that the planner weighs for volumes computes them, in each pass of its family."""

from __future__ import annotations

import pytest
import torch
from cases import case
from compute import PASSES, TF32_ALONE, has_plan
from every_plan import check_exact, check_fused, check_reach
from reference import ALL_FAMILIES

# Whole tiles and tails, filters of each shape, what the corners of a box reach, volumes that are
# 2-D in memory, several volumes, more slices than a chunk has.
PROBLEMS = {
    "3x3x3": case((1, 64, 4, 12, 16), (72, 64, 3, 3, 3), padding=1),
    "3x3x3_valid": case((2, 32, 5, 10, 18), (64, 32, 3, 3, 3)),
    "of_one_slice": case((1, 40, 3, 10, 34), (40, 40, 3, 3, 3)),
    "many_slices": case((1, 16, 40, 9, 11), (24, 16, 3, 3, 3), padding=1),
    "volumes": case((5, 24, 3, 7, 9), (40, 24, 3, 3, 3), padding=1),
    "many_channels": case((1, 200, 3, 6, 8), (136, 200, 3, 3, 3), padding=1),
    "odd_channels": case((2, 19, 4, 7, 12), (37, 19, 3, 2, 3), padding=(1, 0, 1)),
    "few_channels": case((1, 3, 4, 12, 20), (48, 3, 3, 3, 3), padding=1),
    "few_outputs": case((1, 64, 4, 10, 18), (3, 64, 3, 3, 3)),
    "uneven": case((2, 16, 6, 9, 13), (24, 16, 2, 3, 5), padding=(1, 0, 2)),
    "uneven_paddings": case((1, 24, 5, 8, 11), (32, 24, 3, 3, 3), padding=(2, 0, 1)),
    "dilated": case((1, 16, 9, 12, 17), (24, 16, 3, 3, 3), padding=(1, 2, 3), dilation=(1, 2, 3)),
    "strided": case((2, 16, 7, 11, 14), (24, 16, 3, 3, 3), stride=(1, 2, 2), padding=1),
    "strided_depth": case((2, 16, 7, 9, 12), (24, 16, 3, 3, 3), stride=(2, 1, 1), padding=1),
    "2x2x2_strided": case((2, 24, 6, 8, 12), (48, 24, 2, 2, 2), stride=2),
    "5x5x5": case((1, 16, 7, 9, 12), (24, 16, 5, 5, 5), padding=2),
    "7x7x7_strided": case((1, 3, 8, 13, 18), (32, 3, 7, 7, 7), stride=2, padding=3),
    "slices": case((2, 24, 5, 9, 14), (40, 24, 1, 3, 3), padding=(0, 1, 1)),
    "slices_of_one": case((1, 24, 5, 9, 14), (40, 24, 1, 3, 3), padding=(0, 1, 1)),
    "column": case((2, 24, 9, 5, 8), (40, 24, 3, 1, 1), padding=(1, 0, 0)),
    "column_strided": case((1, 24, 9, 5, 8), (40, 24, 3, 1, 1), stride=(2, 1, 1)),
    "pointwise": case((2, 40, 3, 7, 8), (72, 40, 1, 1, 1)),
    "patches": case((3, 3, 4, 14, 28), (48, 3, 2, 14, 14), stride=(2, 14, 14)),
    "patch_is_volume": case((70, 3, 2, 7, 7), (40, 3, 2, 7, 7)),
    "groups": case((1, 128, 4, 7, 10), (128, 64, 3, 3, 3), padding=1, groups=2),
    "narrow_groups": case((2, 32, 4, 7, 10), (32, 4, 3, 3, 3), padding=1, groups=8),
    "depthwise": case((2, 24, 5, 9, 12), (24, 1, 3, 3, 3), padding=1, groups=24),
    "depthwise_slices": case((2, 24, 3, 9, 12), (24, 1, 1, 3, 3), padding=(0, 1, 1), groups=24),
    "one_line": case((2, 8, 33, 1, 1), (16, 8, 5, 1, 1), padding=(2, 0, 0)),
    "one_pixel": case((3, 24, 1, 1, 1), (40, 24, 3, 3, 3), padding=1),
}  # fmt: skip
# For NaN: each shape of filters, steps of each dimension, several volumes.
REACHES = (
    "3x3x3", "of_one_slice", "volumes", "odd_channels", "uneven", "uneven_paddings", "dilated",
    "strided", "strided_depth", "slices", "column", "patches", "groups",
)  # fmt: skip
OPERANDS = [("fprop", "x"), ("dgrad", "dy"), ("wgrad", "x"), ("wgrad", "dy")]


def families_of(op: str, name: str, dtype: torch.dtype) -> list[str]:
    """Those that have a plan in one of the layouts."""
    return [
        family
        for family in ALL_FAMILIES
        if any(
            has_plan(family, op, PROBLEMS[name], dtype, tf32=family in TF32_ALONE,
                     channels_last=channels_last)
            for channels_last in (False, True)
        )
    ]  # fmt: skip


def any_plan(plan: object) -> bool:
    """A family may have plans in one layout alone."""
    return True


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "op", "family"),
    [
        (name, op, family)
        for name in PROBLEMS
        for op in PASSES
        for family in families_of(op, name, torch.float16)
    ],
)
def test_every_plan_is_exact(name, op, family):
    check_exact(family, op, {name: PROBLEMS[name]}, any_plan)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "family"),
    [(name, family) for name in PROBLEMS for family in families_of("fprop", name, torch.float16)],
)
def test_every_plan_with_an_epilogue_fuses(name, family):
    check_fused(family, {name: PROBLEMS[name]}, lambda plan: plan.fuses)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "op", "operand", "family"),
    [
        (name, op, operand, family)
        for name in REACHES
        for op, operand in OPERANDS
        for family in families_of(op, name, torch.float16)
    ],
)
def test_nan_reaches_what_its_taps_meet(name, op, operand, family):
    check_reach(family, op, operand, {name: PROBLEMS[name]}, only=any_plan)


def test_every_problem_has_a_plan():
    for name in PROBLEMS:
        for op in PASSES:
            assert "direct" in families_of(op, name, torch.float16), f"{op} of {name}"
