"""Small integers come out exact: every case by every family, pass, dtype and layout that it takes.

Sums in float32 of products of such integers have no rounding, whatever their order, so a result is
the exact one rounded once to its dtype.
"""

from __future__ import annotations

import functools
from math import prod

import pytest
import torch
from cases import CASES, Case, Tensors, make_integers, output_shape, place_all
from compute import (
    DTYPES,
    PASSES,
    TF32_ALONE,
    as_allowed,
    by_pytorch,
    compute,
    exact,
    has_plan,
    magnitudes,
    plan_of,
    poison,
    result_bytes,
    runs_of,
    takes,
)
from reference import FAMILIES, LAYOUTS, assert_equal, layout_of
from torch import Tensor

from customconv import _bind


@functools.lru_cache(maxsize=2)
def integers(name: str, device: str) -> Tensors:
    values = make_integers(CASES[name])
    parts = (values.x, values.w, values.bias, values.dy)
    return Tensors(*(None if part is None else part.to(device) for part in parts))


@functools.lru_cache(maxsize=2)
def expected(name: str, op: str) -> Tensor:
    """In float64: by PyTorch on the CPU, or by column matrices where that takes long."""
    case = CASES[name]
    if case.large:
        return exact(op, case, integers(name, "cuda"))
    return by_pytorch(op, case, integers(name, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("name", "op", "family", "dtype"),
    [
        pytest.param(name, op, family, dtype, id=f"{name}-{op}-{family}-{str(dtype)[6:]}")
        for name, family, op, dtype in sorted(runs_of(CASES), key=lambda run: (run[0], run[2]))
    ],
)
def test_integers_are_exact(name, op, family, dtype):
    case = CASES[name]
    rounded = expected(name, op).to("cuda", dtype)
    taken = False
    for layout in LAYOUTS:
        tensors = place_all(case, integers(name, "cuda"), "cuda", dtype, layout)
        with as_allowed(family):
            if not takes(op, family, case, tensors):
                continue
            taken = True
            plan = plan_of(op, family, case, tensors)
            poison(result_bytes(op, case, dtype), plan.workspace_bytes)
            actual = compute(op, family, case, tensors)
        assert_equal(actual, rounded, what=f"{layout}, {plan}")
    if not taken:
        pytest.skip(f"{family} takes it in neither layout")


@pytest.mark.gpu
@pytest.mark.parametrize("size", [2, 500, 4096, 1 << 20, 5 << 20, 64 << 20])
def test_poison_is_what_the_next_allocation_holds(size):
    poison(size)
    assert torch.empty(size // 2, dtype=torch.float16, device="cuda").isnan().all()


@pytest.mark.parametrize("name", CASES)
def test_sums_are_exact_and_do_not_overflow(name):
    case = CASES[name]
    for op in PASSES:
        if case.large:
            # Nothing of these is computed here; a weight's gradient is the longest sum.
            assert 3 * 3 * output_shape(case)[0] * prod(output_shape(case)[2:]) < 2**24
            continue
        values = integers(name, "cpu")
        assert exact(op, case, magnitudes(values)).max() < 2**24
        result = expected(name, op)
        assert result.abs().max() < torch.finfo(torch.float16).max
        assert_equal(exact(op, case, values), result, what=op)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("dims", "view"), sorted({(case.dims, case.view) for case in CASES.values()})
)
def test_placed_tensors_hold_their_values(dims, view, layout):
    case = next(case for case in CASES.values() if (case.dims, case.view) == (dims, view))
    values = make_integers(case)
    placed = place_all(case, values, "cpu", torch.float32, layout)
    for name in ("x", "w", "dy", "bias"):
        assert_equal(getattr(placed, name).double(), getattr(values, name), what=name)
    in_layout = layout_of(layout, placed.x.ndim)
    assert placed.x.is_contiguous(memory_format=in_layout) == (view in ("plain", "unaligned"))
    assert (placed.x.data_ptr() % 16 == 0) == (placed.x.storage_offset() % 4 == 0)
    memory = torch.empty(0).set_(placed.x.untyped_storage())
    inside = ("transposed", "images_inside", "depth_inside", "frames")
    assert memory.isnan().any() == (view not in inside)


def planned(
    case: Case, family: str, op: str, channels_last: bool, dtype: torch.dtype = torch.float32
) -> _bind.ConvPlan:
    problem = _bind.ConvProblem(
        op=op, dtype=str(dtype)[6:], input=case.input, weight=case.weight, stride=case.stride,
        padding=case.padding, dilation=case.dilation, groups=case.groups,
        channels_last=channels_last, tf32=family in TF32_ALONE,
    )  # fmt: skip
    return _bind.plan(problem, algorithm=family)


def kernel_of(case: Case, family: str, op: str, channels_last: bool) -> str:
    """The kernel of a plan; of im2col, where columns are and whether some images have theirs."""
    plan = planned(case, family, op, channels_last)
    if plan.label != "workspace":
        return plan.label
    return "bands" if plan.fields["pixels"] < most_pixels(case, op) else "images"


def most_pixels(case: Case, op: str) -> int:
    """Columns of an image, or its rows where im2col counts these."""
    return case.input[2] if op == "dgrad" else prod(output_shape(case)[2:])


def test_cases_reach_every_kernel():
    images = {name: case for name, case in CASES.items() if case.dims == 2}
    found = {
        (family, op, kernel_of(CASES[name], family, op, channels_last))
        for name, family, op, _ in runs_of(images, (torch.float32,))
        if family in FAMILIES  # the others: test_variants.py and the like
        for channels_last in (False, True)
    }
    words = _bind.plan_words()
    expected = {("direct", op, order) for op in PASSES for order in words["direct", ""]["order"]}
    expected |= {("im2col", op, way) for op in PASSES for way in ("input", "images", "bands")}
    names = words["tiled", ""]["kernel"]
    expected |= {("tiled", op, name) for op in ("fprop", "dgrad") for name in names}
    # The gradient of a strided convolution is no forward convolution.
    expected -= {("tiled", "dgrad", name) for name in ("stride-2-x8", "any-stride-x8")}
    assert found >= expected, f"no case reaches {sorted(expected - found)}"


@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_large_cases_take_several_chunks(op, dtype):
    for name, case in CASES.items():
        if not case.large or not has_plan("im2col", op, case, dtype):
            continue
        plan = planned(case, "im2col", op, False, dtype)
        images, pixels = plan.fields["images"], plan.fields["pixels"]
        chunks = (case.input[0] > images, most_pixels(case, op) > pixels)
        assert chunks[name.startswith("bands")], f"{name}: {plan}"


@pytest.mark.parametrize("name", ["many_pixels", "many_pixels_strided", "volume_many_pixels"])
def test_some_sums_are_cut_into_parts(name):
    assert planned(CASES[name], "direct", "wgrad", False).splits > 1
