"""Where TF32 is allowed, the precision follows from sizes, never from where tensors lie."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F
from op_support import conv2d, conv2d_backward
from reference import float32_precision
from torch import Tensor

import customconv
from customconv import _bind


def random_view(t: Tensor, rng: random.Random) -> Tensor:
    """The same numbers with other strides: sliced, channels last, shifted off alignment."""
    kind = rng.choice(["dense", "channels_last", "sliced", "shifted", "transposed", "rows"])
    if kind == "channels_last":
        return t.contiguous(memory_format=torch.channels_last)
    if kind == "sliced":
        return torch.stack([t, t], -1)[..., 1]
    if kind == "shifted":
        memory = t.new_empty(t.numel() + 1)
        return memory[1:].view(t.shape).copy_(t)
    if kind == "transposed":
        return t.transpose(2, 3).contiguous().transpose(2, 3)
    if kind == "rows":
        return F.pad(t, (0, 3))[..., : t.shape[-1]]
    return t.contiguous()


def random_layer(rng: random.Random) -> tuple[tuple[int, ...], tuple[int, ...], dict[str, int]]:
    groups = rng.choice([1, 1, 1, 2, 4])
    channels, outputs = (groups * rng.choice([1, 3, 4, 8, 16, 32, 64]) for _ in range(2))
    side = rng.randint(6, 40)
    taps = rng.choice([1, 1, 3, 3, 5])
    sizes = (rng.randint(1, 8), channels, side, rng.randint(6, 40))
    geometry = {"stride": rng.choice([1, 1, 2]), "padding": taps // 2, "groups": groups}
    return sizes, (outputs, channels // groups, taps, taps), geometry


def is_rounded(result: Tensor, exact: Tensor) -> bool:
    """Whether operands were rounded to TF32: an error of 2^-11 and not of some 2^-24."""
    return ((result - exact).abs().max() / exact.abs().max()).item() > 2e-5


@pytest.mark.gpu
@pytest.mark.parametrize("seed", range(40))
def test_precision_does_not_depend_on_strides(seed):
    rng = random.Random(seed)
    torch.manual_seed(seed)
    sizes, filters, geometry = random_layer(rng)
    x, w = torch.randn(sizes, device="cuda"), torch.randn(filters, device="cuda")
    lists = [[geometry["stride"]] * 2, [geometry["padding"]] * 2, [1, 1], geometry["groups"]]
    exact = F.conv2d(x.double(), w.double(), **geometry)
    direction = torch.randn_like(exact, dtype=torch.float32)
    exact_grads = conv2d_backward(direction.double(), x.double(), w.double(), *lists, [True] * 3)
    seen: dict[str, set[bool]] = {"fprop": set(), "dgrad": set(), "wgrad": set()}
    for _ in range(6):
        views = random_view(x, rng), random_view(w, rng)
        with float32_precision("tf32"):
            y = conv2d(*views, **geometry)
            grads = conv2d_backward(random_view(direction, rng), *views, *lists, [True] * 3)
        seen["fprop"].add(is_rounded(y, exact))
        seen["dgrad"].add(is_rounded(grads[0], exact_grads[0]))
        seen["wgrad"].add(is_rounded(grads[1], exact_grads[1]))
    for op, kinds in seen.items():
        what = f"{op} {sizes} {filters} {geometry}: {kinds}"
        with float32_precision("tf32"):
            found = [
                customconv.explain(x.to(memory_format=layout), w, **geometry, op=op)
                for layout in (torch.contiguous_format, torch.channels_last)
            ]
        rounds = {_bind.computes_in_tf32(each.problem) for each in found}
        assert len(rounds) == 1, what
        if rounds == {False}:
            assert kinds == {False}, what
        elif "im2col" not in {each.family for each in found}:  # cuBLAS is free not to round
            assert kinds == {True}, what


@pytest.mark.gpu
def test_cudnn_switched_off_means_ieee():
    """As PyTorch, which computes by other means then, whatever cuDNN would be allowed."""
    x, w = torch.randn(4, 64, 20, 20, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    exact = F.conv2d(x.double(), w.double())
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert is_rounded(customconv.conv2d(x, w), exact)
    with torch.backends.cudnn.flags(enabled=False, allow_tf32=True):
        assert not is_rounded(customconv.conv2d(x, w), exact)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("sizes", "filters", "geometry"),
    [
        ((1, 3, 224, 224), (64, 3, 7, 7), {"stride": 2, "padding": 3}),
        ((4, 64, 20, 20), (64, 64, 3, 3), {"padding": 1}),
        ((4, 64, 20, 20), (128, 64, 1, 1), {}),
        ((2, 32, 17, 19), (64, 8, 3, 3), {"groups": 4}),
    ],
)
def test_rounded_views_give_the_same_bits(sizes, filters, geometry):
    x, w = torch.randn(sizes, device="cuda"), torch.randn(filters, device="cuda")

    def results(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        x, w = x.detach().requires_grad_(), w.detach().requires_grad_()
        y = conv2d(x, w, **geometry)
        return y, *torch.autograd.grad(y, (x, w), torch.ones_like(y))

    sliced = [torch.stack([t, t], -1)[..., 1] for t in (x, w)]
    shifted = [t.new_empty(t.numel() + 1)[1:].view(t.shape).copy_(t) for t in (x, w)]
    with float32_precision("tf32"):
        expected = results(x, w)
        for views in (sliced, shifted):
            assert all(map(torch.equal, results(*views), expected))
