"""Batch norms in training mode: their statistics come with the convolution in front of them."""

from __future__ import annotations

import functools
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from compiler_support import KINDS, needs_compiler
from torch import Tensor, nn
from torch._functorch import config as functorch_config
from torch._inductor import config

import customconv
from customconv.compiler import dynamo, inductor

OPS = torch.ops.customconv
FUSED = (OPS.conv2d_statistics.default, OPS.conv3d_statistics.default)
ALONE = (OPS.conv2d.default, OPS.conv3d.default)
SIZES = {2: (7, 5), 3: (2, 4, 5)}
each_dims = pytest.mark.parametrize("dims", [2, 3], ids=["2d", "3d"])
APART = torch.ops.aten.var_mean.correction
COUNTERS = torch.ops.aten._foreach_add.Scalar


@pytest.fixture(autouse=True)
def forget_compiled_code():
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def graphs(fuses_on_the_cpu, monkeypatch):
    """The graphs that Inductor gets."""
    seen: list[list[SimpleNamespace]] = []
    change = inductor.InductorPass.__call__

    def call(self, graph):
        change(self, graph)
        graph.lint()
        # Later passes of Inductor's change the nodes themselves.
        seen.append([SimpleNamespace(target=n.target, args=n.args) for n in graph.nodes])

    monkeypatch.setattr(inductor.InductorPass, "__call__", call)
    with config.patch(fx_graph_cache=False), functorch_config.patch(enable_autograd_cache=False):
        yield seen


class Pair(nn.Module):
    """Two convolutions with batch norms, around a ReLU, and a residual."""

    def __init__(self, dims: int = 2, **norm) -> None:
        super().__init__()
        convolution, batch_norm, _ = KINDS[dims]
        self.first = convolution(6, 12, 3, padding=1, bias=False)
        self.norm = batch_norm(12, **norm)
        self.second = convolution(12, 6, 1)
        self.second_norm = batch_norm(6, **norm)

    def forward(self, x):
        y = F.relu(self.norm(self.first(x)))
        return F.relu(self.second_norm(self.second(y)) + x)


class Shared(nn.Module):
    """One batch norm after two convolutions."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        convolution, batch_norm, _ = KINDS[dims]
        self.first, self.second = (convolution(6, 6, 3, padding=1) for _ in range(2))
        self.norm = batch_norm(6)

    def forward(self, x):
        return self.norm(self.second(F.relu(self.norm(self.first(x)))))


class Observed(nn.Module):
    """A running statistic that the model reads too."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        convolution, batch_norm, _ = KINDS[dims]
        self.convolution = convolution(6, 6, 3, padding=1)
        self.norm = batch_norm(6)

    def forward(self, x):
        y = self.norm(self.convolution(x))
        return y + self.norm.running_mean.sum()


MODELS = {
    "usual": Pair,
    "other_momentum": functools.partial(Pair, momentum=0.3, eps=1e-2),
    "no_running_statistics": functools.partial(Pair, track_running_stats=False),
    "no_parameters": functools.partial(Pair, affine=False),
    "averaged": functools.partial(Pair, momentum=None),
    "shared": Shared,
    "observed": Observed,
}


def results(run, model: nn.Module, x: Tensor) -> list[Tensor]:
    """Two steps: outputs, gradients and all that the model keeps."""
    found = []
    for scale in (1.0, 1.5):
        image = (x * scale).requires_grad_()
        y = run(image)
        loss = (y.square() * torch.linspace(0.5, 1, y.numel()).view_as(y)).sum()
        found += [y.detach(), *torch.autograd.grad(loss, [image, *model.parameters()])]
    return found + [buffer.clone() for buffer in model.buffers()]


def both(make, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """Of a compiled model and of an eager one."""
    found = []
    for compiled in (True, False):
        torch.manual_seed(0)
        model = make().train()
        run = torch.compile(model, backend=dynamo.backend) if compiled else model
        found.append(results(run, model, x))
    return found[0], found[1]


@needs_compiler
@each_dims
@pytest.mark.parametrize("name", MODELS)
def test_a_step_is_as_eager(name, dims, graphs):
    make = functools.partial(MODELS[name], dims)
    compiled, eager = both(make, torch.randn(3, 6, *SIZES[dims]))
    torch.testing.assert_close(compiled, eager, rtol=1e-4, atol=1e-4)
    forward = [node for node in graphs[0] if node.target in FUSED]
    if name == "averaged":  # which asks for a number that breaks the graph behind the convolution
        nodes = [node for graph in graphs for node in graph]
        assert not any(node.target in FUSED for node in nodes)
        assert any(node.target in ALONE for node in nodes)
        return
    assert len(forward) == (1 if name == "observed" else 2)
    updates = sum(node.args[8] is not None for node in forward)
    assert updates == (0 if name in ("no_running_statistics", "shared", "observed") else 2)
    assert not any(node.target is APART for node in graphs[0])


@needs_compiler
def test_counters_of_batches_are_added_to_together(graphs):
    both(Pair, torch.randn(3, 6, 7, 5))
    (node,) = (node for node in graphs[0] if node.target is COUNTERS)
    assert len(node.args[0]) == 2


@needs_compiler
@each_dims
def test_autocast(dims, graphs):
    def cast(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    x = torch.randn(4, 6, *[9] * dims)
    torch.manual_seed(0)
    model = Pair(dims).train()
    exact = model(x)
    eager = cast(model, x)
    compiled = cast(torch.compile(model, backend=dynamo.backend), x)
    error, allowed = ((y.float() - exact).norm() for y in (compiled, eager))
    assert error <= 2 * allowed
    assert sum(node.target in FUSED for node in graphs[0]) == 2


@needs_compiler
@each_dims
def test_any_size(dims, graphs):
    model = Pair(dims).train()
    compiled = torch.compile(model, backend=dynamo.backend, dynamic=True)
    for shape in ((3, 6, 8, 7, 5), (2, 6, 12, 9, 4)):
        torch.manual_seed(0)
        twin = Pair(dims).train()
        twin.load_state_dict(model.state_dict())
        x = torch.randn(shape[: 2 + dims])
        torch.testing.assert_close(compiled(x), twin(x), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(dict(model.named_buffers()), dict(twin.named_buffers()))
    assert sum(node.target in FUSED for node in graphs[0]) == 2


@needs_compiler
@each_dims
def test_statistics_of_something_else_are_left_alone(dims, graphs):
    """Of other dimensions, of the sample, in another type, or not of a convolution."""
    convolve = F.conv2d if dims == 2 else F.conv3d
    spatial = range(2, 2 + dims)

    def function(x, w):
        y = convolve(x, w)
        return [
            *torch.var_mean(y, (*spatial,), correction=0, keepdim=True),
            *torch.var_mean(y, (0, *spatial[:-1]), correction=0, keepdim=True),
            *torch.var_mean(y, (0, *spatial), keepdim=True),
            *torch.var_mean(y, (0, *spatial), correction=0),
            *torch.var_mean(x, (0, *spatial), correction=0, keepdim=True),
            *torch.var_mean(y.double(), (0, *spatial), correction=0, keepdim=True),
            *torch.var_mean(
                convolve(x.bfloat16(), w.bfloat16()), (0, *spatial), correction=0, keepdim=True
            ),
            *torch.var_mean(y[0, 0, 0, 0].sum(), 0, correction=0, keepdim=True),
            *torch.var_mean(convolve(x[0], w), (0, *spatial[:-1]), correction=0, keepdim=True),
        ]

    x, w = torch.randn(2, 6, *[5] * dims), torch.randn(6, 6, *[3] * dims)
    torch.testing.assert_close(
        torch.compile(function, backend=customconv.compiler.backend)(x, w), function(x, w)
    )
    (nodes,) = graphs
    assert not any(node.target in FUSED for node in nodes)


@needs_compiler
def test_what_is_added_to_a_variance_may_be_scaled(graphs):
    def function(x, w):
        y = F.conv2d(x, w)
        variance, mean = torch.var_mean(y, (0, 2, 3), correction=0, keepdim=True)
        return (y - mean) * torch.rsqrt(torch.add(variance, 0.5, alpha=3))

    x, w = torch.randn(2, 6, 5, 5), torch.randn(6, 6, 3, 3)
    compiled = torch.compile(function, backend=customconv.compiler.backend)
    torch.testing.assert_close(compiled(x, w), function(x, w))
    assert any(node.target in FUSED for node in graphs[0])
