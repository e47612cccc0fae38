"""What PyTorch checks of a custom operator: schema, autograd, fake tensors, tracing."""

from __future__ import annotations

import itertools

import pytest
import torch
from op_support import CONV, CONV_BACKWARD, FLOATS, OPINFO, conv, samples
from reference import EVERY_PROBLEM, LAYOUTS

SAMPLE_COUNTS = {2: 30, 3: 18}
QUICK = ("test_schema", "test_autograd_registration", "test_faketensor")
ALL = (*QUICK, "test_aot_dispatch_dynamic")


def listed(value, dims):
    return (value,) * dims if isinstance(value, int) else tuple(value)


def sample(index, device, dtype, layout, dims):
    """One of PyTorch's samples: input, weight, bias; stride, padding, dilation, groups."""
    tensors, keywords = next(
        itertools.islice(samples(device, dtype, layout, opinfo=OPINFO[dims]), index, None)
    )
    geometry = [
        listed(keywords.get("stride", 1), dims),
        keywords.get("padding", 0),
        listed(keywords.get("dilation", 1), dims),
        keywords.get("groups", 1),
    ]
    return tensors, geometry


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize(
    ("dims", "index"), [(dims, index) for dims, n in SAMPLE_COUNTS.items() for index in range(n)]
)
def test_samples(dims, index, layout, device):
    tensors, geometry = sample(index, device, torch.float32, layout, dims)
    checks = ALL
    if layout == torch.channels_last and tensors[0].ndim == dims + 1:
        checks = QUICK
        tensors[0] = tensors[0].movedim(0, -1).contiguous().movedim(-1, 0)
    tensors = [None if t is None else t.requires_grad_() for t in tensors]
    if isinstance(geometry[1], str):
        torch.library.opcheck(CONV[dims].padding, (*tensors, *geometry), test_utils=checks)
    else:
        geometry[1] = listed(geometry[1], dims)
        torch.library.opcheck(CONV[dims].default, (*tensors, *geometry), test_utils=checks)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_backward(problem, layout, device):
    problem = EVERY_PROBLEM[problem]
    x, w, bias = problem.tensors(device, torch.float32, layout, requires_grad=True)
    grad = torch.randn_like(conv(x, w, bias, *problem.geometry)).requires_grad_()
    arguments = (grad, x, w, *problem.geometry, [True] * 3)
    checks = QUICK if layout == torch.channels_last else ALL
    torch.library.opcheck(CONV_BACKWARD[problem.dims].default, arguments, test_utils=checks)


@pytest.mark.parametrize("mask", list(itertools.product([True, False], repeat=3))[1:-1])
@pytest.mark.parametrize("problem", ["grouped", "volume_grouped"])
def test_backward_of_any_mask(problem, mask, device):
    problem = EVERY_PROBLEM[problem]
    x, w, bias = problem.tensors(device, torch.float64, requires_grad=True)
    grad = torch.randn_like(conv(x, w, bias, *problem.geometry)).requires_grad_()
    arguments = (grad, x, w, *problem.geometry, mask)
    torch.library.opcheck(CONV_BACKWARD[problem.dims].default, arguments)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("layouts", list(itertools.product(LAYOUTS, repeat=2)))
@pytest.mark.parametrize("problem", ["strided_dilated", "volume_strided_dilated"])
def test_dtypes_and_mixed_layouts(problem, dtype, layouts, device):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(
        device, dtype, layouts[0], weight_layout=layouts[1], requires_grad=True
    )
    operator = CONV[problem.dims].default
    torch.library.opcheck(operator, (*tensors, *problem.geometry), test_utils=QUICK)


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("problem", ["dense", "volume_dense"])
def test_integer_arguments(problem, requires_grad, device):
    """The overload that eager calls with plain numbers take."""
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(device, torch.float32, requires_grad=requires_grad)
    stride, ones = [2, 1, 1][: problem.dims], [1] * problem.dims
    torch.library.opcheck(CONV[problem.dims].int, (*tensors, stride, ones, ones, 1))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [("dense", "direct"), ("dense", "im2col"), ("dense", "tiled"), ("volume_dense", "direct")],
)
def test_forced_algorithms(problem, algorithm):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors("cuda", torch.float32, requires_grad=True)
    arguments = (*tensors, *problem.geometry)
    torch.library.opcheck(CONV[problem.dims].default, arguments, {"algorithm": algorithm})
