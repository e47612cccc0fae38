"""``conv2d_statistics`` and ``conv3d_statistics``: an output, its channels' mean and variance."""

from __future__ import annotations

from math import prod

import pytest
import torch
from op_support import conv, kernels_of
from reference import LAYOUTS, assert_equal, layout_of
from torch import Tensor

from customconv import _bind

OPS = torch.ops.customconv
EPS = 1e-3
# (N, C, H, W), (K, C / groups, R, S), stride, padding, groups
CASES = {
    "3x3": ((4, 32, 14, 14), (64, 32, 3, 3), 1, 1, 1),
    "pointwise": ((8, 64, 28, 28), (128, 64, 1, 1), 1, 0, 1),
    "wide": ((2, 16, 20, 136), (72, 16, 3, 3), 1, 1, 1),
    "strided": ((3, 24, 31, 29), (40, 24, 3, 3), 2, 1, 1),
    "odd_channels": ((2, 19, 13, 11), (37, 19, 3, 3), 1, 1, 1),
    "first_layer": ((4, 3, 64, 64), (64, 3, 7, 7), 2, 3, 1),
    "groups": ((2, 64, 12, 12), (64, 8, 3, 3), 1, 1, 8),
    "few_groups": ((2, 128, 16, 16), (128, 64, 3, 3), 1, 1, 2),
    "depthwise": ((4, 48, 17, 17), (48, 1, 5, 5), 1, 2, 48),
    "one_pixel": ((16, 32, 1, 1), (24, 32, 1, 1), 1, 0, 1),
    "one_channel": ((2, 8, 9, 9), (1, 8, 3, 3), 1, 1, 1),
    "large_plane": ((1, 8, 150, 151), (16, 8, 3, 3), 1, 1, 1),
    "volume": ((2, 32, 5, 9, 14), (48, 32, 3, 3, 3), 1, 1, 1),
    "volume_pointwise": ((2, 32, 5, 9, 14), (48, 32, 1, 1, 1), 1, 0, 1),
    "volume_strided": ((2, 8, 7, 9, 14), (12, 8, 3, 3, 3), 2, 1, 1),
    "volume_depthwise": ((2, 24, 4, 9, 13), (24, 1, 3, 3, 3), 1, 1, 24),
    "volume_of_odd_channels": ((1, 5, 3, 11, 13), (7, 5, 1, 3, 3), 1, 1, 1),
}
both_kinds = pytest.mark.parametrize("name", ["3x3", "volume"])
GPU_CASES = {
    "many_tiles": ((32, 64, 56, 56), (256, 64, 1, 1), 1, 0, 1),
    "deep": ((32, 256, 14, 14), (256, 256, 3, 3), 1, 1, 1),
}


def operands(case, dtype, layout, device):
    shape, filters, *geometry = case
    layout = layout_of(layout, len(shape))
    x = torch.randn(shape, device=device).to(dtype).contiguous(memory_format=layout)
    w = torch.randn(filters, device=device) * prod(filters[1:]) ** -0.5
    return x, w.to(dtype).contiguous(memory_format=layout), geometry


def compute(
    x: Tensor, w: Tensor, geometry: list[int], bias: Tensor | None = None,
    running: tuple[Tensor | None, Tensor | None] = (None, None), momentum: float = 0.1,
) -> tuple[Tensor, ...]:  # fmt: skip
    stride, padding, groups = geometry
    dims = w.ndim - 2
    return getattr(OPS, f"conv{dims}d_statistics")(
        x, w, bias, [stride] * dims, [padding] * dims, [1] * dims, groups, EPS, *running, momentum
    )


def check(found: tuple[Tensor, ...], case_error: float = 2e-6) -> None:
    """Compares statistics with those of the output in float64."""
    output, variance, mean, reciprocal_std = found
    wide = output.double()
    others = (0, *range(2, wide.ndim))
    expected_variance, expected_mean = torch.var_mean(wide, others, correction=0, keepdim=True)
    assert {each.dtype for each in found[1:]} == {torch.float32}
    assert {each.shape for each in found[1:]} == {expected_mean.shape}
    spread = expected_variance.sqrt()
    size = spread + expected_mean.abs()
    assert (mean - expected_mean).abs().div(size).max() < case_error
    assert (variance - expected_variance).abs().div(expected_variance).max() < 2 * case_error
    expected = (expected_variance + EPS).rsqrt()
    assert (reciprocal_std - expected).abs().div(expected).max() < 2 * case_error


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", CASES)
def test_statistics_are_of_the_output(name, dtype, layout, device):
    x, w, geometry = operands(CASES[name], dtype, layout, device)
    for tf32 in (False, True):
        with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
            check(compute(x, w, geometry))


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("name", GPU_CASES)
def test_statistics_of_many_tiles(name, dtype, layout):
    x, w, geometry = operands(GPU_CASES[name], dtype, layout, "cuda")
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        found = [compute(x, w, geometry) for _ in range(3)]
    check(found[0])
    for again in found[1:]:
        for a, b in zip(again, found[0], strict=True):
            assert_equal(a, b)


@both_kinds
def test_the_output_is_the_convolutions(name, device):
    x, w, (stride, padding, groups) = operands(
        CASES[name], torch.float16, torch.channels_last, device
    )
    bias = torch.randn(len(w), device=device).half()
    found = compute(x, w, [stride, padding, groups], bias)
    expected = conv(x, w, bias, stride, padding, 1, groups)
    torch.testing.assert_close(found[0], expected)
    assert found[0].stride() == expected.stride()
    check(found)


@pytest.mark.parametrize("mean", [1e2, 1e4])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_a_large_mean_cancels_nothing(layout, mean, device):
    """A sum of squares would lose the variance."""
    x, w, geometry = operands(CASES["pointwise"], torch.float32, layout, device)
    bias = torch.full((len(w),), mean, device=device)
    check(compute(x, w, geometry, bias), case_error=1e-4 if mean > 1e3 else 1e-5)


@both_kinds
def test_running_statistics_follow_as_a_batch_norms(name, device):
    x, w, geometry = operands(CASES[name], torch.float32, torch.channels_last, device)
    kind = getattr(torch.nn, f"BatchNorm{x.ndim - 2}d")
    norm = kind(len(w), eps=EPS, momentum=0.25).to(device)
    running = torch.rand(len(w), device=device), torch.rand(len(w), device=device) + 0.5
    norm.running_mean, norm.running_var = (each.clone() for each in running)
    output = compute(x, w, geometry, None, running, 0.25)[0]
    norm(output)
    torch.testing.assert_close(running[0], norm.running_mean)
    torch.testing.assert_close(running[1], norm.running_var)


def test_running_statistics_that_kernels_do_not_update(device):
    x, w, geometry = operands(CASES["3x3"], torch.float32, torch.channels_last, device)
    running = [
        torch.rand(2 * len(w), device=device)[::2],
        torch.rand(len(w), device=device).double(),
    ]
    variance, mean = torch.var_mean(OPS.conv2d(x, w, None, 1, 1).double(), (0, 2, 3), correction=1)
    expected = [0.9 * r + 0.1 * new for r, new in zip(running, (mean, variance), strict=True)]
    compute(x, w, geometry, None, tuple(running))
    for r, e in zip(running, expected, strict=True):
        torch.testing.assert_close(r.double(), e, rtol=1e-5, atol=1e-6)


def test_what_is_not_finite_shows(device):
    x, w, geometry = operands(CASES["3x3"], torch.float32, torch.channels_last, device)
    x[1, :, 3, 4] = torch.inf
    _, variance, mean, _ = compute(x, w.abs(), geometry)
    assert not mean.isfinite().any()
    assert not variance.isfinite().any()


@both_kinds
def test_float64_keeps_its_precision(name):
    x, w, geometry = operands(CASES[name], torch.float64, torch.contiguous_format, "cpu")
    output, variance, mean, _ = compute(x, w, geometry)
    others = (0, *range(2, output.ndim))
    expected = torch.var_mean(output, others, correction=0, keepdim=True)
    torch.testing.assert_close((variance, mean), expected)


@pytest.mark.gpu
def test_views_and_float64_on_a_gpu():
    x, w, geometry = operands(CASES["odd_channels"], torch.float16, torch.channels_last, "cuda")
    check(compute(x[:, :, 1:, 2:], w, geometry))
    found = compute(x.double(), w.double(), geometry)
    assert found[1].dtype is torch.float64


def test_arguments_are_checked(device):
    x, w, geometry = operands(CASES["3x3"], torch.float32, torch.channels_last, device)
    with pytest.raises(RuntimeError, match="batch of images"):
        compute(x[0], w, geometry)
    with pytest.raises(RuntimeError, match="running statistics of shape"):
        compute(x, w, geometry, None, (torch.zeros(3, device=device), None))


@both_kinds
def test_the_fake_operator_is_like_the_real_one(name, device):
    x, w, (stride, padding, groups) = operands(
        CASES[name], torch.float16, torch.channels_last, device
    )
    dims = x.ndim - 2
    running = torch.zeros(len(w), device=device), torch.ones(len(w), device=device)
    arguments = (
        x, w, None, [stride] * dims, [padding] * dims, [1] * dims, groups, EPS, *running, 0.1,
    )  # fmt: skip
    torch.library.opcheck(
        getattr(OPS, f"conv{dims}d_statistics").default, arguments,
        test_utils=("test_schema", "test_faketensor"),
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_no_kernel_reads_the_output_of_a_large_layer(layout):
    """The convolution's own kernel leaves what the statistics are merged from."""
    x, w, geometry = operands(GPU_CASES["many_tiles"], torch.float16, layout, "cuda")
    names = kernels_of(lambda: compute(x, w, geometry))
    assert not any("sum_pixels" in name or "sum_planes" in name for name in names), names
    assert sum("merge" in name for name in names) == 1, names


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_plan_without_statistics_pays_for_a_pass(layout):
    """cuBLAS leaves none: it must be faster by more than a pass over the output takes."""

    def problem(statistics: bool) -> _bind.ConvProblem:
        return _bind.ConvProblem(
            input=(64, 64, 56, 56), weight=(256, 64, 1, 1), dtype="float16",
            channels_last=layout == "nhwc", statistics=statistics,
        )  # fmt: skip

    ms = {
        (algorithm, statistics): _bind.plan(problem(statistics), algorithm=algorithm).predicted_ms
        for algorithm in ("im2col", "implicit_gemm")
        for statistics in (False, True)
    }
    assert ms["im2col", True] > ms["im2col", False] + 0.02
    assert ms["implicit_gemm", True] < ms["im2col", True]
    assert str(problem(True)).endswith("statistics")
