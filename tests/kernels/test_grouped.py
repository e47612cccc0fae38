"""Every plan that the planner weighs for a grouped problem computes it, in all three passes."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import case, make_integers, place_all
from compute import PASSES
from every_plan import DTYPES, check_exact, check_fused, check_reach, plans_of
from reference import LAYOUTS

from customconv import _bind


def grouped(images, groups, channels, size, taps=(3, 3), outputs=None, **geometry):
    """`channels` and `outputs` of a group; the `size` is an image's."""
    outputs = channels if outputs is None else outputs
    weight = (groups * outputs, channels, *taps)
    return case((images, groups * channels, *size), weight, groups=groups, **geometry)


# Thin groups that share a block, wide ones that take several, units and octets with tails, sets of
# groups the last of which is not whole.
PROBLEMS = {
    "of_4": grouped(2, 10, 4, (15, 14), padding=1),
    "of_4_strided": grouped(2, 6, 4, (15, 18), stride=2, padding=1),
    "of_8": grouped(3, 9, 8, (13, 20), padding=1),
    "of_8_strided_wide": grouped(2, 6, 8, (14, 19), stride=(1, 2), padding=1),
    "of_8_strided_far": grouped(2, 6, 8, (14, 19), stride=(2, 3), padding=1),
    "of_16": grouped(2, 5, 16, (14, 14), padding=1),
    "of_32": grouped(2, 3, 32, (9, 17), padding=1),
    "of_32_strided": grouped(1, 2, 32, (14, 13), stride=2, padding=1),
    "of_100": grouped(1, 2, 100, (6, 7), padding=1),
    "of_3": grouped(2, 7, 3, (11, 12), padding=1),
    "eight_of_3": grouped(2, 8, 3, (11, 12), padding=1),
    "of_2": grouped(2, 16, 2, (12, 9), padding=1),
    "of_8_to_2": grouped(2, 6, 8, (9, 12), outputs=2, padding=1),
    "of_24": grouped(2, 4, 24, (10, 9), padding=1),
    "of_72": grouped(1, 2, 72, (7, 8), padding=1),
    "of_6_to_5": grouped(2, 3, 6, (9, 12), outputs=5, padding=1),
    "of_2_to_9": grouped(2, 8, 2, (9, 12), outputs=9, padding=(1, 0)),
    "of_12_to_72": grouped(1, 2, 12, (10, 9), outputs=72, padding=1),
    "of_40_to_1": grouped(2, 3, 40, (7, 12), outputs=1, padding=1),
    "pointwise": grouped(2, 6, 8, (9, 11), taps=(1, 1)),
    "pointwise_strided": grouped(2, 3, 8, (11, 12), taps=(1, 1), stride=(2, 3)),
    "5x4": grouped(1, 4, 4, (17, 21), taps=(5, 4), padding=(2, 1)),
    "11x11": grouped(1, 4, 4, (19, 23), taps=(11, 11), padding=5),
    "dilated": grouped(2, 4, 8, (15, 19), padding=(2, 3), dilation=(2, 3)),
    "dilated_strided": grouped(2, 4, 4, (21, 22), stride=(2, 3), padding=3, dilation=(4, 2)),
    "far": grouped(2, 4, 4, (25, 22), taps=(2, 3), stride=(4, 5), padding=1),
    "small_images": grouped(23, 8, 8, (7, 7), padding=1),
    # Planes of whole 16 bytes: whole rows, some columns, rows apart, several images.
    "planes": grouped(2, 5, 8, (14, 20), padding=1),
    "planes_strided": grouped(2, 4, 8, (15, 16), stride=2, padding=1),
    "planes_wide": grouped(1, 3, 8, (4, 150), padding=1),
    "planes_dilated": grouped(2, 3, 8, (16, 22), padding=2, dilation=2),
    "planes_many": grouped(9, 6, 4, (4, 10), padding=1),
    "planes_of_32": grouped(2, 2, 32, (8, 12), padding=1),
    "planes_of_24_strided": grouped(2, 3, 24, (16, 16), stride=2, padding=1),
    "row": grouped(2, 6, 4, (1, 90), taps=(1, 5), padding=(0, 2)),
    "pixel": grouped(1, 3, 100, (1, 1), stride=2, padding=1),  # phases without a pixel
}
# For NaN: groups that end within a unit of channels or an octet, several chunks, phases,
# planes whose neighbours are copied too.
REACHES = {
    name: PROBLEMS[name]
    for name in ("of_4", "of_4_strided", "of_3", "eight_of_3", "of_8_to_2", "of_6_to_5", "of_16",
                 "of_100", "dilated_strided", "small_images", "planes", "planes_wide")
}  # fmt: skip


def kernels(op: str) -> dict[str, list[str]]:
    """The names of the kernels of a pass, of each kind of plans."""
    kinds = ("slot_gradients", "box_gradients") if op == "wgrad" else ("slots", "boxes")
    return {kind: _bind.plan_words()["grouped", kind]["kernel"] for kind in kinds}


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("op", PASSES)
def test_every_plan_is_exact(op, name):
    check_exact("grouped", op, {name: PROBLEMS[name]})


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_every_kernel_has_a_plan(op):
    plans = []
    for problem in PROBLEMS.values():
        values = make_integers(problem)
        for dtype, layout in itertools.product(DTYPES, LAYOUTS):
            t = place_all(problem, values, "cuda", dtype, layout)
            plans += plans_of("grouped", op, problem, t)
    expected = {(kind, kernel) for kind, names in kernels(op).items() for kernel in names}
    assert {(plan.word, plan.fields["kernel"]) for plan in plans} == expected
    if op == "wgrad":  # clusters, which need no workspace
        assert any(plan.splits > 1 and plan.workspace_bytes == 0 for plan in plans)


@pytest.mark.gpu
@pytest.mark.parametrize("op", PASSES)
def test_every_kernel_of_boxes_has_planes_both_ways(op):
    ways = set()
    for name, problem in PROBLEMS.items():
        if not name.startswith("planes"):
            continue
        values = make_integers(problem)
        for dtype in DTYPES:
            t = place_all(problem, values, "cuda", dtype, torch.contiguous_format)
            plans = plans_of("grouped", op, problem, t)
            boxes = [plan.fields for plan in plans if "loading" in plan.fields]
            ways |= {(fields["kernel"], fields["loading"] == "threads") for fields in boxes}
    *_, boxes = kernels(op).values()
    assert ways == set(itertools.product(boxes, (False, True)))


@pytest.mark.gpu
def test_every_plan_fuses():
    check_fused("grouped", PROBLEMS)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("op", "operand"), [("fprop", "x"), ("dgrad", "dy"), ("wgrad", "x"), ("wgrad", "dy")]
)
def test_nan_reaches_what_its_taps_meet(op, operand):
    check_reach("grouped", op, operand, REACHES)


@pytest.mark.gpu
def test_infinity_reaches_what_its_taps_meet():
    check_reach("grouped", "fprop", "x", REACHES, torch.inf)
