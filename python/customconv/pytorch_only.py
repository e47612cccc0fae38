"""The operators by PyTorch alone, where no library of ours fits the installed PyTorch.

The schemas are those that the libraries register. The implementations are made of PyTorch's
operators, which bring their derivatives, autocast, shapes for tracing and all other rules.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from . import _bind
from .arguments import BATCH_OF, LAST, check_algorithm, check_fused

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of input, weight, bias
Implementation = Callable[..., Any]

_ACTIVATIONS: dict[str, Callable[[Tensor, float], Tensor]] = {
    "none": lambda y, slope: y,
    "relu": lambda y, slope: torch.relu(y),
    "relu6": lambda y, slope: torch.nn.functional.relu6(y),
    "leaky_relu": torch.nn.functional.leaky_relu,
    "sigmoid": lambda y, slope: torch.sigmoid(y),
    "hardsigmoid": lambda y, slope: torch.nn.functional.hardsigmoid(y),
    "silu": lambda y, slope: torch.nn.functional.silu(y),
    "hardswish": lambda y, slope: torch.nn.functional.hardswish(y),
    "gelu": lambda y, slope: torch.nn.functional.gelu(y),
    "gelu_tanh": lambda y, slope: torch.nn.functional.gelu(y, approximate="tanh"),
}
_reason = ""


def schemas(csrc: Path) -> list[str]:
    """The operators' schemas, as the sources of the libraries have them."""
    text = (csrc / "torch/operators.def").read_text(encoding="utf-8")
    calls = re.findall(r"^CUSTOMCONV_OPERATOR\((.*?)\)$", text, re.MULTILINE | re.DOTALL)
    literals = (re.findall(r'"((?:[^"\\]|\\.)*)"', call) for call in calls)
    return ["".join(parts).replace('\\"', '"') for parts in literals]


def register(csrc: Path, reason: str) -> torch.library.Library:
    """Registers all operators; they exist as long as what is returned.

    Args:
        csrc: The folder of the sources, of which the schemas are read.
        reason: Why there is no library, for the errors of calls that only kernels can compute.
    """
    global _reason
    _reason = reason
    library = torch.library.Library("customconv", "DEF")  # type: ignore[no-untyped-call]
    for schema in schemas(csrc):
        library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))  # type: ignore[no-untyped-call]
        name = schema.partition("(")[0]
        implementation = _IMPLEMENTATIONS[name.partition(".")[0]]
        for key in ("CompositeImplicitAutograd", "FuncTorchBatchedDecomposition"):
            library.impl(name, implementation, key)  # type: ignore[no-untyped-call]
    return library


def _check_algorithm(algorithm: str | None) -> None:
    """Raises where a family is asked for by name."""
    if algorithm not in (None, "auto", "aten"):
        check_algorithm("conv2d", algorithm)
        raise RuntimeError(f"algorithm {algorithm!r} cannot run: {_reason}")


def _check(algorithm: str | None, input: Tensor, weight: Tensor) -> None:
    """Raises where a family is asked for by name, or results that do not depend on the batch."""
    _check_algorithm(algorithm)
    if _bind.is_batch_invariant() and input.numel() and weight.numel():
        raise RuntimeError(
            "customconv is batch invariant, and only PyTorch can compute this call, which promises "
            f"no such thing: {_reason}; call it outside of customconv.batch_invariant()"
        )


def _convolution(convolve: Callable[..., Tensor]) -> Implementation:
    """An operator by PyTorch's function of the same arguments."""

    def implementation(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *geometry: Any,
        algorithm: str | None = None,
        **named: Any,
    ) -> Tensor:
        _check(algorithm, input, weight)
        return convolve(input, weight, bias, *geometry, **named)

    return implementation


def _finished(
    function: str,
    spatial: int,
    convolve: Any,
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
    activation: str,
    residual_last: bool,
    negative_slope: float,
) -> Tensor:
    """A convolution, and what a fused operator does to it."""
    if activation not in _ACTIVATIONS:
        known = ", ".join(map(repr, _ACTIVATIONS))
        raise ValueError(f"unknown activation {activation!r}: expected one of {known}")
    later = bias is not None and (scale is not None or bias.dtype != input.dtype)
    y: Tensor = convolve(input, weight, None if later else bias)
    check_fused(function, spatial, input, y, bias, scale, residual)
    dtype, per_channel = y.dtype, (-1, *[1] * spatial)
    if scale is not None:
        y = (y * scale.view(per_channel)).to(dtype)
    if later and bias is not None:
        y = (y + bias.view(per_channel)).to(dtype)
    if residual is not None and not residual_last:
        y = y + residual
    y = _ACTIVATIONS[activation](y, negative_slope)
    return y + residual if residual is not None and residual_last else y


def _fused(name: str, spatial: int, convolve: Implementation) -> Implementation:
    def implementation(
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *geometry: Any,
        scale: Tensor | None = None,
        residual: Tensor | None = None,
        activation: str = "none",
        residual_last: bool = False,
        negative_slope: float = 0.01,
        algorithm: str | None = None,
        **named: Any,
    ) -> Tensor:
        def plain(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
            output: Tensor = convolve(x, w, b, *geometry, algorithm=algorithm, **named)
            return output

        return _finished(
            name, spatial, plain, input, weight, bias, scale, residual, activation, residual_last,
            negative_slope,
        )  # fmt: skip

    return implementation


def _backward(
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    output_mask: Sequence[bool],
) -> Gradients:
    one = input.ndim == grad_output.ndim == weight.ndim - 1
    if one:
        grad_output, input = grad_output.unsqueeze(0), input.unsqueeze(0)
    channels = weight.shape[1] * groups if transposed else weight.shape[0]
    found = torch.ops.aten.convolution_backward.default(
        grad_output, input, weight, [channels], stride, padding, dilation, transposed,
        output_padding, groups, output_mask,
    )  # fmt: skip
    of_input, of_weight, of_bias = (
        each if asked else None for each, asked in zip(found, output_mask, strict=True)
    )
    return of_input.squeeze(0) if one and of_input is not None else of_input, of_weight, of_bias


def _conv_backward(
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
    _check(algorithm, input, weight)
    return _backward(
        grad_output, input, weight, stride, padding, dilation, False, [0] * (weight.ndim - 2),
        groups, output_mask,
    )  # fmt: skip


def _conv_transpose_backward(
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
    _check(algorithm, input, weight)
    return _backward(
        grad_output, input, weight, stride, padding, dilation, True, output_padding, groups,
        output_mask,
    )  # fmt: skip


def _statistics(name: str, spatial: int, convolve: Implementation) -> Implementation:
    def implementation(
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
        for running in (running_mean, running_var):
            if running is not None and running.shape != weight.shape[:1]:
                raise RuntimeError(f"{name}: expected running statistics of each channel")
        output: Tensor = convolve(input, weight, bias, stride, padding, dilation, groups)
        wide = output.to(torch.promote_types(output.dtype, torch.float32))
        others = (0, *range(2, output.ndim))
        variance, mean = torch.var_mean(wide, others, correction=0, keepdim=True)
        pixels = math.prod(output.shape[2:], start=output.shape[0])
        if running_mean is not None:
            running_mean.mul_(1 - momentum).add_(mean.view(-1), alpha=momentum)
        if running_var is not None:
            sample = variance.view(-1) * (pixels / (pixels - 1) if pixels != 1 else math.inf)
            running_var.mul_(1 - momentum).add_(sample, alpha=momentum)
        return output, variance, mean, (variance + eps).rsqrt()

    return implementation


def _fold_batch_norms(
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    biases: Sequence[Tensor | None],
    shifts: Sequence[Tensor | None],
    eps: Sequence[float],
) -> list[Tensor]:
    folded: list[Tensor] = []
    lists = (means, variances, weights, biases, shifts, eps)
    for mean, variance, weight, bias, shift, small in zip(*lists, strict=True):
        dtype = torch.promote_types(mean.dtype, torch.float32)
        scale = (variance.to(dtype) + small).rsqrt()
        if weight is not None:
            scale = scale * weight.to(dtype)
        moved = (-mean.to(dtype) if shift is None else shift.to(dtype) - mean.to(dtype)) * scale
        folded += [scale, moved if bias is None else moved + bias.to(dtype)]
    return folded


def _copy_parameters(
    parameters: Sequence[Tensor], dtype: torch.dtype, channels_last: bool
) -> list[Tensor]:
    return [
        each.to(
            dtype=dtype, copy=True,
            memory_format=LAST.get(each.ndim, torch.preserve_format) if channels_last
            else torch.preserve_format,
        )
        for each in parameters
    ]  # fmt: skip


def _describe_call(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    op: str,
    algorithm: str,
    transposed: bool,
    output_padding: Sequence[int],
) -> tuple[str, bool, str]:
    _check_algorithm(algorithm)
    with torch.no_grad():  # it raises where the arguments do not fit together
        if transposed:
            rest = (output_padding, groups, dilation)
            _TRANSPOSED[_spatial(weight)](input, weight, bias, stride, padding, *rest)
        else:
            _PLAIN[_spatial(weight)](input, weight, bias, stride, padding, dilation, groups)
    return "", False, _reason


def _spatial(weight: Tensor) -> int:
    """3 for volumes; for all else 2, whose function refuses a malformed weight."""
    return 3 if weight.ndim == 5 else 2


def _is_channels_last(input: Tensor, weight: Tensor) -> bool:
    last = LAST[_spatial(weight) + 2]
    return any(
        each.is_contiguous(memory_format=last) and not each.is_contiguous()
        for each in (input, weight)
    )


def _convolve_part(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    transposed: bool,
    output_padding: Sequence[int],
    groups: int,
    algorithm: str,
    output: Tensor,
    *_: Any,
) -> bool:
    """A part of images or volumes, by PyTorch."""
    _check(algorithm, input, weight)
    found = (
        _TRANSPOSED[_spatial(weight)](
            input, weight, bias, stride, padding, output_padding, groups, dilation
        )
        if transposed
        else _PLAIN[_spatial(weight)](input, weight, bias, stride, padding, dilation, groups)
    )
    output.copy_(found)
    return True


_PLAIN: dict[int, Callable[..., Tensor]] = {2: torch.conv2d, 3: torch.conv3d}
_TRANSPOSED: dict[int, Callable[..., Tensor]] = {
    2: torch.conv_transpose2d,
    3: torch.conv_transpose3d,
}


def _of_dimensions(spatial: int) -> dict[str, Implementation]:
    """The operators of images or of volumes."""
    name, transposed = f"conv{spatial}d", f"conv_transpose{spatial}d"
    plain, transpose = _convolution(_PLAIN[spatial]), _convolution(_TRANSPOSED[spatial])
    return {
        name: plain,
        f"{name}_fused": _fused(f"{name}_fused", spatial, plain),
        f"{name}_backward": _conv_backward,
        f"{name}_statistics": _statistics(f"{name}_statistics", spatial, plain),
        transposed: transpose,
        f"{transposed}_fused": _fused(f"{transposed}_fused", spatial, transpose),
        f"{transposed}_backward": _conv_transpose_backward,
    }


_IMPLEMENTATIONS: dict[str, Implementation] = {
    **_of_dimensions(2),
    **_of_dimensions(3),
    "fold_batch_norms": _fold_batch_norms,
    "copy_parameters": _copy_parameters,
    "_describe_call": _describe_call,
    "_is_channels_last": _is_channels_last,
    "_convolve_part": _convolve_part,
}
