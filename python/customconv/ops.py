"""The operator as a typed Python function."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


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
        algorithm: "auto" chooses for this problem and device; "direct", "im2col" or "tiled" forces
            a family of this package's kernels; "aten" forces PyTorch's own convolution. In the
            backward pass the forced family computes each gradient that it can.

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


def _pair(value: int | Sequence[int]) -> Sequence[int]:
    """One number as two: operators take lists, unlike ``torch.nn.functional``'s functions."""
    return (value, value) if isinstance(value, (int, torch.SymInt)) else value
