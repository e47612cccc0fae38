"""A convolutional layer: its sizes, FLOPs and least bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import Any

Pair = tuple[int, int]


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

    @property
    def flops(self) -> int:
        """FLOPs of each of the three passes; a multiply-add counts as two."""
        pixels = self.H * self.W if self.transposed else self.P * self.Q
        return 2 * self.N * pixels * self.C * (self.K // self.groups) * self.R * self.S

    def least_bytes(self, size: int, op: str = "fprop") -> int:
        """Returns the bytes to move each of the three tensors once, at ``size`` bytes per element.

        Input pixels that no tap reads, such as those between strides, don't count, except in dgrad:
        the input's gradient has them.
        """
        pixels = self.H * self.W
        if op != "dgrad" and not self.transposed:
            pixels = self._read(self.H, self.P, self.R, 0) * self._read(self.W, self.Q, self.S, 1)
        return size * (self.N * self.C * pixels + prod(self.weight) + prod(self.output))

    def _read(self, size: int, outputs: int, taps: int, axis: int) -> int:
        """Counts the rows (or columns) of the input that some tap reads."""
        stride, pad, dil = self.stride[axis], self.pad[axis], self.dil[axis]
        places = {i * stride - pad + tap * dil for i in range(outputs) for tap in range(taps)}
        return sum(0 <= place < size for place in places)

    def problem(self) -> dict[str, Any]:
        """Returns the sizes as results files hold them."""
        sizes = {name: getattr(self, name) for name in "NCHWKRSPQ"}
        rest = {"stride": self.stride, "pad": self.pad, "dil": self.dil, "groups": self.groups}
        if self.transposed:
            rest |= {"transposed": True, "output_padding": self.output_padding}
        return sizes | {k: list(v) if isinstance(v, tuple) else v for k, v in rest.items()}

    def with_batch(self, n: int) -> Layer:
        return replace(self, N=n)
