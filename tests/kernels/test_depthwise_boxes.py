"""Every plan that is weighed for a depthwise problem of channels-last images computes it."""

from __future__ import annotations

import random

import pytest
import sweep
from cases import Case, case
from compute import PASSES
from every_plan import DTYPES, check_exact, check_fused, check_reach, of_kind

FAMILY = "depthwise"
OWN = of_kind("boxes")


def depthwise(
    images: int, channels: int, height: int, width: int, taps: int | tuple[int, int], **geometry
) -> Case:
    weight = (channels, 1, *((taps, taps) if isinstance(taps, int) else taps))
    return case((images, channels, height, width), weight, groups=channels, **geometry)


# Of every filter and walk: patches that end with the image or beyond it, one tile and many, several
# images in a tile, channels of one block and of several.
PROBLEMS = {
    "3x3": depthwise(2, 40, 29, 24, 3, padding=1),
    "3x3_valid": depthwise(2, 24, 22, 34, 3),
    "3x3_wide": depthwise(1, 8, 9, 150, 3, padding=1),
    "3x3_padded": depthwise(2, 16, 9, 10, 3, padding=4),
    "3x3_chunks": depthwise(1, 328, 13, 9, 3, padding=1),
    "3x3_images": depthwise(41, 72, 7, 7, 3, padding=1),
    "3x3_clusters": depthwise(17, 296, 14, 14, 3, padding=1),
    "3x3_pixels": depthwise(9, 16, 1, 1, 3, padding=1),
    "3x3_strided": depthwise(2, 24, 31, 26, 3, stride=2, padding=1),
    "3x3_strided_even": depthwise(2, 96, 30, 29, 3, stride=2),
    "3x3_strided_images": depthwise(19, 32, 14, 14, 3, stride=2, padding=1),
    "5x5": depthwise(2, 24, 17, 28, 5, padding=2),
    "5x5_images": depthwise(9, 40, 10, 5, 5, padding=2),
    "5x5_strided": depthwise(2, 16, 23, 28, 5, stride=2, padding=2),
    "5x5_strided_odd": depthwise(2, 8, 20, 21, 5, stride=2, padding=1),
    "7x7": depthwise(2, 48, 19, 20, 7, padding=3),
    "7x7_images": depthwise(7, 8, 14, 6, 7, padding=3),
    "7x7_strided": depthwise(1, 16, 24, 22, 7, stride=2, padding=3),
    "7x7_strided_odd": depthwise(3, 8, 17, 19, 7, stride=2, padding=2),
}
# Of any other filter, stride and dilation: those of which gradients are computed, and the others.
OTHERS = {
    "3x7": depthwise(2, 24, 16, 40, (3, 7)),
    "1x4": depthwise(2, 16, 1, 64, (1, 4), padding=(0, 3)),
    "9x1": depthwise(2, 40, 30, 12, (9, 1), padding=(4, 0)),
    "2x8": depthwise(3, 8, 9, 13, (2, 8), padding=(1, 3)),
    "1x1": depthwise(3, 16, 9, 13, 1),
    "3x3_dilated": depthwise(2, 48, 21, 30, 3, padding=2, dilation=2),
    "17x13": depthwise(1, 8, 26, 32, (17, 13), padding=(8, 6)),
}
STRIDED_OTHERS = {
    "3x3_far": depthwise(2, 8, 40, 33, 3, stride=(3, 2), padding=2, dilation=(2, 1)),
    "4x4_strided": depthwise(2, 24, 18, 19, 4, stride=(2, 1), padding=1),
}
REACHES = {
    name: PROBLEMS[name]
    for name in ("3x3", "3x3_images", "3x3_strided_even", "5x5", "5x5_strided_odd", "7x7")
}


def problems(op: str) -> dict[str, Case]:
    others = {"fprop": OTHERS | STRIDED_OTHERS, "dgrad": OTHERS, "wgrad": {}}
    return PROBLEMS | others[op]


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_every_plan_is_exact(op):
    plans = check_exact(FAMILY, op, problems(op), OWN)
    assert {plan.fields["merged"] for plan in plans} == {False, True}
    if op == "wgrad":  # clusters, which need no workspace
        assert any(plan.splits > 1 and plan.workspace_bytes == 0 for plan in plans)


@pytest.mark.gpu
def test_every_plan_fuses():
    check_fused(FAMILY, problems("fprop"), OWN)


@pytest.mark.gpu
@pytest.mark.parametrize(("op", "operand"), [("fprop", "x"), ("dgrad", "dy"), ("wgrad", "x")])
def test_nan_reaches_what_its_taps_meet(op, operand):
    others = {} if op == "wgrad" else {name: OTHERS[name] for name in ("3x7", "3x3_dilated")}
    check_reach(FAMILY, op, operand, REACHES | others, only=OWN)


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_random_values_are_as_accurate_as_pytorchs(op):
    rng = random.Random(op)
    for name, problem in problems(op).items():
        trial = sweep.Trial(
            problem, op, rng.choice(DTYPES), tf32=False, channels_last=True,
            seed=rng.randrange(2**31),
        )  # fmt: skip
        assert sweep.judge(trial, FAMILY, "cuda"), name
