"""The fused operators as typed Python functions, whose arguments are read as those of ``ops``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.fx import Proxy

from .arguments import (
    ERRORS,
    as_proxy,
    is_integer,
    numbered_padding,
    pair,
    pytorchs_error,
    settled,
    triple,
    wrong_option,
)

# Looked up once: the path through torch.ops costs as much as the checks of the arguments.
_CONV2D_FUSED = torch.ops.customconv.conv2d_fused.default
_CONV3D_FUSED = torch.ops.customconv.conv3d_fused.default
_CONV_TRANSPOSE2D_FUSED = torch.ops.customconv.conv_transpose2d_fused.default
_CONV_TRANSPOSE3D_FUSED = torch.ops.customconv.conv_transpose3d_fused.default


def conv2d_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
    algorithm: str = "auto",
) -> Tensor:
    """Convolves, and does what often follows before the output is written.

    The output is ``activation(scale * conv2d(input, weight) + bias + residual)``, or with
    ``residual_last`` ``activation(scale * conv2d(input, weight) + bias) + residual``. Kernels that
    fuse this (families ``implicit_gemm``, ``depthwise`` and ``grouped``) compute it in float32 and
    round once; otherwise the same is composed of ``conv2d`` and PyTorch's operators. With
    ``CUSTOMCONV_LOG=plan`` in the environment the line of a fused call says "epilogue". Gradients
    keep the arguments, and the output where the activation's derivative follows from it; else the
    backward pass convolves once more.

    Args:
        input: As in ``conv2d``.
        weight: As in ``conv2d``.
        bias: What is added to each output channel, after the scale, of shape (K,), or None. It may
            be float32 where the input has 16 bits.
        stride: As in ``conv2d``.
        padding: As in ``conv2d``.
        dilation: As in ``conv2d``.
        groups: As in ``conv2d``.
        scale: What each output channel is multiplied by, of shape (K,), or None. A batch
            normalization with fixed statistics is a scale and a bias. It may be float32 where the
            input has 16 bits.
        residual: What is added to the output, of its shape, or None. It is fused where it has the
            output's memory format too.
        activation: "none", "relu", "relu6", "leaky_relu", "sigmoid", "hardsigmoid", "silu",
            "hardswish", "gelu" (by the error function) or "gelu_tanh", as in
            ``torch.nn.functional``.
        residual_last: Whether the residual is added after the activation, and not before.
        negative_slope: The slope of "leaky_relu" below zero.
        algorithm: As in ``conv2d``.

    Returns:
        The output, as ``conv2d`` gives it.

    Raises:
        RuntimeError: As in ``conv2d``; or scale or residual have not the shape, type and device
            that they must have.
        TypeError: As in ``conv2d``.
        ValueError: There is no algorithm, or no activation, of that name.
    """
    strides, dilations = pair(stride), pair(dilation)
    paddings = padding if type(padding) is str else pair(padding)
    if strides is None or paddings is None or dilations is None or not is_integer(groups):
        return settled(
            conv2d_fused, torch.conv2d, input, weight, bias, stride, padding, dilation, groups,
            scale=scale, residual=residual, activation=activation, residual_last=residual_last,
            negative_slope=negative_slope, algorithm=algorithm,
        )  # fmt: skip
    image = input
    try:
        if isinstance(paddings, str):
            if isinstance(weight, Proxy):
                return as_proxy(
                    conv2d_fused, input, weight, bias, stride, padding, dilation, groups,
                    scale=scale, residual=residual, activation=activation,
                    residual_last=residual_last, negative_slope=negative_slope,
                    algorithm=algorithm,
                )  # fmt: skip
            image, paddings = numbered_padding(paddings, input, weight, strides, dilations)
        output: Tensor = _CONV2D_FUSED(
            image, weight, bias, strides, paddings, dilations, groups, scale=scale,
            residual=residual, activation=activation, residual_last=residual_last,
            negative_slope=negative_slope, algorithm=algorithm,
        )  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, dilation, groups
        if other := pytorchs_error(error, algorithm, torch.conv2d, *arguments):
            raise other from None
        if wrong := wrong_option(
            "conv2d_fused", scale=scale, residual=residual, activation=activation,
            residual_last=residual_last, negative_slope=negative_slope,
        ):  # fmt: skip
            raise wrong from None
        raise
    return output


def conv3d_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
    algorithm: str = "auto",
) -> Tensor:
    """Convolves volumes, and does what often follows before the output is written.

    The output is ``activation(scale * conv3d(input, weight) + bias + residual)``, or with
    ``residual_last`` ``activation(scale * conv3d(input, weight) + bias) + residual``. Kernels that
    fuse this compute it in float32 and round once; otherwise the same is composed of ``conv3d`` and
    PyTorch's operators. With ``CUSTOMCONV_LOG=plan`` in the environment the line of a fused call
    says "epilogue". Gradients keep what those of ``conv2d_fused`` keep.

    Args:
        input: As in ``conv3d``.
        weight: As in ``conv3d``.
        bias: What is added to each output channel, after the scale, of shape (K,), or None. It may
            be float32 where the input has 16 bits.
        stride: As in ``conv3d``.
        padding: As in ``conv3d``.
        dilation: As in ``conv3d``.
        groups: As in ``conv3d``.
        scale: What each output channel is multiplied by, of shape (K,), or None. A batch
            normalization with fixed statistics is a scale and a bias. It may be float32 where the
            input has 16 bits.
        residual: What is added to the output, of its shape, or None. It is fused where it has the
            output's memory format too.
        activation: As in ``conv2d_fused``.
        residual_last: Whether the residual is added after the activation, and not before.
        negative_slope: The slope of "leaky_relu" below zero.
        algorithm: As in ``conv3d``.

    Returns:
        The output, as ``conv3d`` gives it.

    Raises:
        RuntimeError: As in ``conv3d``; or scale or residual have not the shape, type and device
            that they must have.
        TypeError: As in ``conv3d``.
        ValueError: There is no algorithm, or no activation, of that name.
    """
    strides, dilations = triple(stride), triple(dilation)
    paddings = padding if type(padding) is str else triple(padding)
    if strides is None or paddings is None or dilations is None or not is_integer(groups):
        return settled(
            conv3d_fused, torch.conv3d, input, weight, bias, stride, padding, dilation, groups,
            scale=scale, residual=residual, activation=activation, residual_last=residual_last,
            negative_slope=negative_slope, algorithm=algorithm,
        )  # fmt: skip
    image = input
    try:
        if isinstance(paddings, str):
            if isinstance(weight, Proxy):
                return as_proxy(
                    conv3d_fused, input, weight, bias, stride, padding, dilation, groups,
                    scale=scale, residual=residual, activation=activation,
                    residual_last=residual_last, negative_slope=negative_slope,
                    algorithm=algorithm,
                )  # fmt: skip
            image, paddings = numbered_padding(paddings, input, weight, strides, dilations)
        output: Tensor = _CONV3D_FUSED(
            image, weight, bias, strides, paddings, dilations, groups, scale=scale,
            residual=residual, activation=activation, residual_last=residual_last,
            negative_slope=negative_slope, algorithm=algorithm,
        )  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, dilation, groups
        if other := pytorchs_error(error, algorithm, torch.conv3d, *arguments):
            raise other from None
        if wrong := wrong_option(
            "conv3d_fused", scale=scale, residual=residual, activation=activation,
            residual_last=residual_last, negative_slope=negative_slope,
        ):  # fmt: skip
            raise wrong from None
        raise
    return output


def conv_transpose2d_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
    algorithm: str = "auto",
) -> Tensor:
    """Transposes a convolution, and does what often follows before the output is written.

    With y for ``conv_transpose2d(input, weight)`` the output is ``activation(scale * y + bias +
    residual)``, or with ``residual_last`` ``activation(scale * y + bias) + residual``. On Hopper,
    kernels of ``implicit_gemm`` compute it in float32 and round once; where they first store parts
    of the image apart from each other, they round twice, or leave the rest to PyTorch. Otherwise
    the same is composed of ``conv_transpose2d`` and PyTorch's operators. With
    ``CUSTOMCONV_LOG=plan`` in the environment the line of a fused call says "epilogue". Gradients
    keep what those of ``conv2d_fused`` keep.

    Args:
        input: As in ``conv_transpose2d``.
        weight: As in ``conv_transpose2d``.
        bias: What is added to each output channel, after the scale, of shape (C,), or None. It may
            be float32 where the input has 16 bits.
        stride: As in ``conv_transpose2d``.
        padding: As in ``conv_transpose2d``.
        output_padding: As in ``conv_transpose2d``.
        groups: As in ``conv_transpose2d``.
        dilation: As in ``conv_transpose2d``.
        scale: What each output channel is multiplied by, of shape (C,), or None. A batch
            normalization with fixed statistics is a scale and a bias. It may be float32 where the
            input has 16 bits.
        residual: What is added to the output, of its shape, or None. It is fused where it has the
            output's memory format too, and the kernels store no parts apart.
        activation: As in ``conv2d_fused``.
        residual_last: Whether the residual is added after the activation, and not before.
        negative_slope: The slope of "leaky_relu" below zero.
        algorithm: As in ``conv_transpose2d``.

    Returns:
        The output, as ``conv_transpose2d`` gives it.

    Raises:
        RuntimeError: As in ``conv_transpose2d``; or scale or residual have not the shape, type and
            device that they must have.
        TypeError: As in ``conv_transpose2d``.
        ValueError: There is no algorithm, or no activation, of that name.
    """
    strides, paddings, dilations = pair(stride), pair(padding), pair(dilation)
    output_paddings = pair(output_padding)
    if (
        strides is None
        or paddings is None
        or output_paddings is None
        or dilations is None
        or not is_integer(groups)
    ):
        return settled(
            conv_transpose2d_fused, torch.conv_transpose2d, input, weight, bias, stride, padding,
            output_padding, groups, dilation, scale=scale, residual=residual,
            activation=activation, residual_last=residual_last, negative_slope=negative_slope,
            algorithm=algorithm,
        )  # fmt: skip
    try:
        output: Tensor = _CONV_TRANSPOSE2D_FUSED(
            input, weight, bias, strides, paddings, output_paddings, groups, dilations,
            scale=scale, residual=residual, activation=activation, residual_last=residual_last,
            negative_slope=negative_slope, algorithm=algorithm,
        )  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, output_padding, groups, dilation
        if other := pytorchs_error(error, algorithm, torch.conv_transpose2d, *arguments):
            raise other from None
        if wrong := wrong_option(
            "conv_transpose2d_fused", scale=scale, residual=residual, activation=activation,
            residual_last=residual_last, negative_slope=negative_slope,
        ):  # fmt: skip
            raise wrong from None
        raise
    return output


def conv_transpose3d_fused(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
    algorithm: str = "auto",
) -> Tensor:
    """Transposes a convolution of volumes, and does what often follows before it is written.

    With y for ``conv_transpose3d(input, weight)`` the output is ``activation(scale * y + bias +
    residual)``, or with ``residual_last`` ``activation(scale * y + bias) + residual``. Kernels that
    fuse this compute it in float32, as those of ``conv_transpose2d_fused`` do; otherwise the same
    is composed of ``conv_transpose3d`` and PyTorch's operators. With ``CUSTOMCONV_LOG=plan`` in the
    environment the line of a fused call says "epilogue". Gradients keep what those of
    ``conv2d_fused`` keep.

    Args:
        input: As in ``conv_transpose3d``.
        weight: As in ``conv_transpose3d``.
        bias: What is added to each output channel, after the scale, of shape (C,), or None. It may
            be float32 where the input has 16 bits.
        stride: As in ``conv_transpose3d``.
        padding: As in ``conv_transpose3d``.
        output_padding: As in ``conv_transpose3d``.
        groups: As in ``conv_transpose3d``.
        dilation: As in ``conv_transpose3d``.
        scale: What each output channel is multiplied by, of shape (C,), or None. A batch
            normalization with fixed statistics is a scale and a bias. It may be float32 where the
            input has 16 bits.
        residual: What is added to the output, of its shape, or None. It is fused where it has the
            output's memory format too, and the kernels store no parts apart.
        activation: As in ``conv2d_fused``.
        residual_last: Whether the residual is added after the activation, and not before.
        negative_slope: The slope of "leaky_relu" below zero.
        algorithm: As in ``conv_transpose3d``.

    Returns:
        The output, as ``conv_transpose3d`` gives it.

    Raises:
        RuntimeError: As in ``conv_transpose3d``; or scale or residual have not the shape, type and
            device that they must have.
        TypeError: As in ``conv_transpose3d``.
        ValueError: There is no algorithm, or no activation, of that name.
    """
    strides, paddings, dilations = triple(stride), triple(padding), triple(dilation)
    output_paddings = triple(output_padding)
    if (
        strides is None
        or paddings is None
        or output_paddings is None
        or dilations is None
        or not is_integer(groups)
    ):
        return settled(
            conv_transpose3d_fused, torch.conv_transpose3d, input, weight, bias, stride, padding,
            output_padding, groups, dilation, scale=scale, residual=residual,
            activation=activation, residual_last=residual_last, negative_slope=negative_slope,
            algorithm=algorithm,
        )  # fmt: skip
    try:
        output: Tensor = _CONV_TRANSPOSE3D_FUSED(
            input, weight, bias, strides, paddings, output_paddings, groups, dilations,
            scale=scale, residual=residual, activation=activation, residual_last=residual_last,
            negative_slope=negative_slope, algorithm=algorithm,
        )  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, output_padding, groups, dilation
        if other := pytorchs_error(error, algorithm, torch.conv_transpose3d, *arguments):
            raise other from None
        if wrong := wrong_option(
            "conv_transpose3d_fused", scale=scale, residual=residual, activation=activation,
            residual_last=residual_last, negative_slope=negative_slope,
        ):  # fmt: skip
            raise wrong from None
        raise
    return output
