"""Every plan that the planner weighs for a weight gradient on Hopper's tensor cores computes it."""

from __future__ import annotations

import itertools

import pytest
import torch
from cases import case, make_integers, place_all
from every_plan import DTYPES, check_exact, check_reach, plans_of
from reference import LAYOUTS, is_of_3xtf32

from customconv import _bind

# Tiles that are whole and that are not, channels with tails, several blocks of both, taps that are
# too many for a chunk, and that a stride or a dilation puts in several boxes; planes that are runs
# of pixels, in classes, of one row of the filter or all, and in several boxes, and planes whose
# words are pairs of pixels, from an even or an odd one, or single pixels.
PROBLEMS = {
    "3x3": case((2, 64, 16, 24), (128, 64, 3, 3), padding=1),
    "3x3_small": case((5, 136, 7, 7), (200, 136, 3, 3), padding=1),
    "3x3_tails": case((3, 72, 13, 29), (40, 72, 3, 3)),
    "3x3_many": case((40, 64, 14, 14), (64, 64, 3, 3), padding=1),
    "strided": case((3, 128, 14, 14), (64, 128, 3, 3), stride=2, padding=1),
    "strided_odd": case((2, 64, 15, 33), (72, 64, 3, 3), stride=2, padding=1),
    "strided_5x5": case((2, 64, 19, 22), (64, 64, 5, 5), stride=2, padding=2),
    "strided_rows": case((2, 64, 19, 22), (64, 64, 3, 2), stride=(2, 1), padding=1),
    "strided_far": case((1, 24, 30, 41), (64, 24, 4, 3), stride=(3, 5)),
    "dilated": case((2, 64, 20, 24), (64, 64, 3, 3), padding=(3, 2), dilation=(3, 2)),
    "dilated_strided": case((2, 64, 20, 24), (64, 64, 3, 3), stride=2, padding=3, dilation=3),
    "5x4": case((1, 64, 18, 20), (64, 64, 5, 4), padding=2),
    "11x11": case((1, 40, 16, 16), (24, 40, 11, 11), padding=5),
    "column": case((2, 72, 12, 13), (64, 72, 3, 1), padding=(1, 0)),
    "row": case((2, 64, 1, 90), (64, 64, 1, 5), padding=(0, 2)),
    "pixel": case((3, 64, 1, 1), (64, 64, 1, 1)),
    # Images are rows whatever the layout, and the weight is channels-last with them.
    "pixel_padded": case((40, 72, 1, 1), (72, 72, 3, 3), padding=1),
    "pointwise": case((3, 520, 14, 14), (264, 520, 1, 1)),
    "pointwise_padded": case((3, 64, 9, 9), (64, 64, 1, 1), padding=1),
    "pointwise_strided": case((3, 136, 27, 28), (256, 136, 1, 1), stride=2),
    "groups": case((2, 256, 14, 14), (512, 64, 3, 3), padding=1, groups=4),
    "groups_strided": case((4, 256, 14, 14), (256, 64, 3, 3), stride=2, padding=1, groups=4),
    "pointwise_odd": case((3, 64, 7, 7), (68, 64, 1, 1)),
    # Channels that are no whole 16 bytes, of one tensor or of both: threads fill boxes.
    "few_outputs": case((2, 64, 24, 25), (3, 64, 3, 3), padding=1),
    "filled": case((3, 100, 10, 15), (101, 100, 5, 5), padding=2),
    "filled_strided": case((2, 19, 33, 17), (21, 19, 3, 4), stride=2, padding=(1, 2)),
    "filled_pointwise": case((2, 65, 20, 20), (255, 65, 1, 1)),
    "filled_stem": case((2, 3, 21, 23), (64, 3, 3, 3), padding=1, dilation=2),
    "groups_of_12": case((2, 24, 9, 11), (40, 12, 3, 3), padding=1, groups=2),
    "stem": case((3, 3, 40, 48), (64, 3, 7, 7), stride=2, padding=3),
    "few_whole": case((2, 3, 19, 32), (72, 3, 3, 3), padding=1),
    "few_images": case((20, 1, 9, 16), (24, 1, 5, 4), padding=(2, 1)),
    "few_dilated": case((2, 5, 33, 32), (64, 5, 3, 4), stride=(3, 2), padding=2, dilation=(2, 1)),
    "few": case((2, 3, 30, 32), (72, 3, 7, 7), stride=2, padding=3),
    "few_in_odd_rows": case((3, 3, 21, 19), (40, 3, 3, 3), stride=2, padding=(0, 1)),
    "few_narrow": case((3, 3, 16, 24), (24, 3, 3, 3), padding=1),
    "few_far": case((1, 2, 60, 64), (16, 1, 11, 11), stride=4, padding=2, groups=2),
    "rows_of_28": case((3, 64, 28, 28), (64, 64, 3, 3), padding=1),
    "rows_of_56": case((1, 70, 10, 56), (130, 70, 3, 3), padding=1),
    "one": case((2, 1, 9, 10), (1, 1, 2, 2)),
    "groups_of_40": case((2, 120, 9, 11), (72, 40, 3, 3), padding=1, groups=3),
    "groups_of_classes": case((2, 128, 9, 9), (128, 64, 3, 3), padding=1, groups=2),
    "runs_of_rows": case((1, 16, 9, 175), (16, 16, 3, 3), padding=1),
    "runs_of_boxes": case((1, 16, 19, 141), (32, 16, 5, 10), stride=2),
    "runs_dilated": case((2, 32, 11, 13), (40, 32, 3, 3), padding=2, dilation=2),
    "pairs_of_wide_rows": case((1, 72, 5, 530), (64, 72, 3, 5), padding=(1, 2)),
    "pairs_dilated": case((2, 40, 12, 14), (40, 40, 2, 4), padding=(1, 3), dilation=(2, 3)),
    "strided_2x2": case((2, 64, 10, 14), (64, 64, 2, 2), stride=2),
    "pointwise_around": case((2, 48, 7, 7), (40, 48, 1, 1), stride=2, padding=3),
}  # fmt: skip
# For NaN: tiles that go on behind the image, and groups.
REACHES = {
    name: PROBLEMS[name]
    for name in ("3x3_small", "3x3_tails", "strided_odd", "strided_5x5", "groups_of_40",
                 "pointwise_padded", "few", "rows_of_56", "stem", "few_dilated",
                 "groups_of_classes", "runs_of_rows", "runs_of_boxes", "pointwise_around",
                 "filled", "filled_strided", "pairs_dilated")
}  # fmt: skip


def kernels() -> set[tuple[str, str]]:
    """The kinds of plans, and their kernels but for those of strict float32."""
    return {
        (word, kernel)
        for (family, word), fields in _bind.plan_words().items()
        if family == "implicit_gemm" and word.startswith("wgrad")
        for kernel in fields["kernel"]
        if not kernel.startswith("3xTF32")
    }


def is_ours(plan: _bind.ConvPlan) -> bool:
    """Strict float32 is test_strict_float32.py's."""
    return not is_of_3xtf32(plan)


@pytest.mark.gpu
@pytest.mark.parametrize("name", PROBLEMS)
def test_every_plan_is_exact(name):
    check_exact("implicit_gemm", "wgrad", {name: PROBLEMS[name]}, is_ours)


@pytest.mark.gpu
def test_every_kernel_has_a_plan():
    plans = []
    for problem in PROBLEMS.values():
        values = make_integers(problem)
        for dtype, layout in itertools.product(DTYPES, LAYOUTS):
            t = place_all(problem, values, "cuda", dtype, layout)
            plans += plans_of("implicit_gemm", "wgrad", problem, t, is_ours)
    own = [plan for plan in plans if plan.word.startswith("wgrad")]
    assert {(plan.word, plan.fields["kernel"]) for plan in own} == kernels()
    assert {plan.splits > 1 for plan in plans} == {False, True}
    # Stored without a second kernel: by a cluster, also of one block.
    for planes in (False, True):
        alone = {
            plan.splits
            for plan in plans
            if plan.workspace_bytes == 0 and (plan.word == "wgrad_planes") == planes
        }
        assert alone == {1, 2, 4, 8}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
@pytest.mark.parametrize("operand", ["x", "dy"])
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("name", REACHES)
def test_nan_reaches_what_its_taps_meet(name, operand, value, dtype):
    problems = {name: REACHES[name]}

    def sums_weights(plan: _bind.ConvPlan) -> bool:
        return plan.word.startswith("wgrad") and is_ours(plan)

    check_reach("implicit_gemm", "wgrad", operand, problems, value, sums_weights, dtype)


def test_kernels_are_read():
    assert len(kernels()) == 16
