"""The gradient of the bias: the sum of the output's gradient over images and pixels."""

from __future__ import annotations

import pytest
import torch
from op_support import conv_backward, kernels_of
from reference import LAYOUTS, assert_equal, layout_of

pytestmark = pytest.mark.gpu

DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)
SHAPES = [
    (1, 1, 1, 1), (2, 3, 5, 7), (32, 64, 56, 56), (5, 2048, 7, 7), (3, 320, 14, 14), (4, 12, 9, 6),
    (64, 1152, 1, 1), (1, 8, 512, 512), (2, 1, 300, 301), (700, 2, 3, 3), (1, 5000, 2, 4),
    (2, 3, 4, 5, 7), (1, 96, 9, 60, 104), (5, 320, 3, 6, 8), (2, 12, 1, 9, 6), (1, 1, 17, 3, 2),
]  # fmt: skip
both_layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])


def bias_gradient(grad):
    """Of a convolution with one input channel and one tap."""
    x = torch.empty_like(grad[:, :1])
    dims = grad.ndim - 2
    w = torch.empty(grad.shape[1], 1, *[1] * dims, dtype=grad.dtype, device="cuda")
    arguments = ([1] * dims, [0] * dims, [1] * dims, 1, [False, False, True])
    return conv_backward(grad, x, w, *arguments)[2]


def integers(shape, dtype, layout=torch.contiguous_format):
    values = torch.randint(-2, 3, shape, device="cuda", dtype=torch.int8)
    return values.to(dtype).contiguous(memory_format=layout_of(layout, len(shape)))


def exact(grad):
    return grad.double().sum((0, *range(2, grad.ndim))).to(grad.dtype)


@both_layouts
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_size_is_exact(shape, dtype, layout):
    grad = integers(shape, dtype, layout)
    assert_equal(bias_gradient(grad), exact(grad))


@pytest.mark.parametrize("arrange", [
    lambda t: t[1:], lambda t: t[:, 1:], lambda t: t[:, :, 1:, 2:], lambda t: t.transpose(2, 3),
    lambda t: t[:1, :, :1, :1].expand_as(t), lambda t: t.flatten()[3:-3].view(-1, 2, 1, 3),
])  # fmt: skip
@both_layouts
def test_any_strides(layout, arrange):
    grad = arrange(integers((4, 6, 10, 9), torch.float16, layout))
    assert_equal(bias_gradient(grad), exact(grad))


@pytest.mark.parametrize("arrange", [
    lambda t: t[1:], lambda t: t[:, 1:], lambda t: t[:, :, 1:], lambda t: t[..., 2:],
    lambda t: t.transpose(2, 4), lambda t: t.transpose(1, 2), lambda t: t[:1, :, :1, :1, :1]
    .expand_as(t),
])  # fmt: skip
@both_layouts
def test_any_strides_of_volumes(layout, arrange):
    grad = arrange(integers((4, 6, 3, 10, 9), torch.float16, layout))
    assert_equal(bias_gradient(grad), exact(grad))


@both_layouts
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("first", [1, 2, 4])
def test_a_gradient_may_begin_anywhere(first, dtype, layout):
    """Its pixels and its channels are whole vectors, which are not aligned."""
    aligned = integers((4, 32, 16, 16), dtype, layout)
    grad = torch.empty(first + aligned.numel(), dtype=dtype, device="cuda")[first:]
    grad = grad.as_strided(aligned.shape, aligned.stride()).copy_(aligned)
    assert_equal(bias_gradient(grad), exact(grad))


@both_layouts
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_sums_are_kept_in_float32_and_repeat(dtype, layout):
    grad = torch.rand(16, 96, 60, 60, device="cuda", dtype=dtype).contiguous(memory_format=layout)
    actual = bias_gradient(grad)
    value = grad.double().sum((0, 2, 3))
    assert ((actual.double() - value).abs() / value).max() < 3 * torch.finfo(dtype).eps
    for _ in range(20):
        assert_equal(bias_gradient(grad), actual)


@both_layouts
@pytest.mark.parametrize("shape", [(3, 33, 8, 8), (3, 32, 7, 7)])
def test_a_nan_stays_in_its_channel(shape, layout):
    grad = integers(shape, torch.float16, layout)
    expected = exact(grad)
    for channel in range(0, shape[1], 7):
        wrong = grad.clone()
        wrong[1, channel, 2, 3] = torch.nan
        actual = bias_gradient(wrong)
        assert actual[channel].isnan()
        others = torch.arange(shape[1]) != channel
        assert_equal(actual[others], expected[others])


@pytest.mark.slow
@both_layouts
def test_past_32_bits(layout):
    grad = torch.empty(1, 3, 2**15, 2**15, device="cuda", dtype=torch.float16, memory_format=layout)
    for channel in range(3):
        grad[:, channel].fill_((channel + 1) * 2.0**-20)
    expected = 2.0**10 * torch.arange(1, 4, device="cuda", dtype=torch.float16)
    assert_equal(bias_gradient(grad), expected)


@both_layouts
def test_it_takes_two_kernels_of_ours(layout):
    grad = integers((8, 64, 56, 56), torch.float16, layout)
    names = kernels_of(lambda: bias_gradient(grad))
    assert len(names) == 2 and all("customconv" in name for name in names), names
