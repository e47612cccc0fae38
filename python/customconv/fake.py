"""The operators on fake tensors: the shapes, types and strides of results, without their values.

``torch.compile`` and ``torch.export`` trace with these, and lay out memory by what they say: their
strides are those of the results at run time. Overloads that take padding as a word, or plain
integers, are made of the ones that are here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._prims_common import suggest_memory_format

from .arguments import BATCH_OF, LAST, check_fused

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of input, weight, bias


def _convolution(convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """The output's shape and strides, and the errors, are those of PyTorch's operator."""

    def fake(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *geometry: Any,  # without what equals the defaults at the end
        algorithm: str = "auto",
    ) -> Tensor:
        return convolve(input, weight, bias, *geometry)

    return fake


def _fused(name: str, spatial: int, convolve: Callable[..., Tensor]) -> Callable[..., Tensor]:
    """What a fused operator adds is of the output's shape, and changes none."""

    def fake(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *geometry: Any,
        scale: Tensor | None = None,
        residual: Tensor | None = None,
        activation: str = "none",
        residual_last: bool = False,
        negative_slope: float = 0.01,
        algorithm: str = "auto",
    ) -> Tensor:
        # A bias in float32 beside images of 16 bits is not PyTorch's to add.
        usual = bias if bias is None or bias.dtype == input.dtype else None
        output = convolve(input, weight, usual, *geometry)
        check_fused(name, spatial, input, output, bias, scale, residual)
        return output

    return fake


def _conv_backward(spatial: int) -> Callable[..., Gradients]:
    def fake(
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
        return _backward(
            spatial, grad_output, input, weight, weight.shape[:1], stride, padding, dilation, False,
            [0] * spatial, groups, output_mask,
        )  # fmt: skip

    return fake


def _conv_transpose_backward(spatial: int) -> Callable[..., Gradients]:
    def fake(
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
        return _backward(
            spatial, grad_output, input, weight, [weight.shape[1] * groups], stride, padding,
            dilation, True, output_padding, groups, output_mask,
        )  # fmt: skip

    return fake


def _backward(
    spatial: int,
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    bias_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Gradients:
    is_one = input.ndim == grad_output.ndim == spatial + 1
    if is_one:  # one image
        grad_output, input = grad_output.unsqueeze(0), input.unsqueeze(0)
    if not input.ndim == weight.ndim == grad_output.ndim == spatial + 2:
        # PyTorch's operator refuses these. Its shape function does so only in some releases.
        raise RuntimeError(
            f"expected a {spatial + 2}-dimensional weight, and a grad_output and an input of "
            f"{spatial + 1} or {spatial + 2} dimensions both, but got {weight.ndim}, "
            f"{grad_output.ndim} and {input.ndim}"
        )
    found: Gradients
    geometry = (stride, padding, dilation, transposed, output_padding, groups)
    if spatial == 3 and not input.is_cuda and not _is_empty(input):
        found = torch.ops.aten.convolution_backward.default(
            grad_output, input, weight, bias_shape, *geometry, output_mask
        )
    else:
        if _is_empty(input):
            formats = (torch.preserve_format, torch.preserve_format)
        else:
            layout, only_contiguous = _results_format(input, weight, bias_shape, *geometry)
            formats = _gradient_formats(
                grad_output, input, weight, output_mask, transposed, layout, only_contiguous
            )
        found = (
            torch.empty_like(input, memory_format=formats[0]) if output_mask[0] else None,
            torch.empty_like(weight, memory_format=formats[1]) if output_mask[1] else None,
            weight.new_empty(bias_shape) if output_mask[2] else None,
        )
    if is_one and found[0] is not None:
        return found[0].squeeze(0), *found[1:]
    return found


def _results_format(
    input: Tensor,
    weight: Tensor,
    bias_shape: Sequence[int],
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
) -> tuple[torch.memory_format, bool]:
    """The format of what a convolution writes, and whether PyTorch's own results have no other."""
    if weight.ndim == 4:
        return _memory_format(input, weight), _is_only_contiguous(input)
    backend = torch._C._select_conv_backend(
        input, weight, None, stride, padding, dilation, transposed, output_padding, groups,
        bias_shape,
    )  # fmt: skip
    layout = torch._C._conv_determine_backend_memory_format(input, weight, backend)
    by_cudnn = backend.name in ("Cudnn", "CudnnTranspose")
    return layout, _is_only_contiguous(input) or not by_cudnn


def _is_empty(input: Tensor) -> bool:
    """Whether PyTorch computes nothing, for which its shape function tells other strides."""
    return any(isinstance(size, int) and size == 0 for size in input.shape[:2])


def _gradient_formats(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    output_mask: Sequence[bool],
    transposed: bool,
    layout: torch.memory_format,
    only_contiguous: bool,
) -> tuple[torch.memory_format, torch.memory_format]:
    """The memory formats of the gradients of an image and a weight, as PyTorch chooses them.

    They are the output's, but for tensors that are laid out in both formats at once, because sizes
    are one. Of these PyTorch copies none, and asks their strides again.
    """
    if only_contiguous:
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
    last = LAST[a.ndim]
    if last in (suggest_memory_format(a), suggest_memory_format(b)):
        return last
    return torch.contiguous_format


def _statistics(name: str, spatial: int) -> Callable[..., tuple[Tensor, ...]]:
    convolve = getattr(torch.ops.aten, f"conv{spatial}d").default

    def fake(
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
        if input.ndim != spatial + 2:
            raise RuntimeError(f"{name}: expected a batch of {BATCH_OF[spatial]}")
        output: Tensor = convolve(input, weight, bias, stride, padding, dilation, groups)
        for running in (running_mean, running_var):
            if running is not None and running.shape != output.shape[1:2]:
                raise RuntimeError(f"{name}: expected running statistics of each channel")
        dtype = torch.promote_types(output.dtype, torch.float32)
        variance, mean, reciprocal_std = (
            output.new_empty((1, output.shape[1], *[1] * spatial), dtype=dtype) for _ in range(3)
        )
        return output, variance, mean, reciprocal_std

    return fake


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
        last = LAST.get(parameter.ndim) if channels_last else None
        return suggest_memory_format(parameter) if last is None else last

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


for _spatial in (2, 3):
    _name = f"conv{_spatial}d"
    _backwards = f"conv_transpose{_spatial}d"
    _convolve = _convolution(getattr(torch.ops.aten, _name).default)
    _transpose = _convolution(getattr(torch.ops.aten, _backwards).input)
    for _operator, _fake in {
        _name: _convolve,
        f"{_name}_fused": _fused(f"{_name}_fused", _spatial, _convolve),
        f"{_name}_backward": _conv_backward(_spatial),
        f"{_name}_statistics": _statistics(f"{_name}_statistics", _spatial),
        _backwards: _transpose,
        f"{_backwards}_fused": _fused(f"{_backwards}_fused", _spatial, _transpose),
        f"{_backwards}_backward": _conv_transpose_backward(_spatial),
    }.items():
        torch.library.register_fake(f"customconv::{_operator}", _fake)
torch.library.register_fake("customconv::fold_batch_norms", _fold_batch_norms)
torch.library.register_fake("customconv::copy_parameters", _copy_parameters)
