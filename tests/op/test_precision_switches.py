"""PyTorch's own switches say how precise a convolution in float32 is."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_support import conv2d, conv2d_backward
from reference import FAMILIES, LAYOUTS, Problem, assert_accurate, float32_precision, relative_error

import customconv

LARGE = Problem((2, 64, 32, 32), (48, 64, 3, 3), padding=(1, 1), bias=False)
SAYS = {"ieee": "(IEEE)", "tf32": "(TF32 allowed)"}
# TF32 rounds factors to 11 bits.
ALLOWED = {"ieee": 2e-6, "tf32": 2e-3}


def problem_in_words(device, dtype=torch.float32):
    x, w, _ = LARGE.tensors(device, dtype)
    return str(customconv.explain(x, w, None, *LARGE.geometry).problem)


@pytest.mark.parametrize("precision", SAYS)
def test_new_switch(precision, device):
    with float32_precision(precision):
        assert SAYS[precision] in problem_in_words(device)


@pytest.mark.parametrize("allowed", [False, True])
def test_old_switch(allowed, device):
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=allowed):
        assert SAYS["tf32" if allowed else "ieee"] in problem_in_words(device)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_other_dtypes_have_no_switch(dtype, device):
    with float32_precision("tf32"):
        assert "TF32" not in problem_in_words(device, dtype)


def test_the_switch_is_read_at_each_call(device):
    words = []
    for precision in ("ieee", "tf32", "ieee"):
        with float32_precision(precision):
            words.append(problem_in_words(device))
    assert words[0] == words[2] != words[1]


def three_passes(x, w, grad, algorithm):
    """Output, gradient of the input, gradient of the weight."""
    output = conv2d(x, w, None, *LARGE.geometry, algorithm=algorithm)
    both = conv2d_backward(
        grad, x, w, *LARGE.geometry, [True, True, False], algorithm=algorithm
    )  # fmt: skip
    return {"output": output, "grad_input": both[0], "grad_weight": both[1]}


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ALLOWED)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("algorithm", ["auto", *FAMILIES])
def test_errors(algorithm, layout, precision):
    x, w, _ = LARGE.tensors("cuda", torch.float32, layout)
    grad = torch.randn(2, 48, 32, 32, device="cuda").contiguous(memory_format=layout)
    exact = three_passes(x.double(), w.double(), grad.double(), "aten")
    with float32_precision(precision):
        actual = three_passes(x, w, grad, algorithm)
    for name, result in actual.items():
        assert_accurate(result, exact[name], ALLOWED[precision], what=name)


@pytest.mark.gpu
def test_the_switch_reaches_matrix_products():
    """With TF32 allowed, im2col's errors show that it was used."""
    x, w, _ = LARGE.tensors("cuda", torch.float32)
    exact = F.conv2d(x.double(), w.double(), None, *LARGE.geometry)
    errors = {}
    for precision in ("ieee", "tf32"):
        with float32_precision(precision):
            output = conv2d(x, w, None, *LARGE.geometry, algorithm="im2col")
        errors[precision] = relative_error(output, exact)
    assert errors["tf32"] > 10 * errors["ieee"]
