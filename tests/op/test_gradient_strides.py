"""Gradients have PyTorch's strides, in every mixture of layouts, and so do fake tensors' gradients.

Sizes of one let one memory be called by several layouts' strides; which of them PyTorch takes for
channels-last decides its results' strides. On CUDA they are the same to the last one. On the CPU,
where PyTorch has several functions for a gradient, those of sizes of one, which nothing reads, may
differ between a tensor and its fake.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

import torch
from op_support import CONV_BACKWARD, CONV_TRANSPOSE_BACKWARD, each_dims
from reference import layout_of
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

import customconv

COUNT = 400  # of the combinations of each number of dimensions
MASKS = ([True, True, False], [True, False, False], [False, True, False])
DTYPES = (torch.float32, torch.float32, torch.float16, torch.float64)


def contiguous(t: Tensor) -> Tensor:
    return t.contiguous()


def channels_last(t: Tensor) -> Tensor:
    """What ``to(memory_format=...)`` gives: strides of sizes of one stay as they were."""
    return t.contiguous(memory_format=layout_of(torch.channels_last, t.ndim))


def restrided(t: Tensor) -> Tensor:
    """With the strides of a channels-last tensor, those of sizes of one too."""
    return torch.empty_like(t, memory_format=layout_of(torch.channels_last, t.ndim)).copy_(t)


def sliced(t: Tensor) -> Tensor:
    return torch.cat([t, t], -1)[..., : t.shape[-1]]


LAYOUTS = (contiguous, channels_last, restrided, sliced)


IMAGES = {2: ((1, 1), (1, 5), (5, 5)), 3: ((1, 1, 1), (1, 5, 5), (3, 1, 1), (3, 5, 5))}
TAPS = {2: ((1, 1), (3, 3), (5, 5)), 3: ((1, 1, 1), (1, 3, 3), (3, 1, 1), (3, 3, 3))}


def combinations(dims: int) -> Iterator[tuple[Any, ...]]:
    """Of sizes, layouts and gradients asked for; the transposed ones every other.

    Groups of volumes are as many as channels, or one.
    """
    sizes = itertools.product(
        (1, 2), (1, 3), (1, 4), IMAGES[dims], TAPS[dims], (0, 1, 2), (1, 2), (False, True),
        (False,) if dims == 2 else (False, True),
    )  # fmt: skip
    layouts = itertools.product(LAYOUTS, repeat=3)
    both = list(itertools.product(sizes, layouts, MASKS, DTYPES))
    yield from random.Random(6).sample(both, COUNT)


def strides(gradients: Any, mask: list[bool]) -> list[tuple[int, ...] | None]:
    """Of the gradients asked for; on the CPU 0 where a size is one."""

    def of(gradient: Tensor) -> tuple[int, ...]:
        if gradient.is_cuda:
            return gradient.stride()
        sizes = zip(gradient.shape, gradient.stride(), strict=True)
        return tuple(stride if size > 1 else 0 for size, stride in sizes)

    return [of(g) if asked else None for g, asked in zip(gradients, mask, strict=True)]


@each_dims
def test_gradients_have_pytorchs_strides(dims, device):
    torch.ops.customconv._route_on_cpu(False)
    wrong = []
    count = 0
    for sizes, layouts, mask, dtype in combinations(dims):
        n, c, k, image, taps, padding, stride, transposed, depthwise = sizes
        groups = c if depthwise else 1
        k = k * groups
        shape = (c, k // groups) if transposed else (k, c // groups)
        x = layouts[0](torch.randn(n, c, *image, dtype=dtype, device=device))
        w = layouts[1](torch.randn(*shape, *taps, dtype=dtype, device=device))
        lists, none = ([stride] * dims, [padding] * dims, [1] * dims), [0] * dims
        try:
            y = torch.convolution(x, w, None, *lists, transposed, none, groups)
        except RuntimeError:  # the filter is larger than the image, or the result is empty
            continue
        count += 1
        dy = layouts[2](torch.randn_like(y))
        ours = (CONV_TRANSPOSE_BACKWARD if transposed else CONV_BACKWARD)[dims]
        geometry = (*lists[:2], none, groups, lists[2]) if transposed else (*lists, groups)

        call = (dy, x, w, None, *lists, transposed, none, groups, mask)
        pytorchs = torch.ops.aten.convolution_backward
        expected = strides(pytorchs(*call), mask)
        with customconv.enabled():
            routed = strides(pytorchs(*call), mask)
        with FakeTensorMode() as mode:
            fake = strides(ours(*map(mode.from_tensor, (dy, x, w)), *geometry, mask), mask)
        actual = {
            "operator": strides(ours(dy, x, w, *geometry, mask), mask),
            "routed": routed,
            "fake": fake,
        }
        wrong += [
            f"{name}: {found} instead of {expected}: {sizes}, "
            f"{[layout.__name__ for layout in layouts]}, {mask}, {dtype}"
            for name, found in actual.items()
            if found != expected
        ]
    assert count > COUNT / 2
    assert not wrong, "\n".join([f"{len(wrong)} of {count} are wrong", *wrong[:8]])
