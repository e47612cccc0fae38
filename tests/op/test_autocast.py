"""Under torch.autocast the operator does as F.conv2d does."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from op_support import assert_as_pytorch, conv2d, leaves
from reference import FAMILIES, PROBLEMS, assert_equal, assert_same, tolerances

import customconv

LOW = [torch.bfloat16, torch.float16]


def near(actual, expected):
    """Exactly PyTorch's on the CPU; on CUDA up to the rounding of another kernel's sums."""
    if actual.is_cuda:
        scale = expected.abs().max().item()
        eps = torch.finfo(torch.bfloat16).eps
        assert_equal(actual, expected, rtol=2 * eps, atol=eps * scale)
        assert actual.stride() == expected.stride()
    else:
        assert_same(actual, expected)


@pytest.mark.parametrize("dtype", LOW)
@pytest.mark.parametrize("problem", PROBLEMS)
def test_dtype_and_values(problem, dtype, device):
    problem = PROBLEMS[problem]
    tensors = problem.tensors(device, torch.float32)
    with torch.autocast(device, dtype):
        actual = conv2d(*tensors, *problem.geometry)
        theirs = F.conv2d(*tensors, *problem.geometry)
    assert actual.dtype == theirs.dtype == dtype
    assert_as_pytorch(actual, *(None if t is None else t.to(dtype) for t in tensors),
                      *problem.geometry)  # fmt: skip


@pytest.mark.parametrize("call", [conv2d, customconv.conv2d])
@pytest.mark.parametrize("keywords", [{"padding": "same"}, {"padding": "valid"}, {"stride": 2}])
def test_every_way_to_call(call, keywords, device):
    tensors = PROBLEMS["dense"].tensors(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        near(call(*tensors, **keywords), F.conv2d(*tensors, **keywords))


@pytest.mark.parametrize("dtypes", [
    (torch.float32, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float16, torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    (torch.float64, torch.float64, torch.float64),
])  # fmt: skip
def test_mixed_dtypes(dtypes, device):
    """All become one, except double precision, which autocast leaves alone."""
    tensors = PROBLEMS["dense"].tensors(device, torch.float32)
    tensors = [t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=True)]
    with torch.autocast(device, torch.bfloat16):
        actual, expected = conv2d(*tensors), F.conv2d(*tensors)
    near(actual, expected)
    assert (actual.dtype == torch.float64) == (dtypes[0] == torch.float64)


def test_double_precision_is_not_mixed(device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    messages = []
    for convolve in (conv2d, F.conv2d):
        with torch.autocast(device, torch.bfloat16), pytest.raises(RuntimeError) as error:
            convolve(x.double(), w, bias)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_nested_regions(device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        low = conv2d(x, w, bias)
        with torch.autocast(device, enabled=False):
            full = conv2d(x, w, bias)
            with pytest.raises(RuntimeError):
                conv2d(low[:, :4], w, bias)
        with torch.autocast(device, torch.float16):
            half = conv2d(x, w, bias)
        again = conv2d(low[:, :4], w, bias)
    dtypes = [t.dtype for t in (low, full, half, again)]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float16, torch.bfloat16]
    assert_as_pytorch(full, x, w, bias)


@pytest.mark.parametrize("dtype", LOW)
def test_gradients(dtype, device):
    """Leaves in float32 get gradients in float32; the backward pass is outside of the region."""
    tensors = PROBLEMS["dense"].tensors(device, torch.float32)
    results = []
    for convolve in (conv2d, F.conv2d):
        t = leaves(*tensors)
        with torch.autocast(device, dtype):
            output = convolve(*t, padding=1)
            loss = output.float().square().mean()
        results.append(torch.autograd.grad(loss, t))
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == torch.float32
        near(actual, expected)


def test_gradient_penalty(device):
    """The second derivative of a region, itself inside of one."""
    tensors = PROBLEMS["dense"].tensors(device, torch.float32)
    results = []
    for convolve in (conv2d, F.conv2d):
        x, w, bias = leaves(*tensors)
        with torch.autocast(device, torch.bfloat16):
            output = convolve(x, w, bias).tanh().sum()
            (gradient,) = torch.autograd.grad(output, x, create_graph=True)
            penalty = gradient.float().square().sum()
        results.append(torch.autograd.grad(penalty, (x, w)))
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == torch.float32
        scale = expected.abs().max().item()
        assert_equal(actual, expected, atol=0.03 * scale)


def test_the_weights_cast_is_cached(device):
    """As in PyTorch, one cast serves all uses of a parameter in a region."""
    x, w, bias = leaves(*PROBLEMS["dense"].tensors(device, torch.float32))
    x = x.detach()
    with torch.autocast(device, torch.bfloat16):
        first, second = conv2d(x, w, bias), conv2d(x, w, bias)

    def cast_of_weight(output):
        return next(node for node, _ in output.grad_fn.next_functions if node is not None)

    assert cast_of_weight(first) is cast_of_weight(second)


def test_module_and_compiled_module(device):
    module = customconv.Conv2d(4, 6, 3, padding=1).to(device)
    twin = torch.nn.Conv2d(4, 6, 3, padding=1).to(device)
    twin.load_state_dict(module.state_dict())
    x = torch.randn(2, 4, 9, 8, device=device)
    torch._dynamo.reset()  # other tests compile Conv2d too, and recompiling has a limit
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.autocast(device, torch.bfloat16):
        near(module(x), twin(x))
        near(compiled(x), twin(x))


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", FAMILIES)
def test_forced_algorithms(algorithm):
    tensors = PROBLEMS["dense"].tensors("cuda", torch.float32)
    with torch.autocast("cuda", torch.float16):
        actual = conv2d(*tensors, algorithm=algorithm)
    assert_as_pytorch(actual, *(t.half() for t in tensors))


@pytest.mark.gpu
def test_only_the_regions_device_is_cast():
    cpu = PROBLEMS["dense"].tensors("cpu", torch.float32)
    cuda = [t.cuda() for t in cpu]
    with torch.autocast("cuda", torch.bfloat16):
        assert conv2d(*cpu).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        actual = conv2d(*cuda)
    assert actual.dtype == torch.float32
    assert_equal(actual, F.conv2d(*cuda), **tolerances(torch.float32))
