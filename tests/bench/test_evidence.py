"""What networks are compared by: nests, smooth functions, steady batch norms, the errors."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench import evidence


class Branches(nn.Module):
    """A network of a nest of outputs, a branch that is off at first, and norms."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.second = nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.gain = nn.Parameter(1e-6 * torch.ones(8, 1, 1))
        self.classifier = nn.Linear(8, 4)

    def forward(self, x):
        y = functional.relu(self.norm(self.first(x)))
        y = functional.max_pool2d(y + self.gain * self.second(y), 2)
        return {"features": [y], "classes": self.classifier(y.mean((2, 3))), "size": len(x)}


@pytest.fixture
def network():
    torch.manual_seed(0)
    return evidence.awakened(Branches())


X = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(0))


def test_leaves_of_a_nest():
    a, b = torch.zeros(1), torch.zeros(2)
    assert evidence.leaves({"a": [a, (b, torch.tensor(3))], "b": None}) == [a, b]


def test_a_branch_that_was_off_counts(network):
    assert network.gain.min() >= 0.1
    assert "second.weight" in evidence.gradients(network, X)
    assert network.norm.weight.eq(1).all()


def test_batch_norms_keep_the_statistics_of_the_images(network):
    evidence.settled(network, X)
    found = network.first(X)
    mean, variance = found.mean((0, 2, 3)), found.var((0, 2, 3))
    torch.testing.assert_close(network.norm.running_mean, mean)
    torch.testing.assert_close(network.norm.running_var, variance.mean().expand(8))
    before = {key: value.clone() for key, value in network.state_dict().items()}
    evidence.outputs(network, X)
    evidence.gradients(network, 3 * X)
    for key, value in network.state_dict().items():
        assert torch.equal(value, before[key]), key


def test_gradients_are_of_the_input_and_of_convolutions(network):
    found = evidence.gradients(network, X)
    assert set(found) == {"input", "first.weight", "first.bias", "second.weight", "gain"}
    again = evidence.gradients(network, X)
    assert all(torch.equal(found[name], again[name]) for name in found)


def test_training_gives_running_statistics_and_restores_them(network):
    before = {name: value.clone() for name, value in network.named_buffers()}
    taken, running = evidence.trained(network, 3 * X)
    assert taken.keys() == evidence.gradients(network, 3 * X).keys()
    assert running.keys() == {name for name in before if "running" in name}
    assert all(not torch.equal(value, before[name]) for name, value in running.items())
    assert all(torch.equal(value, before[name]) for name, value in network.named_buffers())
    assert not any(module.training for module in network.modules())


def test_gradients_change_little_where_a_unit_crosses_a_kink(network):
    """By no more than rounding does; with the kink by a thousand times that."""
    evidence.settled(network, X)
    near = X * (1 + 2**-12 * torch.randn(X.shape, generator=torch.Generator().manual_seed(1)))
    found, expected = (evidence.gradients(network, x) for x in (near, X))
    assert evidence.total(evidence.errors(found, expected)) < 1e-3


@pytest.mark.parametrize(
    ("usual", "inplace"),
    [
        (functional.relu, True), (functional.relu6, True), (functional.hardswish, True),
        (functional.hardsigmoid, True), (functional.leaky_relu, True), (torch.relu, False),
    ],
)  # fmt: skip
def test_smooth_functions_are_near_the_usual_ones(usual, inplace):
    x = torch.linspace(-4, 4, 81, requires_grad=True)
    with evidence.smooth():
        smooth = usual(x, inplace=False) if inplace else usual(x)
    torch.testing.assert_close(smooth, usual(x), atol=0.25, rtol=0)
    (slope,) = torch.autograd.grad(smooth.sum(), x)
    assert slope.diff().abs().max() < 0.12


class Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


ACTIVATIONS = {
    "relu": nn.ReLU(inplace=True), "relu6": nn.ReLU6(), "hardtanh": nn.Hardtanh(0, 3),
    "leaky_relu": nn.LeakyReLU(0.2), "hardswish": nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid(), "max_pool": nn.MaxPool2d(3, 2, 1),
    "method": torch.Tensor.relu_,
}  # fmt: skip


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_compiled_networks_get_smooth_functions_too(name):
    network = nn.Sequential(nn.Conv2d(3, 4, 3), Applied(ACTIVATIONS[name]), nn.Conv2d(4, 2, 1))
    expected = evidence.gradients(network, X)
    torch._dynamo.reset()
    compiled = torch.compile(network, backend="eager")
    found = evidence.gradients(compiled, X)
    torch._dynamo.reset()
    for each, other in zip(found.values(), expected.values(), strict=True):
        torch.testing.assert_close(each, other, rtol=0, atol=0)


def test_smooth_pools_have_the_usual_shape():
    x = torch.randn(2, 3, 13, 11)
    for size, stride, padding, ceil_mode in ((3, 2, 1, False), (2, None, 0, True)):
        pool = nn.MaxPool2d(size, stride, padding, ceil_mode=ceil_mode)
        with evidence.smooth():
            y = pool(x)
        assert y.shape == pool(x).shape


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_off_by_its_rounding(network, dtype):
    evidence.settled(network, X)
    for taken in (evidence.outputs, evidence.gradients):
        off = evidence.total(evidence.errors(taken(network, X, dtype), taken(network, X)))
        assert 1e-5 < off < 0.05


def test_a_gradient_that_overflows_is_taken_at_a_smaller_scale():
    network = nn.Sequential(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 1, 1))
    with torch.no_grad():
        network[1].weight.fill_(200)
    found = evidence.gradients(network, 0.01 * X, torch.float16)
    expected = evidence.gradients(network, 0.01 * X)
    assert evidence.total(evidence.errors(found, expected)) < 0.01


def test_each_tensor_counts_alike_and_noise_not_at_all():
    expected = {"large": torch.full((4,), 100.0), "small": torch.ones(4), "zero": torch.zeros(4)}
    found = {"large": torch.full((4,), 101.0), "small": torch.ones(4), "zero": 1e-9 * torch.ones(4)}
    off = evidence.errors(found, expected)
    assert off == {"large": pytest.approx(0.01), "small": 0}
    assert evidence.total(off) == pytest.approx(0.01 / math.sqrt(2))


@pytest.mark.parametrize(
    ("ours", "pytorch", "right"),
    [
        (0.04, 0.021, True), (0.04, 0.019, False), (0.009, 1e-6, True), (0.011, 1e-6, False),
        (math.nan, 0.1, False), (0.1, math.nan, False),
    ],
)  # fmt: skip
def test_how_far_ours_may_be_off(ours, pytorch, right):
    assert (evidence.wrong(ours, pytorch, "tf32") == "") is right


def test_inductor_computes_the_smooth_pools_gradient():
    """Windows of ceil_mode reach beyond the image, where Inductor counts padding wrongly."""

    def pooled(x):
        with evidence.smooth():
            return functional.max_pool2d(x, 3, stride=2, ceil_mode=True)

    x = torch.randn(1, 4, 8, 8, requires_grad=True)
    weights = torch.randn(pooled(x).shape)
    expected, found = (
        torch.autograd.grad((call(x) * weights).sum(), x)[0]
        for call in (pooled, torch.compile(pooled))
    )
    torch.testing.assert_close(found, expected)
