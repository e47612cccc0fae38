"""The operator among PyTorch's other ways to see or change a call."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from op_support import (
    CONV,
    CONV_BACKWARD,
    assert_as_pytorch,
    conv,
    conv2d,
    gradients,
    leaves,
    pytorchs,
)
from reference import EVERY_PROBLEM, PROBLEMS, assert_equal, tolerances
from torch.overrides import TorchFunctionMode
from torch.testing._internal.two_tensor import TwoTensor
from torch.utils._python_dispatch import TorchDispatchMode

import customconv

both_dense = pytest.mark.parametrize("problem", ["dense", "volume_dense"])


class Seen(TorchDispatchMode):
    """The operators that run."""

    def __init__(self):
        super().__init__()
        self.operators = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.operators.append(func)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("call", [
    lambda *t: conv2d(*t),
    lambda *t: conv2d(*t, padding="same"),
    lambda *t: conv2d(*t, [1, 1], [1, 1], algorithm="auto"),
    lambda *t: customconv.conv2d(*t, stride=2),
    lambda *t: customconv.conv2d(*t, padding="valid"),
])  # fmt: skip
@pytest.mark.parametrize("requires_grad", [False, True])
def test_modes_see_one_operator_however_it_is_called(call, requires_grad, device):
    tensors = PROBLEMS["dense"].tensors(device, torch.float32, requires_grad=requires_grad)
    with Seen() as seen:
        call(*tensors)
    assert [op for op in seen.operators if op.namespace == "customconv"] == [conv2d.default]


@both_dense
def test_modes_see_the_backward_operator(problem, device):
    problem = EVERY_PROBLEM[problem]
    tensors = leaves(*problem.tensors(device, torch.float32))
    with Seen() as seen:
        conv(*tensors).sum().backward()
    ours = [op for op in seen.operators if op.namespace == "customconv"]
    assert ours == [CONV[problem.dims].default, CONV_BACKWARD[problem.dims].default]


def test_function_modes(device):
    class Functions(TorchFunctionMode):
        def __init__(self):
            super().__init__()
            self.calls = []

        def __torch_function__(self, func, types, args=(), kwargs=None):
            self.calls.append(func)
            return func(*args, **(kwargs or {}))

    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    with Functions() as functions:
        actual = conv2d(x, w, bias)
    assert any("customconv" in str(call) for call in functions.calls)
    assert_as_pytorch(actual, x, w, bias)


@pytest.mark.parametrize("problem", ["grouped", "volume_grouped"])
def test_wrapper_subclass(problem, device):
    """A subclass that holds two tensors is convolved twice, and differentiated."""
    problem = EVERY_PROBLEM[problem]
    x, w, bias = problem.tensors(device, torch.float64)
    first, second = (x, w, bias), (x.cos(), w.sin(), bias * 2)
    both = [TwoTensor(a, b).requires_grad_() for a, b in zip(first, second, strict=True)]
    output = conv(*both, *problem.geometry)
    assert isinstance(output, TwoTensor)
    derivatives = torch.autograd.grad(output.square().sum(), both)
    for part, tensors in (("a", first), ("b", second)):
        t = leaves(*tensors)
        expected = pytorchs(*t, *problem.geometry)
        assert_equal(getattr(output, part), expected, **tolerances(torch.float64))
        for actual, value in zip(
            derivatives, torch.autograd.grad(expected.square().sum(), t), strict=True
        ):
            scale = value.abs().max().item()
            assert_equal(getattr(actual, part), value, atol=1e-13 * scale)


def test_plain_subclass(device):
    class Image(torch.Tensor):
        pass

    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    output = conv2d(x.as_subclass(Image), w, bias)
    assert type(output) is Image
    assert_equal(output.as_subclass(torch.Tensor), conv2d(x, w, bias))


@pytest.mark.parametrize("guard", [torch.no_grad, torch.inference_mode])
def test_without_gradients(guard, device):
    tensors = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    with guard():
        output = conv2d(*tensors)
        assert_as_pytorch(output, *tensors)
    assert not output.requires_grad
    assert output.is_inference() == (guard is torch.inference_mode)


def test_inference_tensors(device):
    """They may be convolved outside of their mode, with parameters that have no gradient."""
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    with torch.inference_mode():
        frozen = x.clone()
    assert_as_pytorch(conv2d(frozen, w, bias), x, w, bias)
    messages = []
    for convolve in (conv2d, F.conv2d):
        with pytest.raises(RuntimeError, match="Inference tensors cannot be saved") as error:
            convolve(frozen, w.clone().requires_grad_(), bias)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_enable_grad_inside_of_no_grad(device):
    tensors = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    with torch.no_grad(), torch.enable_grad():
        assert conv2d(*tensors).requires_grad


@pytest.mark.parametrize("anomaly", [False, True])
@both_dense
def test_names_in_the_graph(problem, anomaly, device):
    """The node that a user sees in a graph says what it is of."""
    problem = EVERY_PROBLEM[problem]
    tensors = leaves(*problem.tensors(device, torch.float32))
    with torch.autograd.set_detect_anomaly(anomaly):
        output = conv(*tensors)
        assert f"Conv{problem.dims}d" in output.grad_fn.name()
        output.sum().backward()


def test_modules_of_pytorch_use_it_by_replacement(device):
    """torch.nn.Conv2d with its functional call replaced, as users patch models."""
    module = torch.nn.Conv2d(4, 6, 3, padding=1).to(device)
    twin = copy.deepcopy(module)
    twin._conv_forward = lambda x, w, b: conv2d(x, w, b, twin.stride, twin.padding)
    x = torch.randn(2, 4, 9, 8, device=device)
    assert_equal(twin(x), module(x), **tolerances(torch.float32))


@both_dense
def test_jit_trace(problem, device):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(device, torch.float32)
    stride = [2, 1, 1][: problem.dims]
    convolve = CONV[problem.dims]
    traced = torch.jit.trace(lambda *t: convolve(*t, stride, [1] * problem.dims), tensors)
    other = [t + 1 for t in tensors]
    assert_equal(traced(*other), convolve(*other, stride, [1] * problem.dims))


def test_lazily_conjugated_and_negated_inputs(device):
    x, w, _ = PROBLEMS["dense"].tensors(device, torch.complex64)
    assert_as_pytorch(conv2d(x.conj(), w), x.conj(), w)
    negative = x.conj().imag
    assert negative.is_neg()
    w = w.real.contiguous()
    assert_as_pytorch(conv2d(negative, w), negative, w)
    actual = gradients(lambda x, w: conv2d(x.conj().imag, w), leaves(x, w))
    expected = gradients(lambda x, w: F.conv2d(x.conj().imag, w), leaves(x, w))
    for ours, theirs in zip(actual, expected, strict=True):
        assert_equal(ours, theirs, **tolerances(theirs.dtype))


def test_other_layouts():
    """A tensor in oneDNN's own layout is PyTorch's to compute."""
    x, w, bias = PROBLEMS["dense"].tensors("cpu", torch.float32)
    packed = x.to_mkldnn()
    actual = conv2d(packed, w.to_mkldnn(), bias.to_mkldnn())
    assert_equal(actual.to_dense(), F.conv2d(x, w, bias), **tolerances(torch.float32))
