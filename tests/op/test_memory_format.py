"""Inputs in any layout; results in the layout that PyTorch gives them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_support import assert_as_pytorch, conv2d, families, gradients, leaves, widened
from reference import LAYOUTS, PROBLEMS, assert_accurate, assert_equal, assert_same, tolerances

DTYPES = [torch.float64, torch.float32, torch.float16]
DTYPE_IDS = ["fp64", "fp32", "fp16"]


def channels_last(t):
    return t.contiguous(memory_format=torch.channels_last)


def transposed(t, a, b):
    """The same values, the memory of two dimensions swapped."""
    return t.transpose(a, b).contiguous().transpose(a, b)


def sliced(t):
    """The same values, inside of a larger tensor and two elements apart."""
    larger = t.new_full([2 * size + 3 for size in t.shape], float("nan"))
    window = larger[tuple(slice(1, 2 * size + 1, 2) for size in t.shape)]
    return window.copy_(t)


# Each gives a tensor of the same shape; all but the expanded keep the values.
ARRANGEMENTS = {
    "contiguous": lambda t: t,
    "channels_last": channels_last,
    "sliced": sliced,
    "sliced_channels_last": lambda t: channels_last(torch.cat([t, t], 1))[:, : t.shape[1]],
    "one_row_off": lambda t: torch.cat([t[:, :, :1], t], 2)[:, :, 1:],
    "transposed_image": lambda t: transposed(t, 2, 3),
    "transposed_batch": lambda t: transposed(t, 0, 1),
    "expanded_batch": lambda t: t[:1].expand_as(t),
    "expanded_channels": lambda t: t[:, :1].expand_as(t),
    "expanded_image": lambda t: t[:, :, :1, :1].expand_as(t),
    "reversed_strides": lambda t: t.permute(3, 2, 1, 0).contiguous().permute(3, 2, 1, 0),
}


def check_output(x, w, bias, *geometry):
    for algorithm in ["auto", *families(x, w, bias, *geometry)]:
        actual = conv2d(x, w, bias, *geometry, algorithm=algorithm)
        assert_as_pytorch(actual, x, w, bias, *geometry)


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("problem", ["dense", "grouped", "pointwise", "strided"])
def test_arrangements_of_input_and_weight(problem, dtype, arrangement, device):
    x, w, bias = PROBLEMS[problem].tensors(device, dtype)
    geometry = PROBLEMS[problem].geometry
    x = ARRANGEMENTS[arrangement](x)
    for arrange_weight in ARRANGEMENTS.values():
        check_output(x, arrange_weight(w), bias, *geometry)


@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("layouts", [(a, b) for a in LAYOUTS for b in LAYOUTS])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_layouts_of_every_problem(problem, layouts, dtype, device):
    problem = PROBLEMS[problem]
    x, w, bias = problem.tensors(device, dtype, layouts[0], weight_layout=layouts[1])
    check_output(x, w, bias, *problem.geometry)


@pytest.mark.parametrize("layouts", [(a, b) for a in LAYOUTS for b in LAYOUTS])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradients_have_pytorchs_layout(problem, layouts, device):
    problem = PROBLEMS[problem]
    tensors = problem.tensors(device, torch.float32, layouts[0], weight_layout=layouts[1])
    theirs = gradients(F.conv2d, leaves(*tensors), *problem.geometry)
    exact = gradients(F.conv2d, leaves(*map(widened, tensors)), *problem.geometry)
    for algorithm in ["auto", *families(*tensors, *problem.geometry)]:
        ours = gradients(conv2d, leaves(*tensors), *problem.geometry, algorithm=algorithm)
        for actual, their, value in zip(ours, theirs, exact, strict=True):
            assert_equal(actual, value.float(), **tolerances(torch.float32))
            assert actual.stride() == their.stride()


@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_gradients_of_any_arrangement(arrangement, device):
    problem = PROBLEMS["dense"]
    x, w, bias = problem.tensors(device, torch.float64)
    x, w = ARRANGEMENTS[arrangement](x), ARRANGEMENTS[arrangement](w)
    tensors = [t.detach().requires_grad_() for t in (x, w, bias)]
    grad = ARRANGEMENTS[arrangement](torch.randn(2, 6, 9, 8, dtype=torch.float64, device=device))
    expected = torch.autograd.grad(F.conv2d(*tensors, *problem.geometry), tensors, grad)
    for algorithm in ["auto", *families(*tensors, *problem.geometry)]:
        output = conv2d(*tensors, *problem.geometry, algorithm=algorithm)
        actual = torch.autograd.grad(output, tensors, grad)
        for ours, theirs in zip(actual, expected, strict=True):
            # Of the largest: an expanded image's sums are long, and some of them cancel.
            assert_accurate(ours, theirs, 1e-13)


# Sizes of one let one memory be called by several layouts' strides.
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
@pytest.mark.parametrize("channels", [1, 4])
@pytest.mark.parametrize("image", [(1, 1), (1, 6), (6, 1), (5, 6)])
@pytest.mark.parametrize("taps", [(1, 1), (3, 3)])
@pytest.mark.parametrize("filters", [1, 4])
def test_ambiguous_layouts(dtype, channels, image, taps, filters, device):
    padding = [t // 2 for t in taps]
    for batch in (1, 2):
        x = torch.randn(batch, channels, *image, dtype=torch.float64).to(device, dtype)
        w = torch.randn(filters, channels, *taps, dtype=torch.float64).to(device, dtype)
        for arrange_x in (torch.clone, channels_last):
            for arrange_w in (torch.clone, channels_last):
                check_output(arrange_x(x), arrange_w(w), None, 1, padding)


@pytest.mark.parametrize("stride", [(4, 1, 4, 1), (4, 4, 4, 1), (4, 1, 1, 1), (99, 1, 4, 77)])
def test_free_strides_of_sizes_one(stride, device):
    """The strides of PyTorch's own test of the wrong strides that one channel may have."""
    x = torch.randn(8, device=device).as_strided((1, 1, 2, 1), stride)
    check_output(x, torch.randn(3, 1, 1, 1, device=device), None)


@pytest.mark.parametrize("arrange", [torch.clone, sliced, lambda t: transposed(t, 0, 2)])
@pytest.mark.parametrize("dtype", DTYPES, ids=DTYPE_IDS)
def test_one_image(arrange, dtype, device):
    x, w, bias = PROBLEMS["unbatched"].tensors(device, dtype)
    for weight in (w, channels_last(w)):
        check_output(arrange(x), weight, bias, *PROBLEMS["unbatched"].geometry)


def test_strided_and_expanded_bias(device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
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
    ],
)
@pytest.mark.parametrize("padding", [0, 2, "same"])
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_nothing_to_compute(input, weight, groups, padding, layout, device):
    def outcome(convolve):
        x, w, bias = torch.ones(input), torch.ones(weight), torch.ones(weight[0])
        if len(input) == 4:
            x = x.contiguous(memory_format=layout)
        tensors = leaves(*(t.to(device) for t in (x, w, bias)))
        try:
            output = convolve(*tensors, padding=padding, groups=groups)
            return [output, *torch.autograd.grad(output.sum(), tensors)]
        except RuntimeError as error:
            return str(error)

    actual, expected = outcome(conv2d), outcome(F.conv2d)
    if isinstance(expected, str):
        assert actual == expected
    else:
        assert len(actual) == len(expected)
        for ours, theirs in zip(actual, expected, strict=True):
            assert_same(ours, theirs)


def test_one_backward_of_an_expanded_scalar(device):
    """A sum's gradient is one number seen as a whole image."""
    tensors = PROBLEMS["dense"].tensors(device, torch.float64)
    expected = torch.autograd.grad(F.conv2d(*(t := leaves(*tensors))).sum(), t)
    for algorithm in ["auto", *families(*tensors)]:
        output = conv2d(*(t := leaves(*tensors)), algorithm=algorithm)
        for ours, theirs in zip(torch.autograd.grad(output.sum(), t), expected, strict=True):
            assert_equal(ours, theirs, **tolerances(torch.float64))
