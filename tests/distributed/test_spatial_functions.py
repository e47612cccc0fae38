"""Functions of tensors that are sharded along height or width give what they give on whole ones."""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any
from unittest import mock

import pytest
import torch
from ranks import BACKENDS, device, mesh_of, run
from torch import Tensor, nn
from torch.nn import functional as F

import customconv
from customconv.arguments import LAST
from customconv.distributed import spatial, spatial_report
from customconv.distributed.images import convolution as of_images

Case = Callable[[Tensor], Tensor]


class Calls(nn.Module):
    """A module that calls a function, with parameters of its own."""

    def __init__(self, function: Any, *parameters: Tensor) -> None:
        super().__init__()
        self.function = function
        self.values = nn.ParameterList([nn.Parameter(each) for each in parameters])

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.function(x, *self.values)
        return found


def check_equal(
    what: Any,
    function: Any,
    x: Tensor,
    *parameters: Tensor,
    dim: int = -2,
    tolerance: float = 1e-11,
) -> Any:
    """Output and gradients of a function, sharded and not; returns the report."""
    whole, sharded = Calls(function, *parameters), Calls(function, *parameters)
    spatial(sharded, mesh_of(), dim)
    inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
    expected, found = whole(inputs[0]), sharded(inputs[1])
    close = {"rtol": tolerance, "atol": tolerance, "msg": lambda text: f"{what}: {text}"}
    assert found.shape == expected.shape, what
    torch.testing.assert_close(found, expected, **close)
    if expected.requires_grad:
        torch.manual_seed(5)
        gradient = torch.randn_like(expected)
        expected.backward(gradient)
        found.backward(gradient)
        torch.testing.assert_close(inputs[1].grad, inputs[0].grad, **close)
        for a, b in zip(sharded.parameters(), whole.parameters(), strict=True):
            torch.testing.assert_close(a.grad, b.grad, **close)
    with torch.no_grad():
        torch.testing.assert_close(sharded(x), expected, **close)
    return spatial_report(sharded)


def convolution(of: random.Random, axes: int) -> tuple[Any, Any, list[Tensor]]:
    """What it is, the function, and its image or volume, weight and bias."""
    transposed = of.random() < 0.4
    groups = of.choice([1, 1, 2, 4])
    channels, filters = groups * of.choice([1, 2, 3]), groups * of.choice([1, 2, 4])
    batch = [of.choice([1, 1, 2, 3])] if of.random() < 0.85 else []
    taps = of.choice([1, 1, 2, 3, 3, 3, 4, 5, 7]), of.randint(1, 3)
    stride = of.choice([1, 1, 1, 2, 2, 3, 4]), of.randint(1, 2)
    dilation = of.choice([1, 1, 1, 2, 3]), of.choice([1, 1, 2])
    padding: Any = of.choice([0, 1, 1, 2, 3, 5]), of.randint(0, 2)
    height = of.choice([of.randint(1, 9), of.randint(8, 40)])
    height = max(height, (taps[0] - 1) * dilation[0] + 1 - 2 * padding[0])
    if of.random() < 0.5:  # along the width
        taps, stride, dilation, padding = (each[::-1] for each in (taps, stride, dilation, padding))
        sizes, sharded = [of.randint(5, 7), height], 1
    else:
        sizes, sharded = [height, of.randint(5, 7)], 0
    if axes == 3:  # with one more dimension, in any place
        place = of.randint(0, 2)
        sharded += place <= sharded
        more = of.randint(1, 3), of.randint(1, 2), of.randint(1, 2), of.randint(0, 2)
        taps, stride, dilation, padding = (
            (*each[:place], new, *each[place:])
            for each, new in zip((taps, stride, dilation, padding), more, strict=True)
        )
        sizes.insert(place, of.randint(5, 7))
    dim = sharded - axes
    image = torch.randn(*batch, channels, *sizes, dtype=torch.float64, device=device())
    pair = (channels, filters // groups) if transposed else (filters, channels // groups)
    weight = torch.randn(*pair, *taps, dtype=torch.float64, device=device())
    bias = torch.randn(filters, dtype=torch.float64, device=device())
    biases = [bias] if of.random() < 0.7 else []
    if transposed:
        extra = tuple(of.randint(0, max(s, d) - 1) for s, d in zip(stride, dilation, strict=True))
        after = [(n - 1) * s - 2 * p + d * (t - 1) + e + 1 for n, s, p, d, t, e in
                 zip(sizes, stride, padding, dilation, taps, extra, strict=True)]  # fmt: skip
        if min(after) < 1:
            return convolution(of, axes)

        def function(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
            operator = getattr(F, f"conv_transpose{axes}d")
            found: Tensor = operator(x, w, b, stride, padding, extra, groups, dilation)
            return found

        what = f"transposed {stride} {padding} {extra} {dilation} {groups}"
    else:
        if set(stride) == {1} and of.random() < 0.2:
            padding = "same"

        def function(x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
            operator = getattr(F, f"conv{axes}d")
            found: Tensor = operator(x, w, b, stride, padding, dilation, groups)
            return found

        what = f"conv {stride} {padding} {dilation} {groups}"
    what += f" of {tuple(image.shape)} by {tuple(weight.shape)} along {dim}, bias {bool(biases)}"
    return what, dim, [function, image, weight, *biases]


def check_random_convolutions(axes: int, seed: int, count: int) -> None:
    of = random.Random(seed)
    for case in range(count):
        of_images.UNDIVIDED_BYTES = (case % 2) << 20  # in several parts, and in one
        torch.manual_seed(1000 * seed + case)
        what, dim, call = convolution(of, axes)
        check_equal(f"{case}: {what}", *call, dim=dim)


@pytest.mark.parametrize(
    ("axes", "ranks", "count"), [(2, 2, 250), (2, 4, 250), (3, 2, 150), (3, 4, 50)]
)
def test_random_convolutions(axes, ranks, count):
    run(check_random_convolutions, axes, ranks, count, ranks=ranks)


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_random_convolutions_on_gpus(backend, axes):
    run(check_random_convolutions, axes, 3, 200, ranks=2, backend=backend)


def check_parts(axes: int, seed: int, count: int) -> None:
    """As if customconv were batch invariant: parts in order of the image, or of whole images."""
    with (
        mock.patch.object(of_images, "is_batch_invariant", lambda: True),
        mock.patch.object(of_images, "write_part", lambda *_: False) if seed % 2 else nullcontext(),
    ):
        check_random_convolutions(axes, seed, count)


@pytest.mark.parametrize(("axes", "count"), [(2, 100), (3, 60)])
@pytest.mark.parametrize("seed", [6, 7])
def test_parts_of_whole_images(seed, axes, count):
    run(check_parts, axes, seed, count, ranks=2)


def check_bits(axes: int, seed: int, count: int) -> None:
    """Outputs and input gradients while customconv is batch invariant, by kernels of one GPU."""
    of = random.Random(seed)
    for case in range(count):
        of_images.UNDIVIDED_BYTES = (case % 2) << 20
        torch.manual_seed(1000 * seed + case)
        what, dim, (function, *tensors) = convolution(of, axes)
        dtype = of.choice([torch.float16, torch.bfloat16, torch.float32, torch.float64])
        torch.backends.cudnn.allow_tf32 = of.random() < 0.5
        if of.random() < 0.5:
            tensors = [
                each.contiguous(memory_format=LAST[2 + axes]) if each.dim() == 2 + axes else each
                for each in tensors
            ]
        x, *parameters = (each.to(dtype) for each in tensors)
        if x.dim() == 1 + axes:
            x = x.unsqueeze(0)
        whole, sharded = Calls(function, *parameters), Calls(function, *parameters)
        spatial(sharded, mesh_of(), dim)
        inputs = [x.clone().requires_grad_(), x.clone().requires_grad_()]
        with customconv.batch_invariant():
            try:
                with customconv.enabled():
                    expected = whole(inputs[0])
            except RuntimeError as error:  # a transposed one that no kernel of ours computes
                assert "only PyTorch can compute" in str(error), what
                continue
            found = sharded(inputs[1])
            assert torch.equal(found, expected), f"{case}: {dtype} {what}"
            gradient = torch.randn_like(expected)
            with customconv.enabled():
                expected.backward(gradient)
            found.backward(gradient)
        assert torch.equal(inputs[1].grad, inputs[0].grad), f"{case}: gradient {dtype} {what}"
        for a, b in zip(sharded.parameters(), whole.parameters(), strict=True):
            close = 2e-2 if dtype in (torch.float16, torch.bfloat16) else 1e-3
            error = (a.grad - b.grad).norm() / b.grad.norm().clamp(min=1e-6)
            assert error < close, f"{case}: {error} {dtype} {what}"


@pytest.mark.parametrize("axes", [2, 3])
@pytest.mark.parametrize("backend", BACKENDS[1:])
def test_convolutions_have_the_bits_of_one_gpu(backend, axes):
    run(check_bits, axes, 4, 200, ranks=2, backend=backend)


def attended(x: Tensor, w: Tensor) -> Tensor:
    """Attention among pixels, as decoders have it."""
    pixels = x.flatten(2).transpose(1, 2)
    q, k, v = F.linear(pixels, w).chunk(3, dim=-1)
    found = F.scaled_dot_product_attention(q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1))
    return x + found.squeeze(1).transpose(1, 2).reshape(x.shape)


def attended_by_products(x: Tensor, w: Tensor) -> Tensor:
    """The same with two products and a softmax."""
    pixels = x.view(*x.shape[:2], -1).permute(0, 2, 1)
    q, k, v = (pixels @ each for each in w.view(3, w.shape[1], w.shape[1]))
    found = torch.bmm((q @ k.transpose(-1, -2)).softmax(dim=-1), v)
    return found.transpose(1, 2).reshape(x.shape)


def layer_normed(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """ConvNeXt's."""
    return F.layer_norm(x.permute(0, 2, 3, 1), w.shape, w, b).permute(0, 3, 1, 2)


def excited(x: Tensor, w: Tensor) -> Tensor:
    """Channels times what a mean over all pixels says."""
    return x * F.conv2d(F.adaptive_avg_pool2d(x, 1), w).sigmoid()


def shuffled(x: Tensor) -> Tensor:
    """ShuffleNet's."""
    n, c, h, w = x.shape
    return x.view(n, 2, c // 2, h, w).transpose(1, 2).contiguous().view(n, c, h, w)


def in_place(x: Tensor, w: Tensor) -> Tensor:
    y = F.conv2d(x, w, padding=1)
    identity = y
    y = F.relu(y, inplace=True)
    y = y * 2
    y += identity
    y.add_(1.0).mul_(w.mean())
    return y


def normal(*sizes: int) -> Tensor:
    return torch.randn(*sizes, dtype=torch.float64, device=device())


def pooled(name: str, *arguments: Any, **options: Any) -> Case:
    return lambda x: getattr(F, name)(x, *arguments, **options)


def resized(**options: Any) -> Case:
    return lambda x: F.interpolate(x, **options)


# Functions of an image (2, 4, H, W) with a rule, which move no whole tensors.
WITH_RULES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "silu": lambda: (F.silu,),
    "arithmetic": lambda: (lambda x, w, b: (1 - x * w) / (b + 2.0).exp() + x.square() - 3 * x,
                           normal(4, 1, 1), normal(1)),
    "where": lambda: (lambda x: torch.where(x > 0, x, 0.1 * x).clamp(-1, 1),),
    "position": lambda: (lambda x, w: x + w, normal(4, 12, 8)),
    "prelu": lambda: (F.prelu, normal(4).abs()),
    "in place": lambda: (in_place, normal(4, 4, 3, 3)),
    "linear": lambda: (lambda x, w, b: F.linear(x.transpose(1, 3), w, b), normal(5, 4), normal(5)),
    "layer norm": lambda: (layer_normed, normal(4), normal(4)),
    "softmax": lambda: (lambda x: F.softmax(x, dim=1) + F.normalize(x) + x.flip(1),),
    "glu": lambda: (lambda x: F.glu(x, dim=1),),
    "sum and mean": lambda: (
        lambda x: x.mean((2, 3), keepdim=True) * x + x.sum() + x.mean(1, True),
    ),
    "means": lambda: (lambda x: x.mean((2, 3)) + x.amax(1).sum((1, 2))[:, None],),
    "statistics of channels": lambda: (lambda x: x / x.pow(2).mean(1, keepdim=True).sqrt(),),
    "excitation": lambda: (excited, normal(4, 4, 1, 1)),
    "shuffle": lambda: (shuffled,),
    "cat": lambda: (lambda x, w: torch.cat([x, x * 2, w], dim=1), normal(2, 3, 12, 8)),
    "stack": lambda: (lambda x: torch.stack([x, x * 2], dim=1).sum(1),),
    "split": lambda: (lambda x: x.chunk(2, dim=1)[0] * x.split([1, 3], dim=1)[1][:, 1:],),
    "index": lambda: (lambda x: x[:, 1] * x[:, 2:3, ...].squeeze(1) + x[0, 0][None],),
    "unsqueeze": lambda: (lambda x: x.unsqueeze(1).expand(-1, 3, -1, -1, -1).flatten(1, 2),),
    "attention": lambda: (attended, normal(12, 4)),
    "attention by products": lambda: (attended_by_products, normal(12, 4)),
    "group norm": lambda: (lambda x, w, b: F.group_norm(x, 2, w, b), normal(4), normal(4)),
    "instance norm": lambda: (lambda x, w, b: F.instance_norm(x, weight=w, bias=b), normal(4),
                              normal(4)),
    "batch norm": lambda: (lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True),
                           normal(4), normal(4)),
    "batch norm in inference": lambda: (
        lambda x, w, b, m, v: F.batch_norm(x, m.detach(), v.detach().abs(), w, b),
        normal(4), normal(4), normal(4), normal(4)),
    "pixel shuffle": lambda: (lambda x: F.pixel_shuffle(x, 2),),
    "pixel unshuffle": lambda: (lambda x: F.pixel_unshuffle(x, 2),),
    "global mean": lambda: (pooled("adaptive_avg_pool2d", (1, 1)),),
    "adaptive": lambda: (pooled("adaptive_avg_pool2d", (6, 4)),),
    **{f"{name} {options}": (lambda name=name, options=options: (pooled(name, **options),))
       for name in ("max_pool2d", "avg_pool2d") for options in (
           {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1},
           {"kernel_size": 3, "stride": 1, "padding": 1},
           {"kernel_size": 5, "stride": 3, "padding": 2, "ceil_mode": True},
           {"kernel_size": (3, 2), "stride": 2, "ceil_mode": True})},
    "avg_pool2d without padding": lambda: (
        pooled("avg_pool2d", 3, 2, 1, count_include_pad=False),),
    "max_pool2d with holes": lambda: (pooled("max_pool2d", 4, 1, 2, dilation=2),),
    "lp_pool2d": lambda: (lambda x: F.lp_pool2d(x.abs() + 1, 2, 3, 2),),
    **{f"{mode} {options}": (lambda mode=mode, options=options: (resized(mode=mode, **options),))
       for mode in ("nearest", "nearest-exact", "bilinear", "bicubic") for options in (
           {"scale_factor": 2.0}, {"size": (18, 12)}, {"size": (6, 4)}, {"scale_factor": 3})},
    "area": lambda: (resized(mode="area", scale_factor=0.5),),
    **{f"pad {mode} {ends}": (lambda mode=mode, ends=ends: (
        lambda x: F.pad(x, ends, mode=mode),))
       for mode in ("constant", "reflect", "replicate", "circular")
       for ends in ((1, 1, 1, 1), (0, 2, 3, 1), (2, 2, 0, 0))},
    "pad with a number": lambda: (lambda x: F.pad(x, (1, 0, 7, 2), value=3.0),),
    "cropped": lambda: (lambda x: F.pad(x, (-1, 0, -2, 1)),),
}  # fmt: skip

# Functions that need whole tensors.
WITHOUT_RULES: dict[str, Callable[[], tuple[Any, ...]]] = {
    "max": lambda: (lambda x: x.amax((2, 3), keepdim=True) * x,),
    "variance": lambda: (lambda x: (x - x.mean()) / x.var().sqrt(),),
    "rows": lambda: (lambda x: x[:, :, 2:7] * x[:, :, :5],),
    "corners": lambda: (resized(mode="bilinear", align_corners=True, scale_factor=2),),
    "antialias": lambda: (resized(mode="bilinear", antialias=True, size=(5, 5)),),
    "fraction": lambda: (resized(mode="nearest", scale_factor=1.3),),
    "adaptive": lambda: (pooled("adaptive_max_pool2d", (5, 3)),),
    "uneven adaptive": lambda: (pooled("adaptive_avg_pool2d", (5, 3)),),
    "cat of rows": lambda: (lambda x: torch.cat([x, x], dim=-2),),
    "einsum": lambda: (lambda x, w: torch.einsum("nchw,kc->nkhw", x, w), normal(3, 4)),
    "roll": lambda: (lambda x: x.roll((1, 2), (2, 3)) + x,),
    "windows": lambda: (lambda x: x.unfold(2, 4, 4).sum(-1),),
    "keywords": lambda: (lambda x: x.permute(dims=(0, 1, 3, 2)).transpose(2, 3),),
    "another device": lambda: (lambda x: x.cpu().to(x.device) * 2,),
    "integers": lambda: (lambda x: x * x.detach().sum((2, 3), True, dtype=torch.int64),),
    "causal": lambda: (lambda x: F.scaled_dot_product_attention(x, x, x, is_causal=True),),
}  # fmt: skip


def check_functions(names: list[str], table: str, sizes: tuple[int, int], dim: int) -> None:
    cases: Any = WITH_RULES if table == "with rules" else WITHOUT_RULES
    for name in names:
        torch.manual_seed(7)
        function, *parameters = cases[name]()
        x = normal(2, 4, *sizes)
        if dim == -1:
            x = x.mT.contiguous()
            parameters = [each.mT.contiguous() if each.shape[-2:] == sizes else each
                          for each in parameters if True]  # fmt: skip
        report = check_equal(name, function, x, *parameters, dim=dim)
        moved = {
            what for _, function, what in report.exchanged if function not in ("input", "output")
        }
        if dim == -2:
            assert ("whole" in moved) == (table == "without rules"), (name, str(report))


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_with_rules(backend):
    run(check_functions, list(WITH_RULES), "with rules", (12, 8), -2, ranks=2, backend=backend)


def test_functions_with_rules_on_three_ranks():
    run(check_functions, list(WITH_RULES), "with rules", (12, 8), -2, ranks=3)


def test_functions_along_the_width():
    names = [name for name in WITH_RULES if name not in ("statistics", "layer norm", "linear")]
    run(check_functions, names, "with rules", (12, 8), -1, ranks=2)


def check_norms() -> None:
    """In float32, also where a rank has no rows, and in channels-last."""
    for name in WITH_RULES:
        for sizes in ((12, 8), (3, 8), (1, 8)):
            for images, memory_format in (
                (2, torch.contiguous_format), (1, torch.channels_last), (2, torch.channels_last),
            ):  # fmt: skip
                if "norm" not in name:
                    continue
                torch.manual_seed(9)
                function, *parameters = WITH_RULES[name]()
                x = (
                    (3 + 2 * normal(images, 4, *sizes))
                    .float()
                    .contiguous(memory_format=memory_format)
                )
                what = f"{name} of {images} x {sizes} in {memory_format}"
                check_equal(
                    what, function, x, *(each.float() for each in parameters), tolerance=3e-5
                )


@pytest.mark.parametrize("backend", BACKENDS)
def test_norms_in_float32(backend):
    run(check_norms, ranks=2, backend=backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_functions_without_rules_get_whole_tensors(backend):
    names = list(WITHOUT_RULES)
    run(check_functions, names, "without rules", (12, 8), -2, ranks=2, backend=backend)
