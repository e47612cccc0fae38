"""The operator under torch.compile, and traced in PyTorch's other ways."""

from __future__ import annotations

import pytest
import torch
from op_support import conv, conv2d, each_dims, leaves, needs_compiler, pytorchs
from reference import (
    EVERY_PROBLEM,
    LAYOUTS,
    PROBLEMS,
    assert_equal,
    assert_same,
    layout_of,
    tolerances,
)
from torch._dynamo.testing import CompileCounterWithBackend, EagerAndRecordGraphs
from torch._dynamo.utils import counters
from torch.fx.experimental.proxy_tensor import make_fx

import customconv

MODULES = {2: customconv.Conv2d, 3: customconv.Conv3d}
FP32 = tolerances(torch.float32, 1000)


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    counters.clear()


class Network(torch.nn.Module):
    """Convolutions of several kinds, between operations that a compiler likes to fuse."""

    def __init__(self, algorithm="auto", dims=2):
        super().__init__()
        kind = MODULES[dims]
        self.first = kind(3, 8, 3, stride=2, padding=1, algorithm=algorithm)
        taps = (1, 3, 2)[-dims:]
        self.second = kind(8, 8, taps, padding="same", groups=4, bias=False)
        self.third = kind(8, 6, 1, dilation=2, padding_mode="reflect")

    def forward(self, x):
        x = self.first(x * 2).relu()
        x = x + self.second(x)
        x = x.transpose(2, 3).sin()
        return self.third(x).flatten(2).mean(2)


def step(model, x):
    """The loss and every gradient."""
    x = x.detach().requires_grad_()
    loss = model(x).square().sum()
    return [loss.detach(), *torch.autograd.grad(loss, [x, *model.parameters()])]


def assert_all_close(actual, expected):
    for ours, theirs in zip(actual, expected, strict=True):
        scale = max(1.0, theirs.abs().max().item())
        assert_equal(ours, theirs, rtol=FP32["rtol"], atol=FP32["atol"] * scale)


@needs_compiler
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@each_dims
def test_a_training_step_is_one_graph(dims, layout, device):
    layout = layout_of(layout, dims + 2)
    model = Network(dims=dims).to(device, memory_format=layout)
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(2, 3, *(5, 12, 10)[-dims:], device=device).contiguous(memory_format=layout)
    assert_all_close(step(compiled, x), step(model, x))


@needs_compiler
def test_any_size_is_compiled_once(device):
    model = Network().to(device)
    compiled = torch.compile(model, fullgraph=True, dynamic=True)
    sizes = [(2, 12, 10), (3, 15, 11), (5, 9, 16), (7, 20, 8)]
    for count, (batch, height, width) in enumerate(sizes):
        x = torch.randn(batch, 3, height, width, device=device)
        with torch._dynamo.config.patch(error_on_recompile=count > 0):
            actual = step(compiled, x)
        assert_all_close(actual, step(model, x))


@each_dims
def test_a_second_size_makes_it_dynamic(dims):
    model = Network(dims=dims)
    counter = CompileCounterWithBackend("aot_eager")
    compiled = torch.compile(model, backend=counter, fullgraph=True)
    for batch, frames in [(2, 1), (3, 2), (4, 2), (9, 2)]:
        x = torch.randn(batch, 3, *(5, 12, 10)[-dims:])
        assert_all_close(step(compiled, x), step(model, x))
        assert counter.frame_count == frames


@each_dims
def test_a_strided_module_does_not_recompile(dims, device):
    """In a loop over sizes, as a training at several scales is."""
    module = MODULES[dims](3, 8, 3, stride=2, padding=1).to(device)
    counter = CompileCounterWithBackend("aot_eager_decomp_partition")
    compiled = torch.compile(module, backend=counter, fullgraph=True, dynamic=True)
    for size in range(16, 48, 3):
        x = torch.randn(2, 3, *(size // 2, size, size + 2)[-dims:], device=device)
        assert_all_close(step(compiled, x), step(module, x))
    assert counter.frame_count == 1


CALLS = {
    "numbers": lambda x, w, b: conv2d(x, w, b, 2, 1),
    "lists": lambda x, w, b: conv2d(x, w, b, [2, 1], [1, 0], [1, 2]),
    "one_number_lists": lambda x, w, b: conv2d(x, w, b, [2], [1]),
    "keywords": lambda x, w, b: conv2d(input=x, weight=w, bias=b, padding=1, dilation=2),
    "same": lambda x, w, b: conv2d(x, w, b, padding="same"),
    "valid": lambda x, w, b: conv2d(x, w, b, 2, padding="valid"),
    "function": lambda x, w, b: customconv.conv2d(x, w, b, stride=2, padding=(0, 1)),
    "sizes": lambda x, w, b: conv2d(x, w, b, [1, 1], [x.shape[2] // 4, w.shape[3] // 2]),
    "function_of_sizes": lambda x, w, b: customconv.conv2d(x, w, b, padding=x.shape[2] // 4),
    "of_part": lambda x, w, b: conv2d(x[:, :, 1:], w.flip(2), b.exp()),
}


CALLS_OF_VOLUMES = {
    "numbers": lambda x, w, b: conv(x, w, b, 2, 1),
    "lists": lambda x, w, b: conv(x, w, b, [2, 1, 1], [1, 0, 1], [1, 1, 2]),
    "one_number_lists": lambda x, w, b: conv(x, w, b, [2], [1]),
    "same": lambda x, w, b: conv(x, w, b, padding="same"),
    "valid": lambda x, w, b: conv(x, w, b, 2, padding="valid"),
    "function": lambda x, w, b: customconv.conv3d(x, w, b, stride=2, padding=(1, 0, 1)),
    "sizes": lambda x, w, b: conv(x, w, b, [1, 1, 1], [x.shape[2] // 3, w.shape[3] // 2, 1]),
    "function_of_sizes": lambda x, w, b: customconv.conv3d(x, w, b, padding=x.shape[2] // 3),
}
WAYS = [("dense", call) for call in CALLS] + [("volume_dense", call) for call in CALLS_OF_VOLUMES]


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(("problem", "call"), WAYS)
def test_every_way_to_call_is_traced(problem, call, dynamic):
    problem = EVERY_PROBLEM[problem]
    call = (CALLS if problem.dims == 2 else CALLS_OF_VOLUMES)[call]
    tensors = problem.tensors("cpu", torch.float32)
    compiled = torch.compile(call, fullgraph=True, dynamic=dynamic, backend="aot_eager")
    results = []
    for function in (compiled, call):
        t = leaves(*tensors)
        output = function(*t)
        results.append([output, *torch.autograd.grad(output.sin().sum(), t)])
    for ours, theirs in zip(*results, strict=True):
        assert_same(ours, theirs, **FP32)


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_compiled_results_have_eagers_strides(layout, device):
    problems = list(EVERY_PROBLEM.values())
    tensors = [problem.tensors(device, torch.float32, layout) for problem in problems]

    def convolve_all(tensors):
        return [conv(*t, *p.geometry) for t, p in zip(tensors, problems, strict=True)]

    compiled = torch.compile(convolve_all, fullgraph=True, backend="aot_eager")
    for ours, eager in zip(compiled(tensors), convolve_all(tensors), strict=True):
        assert_same(ours, eager)


def test_graphs_hold_the_operator():
    backend = EagerAndRecordGraphs()
    tensors = PROBLEMS["dense"].tensors("cpu", torch.float32)

    def convolve(*tensors):
        return conv2d(*tensors, [1, 1], [1, 1], algorithm="aten")

    torch.compile(convolve, fullgraph=True, backend=backend)(*tensors)
    (call,) = [node for node in backend.graphs[0].graph.nodes if node.op == "call_function"]
    assert "customconv.conv2d" in str(call.target)
    assert call.kwargs["algorithm"] == "aten"


@pytest.mark.parametrize("tracing_mode", ["real", "fake", "symbolic"])
@pytest.mark.parametrize("problem", ["grouped", "volume_grouped"])
def test_make_fx(problem, tracing_mode, device):
    problem = EVERY_PROBLEM[problem]
    tensors, geometry = problem.tensors(device, torch.float32), problem.geometry

    def derivatives(*tensors):
        t = [t.detach().requires_grad_() for t in tensors]
        output = conv(*t, *geometry)
        return [output, *torch.autograd.grad(output.square().sum(), t)]

    traced = make_fx(derivatives, tracing_mode=tracing_mode)(*tensors)
    targets = {str(node.target) for node in traced.graph.nodes}
    name = f"customconv.conv{problem.dims}d"
    assert {f"{name}.default", f"{name}_backward.default"} <= targets
    other = [t * 0.5 for t in tensors]
    assert_all_close(traced(*other), derivatives(*other))


@pytest.mark.parametrize("dynamic", [False, True])
@each_dims
def test_compiled_autograd(dims, dynamic, device):
    """The backward pass, traced from eager's own graph with its C++ nodes."""
    model = Network(dims=dims).to(device)

    def gradients(x):
        model.zero_grad()
        model(x).square().sum().backward()
        return [p.grad for p in model.parameters()]

    def compiler(graph):
        return torch.compile(graph, backend="aot_eager", dynamic=dynamic)

    for batch in (2, 3, 4):
        x = torch.randn(batch, 3, *(5, 12, 10)[-dims:], device=device)
        expected = gradients(x)
        with torch._dynamo.compiled_autograd._enable(compiler):
            actual = gradients(x)
        assert_all_close(actual, expected)
    assert counters["compiled_autograd"]["captures"] > 0


def test_transforms_inside_of_compiled_code(device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)

    def transformed(x, w, bias):
        several = torch.vmap(lambda w: conv2d(x, w, bias, 1, 1))(torch.stack([w, w.sin()]))
        gradient = torch.func.grad(lambda w: conv2d(x, w, bias).square().sum())(w)
        return several, gradient

    compiled = torch.compile(transformed, fullgraph=True, backend="aot_eager")
    assert_all_close(compiled(x, w, bias), transformed(x, w, bias))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_inside_of_compiled_code(dtype, device):
    x, w, bias = PROBLEMS["dense"].tensors(device, torch.float32)

    def convolve(x, w, bias):
        with torch.autocast(device, dtype):
            return conv2d(x, w, bias, 1, 1)

    compiled = torch.compile(convolve, fullgraph=True, backend="aot_eager")
    actual = compiled(x, w, bias)
    assert actual.dtype == dtype
    assert_same(actual, convolve(x, w, bias))


def test_inference_mode(device):
    model = Network().to(device)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    x = torch.randn(2, 3, 12, 10, device=device)
    with torch.inference_mode():
        assert_equal(compiled(x), model(x))


@pytest.mark.gpu
@needs_compiler
@pytest.mark.parametrize("algorithm", ["auto", "im2col"])
def test_cuda_graphs_of_compiled_code(algorithm):
    model = Network(algorithm).cuda()
    compiled = torch.compile(model, fullgraph=True, mode="reduce-overhead")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for _ in range(4):  # a warm-up, a recording, two replays
        x = torch.randn(2, 3, 12, 10, device="cuda")
        torch.compiler.cudagraph_mark_step_begin()
        actual = [g.clone() for g in step(compiled, x)]
        expected = step(model, x)
        assert_all_close(actual, expected)
        for parameter, gradient in zip(model.parameters(), expected[2:], strict=True):
            parameter.grad = gradient
        optimizer.step()
    assert counters["inductor"]["cudagraph_skips"] == 0


@pytest.mark.parametrize("problem", EVERY_PROBLEM)
def test_meta_tensors(problem):
    problem = EVERY_PROBLEM[problem]
    tensors = problem.tensors("meta", torch.float16, requires_grad=True)
    output = conv(*tensors, *problem.geometry)
    expected = pytorchs(*tensors, *problem.geometry)
    assert output.is_meta
    assert (output.shape, output.dtype) == (expected.shape, expected.dtype)
    wanted = [t for t in tensors if t is not None]
    for gradient, tensor in zip(torch.autograd.grad(output.sum(), wanted), wanted, strict=True):
        assert gradient.is_meta
        assert (gradient.shape, gradient.dtype) == (tensor.shape, tensor.dtype)
