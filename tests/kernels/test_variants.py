"""Every plan that the planner weighs for a problem computes it, not only the one that it takes."""

from __future__ import annotations

import pytest
import torch
from cases import case, make_integers, place_all
from compute import by_pytorch, compute, forced
from every_plan import check_exact, check_fused
from reference import assert_equal
from tile_tables import flags, parts, table

from customconv import _C

# Between them they reach every kernel, shape of tile, way to fetch pixels and number of splits.
PROBLEMS = {
    "3x3": case((3, 72, 28, 32), (136, 72, 3, 3), padding=(1, 1)),
    "single": case((1, 24, 20, 24), (40, 24, 3, 3), padding=(1, 1)),
    "wide": case((2, 24, 21, 300), (70, 24, 3, 3), padding=(1, 1)),
    "strided": case((2, 40, 31, 48), (72, 40, 3, 5), stride=(2, 3), padding=(1, 2)),
    "dilated": case((2, 24, 40, 40), (64, 24, 3, 3), padding=(5, 7), dilation=(5, 7)),
    "wide_odd": case((2, 18, 21, 341), (40, 18, 5, 10), stride=(2, 2)),
    "small_images": case((21, 72, 7, 7), (136, 72, 3, 3), padding=(1, 1)),
    "odd_images": case((5, 19, 17, 23), (70, 19, 3, 2), padding=(1, 0)),
    "pointwise": case((5, 80, 14, 14), (200, 80, 1, 1)),
    "pointwise_odd": case((5, 37, 13, 21), (130, 37, 1, 1)),
    "pointwise_rows": case((7, 72, 8, 12), (136, 72, 1, 1)),
    "pointwise_single": case((5, 1, 8, 16), (40, 1, 1, 1)),
    "pointwise_pixel": case((1, 37, 1, 1), (40, 37, 1, 1)),
    "pointwise_tiny": case((41, 24, 4, 4), (70, 24, 1, 1)),
    "few_channels_far": case((2, 3, 45, 224), (64, 3, 11, 11), stride=(4, 4), padding=(2, 2)),
    "few_channels": case((3, 3, 33, 40), (64, 3, 7, 7), stride=(2, 2), padding=(3, 3)),
}


@pytest.mark.gpu
def test_every_plan_is_exact():
    found: set[str] = set()
    for plan in check_exact("implicit_gemm", "fprop", PROBLEMS):
        assert plan.variant == parts(plan)[0]
        splits = "splits" if plan.splits > 1 else "no splits"
        found |= {*parts(plan), *flags(plan), splits}
    assert found == {
        *table("kernels"), *table("Shape"), *table("Fetch"), "kApartH", "kApartW", "kClustered",
        "kSharesPixels", "kSharesWeights", "kByWarps", "splits", "no splits",
    }  # fmt: skip


@pytest.mark.gpu
def test_every_plan_fuses():
    check_fused("implicit_gemm", PROBLEMS)


@pytest.mark.gpu
def test_a_forced_plan_is_for_calls_that_name_an_algorithm():
    first, second = PROBLEMS["3x3"], PROBLEMS["pointwise"]
    t = place_all(first, make_integers(first), "cuda", torch.float16, torch.channels_last)
    plans = _C.variants(t.x, t.w, t.bias, *first.geometry, "fprop")
    plan = next(plan for plan in plans if plan.family == "implicit_gemm")
    values = make_integers(second)
    t = place_all(second, values, "cuda", torch.float16, torch.channels_last)
    with forced(plan):
        actual = compute("fprop", "auto", second, t)  # by the forced plan it would be wrong
    assert_equal(actual, by_pytorch("fprop", second, values).to("cuda", torch.float16))


def test_tables_are_read():
    assert len(table("kernels")) == 5
    assert table("Shape") == ["kSquares", "kLines", "kRun", "kImages"]
    assert len(table("Fetch")) == 9
