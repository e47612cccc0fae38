"""Under torch.autocast the operators do as F.conv2d and F.conv3d do."""

from __future__ import annotations

import pytest
import torch
from op_support import assert_as_pytorch, by_weight, conv, each_dims, leaves, pytorchs
from reference import EVERY_PROBLEM, FAMILIES, assert_equal, assert_same, tolerances

import customconv

MODULES = {2: customconv.Conv2d, 3: customconv.Conv3d}
LOW = [torch.bfloat16, torch.float16]
ours = by_weight({2: customconv.conv2d, 3: customconv.conv3d})
both_dense = pytest.mark.parametrize("problem", ["dense", "volume_dense"])


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
@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_dtype_and_values(problem, dtype, device):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors(device, torch.float32)
    with torch.autocast(device, dtype):
        actual = conv(*tensors, *problem.geometry)
        theirs = pytorchs(*tensors, *problem.geometry)
    assert actual.dtype == theirs.dtype == dtype
    assert_as_pytorch(actual, *(None if t is None else t.to(dtype) for t in tensors),
                      *problem.geometry)  # fmt: skip


@pytest.mark.parametrize("call", [conv, ours], ids=["operator", "function"])
@pytest.mark.parametrize("keywords", [{"padding": "same"}, {"padding": "valid"}, {"stride": 2}])
@both_dense
def test_every_way_to_call(problem, call, keywords, device):
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        near(call(*tensors, **keywords), pytorchs(*tensors, **keywords))


@pytest.mark.parametrize("dtypes", [
    (torch.float32, torch.float32, torch.bfloat16),
    (torch.bfloat16, torch.float32, torch.float32),
    (torch.float16, torch.bfloat16, torch.float32),
    (torch.bfloat16, torch.bfloat16, torch.bfloat16),
    (torch.float64, torch.float64, torch.float64),
])  # fmt: skip
@both_dense
def test_mixed_dtypes(problem, dtypes, device):
    """All become one, except double precision, which autocast leaves alone."""
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float32)
    tensors = [t.to(dtype) for t, dtype in zip(tensors, dtypes, strict=True)]
    with torch.autocast(device, torch.bfloat16):
        actual, expected = conv(*tensors), pytorchs(*tensors)
    near(actual, expected)
    assert (actual.dtype == torch.float64) == (dtypes[0] == torch.float64)


def test_double_precision_is_not_mixed(device):
    x, w, bias = EVERY_PROBLEM["dense"].tensors(device, torch.float32)
    messages = []
    for convolve in (conv, pytorchs):
        with torch.autocast(device, torch.bfloat16), pytest.raises(RuntimeError) as error:
            convolve(x.double(), w, bias)
        messages.append(str(error.value))
    assert messages[0] == messages[1]


def test_nested_regions(device):
    x, w, bias = EVERY_PROBLEM["dense"].tensors(device, torch.float32)
    with torch.autocast(device, torch.bfloat16):
        low = conv(x, w, bias)
        with torch.autocast(device, enabled=False):
            full = conv(x, w, bias)
            with pytest.raises(RuntimeError):
                conv(low[:, :4], w, bias)
        with torch.autocast(device, torch.float16):
            half = conv(x, w, bias)
        again = conv(low[:, :4], w, bias)
    dtypes = [t.dtype for t in (low, full, half, again)]
    assert dtypes == [torch.bfloat16, torch.float32, torch.float16, torch.bfloat16]
    assert_as_pytorch(full, x, w, bias)


@pytest.mark.parametrize("dtype", LOW)
@both_dense
def test_gradients(problem, dtype, device):
    """Leaves in float32 get gradients in float32; the backward pass is outside of the region."""
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float32)
    results = []
    for convolve in (conv, pytorchs):
        t = leaves(*tensors)
        with torch.autocast(device, dtype):
            output = convolve(*t, padding=1)
            loss = output.float().square().mean()
        results.append(torch.autograd.grad(loss, t))
    for actual, expected in zip(*results, strict=True):
        assert actual.dtype == torch.float32
        near(actual, expected)


@both_dense
def test_gradient_penalty(problem, device):
    """The second derivative of a region, itself inside of one."""
    tensors = EVERY_PROBLEM[problem].tensors(device, torch.float32)
    results = []
    for convolve in (conv, pytorchs):
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
    x, w, bias = leaves(*EVERY_PROBLEM["dense"].tensors(device, torch.float32))
    x = x.detach()
    with torch.autocast(device, torch.bfloat16):
        first, second = conv(x, w, bias), conv(x, w, bias)

    def cast_of_weight(output):
        return next(node for node, _ in output.grad_fn.next_functions if node is not None)

    assert cast_of_weight(first) is cast_of_weight(second)


@each_dims
def test_module_and_compiled_module(dims, device):
    module = MODULES[dims](4, 6, 3, padding=1).to(device)
    twin = {2: torch.nn.Conv2d, 3: torch.nn.Conv3d}[dims](4, 6, 3, padding=1).to(device)
    twin.load_state_dict(module.state_dict())
    x = torch.randn(2, 4, *(3, 9, 8)[-dims:], device=device)
    torch._dynamo.reset()  # other tests compile these too, and recompiling has a limit
    compiled = torch.compile(module, backend="aot_eager", fullgraph=True)
    with torch.autocast(device, torch.bfloat16):
        near(module(x), twin(x))
        near(compiled(x), twin(x))


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [*(("dense", family) for family in FAMILIES), ("volume_dense", "direct")],
)
def test_forced_algorithms(problem, algorithm):
    tensors = EVERY_PROBLEM[problem].tensors("cuda", torch.float32)
    with torch.autocast("cuda", torch.float16):
        actual = conv(*tensors, algorithm=algorithm)
    assert_as_pytorch(actual, *(t.half() for t in tensors))


@pytest.mark.gpu
def test_only_the_regions_device_is_cast():
    cpu = EVERY_PROBLEM["dense"].tensors("cpu", torch.float32)
    cuda = [t.cuda() for t in cpu]
    with torch.autocast("cuda", torch.bfloat16):
        assert conv(*cpu).dtype == torch.float32
    with torch.autocast("cpu", torch.bfloat16):
        actual = conv(*cuda)
    assert actual.dtype == torch.float32
    assert_equal(actual, pytorchs(*cuda), **tolerances(torch.float32))
