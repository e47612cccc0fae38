"""Forcing an algorithm."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_support import FLOATS, conv2d, conv2d_backward, families, gradients, leaves, widened
from reference import FAMILIES, LAYOUTS, PROBLEMS, assert_equal, assert_same, tolerances

import customconv

NAMES = ("auto", "aten", *FAMILIES)


@pytest.mark.parametrize("name", ["winograd", "", "Direct", "cudnn"])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_unknown_names(name, requires_grad, device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32, requires_grad=requires_grad)
    with pytest.raises(ValueError, match="unknown algorithm") as error:
        conv2d(x, w, bias, algorithm=name)
    assert all(f"'{known}'" in str(error.value) for known in NAMES)
    with pytest.raises(ValueError, match="unknown algorithm"):
        conv2d(x, w, bias, padding="same", algorithm=name)
    with pytest.raises(ValueError, match="unknown algorithm"):
        conv2d_backward(conv2d(x, w), x, w, [1, 1], [0, 0], [1, 1], 1, [True] * 3, algorithm=name)


@pytest.mark.parametrize("algorithm", FAMILIES)
@pytest.mark.parametrize("requires_grad", [False, True])
def test_families_do_not_run_on_the_cpu(algorithm, requires_grad):
    x, w, bias = PROBLEMS["dense"].tensors("cpu", torch.float32, requires_grad=requires_grad)
    for padding in (1, "same"):
        with pytest.raises(RuntimeError, match=f"'{algorithm}' runs on CUDA tensors, not on cpu"):
            conv2d(x, w, bias, padding=padding, algorithm=algorithm)
    geometry = [1, 1], [0, 0], [1, 1], 1
    with pytest.raises(RuntimeError, match="not on cpu"):
        conv2d_backward(conv2d(x, w), x, w, *geometry, [True] * 3, algorithm=algorithm)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_aten_is_pytorch(problem, layout, device):
    problem = PROBLEMS[problem]
    tensors = problem.tensors(device, torch.float32, layout)
    keywords = {"algorithm": "aten"}
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        actual = conv2d(*tensors, *problem.geometry, **keywords)
        assert_same(actual, F.conv2d(*tensors, *problem.geometry))
        ours = gradients(conv2d, leaves(*tensors), *problem.geometry, **keywords)
        theirs = gradients(F.conv2d, leaves(*tensors), *problem.geometry)
    for actual, expected in zip(ours, theirs, strict=True):
        assert_same(actual, expected)


def test_absent_and_none_are_auto(device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    expected = conv2d(x, w, bias, algorithm="auto")
    assert_equal(conv2d(x, w, bias), expected)
    assert_equal(conv2d(x, w, bias, algorithm=None), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_forced_families(problem, dtype):
    """Outputs by each family that can; the reason, as explain gives it, from one that cannot."""
    problem = PROBLEMS[problem]
    tensors = problem.tensors("cuda", dtype)
    exact = F.conv2d(*(None if t is None else t.double() for t in tensors), *problem.geometry)
    can = families(*tensors, *problem.geometry)
    assert can[:2] == ["direct", "im2col"]
    for algorithm in FAMILIES:
        if algorithm in can:
            actual = conv2d(*tensors, *problem.geometry, algorithm=algorithm)
            assert_equal(actual, exact.to(dtype), **tolerances(dtype), what=algorithm)
            explanation = customconv.explain(*tensors, *problem.geometry, algorithm=algorithm)
            assert explanation.family == algorithm
        else:
            candidates = customconv.explain(*tensors, *problem.geometry).candidates
            reason = next(c.reason for c in candidates if c.family == algorithm)
            with pytest.raises(RuntimeError) as error:
                conv2d(*tensors, *problem.geometry, algorithm=algorithm)
            assert algorithm in str(error.value) and reason in str(error.value)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_backward_takes_the_forced_family_where_it_can(algorithm, dtype, layout):
    """And the planner's choice for the gradients that it cannot compute."""
    problem = PROBLEMS["strided"]  # tiled computes neither gradient
    x, w, _ = problem.tensors("cuda", dtype, layout)
    grad = torch.randn_like(F.conv2d(x, w, None, *problem.geometry))

    def backward(*tensors, algorithm):
        return conv2d_backward(*tensors, *problem.geometry, [True] * 3, algorithm=algorithm)

    exact = backward(*map(widened, (grad, x, w)), algorithm="aten")
    actual = backward(grad, x, w, algorithm=algorithm)
    by_planner = backward(grad, x, w, algorithm="auto")
    for index, op in enumerate(("dgrad", "wgrad")):
        assert_equal(actual[index], exact[index].to(dtype), **tolerances(dtype), what=op)
        if algorithm not in families(x, w, None, *problem.geometry, op=op):
            assert_equal(actual[index], by_planner[index], what=op)
    assert_equal(actual[2], exact[2].to(dtype), **tolerances(dtype), what="bias")


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_second_derivatives_in_single_precision(algorithm):
    """Forced in the forward pass, the family goes on through both backward passes."""
    problem = PROBLEMS["grouped"]
    tensors = problem.tensors("cuda", torch.float32)

    def second(tensors, **keywords):
        t = leaves(*tensors)
        output = conv2d(*t, *problem.geometry, **keywords)
        first = torch.autograd.grad(output.square().sum(), t, create_graph=True)
        return torch.autograd.grad(sum(g.square().sum() for g in first), t)

    expected = second([t.double() for t in tensors], algorithm="aten")
    for actual, exact in zip(second(tensors, algorithm=algorithm), expected, strict=True):
        scale = exact.abs().max().item()
        assert_equal(actual, exact.float(), atol=1e-5 * scale)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", FAMILIES)
@pytest.mark.parametrize("dtype", [torch.complex64, torch.int64])
def test_families_refuse_other_dtypes(algorithm, dtype):
    x, w = torch.ones(1, 2, 5, 5), torch.ones(3, 2, 3, 3)
    with pytest.raises(RuntimeError, match="computes float64, float32, float16 and bfloat16"):
        conv2d(x.to("cuda", dtype), w.to("cuda", dtype), algorithm=algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_modules(algorithm):
    module = customconv.Conv2d(4, 6, 3, padding="same", algorithm=algorithm).cuda()
    x = torch.randn(2, 4, 9, 8, device="cuda")
    assert_equal(module(x), conv2d(x, module.weight, module.bias, 1, 1, algorithm=algorithm))
