"""Comparing results with what they should be, and problems to compute them for.

A failed comparison names the worst index, both values there, and the share that is wrong.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar

import torch
from torch import Tensor

from customconv import _bind

FAMILIES = ("direct", "im2col", "tiled")  # portable, in IEEE float32 too
ALL_FAMILIES = (*FAMILIES, "implicit_gemm", "depthwise", "grouped", "col2im")
# Images have these layouts; `layout_of` gives those of volumes.
LAYOUTS = (torch.contiguous_format, torch.channels_last)


def layout_of(layout: torch.memory_format, dimensions: int) -> torch.memory_format:
    """The layout of batches with so many dimensions: that of images, or of volumes for it."""
    channels_last = layout == torch.channels_last and dimensions == 5
    return torch.channels_last_3d if channels_last else layout


def is_of_3xtf32(plan: _bind.ConvPlan) -> bool:
    """Whether products in TF32, three each, make up those of strict float32."""
    return "=3xTF32-" in plan.name


def assert_equal(
    actual: Tensor | None,
    expected: Tensor | None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    what: str = "result",
) -> None:
    """Same shape, dtype and device, and the same values, exactly or within the tolerances.

    NaN equals NaN, and zeros of either sign are equal.
    """
    if actual is None or expected is None:
        assert actual is expected, f"{what}: {actual} instead of {expected}"
        return
    for attribute in ("shape", "dtype", "device"):
        has, wants = getattr(actual, attribute), getattr(expected, attribute)
        assert has == wants, f"{what}: {attribute} is {has} instead of {wants}"
    a, e = actual.detach(), expected.detach()
    wrong = ~((a == e) | (a.isnan() & e.isnan()))
    if not wrong.any():
        return
    wide = torch.complex128 if a.is_complex() else torch.float64
    difference = (a.to(wide) - e.to(wide)).abs()
    wrong &= ~(difference <= atol + rtol * e.to(wide).abs())
    if wrong.any():
        tolerances = f" within rtol={rtol:.3g}, atol={atol:.3g}" if rtol or atol else ""
        raise AssertionError(f"{what}: {_worst(a, e, difference, wrong)}{tolerances}")


def assert_same(
    actual: Tensor | None,
    expected: Tensor | None,
    *,
    rtol: float = 0.0,
    atol: float = 0.0,
    what: str = "result",
) -> None:
    """``assert_equal``, and the same strides, also where a size of one makes them free."""
    assert_equal(actual, expected, rtol=rtol, atol=atol, what=what)
    if actual is not None and expected is not None:
        has, wants = actual.stride(), expected.stride()
        shape = tuple(actual.shape)
        assert has == wants, f"{what}: strides are {has} instead of {wants}, for shape {shape}"


def largest(t: Tensor) -> float:
    """The largest absolute value; one if there is none or all are zero."""
    return (t.abs().max().item() if t.numel() else 0.0) or 1.0


def relative_error(actual: Tensor, fp64: Tensor) -> float:
    """The largest difference over the largest value; infinite where a value is not finite."""
    if fp64.numel() == 0:
        return 0.0
    difference = (actual.to(fp64.dtype) - fp64).abs().max().item()
    if not math.isfinite(difference):
        return math.inf
    return difference / largest(fp64)


def norm_error(actual: Tensor, expected: Tensor) -> Tensor:
    """The norm of the difference over the norm of what is expected."""
    return (actual.double() - expected).norm() / expected.norm().clamp(min=1e-300)


def assert_same_kinds(actual: Tensor, expected: Tensor, *, what: str = "result") -> None:
    """NaN and infinities of either sign are in the same places."""
    for kind in (torch.isnan, torch.isposinf, torch.isneginf):
        assert torch.equal(kind(actual), kind(expected)), f"{what}: {kind.__name__}"


def assert_accurate(actual: Tensor, fp64: Tensor, at_most: float, *, what: str = "result") -> None:
    """The relative error against an exact result is at most so large."""
    assert actual.shape == fp64.shape, f"{what}: shape is {actual.shape} instead of {fp64.shape}"
    error = relative_error(actual, fp64)
    if error > at_most:
        difference = (actual.to(fp64.dtype) - fp64).abs()
        wrong = ~(difference <= at_most * largest(fp64))
        raise AssertionError(
            f"{what}: relative error {error:.3g} is over {at_most:.3g}: "
            f"{_worst(actual, fp64, difference, wrong)}"
        )


def assert_close_to(
    actual: Tensor, fp64: Tensor, pytorch: Tensor, *, factor: float = 2.0, what: str = "result"
) -> None:
    """The error against an exact result is at most ``factor`` times PyTorch's own.

    An error of one rounding to the result's dtype is always allowed: PyTorch's may be none by luck.
    """
    assert actual.dtype == pytorch.dtype, f"{what}: {actual.dtype} instead of {pytorch.dtype}"
    rounding = torch.finfo(actual.dtype).eps
    allowed = max(factor * relative_error(pytorch, fp64), rounding)
    assert_accurate(actual, fp64, allowed, what=what)


def assert_nearly(actual: Tensor, fp64: Tensor, pytorch: Tensor, *, what: str = "result") -> None:
    """The error is that of another order of a long sum, or four times PyTorch's own.

    For what PyTorch may compute itself: its kernels need not repeat bit by bit, and may round a
    result of 16 bits more than once. An exact result in double precision is of its kernels too.
    """
    assert actual.dtype == pytorch.dtype, f"{what}: {actual.dtype} instead of {pytorch.dtype}"
    rounding = torch.finfo(actual.dtype).eps
    roundings = {torch.finfo(torch.float64).eps: 64, torch.finfo(torch.float32).eps: 8}
    # All elements of a small tensor may be sums that cancel.
    cancelled = tolerances(actual.dtype)["atol"] / largest(fp64)
    allowed = max(
        4 * relative_error(pytorch, fp64), roundings.get(rounding, 1) * rounding, cancelled
    )
    assert_accurate(actual, fp64, allowed, what=what)


def describe_worst(actual: Tensor, fp64: Tensor, allowed: Tensor) -> str:
    """The element that is furthest off, and the share that is off by more than is allowed it."""
    difference = (actual.to(fp64.dtype) - fp64).abs()
    return _worst(actual, fp64, difference, ~(difference <= allowed))


def _worst(actual: Tensor, expected: Tensor, difference: Tensor, wrong: Tensor) -> str:
    severity = difference.nan_to_num(nan=math.inf).masked_fill(~wrong, -1)
    index = tuple(int(i) for i in torch.unravel_index(severity.argmax(), severity.shape))
    count, total = int(wrong.sum()), wrong.numel()
    return (
        f"worst at {index}: {actual[index].item()} instead of {expected[index].item()} "
        f"(off by {difference[index].item():.3g}); "
        f"{count} of {total} elements ({100 * count / total:.3g} %) are wrong"
    )


def tolerances(dtype: torch.dtype, terms: int = 100) -> dict[str, float]:
    """How far two sums of so many products of normal numbers may be apart.

    Sums of 16-bit numbers are kept in float32 and rounded once.
    """
    rounding = torch.finfo(dtype).eps
    return {
        "rtol": 2 * rounding,
        "atol": 2 * terms * min(rounding, torch.finfo(torch.float32).eps),
    }


def round_to_tf32(t: Tensor) -> Tensor:
    """float32 without the 13 bits that TF32 lacks, rounded to the nearest, ties to even."""
    bits = t.contiguous().view(torch.int32)
    return ((bits + 0xFFF + ((bits >> 13) & 1)) & -(1 << 13)).view(torch.float32)


@contextlib.contextmanager
def float32_precision(name: str) -> Iterator[None]:
    """PyTorch's switch for convolutions in float32: "ieee" or "tf32"."""
    # PyTorch's own test helpers freeze these switches, except in this context.
    conv, thawed = torch.backends.cudnn.conv, torch.backends.__allow_nonbracketed_mutation
    before = conv.fp32_precision
    with thawed():
        conv.fp32_precision = name
    try:
        yield
    finally:
        with thawed():
            conv.fp32_precision = before


@dataclass(frozen=True)
class Problem:
    """Arguments of a convolution, of images or of volumes.

    Strides and dilations that are not given are ones, paddings are zeros.
    """

    DEFAULTS: ClassVar = MappingProxyType({"stride": 1, "padding": 0, "dilation": 1})

    input: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...] = ()
    padding: tuple[int, ...] = ()
    dilation: tuple[int, ...] = ()
    groups: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        for name in self.DEFAULTS:
            if not getattr(self, name):
                object.__setattr__(self, name, (self.DEFAULTS[name],) * self.dims)

    @property
    def dims(self) -> int:
        """2 for images, 3 for volumes."""
        return len(self.weight) - 2

    @property
    def output_channels(self) -> int:
        """The length of the bias."""
        return self.weight[0]

    @property
    def geometry(self) -> tuple[tuple[int, ...] | int, ...]:
        """Stride, padding, dilation and groups, as every convolution takes them."""
        return self.stride, self.padding, self.dilation, self.groups

    def tensors(
        self,
        device: str,
        dtype: torch.dtype,
        layout: torch.memory_format = torch.contiguous_format,
        *,
        weight_layout: torch.memory_format | None = None,
        integers: bool = False,
        requires_grad: bool = False,
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Random input, weight and bias, the same values on every device.

        With ``integers``, so small that every sum is exact in every dtype of sufficient range.
        """

        def make(shape: Sequence[int], memory_format: torch.memory_format) -> Tensor:
            if integers:
                values = torch.randint(-2, 3, tuple(shape), dtype=torch.float64)
            else:
                values = torch.randn(tuple(shape), dtype=torch.float64)
            values = values.to(device, dtype)
            if values.ndim == self.dims + 2:
                memory_format = layout_of(memory_format, values.ndim)
                values = values.contiguous(memory_format=memory_format)
            return values.requires_grad_(requires_grad)

        x = make(self.input, layout)
        w = make(self.weight, weight_layout or layout)
        bias = make([self.output_channels], torch.contiguous_format) if self.bias else None
        return x, w, bias


@dataclass(frozen=True)
class TransposedProblem(Problem):
    """Arguments of a transposed convolution."""

    DEFAULTS: ClassVar = MappingProxyType({**Problem.DEFAULTS, "output_padding": 0})

    output_padding: tuple[int, ...] = ()

    @property
    def output_channels(self) -> int:
        """The length of the bias."""
        return self.weight[1] * self.groups

    @property
    def geometry(self) -> tuple[tuple[int, ...] | int, ...]:
        """What follows the bias, as every transposed convolution takes it."""
        return self.stride, self.padding, self.output_padding, self.groups, self.dilation

    @classmethod
    def of(cls, conv: Problem) -> TransposedProblem:
        """The one that goes from the convolution's output back to its input."""
        sides = list(
            zip(conv.input[-conv.dims :], conv.weight[2:], conv.stride, conv.padding,
                conv.dilation, strict=True)
        )  # fmt: skip
        spans = [size + 2 * p - d * (taps - 1) - 1 for size, taps, _, p, d in sides]
        steps = [stride for _, _, stride, _, _ in sides]
        output = [span // step + 1 for span, step in zip(spans, steps, strict=True)]
        left = tuple(span % step for span, step in zip(spans, steps, strict=True))
        return cls(
            (*conv.input[: -conv.dims - 1], conv.weight[0], *output), conv.weight, conv.stride,
            conv.padding, conv.dilation, conv.groups, conv.bias, output_padding=left,
        )  # fmt: skip


# One problem for each thing that a convolution can be.
PROBLEMS = {
    "dense": Problem((2, 4, 9, 8), (6, 4, 3, 3), padding=(1, 1)),
    "asymmetric": Problem((2, 3, 10, 9), (5, 3, 5, 2), (1, 1), (2, 0)),
    "strided": Problem((2, 4, 9, 8), (6, 4, 3, 3), (2, 3), (1, 1)),
    "dilated": Problem((2, 4, 11, 9), (6, 4, 3, 2), (1, 1), (2, 1), (2, 3)),
    "strided_dilated": Problem((2, 2, 12, 13), (3, 2, 3, 3), (3, 2), (4, 1), (2, 3)),
    "grouped": Problem((2, 6, 8, 7), (9, 2, 3, 3), (1, 1), (1, 1), groups=3),
    "depthwise": Problem((2, 5, 9, 8), (5, 1, 3, 3), (1, 1), (1, 1), groups=5),
    "depthwise_multiplier": Problem((2, 3, 9, 8), (6, 1, 3, 3), (2, 1), (1, 1), groups=3),
    "pointwise": Problem((2, 4, 6, 5), (6, 4, 1, 1)),
    "pointwise_strided": Problem((2, 4, 6, 5), (6, 4, 1, 1), (2, 2)),
    "one_channel": Problem((2, 1, 9, 8), (1, 1, 3, 3), (1, 1), (1, 1)),
    "one_pixel_out": Problem((2, 4, 3, 3), (6, 4, 3, 3)),
    "much_padding": Problem((1, 3, 4, 5), (4, 3, 2, 2), (1, 2), (5, 4)),
    "no_bias": Problem((2, 4, 9, 8), (6, 4, 3, 3), (1, 1), (1, 1), bias=False),
    "unbatched": Problem((4, 9, 8), (6, 4, 3, 3), (1, 1), (1, 1)),
}

# The same of volumes, and filters of one slice, of one pixel and of one patch.
VOLUMES = {
    "dense": Problem((2, 4, 3, 5, 6), (6, 4, 3, 3, 3), padding=(1, 1, 1)),
    "asymmetric": Problem((2, 3, 4, 6, 5), (5, 3, 2, 5, 3), padding=(1, 2, 0)),
    "strided": Problem((2, 4, 6, 7, 8), (6, 4, 3, 3, 3), (2, 1, 3), (1, 1, 1)),
    "dilated": Problem((2, 4, 5, 7, 6), (6, 4, 3, 3, 2), padding=(1, 2, 0), dilation=(2, 3, 1)),
    "strided_dilated": Problem((2, 2, 9, 8, 9), (3, 2, 3, 3, 3), (3, 1, 2), (2, 2, 1), (2, 1, 3)),
    "grouped": Problem((2, 6, 3, 5, 4), (9, 2, 3, 3, 3), padding=(1, 1, 1), groups=3),
    "depthwise": Problem((2, 5, 3, 6, 5), (5, 1, 3, 3, 3), padding=(1, 1, 1), groups=5),
    "depthwise_multiplier": Problem(
        (2, 3, 4, 6, 7), (6, 1, 3, 3, 3), (1, 2, 1), (1, 1, 1), groups=3
    ),
    "pointwise": Problem((2, 4, 3, 5, 4), (6, 4, 1, 1, 1)),
    "slices": Problem((2, 4, 3, 6, 5), (6, 4, 1, 3, 3), padding=(0, 1, 1)),
    "column": Problem((2, 4, 5, 4, 3), (6, 4, 3, 1, 1), padding=(1, 0, 0)),
    "patches": Problem((2, 3, 4, 6, 8), (5, 3, 2, 2, 2), (2, 2, 2)),
    "one_channel": Problem((2, 1, 3, 5, 6), (1, 1, 3, 3, 3), padding=(1, 1, 1)),
    "one_pixel_out": Problem((2, 4, 2, 3, 4), (6, 4, 2, 3, 4)),
    "much_padding": Problem((1, 3, 2, 4, 3), (4, 3, 2, 2, 2), (1, 2, 1), (4, 5, 3)),
    "flat": Problem((2, 4, 1, 9, 8), (6, 4, 1, 3, 3), padding=(0, 1, 1)),
    "no_bias": Problem((2, 4, 3, 5, 6), (6, 4, 3, 3, 3), padding=(1, 1, 1), bias=False),
    "unbatched": Problem((4, 3, 5, 6), (6, 4, 3, 3, 3), padding=(1, 1, 1)),
}
EVERY_PROBLEM = {**PROBLEMS, **{f"volume_{name}": each for name, each in VOLUMES.items()}}

TRANSPOSED_PROBLEMS = {
    **{name: TransposedProblem.of(problem) for name, problem in PROBLEMS.items()},
    # More than a stride is allowed below the dilation, and is PyTorch's.
    "wide_output_padding": TransposedProblem(
        (2, 4, 5, 4), (4, 3, 3, 3), (2, 1), (1, 0), (3, 2), output_padding=(2, 1)
    ),
}

TRANSPOSED_VOLUMES = {
    **{name: TransposedProblem.of(problem) for name, problem in VOLUMES.items()},
    "wide_output_padding": TransposedProblem(
        (2, 4, 3, 4, 3), (4, 3, 3, 3, 2), (2, 1, 2), (1, 0, 1), (3, 2, 1), output_padding=(2, 1, 0)
    ),
}
EVERY_TRANSPOSED_PROBLEM = {
    **TRANSPOSED_PROBLEMS,
    **{f"volume_{name}": each for name, each in TRANSPOSED_VOLUMES.items()},
}
