"""The operators as typed Python functions.

PyTorch parses the arguments of ``torch.ops`` by other rules than those of its functions: it takes
a boolean for an integer, refuses NumPy's integers, and says RuntimeError where functions say
TypeError. The functions here follow PyTorch's functions. Plain integers, and lists and tuples of
them, go straight to the operator; any other argument is first shown to PyTorch's function, with
tensors that hold no image, and so is a call that the operator has refused.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .arguments import (
    ERRORS,
    after,
    is_integer,
    pair,
    pytorchs_error,
    settled,
    triple,
)

# Looked up once: the path through torch.ops costs as much as the checks of the arguments.
_CONV2D = torch.ops.customconv.conv2d.default
_CONV2D_PADDING = torch.ops.customconv.conv2d.padding
_CONV_TRANSPOSE2D = torch.ops.customconv.conv_transpose2d.default
_CONV3D = torch.ops.customconv.conv3d.default
_CONV3D_PADDING = torch.ops.customconv.conv3d.padding
_CONV_TRANSPOSE3D = torch.ops.customconv.conv_transpose3d.default


def conv1d(
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
    """Convolves a batch of signals with a bank of filters, as ``torch.nn.functional.conv1d`` does.

    It is ``conv2d`` with a height of one, as in PyTorch. Types, devices and the strides of the
    output are those of ``torch.nn.functional.conv1d``.

    Args:
        input: The signals, of shape (N, C, L), or (C, L) for one.
        weight: The filters, of shape (K, C / groups, R), with the input's type and device.
        bias: What is added to each output channel, of shape (K,), or None.
        stride: The step between two windows.
        padding: The zeros added to both ends of the signal, or "valid" (none), or "same" (as many
            as keep the signal's length, with a stride of 1).
        dilation: The step between two taps of a filter.
        groups: The number of groups that the channels are split into; it divides both C and K.
        algorithm: As in ``conv2d``.

    Returns:
        The output, of shape (N, K, Q), or (K, Q) for one signal, of the input's type, where
        Q = (L + 2 * padding - dilation * (R - 1) - 1) // stride + 1.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv1d`` has for it; or the forced family cannot compute this
            problem, with its reason.
        TypeError: An argument is not of its type, with the words of PyTorch's function.
        ValueError: There is no algorithm of that name.
    """
    strides, dilations = after(1, stride), after(1, dilation)
    paddings = padding if type(padding) is str else after(0, padding)
    if strides is None or paddings is None or dilations is None or not is_integer(groups):
        return settled(
            conv1d, torch.conv1d, input, weight, bias, stride, padding, dilation, groups,
            algorithm=algorithm,
        )  # fmt: skip
    try:
        # PyTorch makes the input contiguous, too: a height of one makes memory formats ambiguous.
        image, filters = input.contiguous().unsqueeze(-2), weight.unsqueeze(-2)
        convolve = _CONV2D_PADDING if type(paddings) is str else _CONV2D
        output: Tensor = convolve(
            image, filters, bias, strides, paddings, dilations, groups, algorithm=algorithm
        ).squeeze(-2)
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, dilation, groups
        if other := pytorchs_error(error, algorithm, torch.conv1d, *arguments):
            raise other from None
        raise
    return output


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
            convolution. What is asked for by name is done or refused: where the family cannot
            compute the call, and so on the CPU, it raises. In the backward pass the forced family
            computes each gradient that it can.

    Returns:
        The output, of shape (N, K, P, Q), or (K, P, Q) for one image, of the input's type, where
        P = (H + 2 * padding - dilation * (R - 1) - 1) // stride + 1, and Q likewise from W and S.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv2d`` has for it; or the forced family cannot compute this
            problem, with its reason.
        TypeError: An argument is not of its type, with the words of PyTorch's function.
        ValueError: There is no algorithm of that name.
    """
    strides, dilations = pair(stride), pair(dilation)
    paddings = padding if type(padding) is str else pair(padding)
    if strides is None or paddings is None or dilations is None or not is_integer(groups):
        return settled(
            conv2d, torch.conv2d, input, weight, bias, stride, padding, dilation, groups,
            algorithm=algorithm,
        )  # fmt: skip
    # By its name: trying the other overload first would cost more than the call itself.
    convolve = _CONV2D_PADDING if type(paddings) is str else _CONV2D
    try:
        output: Tensor = convolve(
            input, weight, bias, strides, paddings, dilations, groups, algorithm=algorithm
        )
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, dilation, groups
        if other := pytorchs_error(error, algorithm, torch.conv2d, *arguments):
            raise other from None
        raise
    return output


def conv3d(
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
    """Convolves a batch of volumes with a bank of filters, as ``torch.nn.functional.conv3d`` does.

    A volume is an image with a depth, such as the frames of a video or the slices of a scan. Types
    and devices are those of ``conv2d``: CUDA tensors of type float64, float32, float16 and bfloat16
    are computed by this package's kernels, the last two with sums in float32, and everything else
    by PyTorch's own convolution, as is what PyTorch computes faster. ``explain`` tells which
    computes what, and why. The memory format of the output, contiguous or
    ``torch.channels_last_3d``, is the one that PyTorch would choose.

    Args:
        input: The volumes, of shape (N, C, D, H, W), or (C, D, H, W) for one.
        weight: The filters, of shape (K, C / groups, T, R, S), with the input's type and device.
        bias: What is added to each output channel, of shape (K,), or None.
        stride: The step between two windows: one number, or one for each of depth, height and
            width.
        padding: The zeros added to both sides of the volume: one number, or one for each of depth,
            height and width, or "valid" (none), or "same" (as many as keep the volume's size, with
            a stride of 1).
        dilation: The step between two taps of a filter: one number, or one each.
        groups: The number of groups that the channels are split into; it divides both C and K.
        algorithm: As in ``conv2d``. A family of kernels takes some volumes, or all, or none;
            "direct" takes all.

    Returns:
        The output, of shape (N, K, O, P, Q), or (K, O, P, Q) for one volume, of the input's type,
        where O = (D + 2 * padding - dilation * (T - 1) - 1) // stride + 1, and P and Q likewise
        from H and R and from W and S.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv3d`` has for it; or the forced family cannot compute this
            problem, with its reason.
        TypeError: An argument is not of its type, with the words of PyTorch's function.
        ValueError: There is no algorithm of that name.
    """
    strides, dilations = triple(stride), triple(dilation)
    paddings = padding if type(padding) is str else triple(padding)
    if strides is None or paddings is None or dilations is None or not is_integer(groups):
        return settled(
            conv3d, torch.conv3d, input, weight, bias, stride, padding, dilation, groups,
            algorithm=algorithm,
        )  # fmt: skip
    # By its name: trying the other overload first would cost more than the call itself.
    convolve = _CONV3D_PADDING if type(paddings) is str else _CONV3D
    try:
        output: Tensor = convolve(
            input, weight, bias, strides, paddings, dilations, groups, algorithm=algorithm
        )
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, dilation, groups
        if other := pytorchs_error(error, algorithm, torch.conv3d, *arguments):
            raise other from None
        raise
    return output


def conv_transpose1d(
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
    """Transposes a convolution of signals, as ``torch.nn.functional.conv_transpose1d`` does.

    It is ``conv_transpose2d`` with a height of one, as in PyTorch. Types, devices and the strides
    of the output are those of ``torch.nn.functional.conv_transpose1d``.

    Args:
        input: The signals, of shape (N, K, Q), or (K, Q) for one.
        weight: The filters, of shape (K, C / groups, R), with the input's type and device.
        bias: What is added to each output channel, of shape (C,), or None.
        stride: The step between two windows of the output.
        padding: How much of both ends of the output is cut off.
        output_padding: How much is added at the end.
        groups: The number of groups that the channels are split into; it divides both K and C.
        dilation: The step between two taps of a filter.
        algorithm: As in ``conv_transpose2d``.

    Returns:
        The output, of shape (N, C, L), or (C, L) for one signal, of the input's type, where
        L = (Q - 1) * stride - 2 * padding + dilation * (R - 1) + output_padding + 1.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv_transpose1d`` has for it; or the forced family cannot compute
            this problem, with its reason.
        TypeError: An argument is not of its type, with the words of PyTorch's function.
        ValueError: There is no algorithm of that name.
    """
    strides, paddings, dilations = after(1, stride), after(0, padding), after(1, dilation)
    output_paddings = after(0, output_padding)
    if (
        strides is None
        or paddings is None
        or output_paddings is None
        or dilations is None
        or not is_integer(groups)
    ):
        return settled(
            conv_transpose1d, torch.conv_transpose1d, input, weight, bias, stride, padding,
            output_padding, groups, dilation, algorithm=algorithm,
        )  # fmt: skip
    try:
        # PyTorch makes the input contiguous, too: a height of one makes memory formats ambiguous.
        image, filters = input.contiguous().unsqueeze(-2), weight.unsqueeze(-2)
        output: Tensor = _CONV_TRANSPOSE2D(
            image, filters, bias, strides, paddings, output_paddings, groups, dilations,
            algorithm=algorithm,
        ).squeeze(-2)  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, output_padding, groups, dilation
        if other := pytorchs_error(error, algorithm, torch.conv_transpose1d, *arguments):
            raise other from None
        raise
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
        TypeError: An argument is not of its type, with the words of PyTorch's function.
        ValueError: There is no algorithm of that name.
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
            conv_transpose2d, torch.conv_transpose2d, input, weight, bias, stride, padding,
            output_padding, groups, dilation, algorithm=algorithm,
        )  # fmt: skip
    try:
        output: Tensor = _CONV_TRANSPOSE2D(
            input, weight, bias, strides, paddings, output_paddings, groups, dilations,
            algorithm=algorithm,
        )  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, output_padding, groups, dilation
        if other := pytorchs_error(error, algorithm, torch.conv_transpose2d, *arguments):
            raise other from None
        raise
    return output


def conv_transpose3d(
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
    """Transposes a convolution of volumes, as ``torch.nn.functional.conv_transpose3d`` does.

    The output is the gradient that ``conv3d`` with this weight has in its input where ``input`` is
    the gradient of its output; kernels compute it as that. Types, devices and the output's memory
    format are as in ``conv3d``. PyTorch computes it where output_padding is not below the stride.

    Args:
        input: The volumes, of shape (N, K, O, P, Q), or (K, O, P, Q) for one.
        weight: The filters, of shape (K, C / groups, T, R, S), with the input's type and device.
        bias: What is added to each output channel, of shape (C,), or None.
        stride: The step between two windows of the output: one number, or one for each of depth,
            height and width.
        padding: How much of both sides of the output is cut off: one number, or one each.
        output_padding: How much is added at the end of depth, height and width: one number, or one
            each.
        groups: The number of groups that the channels are split into; it divides both K and C.
        dilation: The step between two taps of a filter: one number, or one each.
        algorithm: As in ``conv3d``; a forced family computes the input's gradient of ``conv3d``.

    Returns:
        The output, of shape (N, C, D, H, W), or (C, D, H, W) for one volume, of the input's type,
        where D = (O - 1) * stride - 2 * padding + dilation * (T - 1) + output_padding + 1, and H
        and W likewise from P and R and from Q and S.

    Raises:
        RuntimeError: The arguments do not fit together, with the words that
            ``torch.nn.functional.conv_transpose3d`` has for it; or the forced family cannot compute
            this problem, with its reason.
        TypeError: An argument is not of its type, with the words of PyTorch's function.
        ValueError: There is no algorithm of that name.
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
            conv_transpose3d, torch.conv_transpose3d, input, weight, bias, stride, padding,
            output_padding, groups, dilation, algorithm=algorithm,
        )  # fmt: skip
    try:
        output: Tensor = _CONV_TRANSPOSE3D(
            input, weight, bias, strides, paddings, output_paddings, groups, dilations,
            algorithm=algorithm,
        )  # fmt: skip
    except ERRORS as error:
        arguments = input, weight, bias, stride, padding, output_padding, groups, dilation
        if other := pytorchs_error(error, algorithm, torch.conv_transpose3d, *arguments):
            raise other from None
        raise
    return output
