"""What backward passes run: operators and kernels of ours, and none that nobody asked for."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest
import torch
from op_support import (
    Seen,
    conv2d,
    conv2d_backward,
    conv3d,
    conv3d_backward,
    conv_transpose2d,
    conv_transpose2d_backward,
    conv_transpose3d,
    conv_transpose3d_backward,
    kernels_of,
    leaves,
)
from reference import LAYOUTS, Problem, TransposedProblem

MASKS = list(itertools.product([True, False], repeat=3))[:-1]
CONVOLUTION = Problem((8, 64, 28, 28), (128, 64, 4, 4), (2, 2), (1, 1))
VOLUMES = Problem((2, 8, 4, 9, 10), (16, 8, 3, 3, 3), (1, 2, 2), (1, 1, 1))
OPERATORS = {
    "conv2d": (conv2d, conv2d_backward, CONVOLUTION),
    "conv_transpose2d": (
        conv_transpose2d, conv_transpose2d_backward, TransposedProblem.of(CONVOLUTION)
    ),
}  # fmt: skip
OPERATORS_OF_VOLUMES = {
    "conv3d": (conv3d, conv3d_backward, VOLUMES),
    "conv_transpose3d": (
        conv_transpose3d, conv_transpose3d_backward, TransposedProblem.of(VOLUMES)
    ),
}  # fmt: skip
NAMES_OF_CONVOLUTIONS = ("conv", "fprop", "dgrad", "wgrad", "cudnn", "nchw", "nhwc")
each_operator = pytest.mark.parametrize("operator", OPERATORS)
both_layouts = pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])


def second_derivatives(convolve, problem, tensors):
    output = convolve(*tensors, *problem.geometry)
    first = torch.autograd.grad(output.square().sum(), tensors, create_graph=True)
    return torch.autograd.grad(sum(g.square().sum() for g in first), tensors)


@pytest.mark.parametrize("operator", [*OPERATORS, *OPERATORS_OF_VOLUMES])
def test_second_derivatives_run_on_our_operators(operator, device):
    """Once each forward, of its first derivatives, of these, and of what they saw of the output."""
    convolve, backward, problem = (OPERATORS | OPERATORS_OF_VOLUMES)[operator]
    tensors = leaves(*problem.tensors(device, torch.float32))
    with Seen() as seen:
        second_derivatives(convolve, problem, tensors)
    assert Counter(seen.operators) == {convolve.default: 3, backward.default: 4}
    by_input, by_weight = (True, False, False), (False, True, False)
    assert Counter(seen.masks) == {(True, True, True): 2, by_input: 1, by_weight: 1}


@pytest.mark.gpu
@both_layouts
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@each_operator
def test_second_derivatives_run_on_our_kernels(operator, dtype, layout):
    convolve, _, problem = OPERATORS[operator]
    tensors = leaves(*problem.tensors("cuda", dtype, layout))
    names = kernels_of(lambda: second_derivatives(convolve, problem, tensors))
    ours = [name for name in names if "customconv" in name]
    assert len(ours) >= 9  # three times forward, six gradients
    for name in set(names) - set(ours):  # arithmetic, sums, copies, and matrix products of im2col
        assert not any(word in name.lower() for word in NAMES_OF_CONVOLUTIONS), name


@pytest.mark.gpu
@both_layouts
@each_operator
def test_only_what_is_asked_for_is_launched(operator, layout):
    """Several gradients take the kernels of each."""
    convolve, backward, problem = OPERATORS[operator]
    x, w, bias = problem.tensors("cuda", torch.float16, layout)
    grad = torch.randn_like(convolve(x, w, bias, *problem.geometry))

    def kernels(mask):
        return Counter(kernels_of(lambda: backward(grad, x, w, *problem.geometry, mask)))

    alone = [kernels([i == place for i in range(3)]) for place in range(3)]
    for mask in MASKS:
        asked = itertools.compress(alone, mask)
        assert kernels(mask) == sum(asked, Counter()), mask
    assert alone[2].total() <= 2
