"""Random convolutions of normal numbers, held against float64 and against PyTorch's own error."""

from __future__ import annotations

import contextlib
import functools
import os
import random
from dataclasses import dataclass
from math import prod

import torch
from cases import Case, Tensors, output_shape, place_all
from compute import (
    DTYPES,
    PASSES,
    by_pytorch,
    compute,
    exact,
    forced,
    has_plan,
    is_foreseen,
    magnitudes,
    plan_of,
    poison,
    result_bytes,
    takes,
)
from reference import describe_worst, float32_precision, norm_error, round_to_tf32
from torch import Tensor

from customconv.explain import variants

VIEWS = ("unaligned", "sliced", "stepped", "transposed", "images_inside", "expanded_images",
         "expanded_channels")  # fmt: skip
VOLUME_VIEWS = (*VIEWS, "depth_inside", "frames")
# Each family can compute at least one of these in every pass that it has; one of volumes too, if
# it takes any, be they 2-D in memory.
PLAIN = {
    2: (
        Case((1, 1, 3, 3), (1, 1, 3, 3)),
        Case((1, 4, 3, 3), (4, 2, 3, 3), groups=2),
        Case((1, 8, 3, 3), (8, 8, 3, 3)),
    ),
    3: (
        Case((1, 1, 3, 3, 3), (1, 1, 3, 3, 3)),
        Case((1, 8, 3, 3, 3), (8, 8, 3, 3, 3)),
        Case((1, 1, 3, 3, 3), (1, 1, 1, 3, 3)),
        Case((1, 4, 3, 3, 3), (4, 2, 1, 3, 3), groups=2),
        Case((1, 8, 3, 3, 3), (8, 8, 1, 3, 3)),
    ),
}
# What needs TMA, which reads no view that is unaligned, and images of one layout: the
# output of a channels-first input is channels-last where the weight is.
BOXED = (("implicit_gemm", "wgrad"),)

# Families of many kernels, most of which the choice alone would hardly reach.
BY_ANY_PLAN = ("depthwise", "grouped", "implicit_gemm", "col2im")

# Images, volumes, or both.
DIMS = [int(os.environ["CUSTOMCONV_DIMS"])] if "CUSTOMCONV_DIMS" in os.environ else [2, 3]

MOST_ERROR = 2.0  # over PyTorch's own
STRICT_ERROR = 1e-7  # relative, of three products of TF32 for one of float32
TF32_EPS = 2.0**-10


@dataclass(frozen=True)
class Trial:
    """One random pass of a convolution."""

    case: Case
    op: str
    dtype: torch.dtype
    tf32: bool
    channels_last: bool
    seed: int  # of the numbers


def _extent(rng: random.Random) -> int:
    return (
        rng.choice((1, 959, 14, 28, 56)) if rng.random() < 0.15 else round(2 ** rng.uniform(0, 7))
    )


def _channels(rng: random.Random) -> tuple[int, int, int]:
    """Groups, and the inputs and outputs of one."""
    kind = rng.random()
    if kind < 0.5:
        return 1, round(2 ** rng.uniform(0, 7)), round(2 ** rng.uniform(0, 7))
    if kind < 0.65:
        return round(2 ** rng.uniform(0, 6)), 1, rng.choice((1, 1, 2, 3))
    if kind < 0.9:
        return rng.randint(2, 12), rng.randint(1, 20), rng.randint(1, 20)
    return rng.randint(2, 4), rng.choice((32, 64, 128)), 64


def _case(rng: random.Random, plain: bool) -> Case:
    groups, group_c, group_k = _channels(rng)
    taps = (rng.choice((1, 2, 3, 3, 4, 5, 7, 9, 11)), rng.choice((1, 2, 3, 3, 4, 5, 7, 9, 11)))
    if rng.random() < 0.15:
        taps = (1, 1)
    dilation = (rng.choice((1, 1, 1, 2, 3, 5)), rng.choice((1, 1, 1, 2, 3, 5)))
    ordinary = tuple(d * (t - 1) // 2 for d, t in zip(dilation, taps, strict=True))
    any_padding = tuple(rng.randint(0, d * t + 1) for d, t in zip(dilation, taps, strict=True))
    return Case(
        input=(rng.randint(1, 5), group_c * groups, _extent(rng), _extent(rng)),
        weight=(group_k * groups, group_c, *taps),
        stride=(rng.choice((1, 1, 1, 2, 3, 6)), rng.choice((1, 1, 1, 2, 3, 6))),
        padding=ordinary if rng.random() < 0.5 else any_padding,
        dilation=dilation,
        groups=groups,
        bias=rng.random() < 0.5,
        view="plain" if plain else rng.choice(VIEWS),
        weight_view="plain" if plain else rng.choice(("plain", "plain", *VIEWS)),
        other_weight_layout=rng.random() < 0.2,
    )


def _volume(rng: random.Random, plain: bool) -> Case:
    groups, group_c, group_k = _channels(rng)
    image = [round(2 ** rng.uniform(0, 4)), *(_side(rng) for _ in range(2))]
    taps = [rng.choice((1, 2, 3, 3, 5)), *(rng.choice((1, 2, 3, 3, 3, 5, 7)) for _ in range(2))]
    stride = [rng.choice((1, 1, 2, 3, 6)) for _ in taps] if rng.random() < 0.5 else [1, 1, 1]
    dilation = [rng.choice((1, 1, 1, 2, 3, 5)) for _ in taps]
    ordinary = [d * (t - 1) // 2 for d, t in zip(dilation, taps, strict=True)]
    any_padding = [rng.randint(0, d * t + 1) for d, t in zip(dilation, taps, strict=True)]
    padding = ordinary if rng.random() < 0.5 else any_padding
    kind = rng.choice(("any", "any", "any", "any", "pointwise", "slices", "column", "patches"))
    # What is not filtered is stepped over or padded in one of four cases alone.
    moved = rng.random() < 0.25
    if kind == "patches":
        taps = [rng.choice((1, 2, 4)), *(rng.choice((2, 4, 7)) for _ in range(2))]
        stride, padding, dilation = list(taps), [0, 0, 0], [1, 1, 1]
        image = image if moved else list(taps)
    for i in {"pointwise": range(3), "slices": range(1), "column": range(1, 3)}.get(kind, ()):
        taps[i] = 1
        if not moved:
            stride[i], padding[i] = 1, 0
    return Case(
        input=(rng.randint(1, 4), group_c * groups, *image),
        weight=(group_k * groups, group_c, *taps),
        stride=tuple(stride),
        padding=tuple(padding),
        dilation=tuple(dilation),
        groups=groups,
        bias=rng.random() < 0.5,
        view="plain" if plain else rng.choice(VOLUME_VIEWS),
        weight_view="plain" if plain else rng.choice(("plain", "plain", *VOLUME_VIEWS)),
        other_weight_layout=rng.random() < 0.2,
    )


def _side(rng: random.Random) -> int:
    if rng.random() < 0.15:
        return 8 * rng.randint(1, 12) + 2  # of decoders of video
    return round(2 ** rng.uniform(0, 6))


@functools.cache
def passes_of(family: str, dims: int) -> list[str]:
    """Those that the family has; "aten" has all."""
    return [
        op
        for op in PASSES
        if family == "aten"
        or any(has_plan(family, op, c, torch.float16, channels_last=True) for c in PLAIN[dims])
    ]


def draw(rng: random.Random, family: str, *, small: bool = False, dims: int = 2) -> Trial:
    """A trial that the family can compute; "aten" can compute any.

    Small ones are for PyTorch on the CPU, which can be relied on in float64 and dense layouts.
    """
    op = rng.choice(passes_of(family, dims))
    dtypes = DTYPES[:1] if small else DTYPES
    while True:
        plain = small or rng.random() < 0.6
        case = _case(rng, plain) if dims == 2 else _volume(rng, plain)
        if min(output_shape(case)) < 1:
            continue
        # One in twenty is large enough for several chunks of columns, or parts of a sum.
        large = not small and rng.random() < 0.05
        products = prod(output_shape(case)) * prod(case.weight[1:])
        columns = prod(case.input[:2]) * prod(case.weight[2:]) * prod(output_shape(case)[2:])
        if columns > (5e7 if large else 5e6) or products > (2e9 if large else 2e8):
            continue
        if small and products > 1e7:
            continue
        trial = Trial(
            case, op, rng.choice(dtypes), rng.random() < 0.5, rng.random() < 0.5,
            rng.randrange(2**31),
        )  # fmt: skip
        mixed = case.other_weight_layout and not trial.channels_last
        if (family, op) in BOXED and (case.view != "plain" or mixed):
            continue
        # With the other layout of the weight, or of a view, a result may have the one or the other.
        either = case.other_weight_layout or case.view != "plain"
        layouts = (False, True) if either else (trial.channels_last,)
        if family == "aten" or all(
            has_plan(family, op, case, trial.dtype, tf32=trial.tf32, channels_last=layout)
            for layout in layouts
        ):
            return trial


def make_tensors(trial: Trial, device: str) -> Tensors:
    case = trial.case
    generator = torch.Generator(device).manual_seed(trial.seed)

    def normal(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator, device=device).to(trial.dtype)

    bias = normal(case.weight[:1]) if case.bias else None
    values = Tensors(normal(case.input), normal(case.weight), bias, normal(output_shape(case)))
    layout = torch.channels_last if trial.channels_last else torch.contiguous_format
    return place_all(case, values, device, trial.dtype, layout)


def plausible(trial: Trial, expected: Tensor, t: Tensors) -> Tensor:
    """How far off, element by element, a sum may be that took in every term, and each once.

    One rounding to the result's dtype, and for the additions some of the sum of the magnitudes.
    Products of float32 as TF32 are off by their operands' roundings too.
    """
    limits = torch.finfo(trial.dtype)
    rounding = limits.eps / 2 * expected.abs() + limits.smallest_normal * limits.eps / 2
    sums = torch.finfo(torch.float64 if trial.dtype == torch.float64 else torch.float32).eps
    roundings = 2 * TF32_EPS / sums if is_tf32(trial) else 16
    return rounding + roundings * sums * exact(trial.op, trial.case, magnitudes(t))


def run(trial: Trial, family: str, t: Tensors) -> Tensor:
    with float32_precision("tf32" if trial.tf32 else "ieee"):
        if not t.x.is_cuda:
            return compute(trial.op, family, trial.case, t)
        plan = plan_of(trial.op, family, trial.case, t)
        any_plan = False
        if family in BY_ANY_PLAN and is_foreseen(trial.op, trial.case) and trial.seed % 2:
            weighed = variants(t.x, t.w, t.bias, *trial.case.geometry, trial.op)
            own = [other for other in weighed if other.family == family]
            # Of volumes there may be none: these are plans for the view, which the call copies.
            any_plan = bool(own) or trial.case.dims == 2
            if any_plan:  # not its choice, but any that it weighed
                plan = random.Random(trial.seed).choice(own)
        poison(result_bytes(trial.op, trial.case, trial.dtype), plan.workspace_bytes)
        with forced(plan) if any_plan else contextlib.nullcontext():
            return compute(trial.op, family, trial.case, t)


def is_tf32(trial: Trial) -> bool:
    return trial.tf32 and trial.dtype == torch.float32


def partial_sums(trial: Trial, t: Tensors) -> Tensor:
    """How large they are: of so many terms of either sign, the root of the sum of their squares."""
    bias = None if t.bias is None else t.bias.double().square()
    squares = Tensors(t.x.double().square(), t.w.double().square(), bias, t.dy.double().square())
    return exact(trial.op, trial.case, squares).sqrt()


def pytorchs_error(trial: Trial, expected: Tensor, t: Tensors) -> Tensor:
    """The norm of PyTorch's own error; a rounding where it has less by luck: of the results, or of
    what sums are on the way, whose terms may cancel at the end.

    Of few elements up to twice that: their norm is no mean of many. It need not use TF32 where it
    may. Its error is then that of operands rounded to TF32. Strict float32 may be three products of
    TF32, whose errors are a little larger than a rounding.
    """
    with float32_precision("tf32" if trial.tf32 else "ieee"):
        error = norm_error(by_pytorch(trial.op, trial.case, t), expected)
    if is_tf32(trial):
        rounded = Tensors(round_to_tf32(t.x), round_to_tf32(t.w), t.bias, round_to_tf32(t.dy))
        error = torch.maximum(error, norm_error(exact(trial.op, trial.case, rounded), expected))
    luck = 1 + expected.numel() ** -0.5
    sums = partial_sums(trial, t).norm() / expected.norm().clamp(min=1e-300)
    of_sums, of_results = (torch.finfo(t).eps / 2 for t in (torch.float32, trial.dtype))
    if trial.dtype == torch.float32 and not is_tf32(trial):
        of_sums = of_results = STRICT_ERROR
    return torch.maximum(error, luck * (of_sums * sums).clamp(min=of_results))


@dataclass(frozen=True)
class Verdict:
    """Tensors, which nobody waits for until the verdict is read."""

    error: Tensor  # norm of the error over PyTorch's own
    wrong: Tensor  # whether an element is implausible

    def __bool__(self) -> bool:
        return bool((self.error <= MOST_ERROR) & ~self.wrong)


def is_taken(trial: Trial, family: str, device: str) -> bool:
    """Whether the family has a plan for how the tensors lie: most want volumes 2-D in memory."""
    if trial.case.dims == 2 or family in ("aten", "direct"):
        return True
    with float32_precision("tf32" if trial.tf32 else "ieee"):
        return takes(trial.op, family, trial.case, make_tensors(trial, device))


def judge(trial: Trial, family: str, device: str) -> Verdict:
    """The error is at most twice PyTorch's own, and no element's is more than a sum's can be.

    Errors are compared by their norms: the largest single error is a matter of luck. In float64 the
    expected result has errors of the same size, so there only elements are looked at.
    """
    t = make_tensors(trial, device)
    actual = run(trial, family, t)
    expected = exact(trial.op, trial.case, t)
    assert actual.shape == expected.shape, f"{tuple(actual.shape)} of {trial}"
    assert actual.dtype == trial.dtype, f"{actual.dtype} of {trial}"
    wrong = ~((actual.double() - expected).abs() <= plausible(trial, expected, t)).all()
    if trial.dtype == torch.float64:
        return Verdict(torch.zeros_like(wrong, dtype=torch.float64), wrong)
    return Verdict(norm_error(actual, expected) / pytorchs_error(trial, expected, t), wrong)


def explain(trial: Trial, family: str, device: str) -> str:
    """What is wrong with a trial that was judged so."""
    t = make_tensors(trial, device)
    actual = run(trial, family, t)
    expected = exact(trial.op, trial.case, t)
    allowed = plausible(trial, expected, t)
    times = 0.0
    if ((actual.double() - expected).abs() <= allowed).all():
        pytorchs = pytorchs_error(trial, expected, t)
        times = (norm_error(actual, expected) / pytorchs).item()
        allowed = MOST_ERROR * pytorchs * expected.norm() / expected.numel() ** 0.5
    how = f"{times:.3g} times PyTorch's error" if times else "no sum of these terms"
    return f"{family}: {trial}: {how}: {describe_worst(actual, expected, allowed)}"
