"""A convolutional layer: its sizes, FLOPs and least bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import prod
from typing import Any, NamedTuple

Pair = tuple[int, int]


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
    """A convolution. If transposed, C, H and W are still the input's and K is the output's."""

    suite: str
    name: str
    N: int
    C: int
    H: int
    W: int
    K: int
    R: int
    S: int
    stride: Pair = (1, 1)
    pad: Pair = (0, 0)
    dil: Pair = (1, 1)
    groups: int = 1
    bias: bool = False
    transposed: bool = False
    output_padding: Pair = (0, 0)
    source: str = ""

    def _output(self, size: int, taps: int, axis: int) -> int:
        reach = self.dil[axis] * (taps - 1)
        if self.transposed:
            widened = (size - 1) * self.stride[axis] - 2 * self.pad[axis]
            return widened + reach + self.output_padding[axis] + 1
        return (size + 2 * self.pad[axis] - reach - 1) // self.stride[axis] + 1

    @property
    def P(self) -> int:
        return self._output(self.H, self.R, 0)

    @property
    def Q(self) -> int:
        return self._output(self.W, self.S, 1)

    @property
    def input(self) -> tuple[int, ...]:
        return (self.N, self.C, self.H, self.W)

    @property
    def weight(self) -> tuple[int, ...]:
        first, second = (self.C, self.K) if self.transposed else (self.K, self.C)
        return (first, second // self.groups, self.R, self.S)

    @property
    def output(self) -> tuple[int, ...]:
        return (self.N, self.K, self.P, self.Q)

    @property
    def geometry(self) -> tuple[Pair, Pair, Pair, int]:
        """Stride, padding, dilation, groups."""
        return self.stride, self.pad, self.dil, self.groups

    @property
    def transposed_geometry(self) -> tuple[Pair, Pair, Pair, int, Pair]:
        """Stride, padding, output padding, groups, dilation."""
        return self.stride, self.pad, self.output_padding, self.groups, self.dil

    def as_convolution(self, op: str) -> tuple[Layer, str]:
        """Returns the convolution that a transposed layer reverses, and its pass that is ``op``."""
        op = {"fprop": "dgrad", "dgrad": "fprop"}.get(op, op)
        convolution = replace(
            self, C=self.K, H=self.P, W=self.Q, K=self.C, transposed=False, output_padding=(0, 0)
        )
        return convolution, op

    def _met(self, axis: int) -> Met:
        """Counts what meets along an axis of the convolution that it is or reverses."""
        pixels, outputs, taps = ((self.H, self.P, self.R), (self.W, self.Q, self.S))[axis]
        if self.transposed:
            pixels, outputs = outputs, pixels
        return meeting(pixels, outputs, taps, self.stride[axis], self.pad[axis], self.dil[axis])

    @property
    def flops(self) -> int:
        """FLOPs of each of the three passes; a multiply-add counts as two.

        Only pixels are multiplied: taps that meet padding, or that fall outside the output of a
        transposed layer, are no work.
        """
        rows, columns = self._met(0), self._met(1)
        return 2 * self.N * self.C * (self.K // self.groups) * rows.pairs * columns.pairs

    def least_bytes(self, size: int, op: str = "fprop") -> int:
        """Returns the bytes that a pass must move, at ``size`` bytes per element.

        What a pass writes is written whole, with the zeros that nothing meets. Of the two tensors
        that it reads, only those elements count that meet an element of the other one: not the
        pixels between strides, nor taps that reach only padding.
        """
        rows, columns = self._met(0), self._met(1)
        inputs, outputs = rows.pixels * columns.pixels, rows.outputs * columns.outputs
        if self.transposed:
            inputs, outputs = outputs, inputs
        taps = rows.taps * columns.taps
        x = prod(self.input) if op == "dgrad" else self.N * self.C * inputs
        w = prod(self.weight) if op == "wgrad" else prod(self.weight[:2]) * taps
        y = prod(self.output) if op == "fprop" else self.N * self.K * outputs
        return size * (x + w + y)

    def problem(self) -> dict[str, Any]:
        """Returns the sizes as results files hold them."""
        sizes = {name: getattr(self, name) for name in "NCHWKRSPQ"}
        rest = {"stride": self.stride, "pad": self.pad, "dil": self.dil, "groups": self.groups}
        if self.transposed:
            rest |= {"transposed": True, "output_padding": self.output_padding}
        return sizes | {k: list(v) if isinstance(v, tuple) else v for k, v in rest.items()}

    def with_batch(self, n: int) -> Layer:
        return replace(self, N=n)
