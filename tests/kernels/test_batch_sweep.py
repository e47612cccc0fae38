"""An image gets the same bits in every batch: random problems. CUSTOMCONV_SWEEP says how many.

CUSTOMCONV_DIMS=2 or 3 leaves images or volumes alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import prod

import pytest
import sweep
import torch
from cases import output_shape
from reference import TransposedProblem, float32_precision, layout_of
from torch import Tensor

import customconv

COUNT = int(os.environ.get("CUSTOMCONV_SWEEP", 60))  # for each kind of call
SEED = int(os.environ.get("CUSTOMCONV_SEED", random.SystemRandom().randrange(10**6)))
ONLY = os.environ.get("CUSTOMCONV_TRIAL")

IMAGES = 6
BATCHES = (1, 2, 3, 5, 8, 16, 17, 33, 64)
MOST_ELEMENTS = 2**25  # of a batch
ACTIVATIONS = ("none", "relu", "silu", "gelu", "hardswish", "leaky_relu")
BITS = {2: torch.int16, 4: torch.int32, 8: torch.int64}

ops = torch.ops.customconv


@dataclass(frozen=True)
class Operands:
    """What an image has of its own, the images first, and what all of them share."""

    x: Tensor
    dy: Tensor
    w: Tensor
    bias: Tensor | None
    scale: Tensor


Call = Callable[[Operands], list[Tensor]]


def operators(name: str) -> tuple[Callable[..., Tensor], Callable[..., tuple[Tensor, ...]]]:
    """A convolution and its gradients."""
    return getattr(ops, name), getattr(ops, f"{name}_backward")


def plain(trial: sweep.Trial, rng: random.Random) -> Call:
    geometry = trial.case.geometry
    convolve, backward = operators(f"conv{trial.case.dims}d")
    mask = [True, False, False]
    return lambda t: [
        convolve(t.x, t.w, t.bias, *geometry),
        backward(t.dy, t.x, t.w, *geometry, mask)[0],
    ]


def transposed(trial: sweep.Trial, rng: random.Random) -> Call:
    """From the output's gradient to the input, and back."""
    geometry = TransposedProblem.of(trial.case).geometry
    convolve, backward = operators(f"conv_transpose{trial.case.dims}d")
    mask = [True, False, False]
    return lambda t: [
        convolve(t.dy, t.w, None, *geometry),
        backward(t.x, t.dy, t.w, *geometry, mask)[0],
    ]


def fused(trial: sweep.Trial, rng: random.Random) -> Call:
    """The output's gradient is the residual."""
    has_residual, has_scale, last = (rng.random() < 0.5 for _ in range(3))
    activation = rng.choice(ACTIVATIONS)
    convolve = getattr(ops, f"conv{trial.case.dims}d_fused")
    return lambda t: [
        convolve(
            t.x, t.w, t.bias, *trial.case.geometry, scale=t.scale if has_scale else None,
            residual=t.dy if has_residual else None, activation=activation, residual_last=last,
        )
    ]  # fmt: skip


KINDS = {"plain": plain, "transposed": transposed, "fused": fused}


def draw(rng: random.Random, dims: int = 2) -> sweep.Trial:
    """A trial with so many images, or volumes, of tensors that lie as they are."""
    trial = sweep.draw(rng, "aten", dims=dims)
    case = replace(
        trial.case, input=(IMAGES, *trial.case.input[1:]), view="plain", weight_view="plain"
    )
    return replace(trial, case=case)


def chosen(values: Tensor, indices: list[int], layout: torch.memory_format) -> Tensor:
    """A batch of these images; neighbours are left where they are, aligned or not."""
    first, last = indices[0], indices[-1]
    if indices == list(range(first, last + 1)):
        return values[first : last + 1]
    return values[indices].contiguous(memory_format=layout_of(layout, values.ndim))


def same_bits(actual: Tensor, expected: Tensor) -> bool:
    kind = BITS[actual.element_size()]
    return torch.equal(actual.contiguous().view(kind), expected.contiguous().view(kind))


def batches(rng: random.Random, trial: sweep.Trial) -> list[list[int]]:
    """An image alone, neighbours, and any of them in any order and number."""
    image = max(prod(trial.case.input[1:]), prod(output_shape(trial.case)[1:]))
    first = rng.randrange(IMAGES - 1)
    found = [[first], list(range(first, rng.randint(first, IMAGES - 1) + 1))]
    for size in BATCHES:
        if size * image <= MOST_ELEMENTS:
            found.append([rng.randrange(IMAGES) for _ in range(size)])
    return found


def failure(kind: str, index: int, dims: int) -> str:
    """What depends on the batch, or nothing."""
    rng = random.Random(f"{SEED} {kind} {index}" + " of volumes" * (dims == 3))
    trial = draw(rng, dims)
    call = KINDS[kind](trial, rng)
    t = sweep.make_tensors(trial, "cuda")
    scale = torch.randn(t.w.shape[0], device="cuda").to(t.w.dtype)
    layout = torch.channels_last if trial.channels_last else torch.contiguous_format
    together = Operands(t.x, t.dy, t.w, t.bias, scale)
    again = f"CUSTOMCONV_SEED={SEED} CUSTOMCONV_TRIAL={index} CUSTOMCONV_DIMS={dims} -k '{kind}'"
    with float32_precision("tf32" if trial.tf32 else "ieee"), customconv.batch_invariant():
        expected = call(together)
        for indices in batches(rng, trial):
            part = replace(
                together, x=chosen(t.x, indices, layout), dy=chosen(t.dy, indices, layout)
            )
            for number, (actual, whole) in enumerate(zip(call(part), expected, strict=True)):
                if not same_bits(actual, whole[indices]):
                    wrong = (actual != whole[indices]).sum().item()
                    return (
                        f"{trial}: result {number} of images {indices} differs from that of "
                        f"{IMAGES} images at {wrong} elements\n  again: {again}"
                    )
    return ""


@pytest.mark.gpu
@pytest.mark.parametrize("dims", sweep.DIMS)
@pytest.mark.parametrize("kind", KINDS)
def test_an_image_gets_the_same_bits_in_every_batch(kind, dims):
    indices = range(COUNT) if ONLY is None else range(int(ONLY), int(ONLY) + 1)
    found = [text for text in (failure(kind, index, dims) for index in indices) if text]
    head = f"{len(found)} of {len(indices)} problems with CUSTOMCONV_SEED={SEED} depend on it"
    assert not found, "\n".join([head, *found[:5]])


@pytest.mark.parametrize("dims", [2, 3])
def test_batches_are_of_every_kind(dims):
    rng = random.Random(0)
    found = batches(rng, draw(rng, dims))
    assert len(found[0]) == 1
    assert all(0 <= index < IMAGES for indices in found for index in indices)
    assert {len(indices) for indices in found} > {1, 2}


def test_a_difference_of_a_bit_is_seen():
    zero = torch.zeros(3)
    assert same_bits(zero, zero.clone())
    assert not same_bits(zero, -zero)
