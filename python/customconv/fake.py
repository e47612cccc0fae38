"""The operators on fake tensors: the shapes, types and strides of results, without their values.

``torch.compile`` and ``torch.export`` trace with these, and lay out memory by what they say: their
strides are those of the results at run time. Overloads that take padding as a word, or plain
integers, are made of the ones that are here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .arguments import check_fused

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of input, weight, bias


def _conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Tensor:
    # The output's shape and strides, and the errors, are PyTorch's own.
    output: Tensor = torch.ops.aten.conv2d.default(
        input, weight, bias, stride, padding, dilation, groups
    )
    return output


def _conv2d_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    dilation: Sequence[int] = (1, 1),
    groups: int = 1,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
    algorithm: str = "auto",
) -> Tensor:
    usual = _usual_bias(input, bias)
    output = _conv2d(input, weight, usual, stride, padding, dilation, groups)
    check_fused("conv2d_fused", input, output, bias, scale, residual)
    return output


def _usual_bias(input: Tensor, bias: Tensor | None) -> Tensor | None:
    """The bias, but for one in float32 beside images of 16 bits, which is not PyTorch's to add."""
    return bias if bias is None or bias.dtype == input.dtype else None


def _conv2d_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
    *,
    algorithm: str = "auto",
) -> Gradients:
    return _backward(grad_output, input, weight, output_mask, weight.shape[:1])


def _conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    output_padding: Sequence[int] = (0, 0),
    groups: int = 1,
    dilation: Sequence[int] = (1, 1),
    *,
    algorithm: str = "auto",
) -> Tensor:
    output: Tensor = torch.ops.aten.conv_transpose2d.input(
        input, weight, bias, stride, padding, output_padding, groups, dilation
    )
    return output


def _conv_transpose2d_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: Sequence[int] = (1, 1),
    padding: Sequence[int] = (0, 0),
    output_padding: Sequence[int] = (0, 0),
    groups: int = 1,
    dilation: Sequence[int] = (1, 1),
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
    algorithm: str = "auto",
) -> Tensor:
    usual = _usual_bias(input, bias)
    output = _conv_transpose2d(
        input, weight, usual, stride, padding, output_padding, groups, dilation
    )
    check_fused("conv_transpose2d_fused", input, output, bias, scale, residual)
    return output


def _conv_transpose2d_backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    output_padding: Sequence[int],
    groups: int,
    dilation: Sequence[int],
    output_mask: Sequence[bool],
    *,
    algorithm: str = "auto",
) -> Gradients:
    bias_shape = [weight.shape[1] * groups]
    return _backward(grad_output, input, weight, output_mask, bias_shape, transposed=True)


def _backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    output_mask: Sequence[bool],
    bias_shape: Sequence[int],
    *,
    transposed: bool = False,
) -> Gradients:
    if input.ndim == grad_output.ndim == 3:  # one image
        grad_input, grad_weight, grad_bias = _backward(
            grad_output.unsqueeze(0), input.unsqueeze(0), weight, output_mask, bias_shape,
            transposed=transposed,
        )  # fmt: skip
        return None if grad_input is None else grad_input.squeeze(0), grad_weight, grad_bias
    if not input.ndim == weight.ndim == grad_output.ndim == 4:
        # PyTorch's operator refuses these. Its shape function does so only in some releases.
        raise RuntimeError(
            "expected a 4-dimensional weight, and a grad_output and an input of 3 or 4 dimensions "
            f"both, but got {weight.ndim}, {grad_output.ndim} and {input.ndim}"
        )
    of_input, of_weight = _gradient_formats(grad_output, input, weight, output_mask, transposed)
    return (
        torch.empty_like(input, memory_format=of_input) if output_mask[0] else None,
        torch.empty_like(weight, memory_format=of_weight) if output_mask[1] else None,
        weight.new_empty(bias_shape) if output_mask[2] else None,
    )


def _gradient_formats(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    output_mask: Sequence[bool],
    transposed: bool,
) -> tuple[torch.memory_format, torch.memory_format]:
    """The memory formats of the gradients of input and weight, as PyTorch chooses them.

    They are the output's, but for tensors that are laid out in both formats at once, because sizes
    are one. Of these PyTorch copies none, and asks their strides again.
    """
    layout = _memory_format(input, weight)
    if _is_only_contiguous(input):
        return layout, layout
    dense = input.contiguous(memory_format=layout) if output_mask[1] else input
    if not input.is_cuda:
        either = _either(dense, weight.contiguous(memory_format=layout))
        return either, either
    of_input = suggest_memory_format(dense)
    if transposed:
        grad_output = grad_output.contiguous(memory_format=of_input)
    elif suggest_memory_format(grad_output) != of_input:
        grad_output = torch.empty_like(grad_output, memory_format=of_input)
    return _either(grad_output, weight), _either(dense, grad_output)


def _either(a: Tensor, b: Tensor) -> torch.memory_format:
    """Channels-last where one of the tensors suggests it."""
    if torch.channels_last in (suggest_memory_format(a), suggest_memory_format(b)):
        return torch.channels_last
    return torch.contiguous_format


def _conv2d_statistics(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    eps: float,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if input.ndim != 4:
        raise RuntimeError("conv2d_statistics: expected a batch of images")
    output = _conv2d(input, weight, bias, stride, padding, dilation, groups)
    for running in (running_mean, running_var):
        if running is not None and running.shape != output.shape[1:2]:
            raise RuntimeError("conv2d_statistics: expected running statistics of each channel")
    dtype = torch.promote_types(output.dtype, torch.float32)
    variance, mean, reciprocal_std = (
        output.new_empty((1, output.shape[1], 1, 1), dtype=dtype) for _ in range(3)
    )
    return output, variance, mean, reciprocal_std


def _fold_batch_norms(
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    biases: Sequence[Tensor | None],
    shifts: Sequence[Tensor | None],
    eps: Sequence[float],
) -> list[Tensor]:
    def vector(mean: Tensor) -> Tensor:
        return torch.empty_like(mean, dtype=torch.promote_types(mean.dtype, torch.float32))

    return [vector(mean) for mean in means for _ in ("scale", "shift")]


def _copy_parameters(
    parameters: Sequence[Tensor], dtype: torch.dtype, channels_last: bool
) -> list[Tensor]:
    def layout(parameter: Tensor) -> torch.memory_format:
        last = channels_last and parameter.ndim == 4
        return torch.channels_last if last else suggest_memory_format(parameter)

    return [
        torch.empty_like(parameter, dtype=dtype, memory_format=layout(parameter))
        for parameter in parameters
    ]


def _memory_format(input: Tensor, weight: Tensor) -> torch.memory_format:
    """The memory format of a convolution's results, as PyTorch chooses it for cuDNN and oneDNN."""
    return torch.contiguous_format if _is_only_contiguous(input) else _either(input, weight)


def _is_only_contiguous(input: Tensor) -> bool:
    """Only cuDNN is channels-last on CUDA, and in no double precision."""
    return input.is_cuda and (input.dtype == torch.float64 or not torch.backends.cudnn.enabled)


torch.library.register_fake("customconv::conv2d", _conv2d)
torch.library.register_fake("customconv::conv2d_fused", _conv2d_fused)
torch.library.register_fake("customconv::conv2d_backward", _conv2d_backward)
torch.library.register_fake("customconv::conv_transpose2d", _conv_transpose2d)
torch.library.register_fake("customconv::conv_transpose2d_fused", _conv_transpose2d_fused)
torch.library.register_fake("customconv::conv_transpose2d_backward", _conv_transpose2d_backward)
torch.library.register_fake("customconv::conv2d_statistics", _conv2d_statistics)
torch.library.register_fake("customconv::fold_batch_norms", _fold_batch_norms)
torch.library.register_fake("customconv::copy_parameters", _copy_parameters)
