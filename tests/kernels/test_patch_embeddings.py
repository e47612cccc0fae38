"""Filters that step by their own size: the first layers of vision transformers for video.

`im2col` moves as many bytes at once as lie together, so sizes here differ in how many these are.
"""

from __future__ import annotations

import functools
from math import prod

import pytest
import torch
from cases import Case, Tensors, case, make_integers, output_shape, place_all
from compute import (
    DTYPES,
    PASSES,
    by_pytorch,
    compute,
    exact,
    magnitudes,
    plan_of,
    poison,
    result_bytes,
)
from reference import LAYOUTS, assert_close_to, assert_equal

from customconv import _bind

PATCHES = {
    "2x16x16": case((2, 3, 4, 32, 48), (40, 3, 2, 16, 16), stride=(2, 16, 16)),  # all of 16 bytes
    "2x14x14": case((2, 3, 4, 28, 42), (24, 3, 2, 14, 14), stride=(2, 14, 14)),  # 4, long sums
    "1x2x2": case((2, 16, 3, 8, 12), (64, 16, 1, 2, 2), stride=(1, 2, 2)),  # of latents
    "4x4x4": case((3, 4, 8, 8, 20), (24, 4, 4, 4, 4), stride=4),
    "2x2x2": case((2, 16, 4, 6, 10), (32, 16, 2, 2, 2), stride=2, bias=False),
    "3x5x7": case((2, 3, 6, 10, 21), (10, 3, 3, 5, 7), stride=(3, 5, 7)),  # nothing is aligned
    "odd_rows": case((2, 3, 4, 32, 33), (16, 3, 2, 16, 16), stride=(2, 16, 16)),
    "no_bias": case((2, 3, 4, 28, 28), (24, 3, 2, 14, 14), stride=(2, 14, 14), bias=False),
    "left_over": case((3, 3, 5, 35, 37), (24, 3, 2, 16, 16), stride=(2, 16, 16)),
    "one_of_depth": case((2, 3, 3, 32, 48), (24, 3, 2, 16, 16), stride=(1, 16, 16)),
    "one_patch_in_depth": case((2, 3, 2, 32, 48), (24, 3, 2, 16, 16), stride=(1, 16, 16)),
    "whole_volumes": case((70, 3, 2, 14, 14), (48, 3, 2, 14, 14), stride=(2, 14, 14)),  # views
    "many_volumes": case((11, 3, 2, 32, 32), (520, 3, 2, 16, 16), stride=(2, 16, 16)),
    # Products large enough for cuBLASLt, which adds their bias: of 16-bit types in one kernel.
    "linear": case((1640, 3, 2, 14, 14), (1280, 3, 2, 14, 14), stride=(2, 14, 14)),
    "linear_without_bias": case((2056, 8, 2, 3, 4), (1024, 8, 2, 3, 4), bias=False),
    "groups": case((2, 6, 4, 8, 16), (12, 3, 2, 4, 8), stride=(2, 4, 8), groups=2),
    "unaligned": case((2, 3, 4, 32, 48), (24, 3, 2, 16, 16), stride=(2, 16, 16), view="unaligned",
                      weight_view="unaligned"),
    "sliced": case((2, 3, 4, 16, 32), (24, 3, 2, 8, 8), stride=(2, 8, 8), view="sliced"),
    "frames": case((2, 3, 4, 16, 32), (24, 3, 2, 8, 8), stride=(2, 8, 8), view="frames"),
    "expanded_channels": case((2, 4, 4, 16, 32), (24, 4, 2, 8, 8), stride=(2, 8, 8),
                              view="expanded_channels"),
    "other_weight_layout": case((2, 3, 4, 16, 32), (24, 3, 2, 8, 8), stride=(2, 8, 8),
                                other_weight_layout=True),
    # Over 256 MiB of columns: several chunks of volumes, or of one.
    "chunks_of_volumes": case((9, 16, 32, 128, 320), (8, 16, 2, 2, 2), stride=2, large=True),
    "chunks_of_pixels": case((1, 16, 64, 256, 600), (8, 16, 2, 2, 2), stride=2, large=True),
}  # fmt: skip


@functools.lru_cache(maxsize=2)
def integers(name: str, device: str) -> Tensors:
    values = make_integers(PATCHES[name])
    parts = (values.x, values.w, values.bias, values.dy)
    return Tensors(*(None if part is None else part.to(device) for part in parts))


@functools.lru_cache(maxsize=2)
def expected(name: str, op: str) -> torch.Tensor:
    """In float64: by PyTorch on the CPU, or by column matrices where that takes long."""
    patches = PATCHES[name]
    if patches.large:
        return exact(op, patches, integers(name, "cuda"))
    return by_pytorch(op, patches, integers(name, "cpu"))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=lambda dtype: str(dtype)[6:])
@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", PATCHES)
def test_integers_are_exact(name, op, dtype):
    patches = PATCHES[name]
    rounded = expected(name, op).to("cuda", dtype)
    for layout in LAYOUTS:
        tensors = place_all(patches, integers(name, "cuda"), "cuda", dtype, layout)
        plan = plan_of(op, "im2col", patches, tensors)
        poison(result_bytes(op, patches, dtype), plan.workspace_bytes)
        actual = compute(op, "im2col", patches, tensors)
        assert_equal(actual, rounded, what=f"{layout}, {plan}")


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", ["2x16x16", "2x14x14", "1x2x2", "many_volumes", "linear"])
def test_auto_is_as_accurate_as_pytorch(name, op, dtype):
    patches = PATCHES[name]
    generator = torch.Generator().manual_seed(0)
    shapes = (patches.input, patches.weight, patches.weight[:1], output_shape(patches))
    normal = Tensors(*(torch.randn(shape, generator=generator).to(dtype) for shape in shapes))
    wide = Tensors(*(part.double() for part in (normal.x, normal.w, normal.bias, normal.dy)))
    fp64 = by_pytorch(op, patches, wide).cuda()
    for layout in LAYOUTS:
        tensors = place_all(patches, normal, "cuda", dtype, layout)
        actual = compute(op, "auto", patches, tensors)
        by_torch = by_pytorch(op, patches, tensors)
        assert_close_to(actual, fp64, by_torch, what=f"{layout}")


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["2x16x16", "2x14x14", "left_over"])
@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_what_is_not_finite_stays_in_its_patch(name, value):
    patches = PATCHES[name]
    for layout in LAYOUTS:
        tensors = place_all(patches, integers(name, "cuda"), "cuda", torch.float16, layout)
        clean = compute("fprop", "im2col", patches, tensors)
        tensors.x[0, 1, 0, 0, 0] = value
        tensors.bias[3] = value
        spoilt = compute("fprop", "im2col", patches, tensors)
        clean[:, 3] = value
        clean[0, :, 0, 0, 0] = spoilt[0, :, 0, 0, 0]
        assert not spoilt[0, :, 0, 0, 0].isfinite().all()
        assert_equal(spoilt, clean, what=f"{layout}")


# What overlaps, and what has so many channels and so few outputs that cuDNN is faster.
PYTORCHS = {"groups", "one_of_depth", "2x2x2", "chunks_of_volumes", "chunks_of_pixels"}


@pytest.mark.parametrize("name", sorted(set(PATCHES) - PYTORCHS))
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("op", PASSES)
def test_auto_computes_patches(name, channels_last, op):
    assert _bind.plan(planned(PATCHES[name], op, channels_last)).family != "aten"


def planned(patches: Case, op: str, channels_last: bool) -> _bind.ConvProblem:
    return _bind.ConvProblem(
        op=op, dtype="bfloat16", input=patches.input, weight=patches.weight,
        stride=patches.stride, padding=patches.padding, dilation=patches.dilation,
        groups=patches.groups, channels_last=channels_last,
    )  # fmt: skip


@pytest.mark.parametrize("name", PATCHES)
def test_sums_are_exact_and_do_not_overflow(name):
    patches = PATCHES[name]
    if patches.large:
        # Nothing of these is computed here; a weight's gradient is the longest sum.
        assert 3 * 3 * output_shape(patches)[0] * prod(output_shape(patches)[2:]) < 2**24
        return
    for op in PASSES:
        assert exact(op, patches, magnitudes(integers(name, "cpu"))).max() < 2**24
        assert expected(name, op).abs().max() < torch.finfo(torch.float16).max
