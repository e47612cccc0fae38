"""The operator under torch.func's transforms and in forward-mode differentiation."""

from __future__ import annotations

import pytest
import torch
import torch.autograd.forward_ad as fwAD
from op_support import (
    conv,
    conv_backward,
    conv_transpose,
    each_dims,
    pytorchs,
    pytorchs_transpose,
)
from reference import Problem, assert_equal, tolerances
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, jvp, vjp, vmap

import customconv
from customconv import fused as fused_ops
from customconv import ops

MODULES = {2: customconv.Conv2d, 3: customconv.Conv3d}
# Small, since Jacobians have the square of a problem's size.
SMALL = {
    "dense": Problem((2, 2, 5, 4), (3, 2, 3, 3), padding=(1, 1)),
    "grouped": Problem((2, 4, 4, 5), (4, 2, 3, 2), padding=(1, 0), groups=2),
    "strided_dilated": Problem((2, 2, 7, 8), (3, 2, 3, 3), (3, 2), (2, 1), (2, 3)),
    "depthwise": Problem((2, 3, 5, 4), (3, 1, 3, 3), padding=(1, 1), groups=3),
    "unbatched": Problem((2, 5, 4), (3, 2, 3, 3), padding=(1, 1)),
    "volume_dense": Problem((2, 2, 3, 2, 4), (3, 2, 3, 2, 3), padding=(1, 0, 1)),
    "volume_grouped": Problem((2, 4, 2, 3, 3), (4, 2, 2, 2, 1), (2, 1, 1), (1, 1, 0), groups=2),
    "volume_unbatched": Problem((2, 3, 3, 4), (2, 2, 2, 3, 3), padding=(1, 0, 1)),
}


def near(actual, expected):
    """Equal up to the order of sums, in each tensor of a nest of tuples."""
    if isinstance(actual, torch.Tensor):
        scale = expected.abs().max().item()
        assert_equal(actual, expected, rtol=1e-12, atol=1e-12 * scale)
        return
    assert len(actual) == len(expected)
    for one, other in zip(actual, expected, strict=True):
        near(one, other)


def both(problem):
    """Ours and PyTorch's convolution with the problem's geometry."""
    geometry = problem.geometry
    return lambda *t: conv(*t, *geometry), lambda *t: pytorchs(*t, *geometry)


def assert_on_our_kernels(device, dims=2):
    """Of what was computed since counts were reset, none was by PyTorch; on the CPU, all is.

    Volumes in float64 are PyTorch's on a GPU too.
    """
    stats = customconv.stats(reset=True)
    assert stats
    if device == "cuda":
        assert dims == 3 or not stats.fallbacks
    else:
        assert set(stats.fallbacks) == {"the tensors are not on CUDA"}


TRANSFORMS = {
    "grad": lambda f: grad(lambda *t: f(*t).square().sum(), argnums=(0, 1, 2)),
    "jacrev": lambda f: jacrev(f, argnums=(1, 2)),
    "jacfwd": lambda f: jacfwd(f, argnums=(1, 2)),
    "jvp": lambda f: lambda *t: jvp(f, t, tuple(x.cos() for x in t)),
    "vjp": lambda f: lambda *t: vjp(f, *t)[1](f(*t).sin()),
    "grad_grad": lambda f: grad(lambda *t: grad(lambda *u: f(*u).pow(3).sum())(*t).sin().sum(), 1),
    "hessian": lambda f: hessian(lambda *t: f(*t).square().sum(), argnums=1),
}


@pytest.mark.parametrize("problem", SMALL)
@pytest.mark.parametrize("transform", TRANSFORMS)
def test_transforms(problem, transform, device):
    problem = SMALL[problem]
    tensors = problem.tensors(device, torch.float64)
    ours, theirs = both(problem)
    customconv.stats(reset=True)
    actual = TRANSFORMS[transform](ours)(*tensors)
    assert_on_our_kernels(device, problem.dims)
    near(actual, TRANSFORMS[transform](theirs)(*tensors))


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (0, 0, None), (0, 0, 0)])
@pytest.mark.parametrize("problem", SMALL)
def test_vmap(problem, mapped, device):
    problem = SMALL[problem]
    tensors = problem.tensors(device, torch.float64)
    batched = [
        t if dim is None else torch.stack([t, t.sin(), -t])
        for t, dim in zip(tensors, mapped, strict=True)
    ]
    customconv.stats(reset=True)
    actual = vmap(both(problem)[0], in_dims=mapped)(*batched)
    assert sum(customconv.stats().calls.values()) <= 1  # one call computes all examples
    assert_on_our_kernels(device, problem.dims)
    for index in range(3):
        one = [t if dim is None else t[index] for t, dim in zip(batched, mapped, strict=True)]
        near(actual[index], pytorchs(*one, *problem.geometry))


TRANSPOSED = {
    "dense": ((2, 3, 5, 4), (3, 2, 3, 3), (1, 1, 0, 1, 1)),
    "grouped": ((2, 4, 4, 5), (4, 2, 3, 2), (2, 1, 1, 2, 1)),
    "unbatched": ((3, 5, 4), (3, 2, 3, 3), (2, 0, 1, 1, 2)),
    "volume_grouped": ((2, 4, 2, 3, 3), (4, 2, 2, 3, 2), ([2, 1, 1], 1, [1, 0, 0], 2, 1)),
    "volume_unbatched": ((3, 2, 3, 4), (3, 2, 3, 2, 3), (2, 0, 1, 1, 2)),
}


@pytest.mark.parametrize("mapped", [(0, None, None), (None, 0, None), (0, 0, None), (1, 2, 0)])
@pytest.mark.parametrize("problem", TRANSPOSED)
def test_vmap_of_transposed(problem, mapped, device):
    """Outputs, and the gradients of each example's sum."""
    sizes, filters, geometry = TRANSPOSED[problem]
    channels = filters[1] * geometry[3]
    tensors = [torch.randn(s, dtype=torch.float64, device=device) for s in (sizes, filters)]
    tensors.append(torch.randn(channels, dtype=torch.float64, device=device))
    batched = [
        t if dim is None else torch.stack([t, t.sin(), -t], dim)
        for t, dim in zip(tensors, mapped, strict=True)
    ]

    def values(convolve):
        def loss(*t):
            y = convolve(*t, *geometry)
            return y.sin().sum(), y

        return vmap(grad(loss, argnums=(0, 1, 2), has_aux=True), in_dims=mapped)(*batched)

    customconv.stats(reset=True)
    actual_grads, actual = values(conv_transpose)
    assert_on_our_kernels(device, len(filters) - 2)
    for index in range(3):
        one = [
            (t if dim is None else t.select(dim, index)).clone().requires_grad_()
            for t, dim in zip(batched, mapped, strict=True)
        ]
        y = pytorchs_transpose(*one, *geometry)
        near(actual[index], y)
        near(tuple(g[index] for g in actual_grads), torch.autograd.grad(y.sin().sum(), one))


@pytest.mark.parametrize("problem", ["grouped", "volume_grouped"])
def test_nested_vmap(problem, device):
    x, w, bias = SMALL[problem].tensors(device, torch.float64)
    geometry = SMALL[problem].geometry
    images, filters = torch.stack([x, x.sin()]), torch.stack([w, w.cos(), -w])

    def each(convolve):
        one = vmap(lambda x, w: convolve(x, w, bias, *geometry), in_dims=(None, 0))
        return vmap(one, in_dims=(0, None))(images, filters)

    near(each(conv), each(pytorchs))


@pytest.mark.parametrize(
    "call",
    [
        lambda x, w: conv(x, w, None, 2, 1),
        lambda x, w: conv(x, w, padding="same"),
        lambda x, w: customconv.conv2d(x, w, stride=2, padding=(1, 0)),
    ],
)
def test_vmap_of_every_way_to_call(call, device):
    x, w, _ = SMALL["dense"].tensors(device, torch.float64)
    several = torch.stack([w, w.sin()])
    near(vmap(call, in_dims=(None, 0))(x, several), torch.stack([call(x, one) for one in several]))


@pytest.mark.parametrize("problem", ["grouped", "volume_grouped"])
def test_vmap_of_the_backward_operator(problem, device):
    problem = SMALL[problem]
    x, w, bias = problem.tensors(device, torch.float64)
    directions = torch.randn(3, *pytorchs(x, w, bias, *problem.geometry).shape).to(x)

    def backward(direction):
        return conv_backward(direction, x, w, *problem.geometry, [True] * 3)

    actual = vmap(backward)(directions)
    near(actual, tuple(torch.stack(g) for g in zip(*map(backward, directions), strict=True)))


def test_gradients_of_many_directions_at_once(device):
    x, w, bias = SMALL["dense"].tensors(device, torch.float64)
    w.requires_grad_()
    output = conv(x, w, bias)
    directions = torch.randn(3, *output.shape).to(x)
    actual = torch.autograd.grad(output, w, directions, is_grads_batched=True, retain_graph=True)
    each = [torch.autograd.grad(output, w, d, retain_graph=True)[0] for d in directions]
    near(actual[0], torch.stack(each))


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("problem", ["strided_dilated", "volume_grouped"])
def test_dual_numbers(problem, which, requires_grad, device):
    problem = SMALL[problem]
    tensors = problem.tensors(device, torch.float64, requires_grad=requires_grad)
    tangents = [torch.randn_like(t) for t in tensors]

    def derivative(convolve):
        with fwAD.dual_level():
            duals = [
                fwAD.make_dual(t, tangent) if i in which else t
                for i, (t, tangent) in enumerate(zip(tensors, tangents, strict=True))
            ]
            return tuple(fwAD.unpack_dual(convolve(*duals)))

    ours, theirs = both(problem)
    near(derivative(ours), derivative(theirs))


def test_autograd_through_transforms(device):
    """The outer differentiation is eager, the inner call transformed."""
    x, w, bias = SMALL["dense"].tensors(device, torch.float64, requires_grad=True)

    def derivatives(convolve):
        several = vmap(convolve, in_dims=(None, 0, None))(x, torch.stack([w, w.sin()]), bias)
        inner = grad(lambda w: convolve(x, w, bias).square().sum())(w)
        return torch.autograd.grad(several.sin().sum() + inner.square().sum(), (x, w, bias))

    near(derivatives(conv), derivatives(pytorchs))


@each_dims
def test_gradients_of_each_sample(dims, device):
    kind = MODULES[dims]
    network = torch.nn.Sequential(
        kind(3, 4, 3, padding=1, stride=2),
        torch.nn.Tanh(),
        kind(4, 2, (1, 3, 2)[-dims:], padding="same", groups=2),
    ).to(device, torch.float64)
    images = torch.randn(5, 3, *(4, 8, 7)[-dims:], dtype=torch.float64, device=device)
    parameters = {name: p.detach() for name, p in network.named_parameters()}

    def loss(parameters, image):
        return functional_call(network, parameters, (image[None],)).square().sum()

    actual = vmap(grad(loss), in_dims=(None, 0))(parameters, images)
    for index, image in enumerate(images):
        network.zero_grad()
        network(image[None]).square().sum().backward()
        for name, parameter in network.named_parameters():
            near(actual[name][index], parameter.grad)


def test_an_ensemble_of_modules(device):
    models = [customconv.Conv2d(3, 4, 3, padding=1).to(device) for _ in range(3)]
    parameters, buffers = torch.func.stack_module_state(models)
    x = torch.randn(2, 3, 6, 5, device=device)
    actual = vmap(lambda p, b: functional_call(models[0], (p, b), (x,)))(parameters, buffers)
    expected = torch.stack([model(x) for model in models])
    assert_equal(actual, expected, **tolerances(torch.float32))


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ["auto", "direct", "im2col"])
def test_forced_algorithms_give_way_to_transforms(algorithm):
    x, w, bias = SMALL["dense"].tensors("cuda", torch.float64)

    def loss(w):
        return conv(x, w, bias, algorithm=algorithm).square().sum()

    near(grad(loss)(w), grad(lambda w: pytorchs(x, w, bias).square().sum())(w))
    actual = vmap(loss)(torch.stack([w, -w]))
    near(actual, torch.stack([loss(w), loss(-w)]))


@pytest.mark.parametrize("shared", ["weight", "input", "none"])
@each_dims
@pytest.mark.parametrize("name", ["conv", "conv_transpose"])
@pytest.mark.parametrize("fused", ["", "_fused"])
def test_vmap_of_no_examples(name, fused, shared, dims, device):
    """Shapes are those of an example. PyTorch's own rules lose the batch of images here."""
    sixes, threes = (6,) * dims, (3,) * dims
    shapes = (0, 2, 4, *sixes), (0, 4, 4, *threes)
    none = [torch.empty(shape, device=device) for shape in shapes]
    in_dims = {"weight": (0, None), "input": (None, 0), "none": (0, 0)}[shared]
    tensors = [
        each if dimension == 0 else torch.randn(each.shape[1:], device=device)
        for each, dimension in zip(none, in_dims, strict=True)
    ]
    convolve = getattr(fused_ops if fused else ops, f"{name}{dims}d{fused}")

    def gradients(x, w):
        return grad(lambda x, w: convolve(x, w).sum(), argnums=(0, 1))(x, w)

    sides = (8 if "transpose" in name else 4,) * dims
    assert vmap(convolve, in_dims)(*tensors).shape == (0, 2, 4, *sides)
    of_input, of_weight = vmap(gradients, in_dims)(*tensors)
    assert of_input.shape == (0, 2, 4, *sixes)
    assert of_weight.shape == (0, 4, 4, *threes)


def test_jacobians_of_an_empty_batch(device):
    x, w = torch.randn(0, 2, 5, 5, device=device), torch.randn(3, 2, 3, 3, device=device)
    for jacobian in (jacrev, jacfwd):
        assert jacobian(lambda x: conv(x, w))(x).shape == (0, 3, 3, 3, 0, 2, 5, 5)


@pytest.mark.parametrize("shared", [(), ("mean", "variance"), ("shift",)], ids=str)
def test_vmap_of_folded_batch_norms(shared, device):
    names = "mean", "variance", "weight", "bias", "shift"
    dims = [None if name in shared else 1 for name in names]
    vectors = [
        torch.rand(5, device=device) + 0.5 if dim is None else torch.rand(5, 3, device=device) + 0.5
        for dim in dims
    ]

    def fold(mean, variance, weight, bias, shift):
        return torch.ops.customconv.fold_batch_norms(
            [mean, mean.double()], [variance, variance.double()], [weight, None], [bias, None],
            [shift, None], [1e-3, 1e-5],
        )  # fmt: skip

    actual = vmap(fold, in_dims=tuple(dims))(*vectors)
    each = [
        fold(*(v if dim is None else v[:, i] for v, dim in zip(vectors, dims, strict=True)))
        for i in range(3)
    ]
    assert [t.dtype for t in actual] == [torch.float32] * 2 + [torch.float64] * 2
    for ours, expected in zip(actual, zip(*each, strict=True), strict=True):
        torch.testing.assert_close(ours, torch.stack(expected))
