"""Large problems: the three that the library began with, and tensors of over 2^31 elements."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import pytest
import torch
from cases import Case, Tensors, output_shape
from compute import PASSES, by_pytorch, compute, exact, has_plan, plan_of
from reference import ALL_FAMILIES, LAYOUTS, assert_equal, float32_precision, layout_of
from sweep import MOST_ERROR, Trial, norm_error, plausible
from torch import Tensor

pytestmark = [pytest.mark.gpu, pytest.mark.slow]

# Input and weight of the three problems, and the padding that keeps the image's size.
ORIGINALS = {
    "5x9": ((8, 32, 512, 512), (64, 32, 5, 9), (2, 4)),
    "5x7": ((8, 64, 512, 256), (128, 64, 5, 7), (2, 3)),
    "3x3": ((16, 16, 1024, 1024), (128, 16, 3, 3), (1, 1)),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("padded", [False, True], ids=["valid", "same"])
@pytest.mark.parametrize("name", ORIGINALS)
def test_the_original_problems(name, padded, dtype):
    needs(60)
    input, weight, same = ORIGINALS[name]
    case = Case(input, weight, padding=same if padded else (0, 0))
    x, w = torch.randn(input, device="cuda"), torch.randn(weight, device="cuda")
    bias = torch.randn(weight[0], device="cuda").to(dtype)
    t = Tensors(x.to(dtype), w.to(dtype), bias, x)  # no gradient is computed
    with float32_precision("ieee"):
        families = [f for f in ALL_FAMILIES if has_plan(f, "fprop", case, dtype)]
        outputs = {family: compute("fprop", family, case, t) for family in (*families, "auto")}
        pytorch = by_pytorch("fprop", case, t)
    for family in families:
        plan_of("fprop", family, case, t)
    # Image by image: one in float64 is large enough.
    for n in range(input[0]):
        one = Case((1, *input[1:]), weight, padding=case.padding)
        image = Tensors(t.x[n : n + 1], t.w, t.bias, t.dy)
        expected = exact("fprop", one, image)
        trial = Trial(one, "fprop", dtype, tf32=False, channels_last=False, seed=0)
        limit = plausible(trial, expected, image)
        pytorchs = norm_error(pytorch[n : n + 1], expected)
        for family, output in outputs.items():
            assert output.shape == output_shape(case)
            assert ((output[n : n + 1] - expected).abs() <= limit).all(), f"{family}, image {n}"
            error = norm_error(output[n : n + 1], expected)
            what = f"{family}, image {n}: off by {error:.3g}, PyTorch by {pytorchs:.3g}"
            assert error <= MOST_ERROR * pytorchs, what


# Offsets pass 2^31 within an image, and between two. Outputs are as large as inputs.
HUGE = {
    "one_image": Case((1, 3, 28672, 28672), (3, 3, 3, 3), padding=(1, 1), bias=False),
    "images": Case((33, 8, 4096, 2048), (8, 8, 1, 3), padding=(0, 1), bias=False),
    "groups": Case((33, 8, 4096, 2048), (8, 4, 1, 3), padding=(0, 1), groups=2, bias=False),
    "depthwise": Case((33, 8, 4096, 2048), (8, 1, 3, 3), padding=(1, 1), groups=8, bias=False),
    "volume": Case((1, 4, 33000, 128, 128), (4, 4, 3, 1, 3), padding=(1, 0, 1), bias=False),
    "volume_depthwise": Case(
        (1, 4, 33000, 128, 128), (4, 1, 3, 3, 3), padding=(1, 1, 1), groups=4, bias=False
    ),
    "volume_in_slices": Case(
        (1, 4, 33000, 128, 128), (4, 4, 1, 3, 3), padding=(0, 1, 1), bias=False
    ),
}
BAND = 24  # rows that are checked at a place; slices of a volume


@pytest.fixture(autouse=True)
def leaves_no_memory():
    """Tests of other processes may need much of it too."""
    yield
    torch.cuda.empty_cache()


def needs(gigabytes: int) -> None:
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    if free < gigabytes << 30:
        pytest.skip(f"needs {gigabytes} GB of GPU memory")


def places(case: Case) -> list[tuple[int, slice]]:
    """Images and rows of them: the ends, and where offsets pass 2^31 in either layout."""
    n, c, h, *row = case.input
    w = prod(row)
    rows = {0, h - BAND}
    rows.add(2**31 % (h * w) // w - BAND // 2)
    rows.add(2**31 % (c * h * w) // (c * w) - BAND // 2)
    inside = sorted(row for row in rows if 0 <= row <= h - BAND)
    return [
        (i, slice(row, row + BAND)) for i in sorted({0, max(n - 2, 0), n - 1}) for row in inside
    ]


def surroundings(t: Tensor, image: int, rows: slice) -> tuple[Tensor, slice]:
    """A band of rows with one more on each side, and where the band lies in it."""
    first, last = max(rows.start - 1, 0), min(rows.stop + 1, t.shape[2])
    return t[image : image + 1, :, first:last], slice(rows.start - first, rows.stop - first)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("name", HUGE)
def test_over_2_31_elements(name, layout):
    """Small integers in bfloat16, exact wherever they are checked."""
    needs(30)
    case = HUGE[name]
    assert output_shape(case) == case.input
    assert prod(case.input) > 2**31

    def integers(shape: tuple[int, ...]) -> Tensor:
        in_layout = layout_of(layout, len(shape))
        t = torch.empty(shape, dtype=torch.bfloat16, device="cuda", memory_format=in_layout)
        return t.random_(-3, 4)

    # The input is the gradient of the output as well, except for the weight's gradient: there all
    # of the latter is zero but some bands of rows, so that the sum can be checked.
    x, w = integers(case.input), integers(case.weight)
    bands = torch.zeros_like(x)
    for image, rows in places(case):
        bands[image, :, rows] = x[image, :, rows].flip(-1)

    for op in PASSES:
        dy = bands if op == "wgrad" else x
        expected = []
        for image, rows in places(case):
            near, inner = surroundings(x, image, rows)
            near_dy, _ = surroundings(dy, image, rows)
            part = replace(case, input=tuple(near.shape))
            result = exact(op, part, Tensors(near, w, None, near_dy))
            expected.append(result if op == "wgrad" else result[0, :, inner])
        for family in ALL_FAMILIES:
            channels_last = layout == torch.channels_last
            if not has_plan(family, op, case, torch.bfloat16, channels_last=channels_last):
                continue
            t = Tensors(x, w, None, dy)
            assert plan_of(op, family, case, t).fields.get("wide", True)
            actual = compute(op, family, case, t)
            what = f"{family} {op}"
            if op == "wgrad":
                assert_equal(actual, torch.stack(expected).sum(0).bfloat16(), what=what)
                continue
            for (image, rows), result in zip(places(case), expected, strict=True):
                where = f"{what}, image {image}, rows from {rows.start}"
                assert_equal(actual[image, :, rows], result.bfloat16(), what=where)
            del actual
