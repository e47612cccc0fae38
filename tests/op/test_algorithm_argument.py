"""Forcing an algorithm."""

from __future__ import annotations

import pytest
import torch
from op_support import (
    FLOATS,
    conv,
    conv_backward,
    families,
    gradients,
    leaves,
    pytorchs,
    widened,
)
from reference import (
    EVERY_PROBLEM,
    FAMILIES,
    LAYOUTS,
    PROBLEMS,
    VOLUMES,
    assert_equal,
    assert_same,
    tolerances,
)

import customconv

NAMES = ("auto", "aten", *FAMILIES)


def geometry_of(weight):
    """That of a call with no arguments but tensors."""
    dims = weight.ndim - 2
    return [1] * dims, [0] * dims, [1] * dims, 1


@pytest.mark.parametrize("name", ["winograd", "", "Direct", "cudnn"])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("problem", ["dense", "volume_dense"])
def test_unknown_names(problem, name, requires_grad, device):
    x, w, bias = EVERY_PROBLEM[problem].tensors(device, torch.float32, requires_grad=requires_grad)
    with pytest.raises(ValueError, match="unknown algorithm") as error:
        conv(x, w, bias, algorithm=name)
    assert all(f"'{known}'" in str(error.value) for known in NAMES)
    with pytest.raises(ValueError, match="unknown algorithm"):
        conv(x, w, bias, padding="same", algorithm=name)
    with pytest.raises(ValueError, match="unknown algorithm"):
        conv_backward(conv(x, w), x, w, *geometry_of(w), [True] * 3, algorithm=name)


@pytest.mark.parametrize("algorithm", FAMILIES)
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("problem", ["dense", "volume_dense"])
def test_families_do_not_run_on_the_cpu(problem, algorithm, requires_grad):
    x, w, bias = EVERY_PROBLEM[problem].tensors("cpu", torch.float32, requires_grad=requires_grad)
    for padding in (1, "same"):
        with pytest.raises(RuntimeError, match=f"'{algorithm}' runs on CUDA tensors, not on cpu"):
            conv(x, w, bias, padding=padding, algorithm=algorithm)
    geometry = geometry_of(w)
    with pytest.raises(RuntimeError, match="not on cpu"):
        conv_backward(conv(x, w), x, w, *geometry, [True] * 3, algorithm=algorithm)


@pytest.mark.parametrize("problem", EVERY_PROBLEM)
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_aten_is_pytorch(problem, layout, device):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(device, torch.float32, layout)
    keywords = {"algorithm": "aten"}
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        actual = conv(*tensors, *problem.geometry, **keywords)
        assert_same(actual, pytorchs(*tensors, *problem.geometry))
        ours = gradients(conv, leaves(*tensors), *problem.geometry, **keywords)
        theirs = gradients(pytorchs, leaves(*tensors), *problem.geometry)
    for actual, expected in zip(ours, theirs, strict=True):
        assert_same(actual, expected)


@pytest.mark.parametrize("problem", ["dense", "volume_dense"])
def test_absent_and_none_are_auto(problem, device):
    x, w, bias = EVERY_PROBLEM[problem].tensors(device, torch.float32)
    expected = conv(x, w, bias, algorithm="auto")
    assert_equal(conv(x, w, bias), expected)
    assert_equal(conv(x, w, bias, algorithm=None), expected)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_forced_families(problem, dtype):
    """Outputs by each family that can; the reason, as explain gives it, from one that cannot."""
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors("cuda", dtype)
    exact = pytorchs(*(None if t is None else t.double() for t in tensors), *problem.geometry)
    can = families(*tensors, *problem.geometry)
    assert can[:2] == ["direct", "im2col"] or problem.dims == 3
    assert "direct" in can
    for algorithm in FAMILIES:
        if algorithm in can:
            actual = conv(*tensors, *problem.geometry, algorithm=algorithm)
            assert_equal(actual, exact.to(dtype), **tolerances(dtype), what=algorithm)
            explanation = customconv.explain(*tensors, *problem.geometry, algorithm=algorithm)
            assert explanation.family == algorithm
        else:
            candidates = customconv.explain(*tensors, *problem.geometry).candidates
            reason = next(c.reason for c in candidates if c.family == algorithm)
            with pytest.raises(RuntimeError) as error:
                conv(*tensors, *problem.geometry, algorithm=algorithm)
            assert algorithm in str(error.value) and reason in str(error.value)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_backward_takes_the_forced_family_where_it_can(algorithm, dtype, layout):
    """And the planner's choice for the gradients that it cannot compute."""
    problem = PROBLEMS["strided"]  # tiled computes neither gradient
    x, w, _ = problem.tensors("cuda", dtype, layout)
    grad = torch.randn_like(pytorchs(x, w, None, *problem.geometry))

    def backward(*tensors, algorithm):
        return conv_backward(*tensors, *problem.geometry, [True] * 3, algorithm=algorithm)

    exact = backward(*map(widened, (grad, x, w)), algorithm="aten")
    actual = backward(grad, x, w, algorithm=algorithm)
    by_planner = backward(grad, x, w, algorithm="auto")
    for index, op in enumerate(("dgrad", "wgrad")):
        assert_equal(actual[index], exact[index].to(dtype), **tolerances(dtype), what=op)
        if algorithm not in families(x, w, None, *problem.geometry, op=op):
            assert_equal(actual[index], by_planner[index], what=op)
    assert_equal(actual[2], exact[2].to(dtype), **tolerances(dtype), what="bias")


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [*((PROBLEMS["grouped"], name) for name in FAMILIES), (VOLUMES["grouped"], "direct")],
)
def test_second_derivatives_in_single_precision(problem, algorithm):
    """Forced in the forward pass, the family goes on through both backward passes."""
    tensors = problem.tensors("cuda", torch.float32)

    def second(tensors, **keywords):
        t = leaves(*tensors)
        output = conv(*t, *problem.geometry, **keywords)
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
        conv(x.to("cuda", dtype), w.to("cuda", dtype), algorithm=algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_modules(algorithm):
    module = customconv.Conv2d(4, 6, 3, padding="same", algorithm=algorithm).cuda()
    x = torch.randn(2, 4, 9, 8, device="cuda")
    assert_equal(module(x), conv(x, module.weight, module.bias, 1, 1, algorithm=algorithm))
