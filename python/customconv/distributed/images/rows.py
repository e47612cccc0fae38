"""Which rows of a tensor a rank has, and which rows its part of a result is made of.

"Row" stands for an index along the dimension that is sharded: a row or a column of an image. All
of this is arithmetic on sizes that every rank knows, so ranks never ask one another.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from math import gcd

Rows = tuple[int, int]  # from the first row to the one behind the last


def shards(size: int, ranks: int) -> list[Rows]:
    """The rows of each rank: those of ``torch.chunk``, none where it makes fewer chunks."""
    each = -(-size // ranks)
    return [(min(rank * each, size), min((rank + 1) * each, size)) for rank in range(ranks)]


def common(a: Rows, b: Rows) -> Rows:
    """The rows of both; from one row to the same where there are none."""
    start = max(a[0], b[0])
    return start, max(start, min(a[1], b[1]))


def count(rows: Rows) -> int:
    """How many there are."""
    return rows[1] - rows[0]


@dataclass(frozen=True)
class Part:
    """Some rows of a result, and what they are computed from.

    Attributes:
        wanted: The rows of the result.
        computed: The rows that are computed for them, some more where strides ask for it.
        read: The rows of the operand that these are computed from; zeros where it has none.
    """

    wanted: Rows
    computed: Rows
    read: Rows


@dataclass(frozen=True)
class Window:
    """A convolution or a pooling along the dimension that is sharded.

    Attributes:
        taps: The length of the filter.
        stride: The step between two windows.
        padding: The rows of zeros in front of the first row.
        dilation: The step between two taps.
    """

    taps: int
    stride: int
    padding: int
    dilation: int

    @property
    def span(self) -> int:
        """Rows from a window's first tap to its last."""
        return (self.taps - 1) * self.dilation

    def read_by(self, outputs: Rows) -> Rows:
        """The rows of the input that these rows of the output are computed from."""
        start = outputs[0] * self.stride - self.padding
        if not count(outputs):
            return start, start
        return start, (outputs[1] - 1) * self.stride - self.padding + self.span + 1

    def whole_within(self, inputs: Rows) -> Rows:
        """The rows of the output that are computed from these rows of the input alone."""
        start = -(-(inputs[0] + self.padding) // self.stride)
        stop = (inputs[1] - 1 + self.padding - self.span) // self.stride + 1
        return start, max(start, stop)

    def part(self, outputs: Rows) -> Part:
        """Rows of the output of a convolution."""
        return Part(outputs, outputs, self.read_by(outputs))

    # A transposed convolution reads whole steps of its stride. So it computes from the row that
    # the last tap of an input's row writes, to the one that the first tap of the next row would.

    def transposed_whole_within(self, inputs: Rows) -> Rows:
        """The rows that a transposed convolution computes from these rows of its input alone."""
        start = inputs[0] * self.stride - self.padding + self.span
        return start, max(start, inputs[1] * self.stride - self.padding)

    def transposed_part(self, outputs: Rows) -> Part:
        """Rows of the output of a transposed convolution."""
        first = (outputs[0] + self.padding - self.span) // self.stride
        if not count(outputs):
            return Part(outputs, outputs, (first, first))
        stop = -(-(outputs[1] + self.padding) // self.stride)
        computed = self.transposed_whole_within((first, stop))
        return Part(outputs, computed, (first, stop))

    def parts(self, outputs: Rows, inputs: Rows, transposed: bool) -> list[Part]:
        """The parts of a rank's output: first the one that only needs this rank's input.

        Args:
            outputs: The rows of the output that the rank has.
            inputs: The rows of the input that it has.
            transposed: Whether the convolution is transposed.
        """
        whole_within = self.transposed_whole_within if transposed else self.whole_within
        part = self.transposed_part if transposed else self.part
        if not count(outputs):
            return []
        inside = common(whole_within(inputs), outputs) if count(inputs) else (0, 0)
        if not count(inside):
            return [part(outputs)]
        if transposed:  # rows of this rank's input that have nothing in front or behind
            first = -(-(inside[0] + self.padding - self.span) // self.stride)
            inside = whole_within((first, (inside[1] + self.padding) // self.stride))
            if not count(inside):
                return [part(outputs)]
        strips = ((outputs[0], inside[0]), (inside[1], outputs[1]))
        return [part(inside), *(part(strip) for strip in strips if count(strip))]


@dataclass(frozen=True)
class Work:
    """What a rank does for its rows of a convolution's output.

    Attributes:
        inside: The parts that only need this rank's rows of the input.
        strips: The parts that need other rows, or zeros.
        wanted: For each rank, the rows that its strips are computed from.
    """

    inside: tuple[Part, ...]
    strips: tuple[Part, ...]
    wanted: tuple[tuple[Rows, ...], ...]


@lru_cache(maxsize=4096)
def work(
    window: Window, transposed: bool, size: int, result: int, ranks: int, rank: int, divides: bool
) -> Work:
    """What a rank does.

    Args:
        window: The convolution's.
        transposed: Whether it is transposed.
        size: The rows of the input of all ranks.
        result: The rows of the output.
        ranks: How many ranks there are.
        rank: Which one this is.
        divides: Whether there are several parts, so that one need not wait for other ranks.
    """
    owned = shards(size, ranks)
    outputs = shards(result, ranks)
    if divides:
        parts = [
            window.parts(rows, own, transposed) for rows, own in zip(outputs, owned, strict=True)
        ]
    else:
        part = window.transposed_part if transposed else window.part
        parts = [[part(rows)] if count(rows) else [] for rows in outputs]
    strips = [
        tuple(part for part in found if common(part.read, own) != part.read)
        for found, own in zip(parts, owned, strict=True)
    ]
    inside = tuple(part for part in parts[rank] if part not in strips[rank])
    wanted = tuple(tuple(common(part.read, (0, size)) for part in found) for found in strips)
    return Work(inside, strips[rank], wanted)


@dataclass(frozen=True)
class Moves:
    """How a rank comes by the rows that it wants.

    Attributes:
        sent: For each rank, the rows that it gets from this one.
        received: For each rank, the numbers of rows in the pieces that come from it.
        sources: For each range that this rank wants, the ranks that have some of it, and which.
        needed: Whether any rank sends anything.
    """

    sent: tuple[tuple[Rows, ...], ...]
    received: tuple[tuple[int, ...], ...]
    sources: tuple[tuple[tuple[int, Rows], ...], ...]
    needed: bool


@lru_cache(maxsize=4096)
def moves(size: int, wanted: tuple[tuple[Rows, ...], ...], ranks: int, rank: int) -> Moves:
    """How a rank comes by its rows.

    Args:
        size: The rows of a tensor.
        wanted: For each rank, the ranges that it wants.
        ranks: How many ranks there are.
        rank: Which one this is.
    """
    has = shards(size, ranks)

    def overlaps(ranges: tuple[Rows, ...], owned: Rows) -> tuple[Rows, ...]:
        return tuple(found for rows in ranges if count(found := common(rows, owned)))

    sent = tuple(
        overlaps(wanted[other], has[rank]) if other != rank else () for other in range(ranks)
    )
    received = tuple(
        tuple(map(count, overlaps(wanted[rank], has[other]))) if other != rank else ()
        for other in range(ranks)
    )
    sources = tuple(
        tuple((other, found) for other in range(ranks) if count(found := common(rows, has[other])))
        for rows in wanted[rank]
    )
    needed = any(
        overlaps(wanted[one], has[other])
        for one in range(ranks)
        for other in range(ranks)
        if other != one
    )
    return Moves(sent, received, sources, needed)


@dataclass(frozen=True)
class Steps:
    """A change of size in whole steps: so many rows become so many others, again and again.

    Attributes:
        inputs: The rows of the input in a step.
        outputs: The rows of the output in a step.
        margin: The rows of the input, on either side, that a row of the output may depend on.
    """

    inputs: int
    outputs: int
    margin: int

    @classmethod
    def between(cls, size: int, result: int, margin: int) -> Steps:
        """The least steps from one size to another."""
        step = gcd(size, result)
        return cls(size // step, result // step, margin)

    def part(self, outputs: Rows, size: int) -> Part:
        """Rows of the output; ``size`` is that of the input."""
        margin = -(-self.margin // self.inputs)
        first = max(0, outputs[0] // self.outputs - margin)
        last = min(size // self.inputs, -(-outputs[1] // self.outputs) + margin)
        if not count(outputs):
            first = last = 0
        return Part(
            outputs,
            (first * self.outputs, last * self.outputs),
            (first * self.inputs, last * self.inputs),
        )
