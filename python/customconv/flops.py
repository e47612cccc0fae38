"""The operators' floating-point operations, for ``torch.utils.flop_counter.FlopCounterMode``."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils.flop_counter import conv_flop_count, register_flop_formula

Shape = list[int]


def _transposed(shape: Shape) -> Shape:
    return [shape[1], shape[0], *shape[2:]]


def _of_output(transposed: bool) -> Any:
    def count(input: Shape, weight: Shape, *_: Any, out_shape: Any = None, **__: Any) -> int:
        return conv_flop_count(input, weight, out_shape, transposed=transposed)

    return count


def _of_gradients(transposed: bool) -> Any:
    def count(
        grad_output: Shape, input: Shape, weight: Shape, *_: Any, out_shape: Any = None, **__: Any
    ) -> int:
        grad_input, grad_weight = out_shape[:2]
        total = 0
        if grad_input is not None:
            total += conv_flop_count(grad_output, weight, grad_input, transposed=not transposed)
        if grad_weight is not None:
            images, filters = (grad_output, input) if transposed else (input, grad_output)
            total += conv_flop_count(
                _transposed(images), _transposed(filters), _transposed(grad_weight)
            )
        return total

    return count


_ops = torch.ops.customconv
register_flop_formula([_ops.conv2d, _ops.conv2d_fused, _ops.conv3d, _ops.conv3d_fused])(
    _of_output(transposed=False)
)
register_flop_formula(
    [
        _ops.conv_transpose2d, _ops.conv_transpose2d_fused,
        _ops.conv_transpose3d, _ops.conv_transpose3d_fused,
    ]
)(_of_output(transposed=True))  # fmt: skip
register_flop_formula([_ops.conv2d_backward, _ops.conv3d_backward])(_of_gradients(transposed=False))
register_flop_formula([_ops.conv_transpose2d_backward, _ops.conv_transpose3d_backward])(
    _of_gradients(transposed=True)
)
