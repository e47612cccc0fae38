"""A convolution whose images are sharded along a spatial dimension, and its gradients.

Each rank computes the rows of the output that it has. It asks for the rows of the input that it
lacks, computes what needs none of them while these travel, and then the strips that do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from ...arguments import LAST
from ...batch_invariance import is_batch_invariant
from .exchange import Line, RowsUnderWay, buffer, narrowed, needs_gradient
from .rows import Part, Rows, Window, common, count, work

_OPS = torch.ops.customconv
write_part = _OPS._convolve_part.default

# A rank's rows of up to so many bytes are copied beside those of other ranks, and convolved at
# once: what that takes is less than two more launches, and than what they save by not waiting.
UNDIVIDED_BYTES = 32 << 20


@dataclass(frozen=True)
class Geometry:
    """A convolution's numbers, one for each spatial dimension.

    Attributes:
        stride: The step between two windows.
        padding: The rows of zeros in front.
        dilation: The step between two taps.
        output_padding: Of a transposed convolution, the rows added behind.
        groups: The number of groups.
        transposed: Whether it is transposed.
        algorithm: As in ``customconv.conv2d``.
    """

    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    output_padding: tuple[int, ...]
    groups: int
    transposed: bool
    algorithm: str = "auto"

    def window(self, weight: Tensor, axis: int) -> Window:
        """Along a dimension, counted from the last."""
        return Window(
            weight.shape[axis], self.stride[axis], self.padding[axis], self.dilation[axis]
        )

    def of_part(self, axis: int, transposed: bool, window: Window) -> Geometry:
        """What computes a part: nothing is added along the dimension that is sharded."""

        def changed(values: tuple[int, ...], value: int) -> tuple[int, ...]:
            found = list(values)
            found[axis] = value
            return tuple(found)

        return replace(
            self,
            transposed=transposed,
            padding=changed(self.padding, window.span if transposed else 0),
            output_padding=changed(self.output_padding, window.stride - 1 if transposed else 0),
        )


def _with_height(values: tuple[int, ...], value: int) -> list[int]:
    return [value, *values] if len(values) == 1 else list(values)


def convolved(x: Tensor, weight: Tensor, bias: Tensor | None, g: Geometry) -> Tensor:
    """A convolution of this rank's own tensors, without gradients."""
    is_signal = len(g.stride) == 1
    if is_signal:
        x, weight = x.unsqueeze(-2), weight.unsqueeze(-2)
    stride, dilation = _with_height(g.stride, 1), _with_height(g.dilation, 1)
    padding = _with_height(g.padding, 0)
    if g.transposed:
        extra = _with_height(g.output_padding, 0)
        convolve = _OPS.conv_transpose3d if len(stride) == 3 else _OPS.conv_transpose2d
        y = convolve.default(
            x, weight, bias, stride, padding, extra, g.groups, dilation, algorithm=g.algorithm
        )
    else:
        convolve = _OPS.conv3d if len(stride) == 3 else _OPS.conv2d
        y = convolve.default(
            x, weight, bias, stride, padding, dilation, g.groups, algorithm=g.algorithm
        )
    return y.squeeze(-2) if is_signal else y  # type: ignore[no-any-return]


def _weight_gradient(grad: Tensor, x: Tensor, weight: Tensor, g: Geometry) -> Tensor:
    """Of a convolution, not transposed, of this rank's own tensors."""
    is_signal = len(g.stride) == 1
    if is_signal:
        grad, x, weight = grad.unsqueeze(-2), x.unsqueeze(-2), weight.unsqueeze(-2)
    backward = _OPS.conv3d_backward if len(g.stride) == 3 else _OPS.conv2d_backward
    found = backward.default(
        grad, x, weight, _with_height(g.stride, 1), _with_height(g.padding, 0),
        _with_height(g.dilation, 1), g.groups, [False, True, False], algorithm=g.algorithm,
    )[1]  # fmt: skip
    return found.squeeze(-2) if is_signal else found  # type: ignore[no-any-return]


def _padded(segments: list[Tensor], read: Rows, size: int, axis: int, like: Tensor) -> Tensor:
    """Rows in one piece, with zeros where the tensor has none."""

    def zeros(rows: int) -> list[Tensor]:
        return [buffer(like, axis, rows).zero_()] if rows > 0 else []

    front, behind = min(read[1], 0) - read[0], read[1] - max(read[0], size)
    pieces = [*zeros(front), *segments, *zeros(behind)]
    return pieces[0] if len(pieces) == 1 else torch.cat(pieces, axis)


@dataclass(frozen=True)
class Pass:
    """A convolution from one sharded tensor to another.

    Attributes:
        geometry: The convolution's.
        window: Along the dimension that is sharded.
        axis: That dimension, counted from the last.
        transposed: Whether it goes from the output's side to the input's.
        size: The rows of what it reads.
        result: The rows of what it writes.
        line: The ranks.
    """

    geometry: Geometry
    window: Window
    axis: int
    transposed: bool
    size: int
    result: int
    line: Line

    def run(
        self, x: Tensor, weight: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, list[tuple[Part, Tensor]]]:
        """The result's rows of this rank, and its parts with the rows that each was read from."""
        line = self.line
        sizes = list(x.shape)
        sizes[self.axis] = self.size  # the same number on each rank
        divides = prod(sizes) * x.element_size() > UNDIVIDED_BYTES * line.ranks
        # Then a part is planned for the whole images.
        in_order = is_batch_invariant()
        does = work(
            self.window, self.transposed, self.size, self.result, line.ranks, line.rank, divides
        )
        under_way = RowsUnderWay(x, self.axis, self.size, does.wanted, line)
        own, outputs = line.own(self.size), line.own(self.result)
        result: Tensor | None = None

        def compute(part: Part, rows: Tensor) -> None:
            nonlocal result
            if part.wanted == outputs and not in_order:
                result = self._computed(part, rows, weight, bias)
                return
            if result is None:
                result = self._empty(x, weight, count(outputs))
            self._write(
                narrowed(result, self.axis, part.wanted, outputs[0]), part, rows, x, weight, bias
            )

        inside = [(part, narrowed(x, self.axis, part.read, own[0])) for part in does.inside]
        for part, rows in inside:
            compute(part, rows)
        arrived = under_way.wait()
        of_strips = [
            (part, _padded(segments, part.read, self.size, self.axis, x))
            for part, segments in zip(does.strips, arrived, strict=True)
        ]
        for part, rows in of_strips:
            compute(part, rows)
        if result is None:
            result = self._empty(x, weight, 0)
        return result, inside + of_strips

    def reversed(self, weight: Tensor, sizes: Sequence[int], results: Sequence[int]) -> Pass:
        """The pass from the result's gradient to that of what was read, of these sizes."""
        g = self.geometry
        extra = list(g.output_padding)
        for axis in range(-len(extra), 0):
            window = g.window(weight, axis)
            extra[axis] = sizes[axis] - (
                (results[axis] - 1) * window.stride - 2 * window.padding + window.span + 1
            )
        if self.transposed:
            extra = [0] * len(extra)
        return replace(
            self, geometry=replace(g, output_padding=tuple(extra)),
            transposed=not self.transposed, size=self.result, result=self.size,
        )  # fmt: skip

    def padded_by_hand(
        self, grad: Tensor, weight: Tensor, sizes: Sequence[int]
    ) -> tuple[Pass, Tensor]:
        """The pass, and the gradient that it reads, where their sizes would not fit together.

        That is where the output padding of a transposed convolution is as large as the stride, or
        larger: its output then has more rows than a convolution to its input has windows for.
        """
        padding = list(self.geometry.padding)
        for axis in range(-len(padding), 0):
            if axis == self.axis or self.transposed:
                continue
            size, window = grad.shape[axis], self.geometry.window(weight, axis)
            if size > sizes[axis] * window.stride - 2 * window.padding + window.span:
                read = (sizes[axis] - 1) * window.stride + window.span + 1
                ends = [window.padding, read - window.padding - size]  # which may be cut off
                grad = functional.pad(grad, [0, 0] * (-1 - axis) + ends)
                padding[axis] = 0
        return replace(self, geometry=replace(self.geometry, padding=tuple(padding))), grad

    def whole(self) -> tuple[int, Geometry]:
        """The rows that the images would have, and the convolution, if a rank had all rows.

        With padding="same" and an even filter there is a row of zeros behind the images.
        """
        window = self.window
        if not self.transposed:
            read = (self.result - 1) * window.stride - 2 * window.padding + window.span + 1
            return max(self.size, read), replace(self.geometry, transposed=False)
        extra = list(self.geometry.output_padding)
        extra[self.axis] = max(self.result - output_size(self.size, window, 0, True), 0)
        return self.size, replace(self.geometry, transposed=True, output_padding=tuple(extra))

    def _empty(self, x: Tensor, weight: Tensor, rows: int) -> Tensor:
        """Memory for a result with so many rows, in the format that a convolution's has."""
        g = self.geometry
        spatial = len(g.stride)
        channels = weight.shape[1] * g.groups if self.transposed else weight.shape[0]
        sizes = [
            output_size(
                x.shape[axis], g.window(weight, axis), g.output_padding[axis], self.transposed
            )
            for axis in range(-spatial, 0)
        ]
        sizes[self.axis] = rows
        is_batch = x.dim() == weight.dim() and spatial > 1
        last = is_batch and _OPS._is_channels_last.default(x, weight)
        return torch.empty(
            [*x.shape[: -spatial - 1], channels, *sizes], dtype=x.dtype, device=x.device,
            memory_format=LAST[x.dim()] if last else torch.contiguous_format,
        )  # fmt: skip

    def _computed(self, part: Part, rows: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        """A part of the result, from the rows that it is computed from."""
        geometry = self.geometry.of_part(self.axis, self.transposed, self.window)
        y = convolved(rows, weight, bias, geometry)
        return narrowed(y, self.axis, part.wanted, part.computed[0])

    def _write(
        self, output: Tensor, part: Part, rows: Tensor, x: Tensor, weight: Tensor,
        bias: Tensor | None,
    ) -> None:  # fmt: skip
        """Writes a part of the result, where it belongs."""
        spatial = len(self.geometry.stride)
        computed = output
        if part.computed != part.wanted:
            computed = buffer(output, self.axis, count(part.computed))
        size, whole = self.whole()
        sizes = list(x.shape[-spatial:])
        sizes[self.axis] = size
        last = _OPS._is_channels_last.default(*(_as_images(each, spatial) for each in (x, weight)))
        g = self.geometry.of_part(self.axis, self.transposed, self.window)
        if not write_part(
            _as_images(rows, spatial), _as_images(weight, spatial), bias,
            _with_height(g.stride, 1), _with_height(g.padding, 0), _with_height(g.dilation, 1),
            g.transposed, _with_height(g.output_padding, 0), g.groups, g.algorithm,
            _as_images(computed, spatial), last, _with_height(tuple(sizes), 1),
            _with_height(whole.padding, 0), _with_height(whole.output_padding, 0),
        ):  # fmt: skip
            # Images that have no other rows give these the same bits.
            images = buffer(rows, self.axis, size).zero_()
            read = common(part.read, (0, size))
            if count(read):
                own = narrowed(rows, self.axis, read, part.read[0])
                narrowed(images, self.axis, read).copy_(own)
            y = convolved(images, weight, bias, whole)
            output.copy_(narrowed(y, self.axis, part.wanted))
        elif computed is not output:
            output.copy_(narrowed(computed, self.axis, part.wanted, part.computed[0]))


def _as_images(tensor: Tensor, spatial: int) -> Tensor:
    """A tensor of signals, images or volumes as one of batched images or volumes."""
    if tensor.dim() == spatial + 1:
        tensor = tensor.unsqueeze(0)
    return tensor.unsqueeze(-2) if spatial == 1 else tensor


class _Convolution(torch.autograd.Function):
    """A convolution of this rank's rows; the weight's gradient is this rank's term of the sum."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, does: Pass) -> Tensor:
        output, parts = does.run(x, weight, bias)
        ctx.does, ctx.where, ctx.sizes = does, does.line.where, x.shape
        ctx.parts = [part for part, _ in parts]
        # Rows of a transposed convolution's input are not read again: its weight's gradient comes
        # from those of the output's gradient.
        kept = [] if does.transposed else [rows for _, rows in parts]
        ctx.save_for_backward(x if does.transposed else None, weight, *kept)
        return output

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        does: Pass = ctx.does
        x, weight, *read = ctx.saved_tensors
        needs_x, needs_weight, needs_bias, _ = ctx.needs_input_grad
        back = does.reversed(weight, ctx.sizes, grad.shape)
        back, read_grad = back.padded_by_hand(grad, weight, ctx.sizes)
        grad_x = grad_weight = grad_bias = None
        parts: list[tuple[Part, Tensor]] = []
        with does.line.at(ctx.where), torch.autocast(grad.device.type, enabled=False):
            if needs_x or (needs_weight and does.transposed):
                grad_x, parts = back.run(read_grad, weight, None)
            if needs_weight:
                outputs = does.line.own(does.size if does.transposed else does.result)
                geometry = back.geometry.of_part(does.axis, False, does.window)
                whole = x if does.transposed else grad
                pairs = parts if does.transposed else zip(ctx.parts, read, strict=True)
                for part, rows in pairs:
                    of_part = narrowed(whole, does.axis, part.wanted, outputs[0])
                    term = _weight_gradient(of_part, rows, weight, geometry)
                    grad_weight = term if grad_weight is None else grad_weight.add_(term)
                if grad_weight is None:
                    grad_weight = torch.zeros_like(weight)
            if needs_bias:
                spatial = len(does.geometry.stride)
                others = [d for d in range(grad.dim()) if d != grad.dim() - 1 - spatial]
                grad_bias = grad.sum(others)
        return grad_x if needs_x else None, grad_weight, grad_bias, None


def convolve(
    x: Tensor, weight: Tensor, bias: Tensor | None, axis: int, sizes: Rows, geometry: Geometry,
    line: Line,
) -> Tensor:  # fmt: skip
    """This rank's rows of a convolution's output.

    Args:
        x: This rank's rows of the input.
        weight: The filters, the same on each rank.
        bias: What is added to each channel, the same on each rank.
        axis: The dimension that is sharded, counted from the last.
        sizes: The rows of the whole input and of the whole output.
        geometry: The convolution's numbers.
        line: The ranks.
    """
    does = Pass(geometry, geometry.window(weight, axis), axis, geometry.transposed, *sizes, line)
    if not needs_gradient(x, weight, bias):
        return does.run(x, weight, bias)[0]
    return _Convolution.apply(x, weight, bias, does)  # type: ignore[no-any-return,no-untyped-call]


def output_size(size: int, window: Window, extra: int, transposed: bool) -> int:
    """The rows of a convolution's output."""
    if transposed:
        return (size - 1) * window.stride - 2 * window.padding + window.span + extra + 1
    return (size + 2 * window.padding - window.span - 1) // window.stride + 1


def values(given: int | Sequence[int], spatial: int) -> tuple[int, ...]:
    """An argument with a number for each spatial dimension."""
    if isinstance(given, int):
        return (given,) * spatial
    return tuple(given) * spatial if len(given) == 1 else tuple(given)
