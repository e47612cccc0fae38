"""A convolutional layer: its sizes, FLOPs and least bytes.

A layer of images has a height and a width, one of volumes a depth before them. Its numbers for each
axis, such as strides, come in this order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

Numbers = tuple[int, ...]  # one for each axis: height and width, of volumes behind depth


class Met(NamedTuple):
    """What meets along one axis of a convolution. Padding is no pixel, and meets nothing."""

    pairs: int  # of an output and a tap that reads a pixel for it
    pixels: int  # that some tap reads
    taps: int  # that read some pixel
    outputs: int  # that some pixel is read for


@cache
def meeting(pixels: int, outputs: int, taps: int, stride: int, pad: int, dil: int) -> Met:
    """Counts what meets along an axis: output o reads pixel o * stride - pad + tap * dil."""
    pairs = taps_met = 0
    pixels_met: set[int] = set()
    outputs_met: set[int] = set()
    for tap in range(taps):
        first = tap * dil - pad  # the pixel that output 0 reads
        begin = max(0, -(first // stride))
        end = min(outputs, (pixels - 1 - first) // stride + 1)
        if begin < end:
            pairs += end - begin
            taps_met += 1
            pixels_met.update(range(first + begin * stride, first + end * stride, stride))
            outputs_met.update(range(begin, end))
    return Met(pairs, len(pixels_met), taps_met, len(outputs_met))


@dataclass(frozen=True)
class Layer:
    """A convolution. If transposed, C, D, H and W are still the input's and K is the output's.

    Of a volume, a pair says nothing of the depth: it has stride 1 and no padding there.
    """

    suite: str
    name: str
    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: Numbers = (1, 1)
    pad: Numbers = (0, 0)
    dil: Numbers = (1, 1)
    groups: int = 1
    bias: bool = False
    transposed: bool = False
    output_padding: Numbers = (0, 0)
    source: str = ""
    D: int | None = None  # of a volume; None for images
    T: int = 1

    def __post_init__(self) -> None:
        if self.D is not None:
            for name, usual in (("stride", 1), ("pad", 0), ("dil", 1), ("output_padding", 0)):
                if len(numbers := getattr(self, name)) == 2:
                    object.__setattr__(self, name, (usual, *numbers))

    @property
    def dims(self) -> int:
        """How many axes an image has: two, or three if it is a volume."""
        return 2 if self.D is None else 3

    def _along(self, deep: int | None, high: int, wide: int) -> Numbers:
        return (high, wide) if deep is None else (deep, high, wide)

    def _output(self, size: int, taps: int, axis: int) -> int:
        reach = self.dil[axis] * (taps - 1)
        if self.transposed:
            widened = (size - 1) * self.stride[axis] - 2 * self.pad[axis]
            return widened + reach + self.output_padding[axis] + 1
        return (size + 2 * self.pad[axis] - reach - 1) // self.stride[axis] + 1

    @property
    def O(self) -> int | None:  # noqa: E743
        """The output's depth, of a volume."""
        return None if self.D is None else self._output(self.D, self.T, -3)

    @property
    def P(self) -> int:
        return self._output(self.H, self.R, -2)

    @property
    def Q(self) -> int:
        return self._output(self.W, self.S, -1)

    @property
    def input(self) -> Numbers:
        return (self.N, self.C, *self._along(self.D, self.H, self.W))

    @property
    def weight(self) -> Numbers:
        first, second = (self.C, self.K) if self.transposed else (self.K, self.C)
        taps = self._along(None if self.D is None else self.T, self.R, self.S)
        return (first, second // self.groups, *taps)

    @property
    def output(self) -> Numbers:
        return (self.N, self.K, *self._along(self.O, self.P, self.Q))

    @property
    def geometry(self) -> tuple[Numbers, Numbers, Numbers, int]:
        """Stride, padding, dilation, groups."""
        return self.stride, self.pad, self.dil, self.groups

    @property
    def transposed_geometry(self) -> tuple[Numbers, Numbers, Numbers, int, Numbers]:
        """Stride, padding, output padding, groups, dilation."""
        return self.stride, self.pad, self.output_padding, self.groups, self.dil

    def as_convolution(self, op: str) -> tuple[Layer, str]:
        """Returns the convolution that a transposed layer reverses, and its pass that is ``op``."""
        op = {"fprop": "dgrad", "dgrad": "fprop"}.get(op, op)
        convolution = replace(
            self, C=self.K, D=self.O, H=self.P, W=self.Q, K=self.C, transposed=False,
            output_padding=(0, 0),
        )  # fmt: skip
        return convolution, op

    def _met(self) -> list[Met]:
        """Counts what meets along each axis of the convolution that it is or reverses."""
        first, last = (self.output, self.input) if self.transposed else (self.input, self.output)
        sizes = first[2:], last[2:], self.weight[2:], self.stride, self.pad, self.dil
        return [meeting(*numbers) for numbers in zip(*sizes, strict=True)]

    @property
    def flops(self) -> int:
        """FLOPs of each of the three passes; a multiply-add counts as two.

        Only pixels are multiplied: taps that meet padding, or that fall outside the output of a
        transposed layer, are no work.
        """
        pairs = prod(met.pairs for met in self._met())
        return 2 * self.N * self.C * (self.K // self.groups) * pairs

    def least_bytes(self, size: int, op: str = "fprop") -> int:
        """Returns the bytes that a pass must move, at ``size`` bytes per element.

        What a pass writes is written whole, with the zeros that nothing meets. Of the two tensors
        that it reads, only those elements count that meet an element of the other one: not the
        pixels between strides, nor taps that reach only padding.
        """
        met = self._met()
        inputs, outputs = prod(each.pixels for each in met), prod(each.outputs for each in met)
        if self.transposed:
            inputs, outputs = outputs, inputs
        taps = prod(each.taps for each in met)
        x = prod(self.input) if op == "dgrad" else self.N * self.C * inputs
        w = prod(self.weight) if op == "wgrad" else prod(self.weight[:2]) * taps
        y = prod(self.output) if op == "fprop" else self.N * self.K * outputs
        return size * (x + w + y)

    def problem(self) -> dict[str, Any]:
        """Returns the sizes as results files hold them."""
        names = "NCHWKRSPQ" if self.D is None else "NCDHWKTRSOPQ"
        sizes = {name: getattr(self, name) for name in names}
        rest = {"stride": self.stride, "pad": self.pad, "dil": self.dil, "groups": self.groups}
        if self.transposed:
            rest |= {"transposed": True, "output_padding": self.output_padding}
        return sizes | {k: list(v) if isinstance(v, tuple) else v for k, v in rest.items()}

    def with_batch(self, n: int) -> Layer:
        return replace(self, N=n)


def title(name: str, problem: Mapping[str, Any]) -> str:
    """Names a row by the layer's name or, of a volume, by its sizes, whose names are long."""
    if "D" not in problem:
        return name
    return "{C}x{D}x{H}x{W} to {K}, {T}x{R}x{S}".format_map(problem)
