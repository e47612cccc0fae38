"""First, second and third derivatives."""

from __future__ import annotations

import itertools
from functools import partial

import pytest
import torch
from op_support import (
    Seen,
    assert_as_pytorch,
    conv,
    conv_backward,
    gradcheck,
    gradgradcheck,
    gradients,
    leaves,
    on_each_device,
    pytorchs,
)
from reference import EVERY_PROBLEM, LAYOUTS, Problem, assert_equal, tolerances

in_double_precision = on_each_device("direct", "im2col")
FP64 = tolerances(torch.float64, 1000)
MASKS = list(itertools.product([True, False], repeat=3))[:-1]
TINY = {
    "images": Problem((2, 4, 4, 3), (2, 2, 2, 3), (2, 1), (1, 1), groups=2),
    "volumes": Problem((2, 4, 3, 2, 2), (2, 2, 2, 1, 2), (2, 1, 1), (1, 0, 1), groups=2),
}
each_tiny = pytest.mark.parametrize("tiny", TINY.values(), ids=TINY)
both_dense = pytest.mark.parametrize("problem", ["dense", "volume_dense"])


def problem_for(problem, device, algorithm, layout=torch.contiguous_format):
    """The call by that algorithm, and the problem's tensors, to differentiate by."""
    tensors = problem.tensors(device, torch.float64, layout)
    stride, padding, dilation, groups = problem.geometry

    def convolve(x, w, bias=None):
        return conv(x, w, bias, stride, padding, dilation, groups, algorithm=algorithm)

    return convolve, [t for t in leaves(*tensors) if t is not None]


@in_double_precision
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_gradcheck(problem, layout, device, algorithm):
    convolve, tensors = problem_for(EVERY_PROBLEM[problem], device, algorithm, layout)
    assert gradcheck(
        convolve, tensors, fast_mode=True, check_forward_ad=True, check_batched_grad=True
    )


@in_double_precision
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_gradgradcheck(problem, device, algorithm):
    convolve, tensors = problem_for(EVERY_PROBLEM[problem], device, algorithm)
    assert gradgradcheck(
        convolve, tensors, fast_mode=True, check_batched_grad=True, check_fwd_over_rev=True
    )


@in_double_precision
@each_tiny
def test_every_entry_of_the_jacobians(tiny, device, algorithm):
    convolve, tensors = problem_for(tiny, device, algorithm)
    assert gradcheck(convolve, tensors)
    assert gradgradcheck(convolve, tensors)


@in_double_precision
@pytest.mark.parametrize("mask", MASKS)
@each_tiny
def test_third_derivatives(tiny, mask, device, algorithm):
    """Second derivatives of the backward operator, with any of its outputs."""
    convolve, (x, w, bias) = problem_for(tiny, device, algorithm)
    grad = torch.randn_like(convolve(x, w, bias)).requires_grad_()

    def backward(grad, x, w):
        results = conv_backward(grad, x, w, *tiny.geometry, mask, algorithm=algorithm)
        assert [r is not None for r in results] == list(mask)
        return tuple(r for r in results if r is not None)

    assert gradcheck(backward, (grad, x, w), fast_mode=True)
    if mask != (False, False, True):  # the bias's gradient is linear in grad alone
        assert gradgradcheck(backward, (grad, x, w), fast_mode=True)


@pytest.mark.parametrize("mask", MASKS)
@in_double_precision
@pytest.mark.parametrize("problem", ["grouped", "volume_grouped"])
def test_any_subset_of_tensors_requires_grad(problem, mask, device, algorithm):
    problem = EVERY_PROBLEM[problem]
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

    theirs = first_and_second(lambda *t: pytorchs(*t, *problem.geometry))
    for actual, expected in zip(first_and_second(convolve), theirs, strict=True):
        scale = expected.abs().max().item()
        assert_equal(actual, expected, rtol=1e-12, atol=1e-13 * scale)


@in_double_precision
@pytest.mark.parametrize(
    "problem",
    ["dense", "strided_dilated", "depthwise", "no_bias", "unbatched", "volume_dense",
     "volume_strided_dilated", "volume_depthwise", "volume_unbatched"],
)  # fmt: skip
def test_double_backward_is_pytorchs(problem, device, algorithm):
    problem = EVERY_PROBLEM[problem]
    convolve, tensors = problem_for(problem, device, algorithm)

    def second(convolve):
        output = convolve(*tensors)
        generator = torch.Generator().manual_seed(1)
        grad = torch.randn(output.shape, generator=generator, dtype=torch.float64).to(device)
        grad.requires_grad_()
        first = torch.autograd.grad(output, tensors, grad, create_graph=True)
        directions = [torch.randn(g.shape, generator=generator).to(g) for g in first]
        return torch.autograd.grad(first, [grad, *tensors[:2]], directions)

    theirs = second(lambda *t: pytorchs(t[0], t[1], *(t[2:] or (None,)), *problem.geometry))
    for actual, expected in zip(second(convolve), theirs, strict=True):
        assert_equal(actual, expected, **FP64)


@both_dense
@pytest.mark.parametrize("mask", MASKS)
def test_only_what_is_asked_for_is_computed(problem, mask, device):
    tensors = leaves(*EVERY_PROBLEM[problem].tensors(device, torch.float32))
    asked = [t for t, wanted in zip(tensors, mask, strict=True) if wanted]
    with Seen() as seen:
        torch.autograd.grad(conv(*tensors).sum(), asked)
    assert seen.masks == [mask]


def test_a_frozen_weight_gets_no_gradient(device):
    x, w, bias = leaves(*EVERY_PROBLEM["dense"].tensors(device, torch.float32))
    w.requires_grad_(False)
    with Seen() as seen:
        conv(x, w, bias).sum().backward()
    assert seen.masks == [(True, False, True)]
    assert w.grad is None
    assert x.grad is not None and bias.grad is not None


@both_dense
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_accumulated_gradients(problem, layout, device):
    """A second backward pass adds to the first's, and .grad has the parameter's strides."""
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float64, layout)
    ours, theirs = leaves(*tensors), leaves(*tensors)
    for convolve, leaf in ((conv, ours), (pytorchs, theirs)):
        for _ in range(2):
            convolve(*leaf).square().sum().backward()
    for actual, expected in zip(ours, theirs, strict=True):
        assert_equal(actual.grad, expected.grad, **FP64)
        assert actual.grad.stride() == expected.grad.stride()


def test_graph_is_freed_after_backward(device):
    x, w, bias = leaves(*EVERY_PROBLEM["dense"].tensors(device, torch.float32))
    output = conv(x, w, bias).sum()
    output.backward(retain_graph=True)
    output.backward()
    with pytest.raises(RuntimeError, match="second time"):
        output.backward()


def test_changed_weight_is_noticed(device):
    x, w, bias = leaves(*EVERY_PROBLEM["dense"].tensors(device, torch.float32))
    output = conv(x, w, bias).sum()
    with torch.no_grad():
        w.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.backward()


@pytest.mark.parametrize("problem", ["dense", "unbatched", "volume_dense", "volume_unbatched"])
def test_output_can_be_changed_in_place(problem, device):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(device, torch.float64)

    def convolve_relu(convolve, *tensors):
        return convolve(*tensors, *problem.geometry).relu_()

    actual = gradients(partial(convolve_relu, conv), leaves(*tensors))
    expected = gradients(partial(convolve_relu, pytorchs), leaves(*tensors))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs, **FP64)


@both_dense
def test_checkpointing(problem, device):
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float64)

    def checkpointed(*tensors):
        return torch.utils.checkpoint.checkpoint(
            lambda *t: conv(*t).tanh(), *tensors, use_reentrant=False
        )

    actual = gradients(checkpointed, leaves(*tensors))
    expected = gradients(lambda *t: pytorchs(*t).tanh(), leaves(*tensors))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs, **FP64)


def test_saved_tensors_may_live_elsewhere(device):
    x, w, bias = EVERY_PROBLEM["dense"].tensors(device, torch.float32)
    expected = gradients(conv, leaves(x, w, bias))
    with torch.autograd.graph.save_on_cpu():
        actual = gradients(conv, leaves(x, w, bias))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs)


@both_dense
def test_only_input_and_weight_are_saved(problem, device):
    saved = []
    x, w, bias = leaves(*EVERY_PROBLEM[problem].tensors(device, torch.float32))
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        assert_as_pytorch(conv(x, w, bias).detach(), x, w, bias)
        saved.clear()
        conv(x, w, bias)
    assert {t.data_ptr() for t in saved} == {x.data_ptr(), w.data_ptr()}


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("problem", ["depthwise", "volume_depthwise"])
def test_expanded_gradients(problem, order, device):
    """Sums send back one number expanded to the output's shape, without memory of its own."""
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float64)

    def derivative(convolve):
        t = leaves(*tensors)
        result = convolve(*t, groups=5).sum()
        for _ in range(order - 1):
            result = sum(
                g.square().sum() for g in torch.autograd.grad(result, t, create_graph=True)
            )
        return torch.autograd.grad(result, t[:2])

    for ours, theirs in zip(derivative(conv), derivative(pytorchs), strict=True):
        scale = theirs.abs().max().item()
        assert_equal(ours, theirs, rtol=1e-12, atol=1e-13 * scale)
