"""What PyTorch checks of a custom operator: schema, autograd, fake tensors, tracing."""

from __future__ import annotations

import itertools

import pytest
import torch
from op_support import FLOATS, conv2d, conv2d_backward, samples
from reference import LAYOUTS, PROBLEMS

SAMPLE_COUNT = 30
QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")
ALL = (*QUICK, "test_aot_dispatch_dynamic")


def pair(value):
    return (value, value) if isinstance(value, int) else tuple(value)


def sample(index, device, dtype, layout):
    """One of PyTorch's samples: input, weight, bias; stride, padding, dilation, groups."""
    tensors, keywords = next(itertools.islice(samples(device, dtype, layout), index, None))
    geometry = [
        pair(keywords.get("stride", 1)),
        keywords.get("padding", 0),
        pair(keywords.get("dilation", 1)),
        keywords.get("groups", 1),
    ]
    return tensors, geometry


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("index", range(SAMPLE_COUNT))
def test_samples(index, layout, device):
    tensors, geometry = sample(index, device, torch.float32, layout)
    checks = ALL
    if layout == torch.channels_last and tensors[0].ndim == 3:
        checks = QUICK
        tensors[0] = tensors[0].permute(1, 2, 0).contiguous().permute(2, 0, 1)
    tensors = [None if t is None else t.requires_grad_() for t in tensors]
    if isinstance(geometry[1], str):
        torch.library.opcheck(conv2d.padding, (*tensors, *geometry), test_utils=checks)
    else:
        geometry[1] = pair(geometry[1])
        torch.library.opcheck(conv2d.default, (*tensors, *geometry), test_utils=checks)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_backward(problem, layout, device):
    problem = PROBLEMS[problem]
    x, w, bias = problem.tensors(device, torch.float32, layout, requires_grad=True)
    grad = torch.randn_like(conv2d(x, w, bias, *problem.geometry)).requires_grad_()
    arguments = (grad, x, w, *problem.geometry, [True] * 3)
    checks = QUICK if layout == torch.channels_last else ALL
    torch.library.opcheck(conv2d_backward.default, arguments, test_utils=checks)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3))[1:-1])
def test_backward_of_any_mask(mask, device):
    problem = PROBLEMS["grouped"]
    x, w, bias = problem.tensors(device, torch.float64, requires_grad=True)
    grad = torch.randn_like(conv2d(x, w, bias, *problem.geometry)).requires_grad_()
    torch.library.opcheck(conv2d_backward.default, (grad, x, w, *problem.geometry, mask))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=2)))
def test_dtypes_and_mixed_layouts(dtype, layouts, device):
    problem = PROBLEMS["strided_dilated"]
    tensors = problem.tensors(
        device, dtype, layouts[0], weight_layout=layouts[1], requires_grad=True
    )
    torch.library.opcheck(conv2d.default, (*tensors, *problem.geometry), test_utils=QUICK)


@pytest.mark.parametrize("requires_grad", [False, True])
def test_integer_arguments(requires_grad, device):
    """The overload that eager calls with plain numbers take."""
    tensors = PROBLEMS["dense"].tensors(device, torch.float32, requires_grad=requires_grad)
    torch.library.opcheck(conv2d.int, (*tensors, [2, 1], [1, 1], [1, 1], 1))


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["direct", "im2col", "tiled"])
def test_forced_algorithms(algorithm):
    tensors = PROBLEMS["dense"].tensors("cuda", torch.float32, requires_grad=True)
    geometry = PROBLEMS["dense"].geometry
    torch.library.opcheck(conv2d.default, (*tensors, *geometry), {"algorithm": algorithm})
