"""The operators as typed Python functions."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional


def conv2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    algorithm: str = "auto",
) -> Tensor:
    """Convolves a batch of images with a bank of filters, as ``torch.nn.functional.conv2d`` does.

    CUDA tensors of type float64, float32, float16 and bfloat16 are computed by this package's
    kernels, the last two with sums in float32. Everything else (CPU tensors, complex numbers and
    integers, other devices) is computed by PyTorch's own convolution. ``explain`` tells which
    computes what, and why. The memory format of the output is the one that PyTorch would choose.

    Args:
        input: The images, of shape (N, C, H, W), or (C, H, W) for one.
        weight: The filters, of shape (K, C / groups, R, S), with the input's type and device.
        bias: What is added to each output channel, of shape (K,), or None.
        stride: The step between two windows: one number, or one for each of height and width.
        padding: The zeros added to both sides of the image: one number, or one for each of height
            and width, or "valid" (none), or "same" (as many as keep the image's size, with a
            stride of 1).
        dilation: The step between two taps of a filter: one number, or one each.
        groups: The number of groups that the channels are split into; it divides both C and K.
        algorithm: "auto" chooses for this problem and device; "direct", "im2col", "tiled",
            "implicit_gemm", "depthwise" or "grouped" forces a family of this package's kernels, as
            does "col2im", which computes input gradients alone; "aten" forces PyTorch's own
            convolution. In the backward pass the forced family computes each gradient that it can.

    Returns:
        The output, of shape (N, K, P, Q), or (K, P, Q) for one image, of the input's type, where
        P = (H + 2 * padding - dilation * (R - 1) - 1) // stride + 1, and Q likewise from W and S.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv2d`` has for it; or the forced family cannot compute this
            problem, with its reason.
        ValueError: There is no algorithm of that name.
    """
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        # By its name: trying the other overload first would cost more than the call itself.
        convolve = torch.ops.customconv.conv2d.padding
    else:
        convolve, padding = torch.ops.customconv.conv2d.default, _pair(padding)
    output: Tensor = convolve(
        input, weight, bias, stride, padding, dilation, groups, algorithm=algorithm
    )
    return output


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
        bias: What is added to each output channel, after the scale, of shape (K,), or None.
        stride: As in ``conv2d``.
        padding: As in ``conv2d``.
        dilation: As in ``conv2d``.
        groups: As in ``conv2d``.
        scale: What each output channel is multiplied by, of shape (K,), or None. A batch
            normalization with fixed statistics is a scale and a bias.
        residual: What is added to the output, of its shape, or None. It is fused where it has the
            output's memory format too.
        activation: "none", "relu", "silu", "gelu" (by the error function), "hardswish" or
            "leaky_relu", as in ``torch.nn.functional``.
        residual_last: Whether the residual is added after the activation, and not before.
        negative_slope: The slope of "leaky_relu" below zero.
        algorithm: As in ``conv2d``.

    Returns:
        The output, as ``conv2d`` gives it.

    Raises:
        RuntimeError: As in ``conv2d``; or scale or residual have not the shape, type and device
            that they must have.
        ValueError: There is no algorithm, or no activation, of that name.
    """
    stride, dilation = _pair(stride), _pair(dilation)
    if isinstance(padding, str):
        input, padding = numbered_padding(padding, input, weight, dilation)
    output: Tensor = torch.ops.customconv.conv2d_fused.default(
        input, weight, bias, stride, _pair(padding), dilation, groups, scale=scale,
        residual=residual, activation=activation, residual_last=residual_last,
        negative_slope=negative_slope, algorithm=algorithm,
    )  # fmt: skip
    return output


def conv_transpose2d(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] = 0,
    output_padding: int | Sequence[int] = 0,
    groups: int = 1,
    dilation: int | Sequence[int] = 1,
    *,
    algorithm: str = "auto",
) -> Tensor:
    """Transposes a convolution, as ``torch.nn.functional.conv_transpose2d`` does.

    The output is the gradient that ``conv2d`` with this weight has in its input where ``input`` is
    the gradient of its output; kernels compute it as that. Types, devices and the output's memory
    format are as in ``conv2d``. PyTorch computes it where output_padding is not below the stride.

    Args:
        input: The images, of shape (N, K, P, Q), or (K, P, Q) for one.
        weight: The filters, of shape (K, C / groups, R, S), with the input's type and device.
        bias: What is added to each output channel, of shape (C,), or None.
        stride: The step between two windows of the output: one number, or one for each of height
            and width.
        padding: How much of both sides of the output is cut off: one number, or one each.
        output_padding: How much is added below and to the right: one number, or one each.
        groups: The number of groups that the channels are split into; it divides both K and C.
        dilation: The step between two taps of a filter: one number, or one each.
        algorithm: As in ``conv2d``; a forced family computes the input's gradient of ``conv2d``.

    Returns:
        The output, of shape (N, C, H, W), or (C, H, W) for one image, of the input's type, where
        H = (P - 1) * stride - 2 * padding + dilation * (R - 1) + output_padding + 1, and W likewise
        from Q and S.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv_transpose2d`` has for it; or the forced family cannot compute
            this problem, with its reason.
        ValueError: There is no algorithm of that name.
    """
    output: Tensor = torch.ops.customconv.conv_transpose2d.default(
        input, weight, bias, _pair(stride), _pair(padding), _pair(output_padding), groups,
        _pair(dilation), algorithm=algorithm,
    )  # fmt: skip
    return output


def numbered_padding(
    name: str, input: Tensor, weight: Tensor, dilation: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """Padding by name in numbers; where "same" is uneven, the odd row or column is padded first."""
    if name == "valid":
        return input, [0, 0]
    if name != "same":
        raise ValueError(f"padding must be numbers, 'same' or 'valid', but is {name!r}")
    total = [d * (size - 1) for d, size in zip(dilation, weight.shape[2:], strict=False)]
    if any(t % 2 for t in total):
        input = functional.pad(input, [0, total[1] % 2, 0, total[0] % 2])
    return input, [t // 2 for t in total]


def _pair(value: int | Sequence[int]) -> Sequence[int]:
    """One number as two: operators take lists, unlike ``torch.nn.functional``'s functions."""
    return (value, value) if isinstance(value, (int, torch.SymInt)) else value
