"""First, second and third derivatives."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from op_support import (
    Seen,
    assert_as_pytorch,
    conv2d,
    conv2d_backward,
    gradients,
    leaves,
    on_each_device,
)
from reference import LAYOUTS, PROBLEMS, Problem, assert_equal, tolerances
from torch.autograd import gradcheck, gradgradcheck

in_double_precision = on_each_device("direct", "im2col")
FP64 = tolerances(torch.float64, 1000)
MASKS = list(itertools.product([True, False], repeat=3))[:-1]
TINY = Problem((2, 4, 4, 3), (2, 2, 2, 3), (2, 1), (1, 1), groups=2)


def problem_for(problem, device, algorithm, layout=torch.contiguous_format):
    """The call by that algorithm, and the problem's tensors, to differentiate by."""
    tensors = problem.tensors(device, torch.float64, layout)
    stride, padding, dilation, groups = problem.geometry

    def convolve(x, w, bias=None):
        return conv2d(x, w, bias, stride, padding, dilation, groups, algorithm=algorithm)

    return convolve, [t for t in leaves(*tensors) if t is not None]


@in_double_precision
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradcheck(problem, layout, device, algorithm):
    convolve, tensors = problem_for(PROBLEMS[problem], device, algorithm, layout)
    assert gradcheck(
        convolve, tensors, fast_mode=True, check_forward_ad=True, check_batched_grad=True
    )


@in_double_precision
@pytest.mark.parametrize("problem", PROBLEMS)
def test_gradgradcheck(problem, device, algorithm):
    convolve, tensors = problem_for(PROBLEMS[problem], device, algorithm)
    assert gradgradcheck(
        convolve, tensors, fast_mode=True, check_batched_grad=True, check_fwd_over_rev=True
    )


@in_double_precision
def test_every_entry_of_the_jacobians(device, algorithm):
    convolve, tensors = problem_for(TINY, device, algorithm)
    assert gradcheck(convolve, tensors)
    assert gradgradcheck(convolve, tensors)


@in_double_precision
@pytest.mark.parametrize("mask", MASKS)
def test_third_derivatives(mask, device, algorithm):
    """Second derivatives of the backward operator, with any of its outputs."""
    convolve, (x, w, bias) = problem_for(TINY, device, algorithm)
    grad = torch.randn_like(convolve(x, w, bias)).requires_grad_()

    def backward(grad, x, w):
        results = conv2d_backward(grad, x, w, *TINY.geometry, mask, algorithm=algorithm)
        assert [r is not None for r in results] == list(mask)
        return tuple(r for r in results if r is not None)

    assert gradcheck(backward, (grad, x, w), fast_mode=True)
    if mask != (False, False, True):  # the bias's gradient is linear in grad alone
        assert gradgradcheck(backward, (grad, x, w), fast_mode=True)


@pytest.mark.parametrize("mask", MASKS)
@in_double_precision
def test_any_subset_of_tensors_requires_grad(mask, device, algorithm):
    problem = PROBLEMS["grouped"]
    convolve, tensors = problem_for(problem, device, algorithm)
    for tensor, wanted in zip(tensors, mask, strict=True):
        tensor.requires_grad_(wanted)
    wanted = [t for t in tensors if t.requires_grad]

    def first_and_second(convolve):
        output = convolve(*tensors)
        grad = torch.linspace(-1, 1, output.numel(), dtype=torch.float64, device=device)
        first = torch.autograd.grad(
            output.square(), wanted, grad.view_as(output), create_graph=True
        )
        total = sum(g.square().sum() for g in first)
        return [*first, *torch.autograd.grad(total, wanted)]

    theirs = first_and_second(lambda *t: F.conv2d(*t, *problem.geometry))
    for actual, expected in zip(first_and_second(convolve), theirs, strict=True):
        scale = expected.abs().max().item()
        assert_equal(actual, expected, rtol=1e-12, atol=1e-13 * scale)


@in_double_precision
@pytest.mark.parametrize(
    "problem", ["dense", "strided_dilated", "depthwise", "no_bias", "unbatched"]
)
def test_double_backward_is_pytorchs(problem, device, algorithm):
    problem = PROBLEMS[problem]
    convolve, tensors = problem_for(problem, device, algorithm)

    def second(convolve):
        output = convolve(*tensors)
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(device)
        grad.requires_grad_()
        first = torch.autograd.grad(output, tensors, grad, create_graph=True)
        directions = [torch.randn(g.shape, generator=generator).to(g) for g in first]
        return torch.autograd.grad(first, [grad, *tensors[:2]], directions)

    theirs = second(lambda *t: F.conv2d(t[0], t[1], *(t[2:] or (None,)), *problem.geometry))
    for actual, expected in zip(second(convolve), theirs, strict=True):
        assert_equal(actual, expected, **FP64)


@pytest.mark.parametrize("mask", MASKS)
def test_only_what_is_asked_for_is_computed(mask, device):
    tensors = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    asked = [t for t, wanted in zip(tensors, mask, strict=True) if wanted]
    with Seen() as seen:
        torch.autograd.grad(conv2d(*tensors).sum(), asked)
    assert seen.masks == [mask]


def test_a_frozen_weight_gets_no_gradient(device):
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    w.requires_grad_(False)
    with Seen() as seen:
        conv2d(x, w, bias).sum().backward()
    assert seen.masks == [(True, False, True)]
    assert w.grad is None
    assert x.grad is not None and bias.grad is not None


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_accumulated_gradients(layout, device):
    """A second backward pass adds to the first's, and .grad has the parameter's strides."""
    tensors = PROBLEMS["dense"].tensors(device, torch.float64, layout)
    ours, theirs = leaves(*tensors), leaves(*tensors)
    for convolve, leaf in ((conv2d, ours), (F.conv2d, theirs)):
        for _ in range(2):
            convolve(*leaf).square().sum().backward()
    for actual, expected in zip(ours, theirs, strict=True):
        assert_equal(actual.grad, expected.grad, **FP64)
        assert actual.grad.stride() == expected.grad.stride()


def test_graph_is_freed_after_backward(device):
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    output = conv2d(x, w, bias).sum()
    output.backward(retain_graph=True)
    output.backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.backward()


def test_changed_weight_is_noticed(device):
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    output = conv2d(x, w, bias).sum()
    with torch.no_grad():
        w.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


@pytest.mark.parametrize("problem", ["dense", "unbatched"])
def test_output_can_be_changed_in_place(problem, device):
    problem = PROBLEMS[problem]
    tensors = problem.tensors(device, torch.float64)

    def convolve_relu(convolve, *tensors):
        return convolve(*tensors, *problem.geometry).relu_()

    actual = gradients(partial(convolve_relu, conv2d), leaves(*tensors))
    expected = gradients(partial(convolve_relu, F.conv2d), leaves(*tensors))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs, **FP64)


def test_checkpointing(device):
    tensors = PROBLEMS["dense"].tensors(device, torch.float64)

    def checkpointed(*tensors):
        return torch.utils.checkpoint.checkpoint(
            lambda *t: conv2d(*t).tanh(), *tensors, use_reentrant=False
        )

    actual = gradients(checkpointed, leaves(*tensors))
    expected = gradients(lambda *t: F.conv2d(*t).tanh(), leaves(*tensors))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs, **FP64)


def test_saved_tensors_may_live_elsewhere(device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    expected = gradients(conv2d, leaves(x, w, bias))
    with torch.autograd.graph.save_on_cpu():
        actual = gradients(conv2d, leaves(x, w, bias))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs)


def test_only_input_and_weight_are_saved(device):
    saved = []
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        assert_as_pytorch(conv2d(x, w, bias).detach(), x, w, bias)
        saved.clear()
        conv2d(x, w, bias)
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), w.data_ptr()}


@pytest.mark.parametrize("order", [1, 2])
def test_expanded_gradients(order, device):
    """Sums send back one number expanded to the output's shape, without memory of its own."""
    tensors = PROBLEMS["depthwise"].tensors(device, torch.float64)

    def derivative(convolve):
        t = leaves(*tensors)
        result = convolve(*t, groups=5).sum()
        for _ in range(order - 1):
            result = sum(
                g.square().sum() for g in torch.autograd.grad(result, t, create_graph=True)
            )
        return torch.autograd.grad(result, t[:2])

    for ours, theirs in zip(derivative(conv2d), derivative(F.conv2d), strict=True):
        scale = theirs.abs().max().item()
        assert_equal(ours, theirs, rtol=1e-12, atol=1e-13 * scale)
