"""Inputs in any layout; results in the layout that PyTorch gives them."""

from __future__ import annotations

import itertools

import pytest
import torch
from op_support import (
    assert_as_pytorch,
    assert_rounded,
    conv,
    families,
    gradients,
    leaves,
    pytorchs,
    widened,
)
from reference import (
    EVERY_PROBLEM,
    LAYOUTS,
    assert_accurate,
    assert_same,
    layout_of,
)

DTYPES = [torch.float64, torch.float32, torch.float16]
DTYPE_IDS = ["fp64", "fp32", "fp16"]
both_dense = pytest.mark.parametrize("problem", ["dense", "volume_dense"])


def channels_last(t):
    return t.contiguous(memory_format=layout_of(torch.channels_last, t.ndim))


def transposed(t, a, b):
    """The same values, the memory of two dimensions swapped."""
    return t.transpose(a, b).contiguous().transpose(a, b)


def sliced(t):
    """The same values, inside of a larger tensor and two elements apart."""
    larger = t.new_full([2 * size + 3 for size in t.shape], float("nan"))
    window = larger[tuple(slice(1, 2 * size + 1, 2) for size in t.shape)]
    return window.copy_(t)


def one_pixel(t):
    return t[(..., *[slice(1)] * (t.ndim - 2))]


def reversed_order(t):
    return t.permute(*range(t.ndim - 1, -1, -1))


# Each gives a tensor of the same shape; all but the expanded keep the values.
ARRANGEMENTS = {
    "contiguous": lambda t: t,
    "channels_last": channels_last,
    "sliced": sliced,
    "sliced_channels_last": lambda t: channels_last(torch.cat([t, t], 1))[:, : t.shape[1]],
    "one_row_off": lambda t: torch.cat([t[:, :, :1], t], 2)[:, :, 1:],
    "transposed_image": lambda t: transposed(t, -2, -1),
    "frames": lambda t: transposed(t, 1, 2),
    "transposed_batch": lambda t: transposed(t, 0, 1),
    "expanded_batch": lambda t: t[:1].expand_as(t),
    "expanded_channels": lambda t: t[:, :1].expand_as(t),
    "expanded_image": lambda t: one_pixel(t).expand_as(t),
    "reversed_strides": lambda t: reversed_order(reversed_order(t).contiguous()),
}


def check_output(x, w, bias, *geometry):
    for algorithm in ["auto", *families(x, w, bias, *geometry)]:
        actual = conv(x, w, bias, *geometry, algorithm=algorithm)
        assert_as_pytorch(actual, x, w, bias, *geometry, what=algorithm)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize(
    "problem", ["dense", "grouped", "pointwise", "strided", "volume_dense", "volume_slices"]
)
def test_arrangements_of_input_and_weight(problem, dtype, arrangement, device):
    x, w, bias = EVERY_PROBLEM[problem].tensors(device, dtype)
    geometry = EVERY_PROBLEM[problem].geometry
    x = ARRANGEMENTS[arrangement](x)
    for arrange_weight in ARRANGEMENTS.values():
        check_output(x, arrange_weight(w), bias, *geometry)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("layouts", [(a, b) for a in LAYOUTS for b in LAYOUTS])
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_layouts_of_every_problem(problem, layouts, dtype, device):
    problem = EVERY_PROBLEM[problem]
    x, w, bias = problem.tensors(device, dtype, layouts[0], weight_layout=layouts[1])
    check_output(x, w, bias, *problem.geometry)


@pytest.mark.parametrize("layouts", [(a, b) for a in LAYOUTS for b in LAYOUTS])
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_gradients_have_pytorchs_layout(problem, layouts, device):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(device, torch.float32, layouts[0], weight_layout=layouts[1])
    theirs = gradients(pytorchs, leaves(*tensors), *problem.geometry)
    exact = gradients(pytorchs, leaves(*map(widened, tensors)), *problem.geometry)
    for algorithm in ["auto", *families(*tensors, *problem.geometry)]:
        ours = gradients(conv, leaves(*tensors), *problem.geometry, algorithm=algorithm)
        for actual, their, value in zip(ours, theirs, exact, strict=True):
            assert_rounded(actual, value, their, problem.dims, what=algorithm)
            assert actual.stride() == their.stride()


@both_dense
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_gradients_of_any_arrangement(arrangement, problem, device):
    problem = EVERY_PROBLEM[problem]
    x, w, bias = problem.tensors(device, torch.float64)
    x, w = ARRANGEMENTS[arrangement](x), ARRANGEMENTS[arrangement](w)
    tensors = [t.detach().requires_grad_() for t in (x, w, bias)]
    output = pytorchs(*tensors, *problem.geometry)
    grad = ARRANGEMENTS[arrangement](torch.randn_like(output))
    expected = torch.autograd.grad(output, tensors, grad)
    for algorithm in ["auto", *families(*tensors, *problem.geometry)]:
        output = conv(*tensors, *problem.geometry, algorithm=algorithm)
        actual = torch.autograd.grad(output, tensors, grad)
        for ours, theirs in zip(actual, expected, strict=True):
            # Of the largest: an expanded image's sums are long, and some of them cancel.
            assert_accurate(ours, theirs, 1e-13)


# Sizes of one let one memory be called by several layouts' strides.
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize(
    ("image", "taps"),
    [
        *itertools.product([(1, 1), (1, 6), (6, 1), (5, 6)], [(1, 1), (3, 3)]),
        *itertools.product([(1, 1, 1), (1, 5, 6), (4, 1, 1), (4, 5, 6)], [(1, 1, 1), (3, 3, 3)]),
        ((4, 5, 6), (1, 3, 3)),
        ((4, 5, 6), (3, 1, 1)),
    ],
)
@pytest.mark.parametrize("filters", [1, 4])
def test_ambiguous_layouts(dtype, channels, image, taps, filters, device):
    padding = [t // 2 for t in taps]
    for batch in (1, 2):
        x = torch.randn(batch, channels, *image, dtype=torch.float64).to(device, dtype)
        w = torch.randn(filters, channels, *taps, dtype=torch.float64).to(device, dtype)
        for arrange_x in (torch.clone, channels_last):
            for arrange_w in (torch.clone, channels_last):
                check_output(arrange_x(x), arrange_w(w), None, 1, padding)


STRIDES = [(4, 1, 4, 1), (4, 4, 4, 1), (4, 1, 1, 1), (99, 1, 4, 77)]


@pytest.mark.parametrize(
    "stride", [*STRIDES, *((*stride, 1) for stride in STRIDES), (8, 1, 4, 1, 2), (8, 1, 4, 4, 77)]
)
def test_free_strides_of_sizes_one(stride, device):
    """The strides of PyTorch's own test of the wrong strides that one channel may have."""
    sizes = (1, 1, 2, 1, 1)[: len(stride)]
    x = torch.randn(8, device=device).as_strided(sizes, stride)
    check_output(x, torch.randn(3, *[1] * (len(stride) - 1), device=device), None)


@pytest.mark.parametrize("arrange", [torch.clone, sliced, lambda t: transposed(t, 0, 2)])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("problem", ["unbatched", "volume_unbatched"])
def test_one_image(problem, arrange, dtype, device):
    problem = EVERY_PROBLEM[problem]
    x, w, bias = problem.tensors(device, dtype)
    for weight in (w, channels_last(w)):
        check_output(arrange(x), weight, bias, *problem.geometry)


@both_dense
def test_strided_and_expanded_bias(problem, device):
    x, w, bias = EVERY_PROBLEM[problem].tensors(device, torch.float32)
    check_output(x, w, torch.stack([bias, -bias], 1)[:, 0])
    check_output(x, w, bias[:1].expand(6))


@pytest.mark.parametrize(
    ("input", "weight", "groups"),
    [
        ((0, 4, 9, 8), (6, 4, 3, 3), 1),
        ((0, 4, 9, 8), (4, 1, 3, 3), 4),
        ((2, 0, 9, 8), (6, 0, 3, 3), 1),
        ((2, 4, 9, 8), (0, 4, 3, 3), 1),
        ((0, 0, 9, 8), (6, 0, 3, 3), 1),
        ((2, 4, 0, 8), (6, 4, 3, 3), 1),
        ((2, 4, 9, 0), (6, 4, 3, 3), 1),
        ((4, 0, 8), (6, 4, 3, 3), 1),
        ((0, 9, 8), (6, 0, 3, 3), 1),
        ((0, 4, 5, 9, 8), (6, 4, 3, 3, 3), 1),
        ((0, 4, 5, 9, 8), (4, 1, 3, 3, 3), 4),
        ((2, 0, 5, 9, 8), (6, 0, 3, 3, 3), 1),
        ((2, 4, 5, 9, 8), (0, 4, 3, 3, 3), 1),
        ((2, 4, 0, 9, 8), (6, 4, 3, 3, 3), 1),
        ((2, 4, 5, 9, 0), (6, 4, 3, 3, 3), 1),
        ((4, 0, 9, 8), (6, 4, 3, 3, 3), 1),
    ],
)
@pytest.mark.parametrize("padding", [0, 2, "same"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_nothing_to_compute(input, weight, groups, padding, layout, device):
    def outcome(convolve):
        x, w, bias = torch.ones(input), torch.ones(weight), torch.ones(weight[0])
        if len(input) == len(weight):
            x = x.contiguous(memory_format=layout_of(layout, len(input)))
        tensors = leaves(*(t.to(device) for t in (x, w, bias)))
        try:
            output = convolve(*tensors, padding=padding, groups=groups)
            return [output, *torch.autograd.grad(output.sum(), tensors)]
        except RuntimeError as error:
            return str(error)

    actual, expected = outcome(conv), outcome(pytorchs)
    if isinstance(expected, str):
        assert actual == expected
    else:
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            assert_same(ours, theirs)


@both_dense
def test_one_backward_of_an_expanded_scalar(problem, device):
    """A sum's gradient is one number seen as a whole image."""
    dims = EVERY_PROBLEM[problem].dims
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float64)
    expected = torch.autograd.grad(pytorchs(*(t := leaves(*tensors))).sum(), t)
    for algorithm in ["auto", *families(*tensors)]:
        output = conv(*(t := leaves(*tensors)), algorithm=algorithm)
        for ours, theirs in zip(torch.autograd.grad(output.sum(), t), expected, strict=True):
            assert_rounded(ours, theirs, theirs, dims, what=algorithm)
