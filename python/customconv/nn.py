"""The operators as modules."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional

from .arguments import check_algorithm
from .ops import conv1d, conv2d, conv3d, conv_transpose1d, conv_transpose2d, conv_transpose3d


class _WithAlgorithm:
    """What a convolution of PyTorch gets here beside its forward pass."""

    # On the class too, for modules that were not made by its constructor. TorchScript reads
    # constants there, and no annotation that is a string.
    algorithm = "auto"
    __constants__ = [*torch.nn.Conv2d.__constants__, "algorithm"]  # noqa: RUF012

    def extra_repr(self) -> str:
        """The arguments as PyTorch's module prints them, and the algorithm if one is forced."""
        forced = "" if self.algorithm == "auto" else f", algorithm={self.algorithm!r}"
        return f"{super().extra_repr()}{forced}"  # type: ignore[misc]


class Conv1d(_WithAlgorithm, torch.nn.Conv1d):
    """A drop-in ``torch.nn.Conv1d`` that convolves by ``customconv.conv1d``.

    Parameters, initialization, padding modes and ``state_dict`` are those of ``torch.nn.Conv1d``.

    Args:
        in_channels: The number of the input's channels.
        out_channels: The number of the output's channels.
        kernel_size: The length of the filters.
        stride: The step between two windows.
        padding: The padding of both ends of the signal, or "same", or "valid".
        dilation: The step between two taps of a filter.
        groups: The number of groups that the channels are split into.
        bias: Whether to add a learned value to each output channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Where the parameters are.
        dtype: The parameters' type.
        algorithm: As in ``customconv.conv1d``.

    Shape:
        Input (N, C, L) or (C, L); output (N, K, Q) or (K, Q). See ``customconv.conv1d`` for types,
        sizes and errors.
    """

    def __init__(  # noqa: D107  (the class says it)
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] | str = 0,
        dilation: int | tuple[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        check_algorithm(type(self).__name__, algorithm)
        self.algorithm = algorithm

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(input, weight, bias)
        input, padding = padded(self, input)
        return conv1d(
            input, weight, bias, self.stride, padding, self.dilation, self.groups,
            algorithm=self.algorithm,
        )  # fmt: skip

    # TorchScript compiles the operator, and not the function, which looks at Python's types.
    def _scripted(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        image, filters = input.contiguous(), weight.unsqueeze(-2)
        stride, dilation = (1, self.stride[0]), (1, self.dilation[0])
        if self.padding_mode != "zeros":
            pad = self._reversed_padding_repeated_twice
            image = functional.pad(image, pad, mode=self.padding_mode).unsqueeze(-2)
            return torch.ops.customconv.conv2d(  # type: ignore[no-any-return]
                image, filters, bias, stride, (0, 0), dilation, self.groups,
                algorithm=self.algorithm,
            ).squeeze(-2)  # fmt: skip
        if isinstance(self.padding, str):
            return torch.ops.customconv.conv2d(  # type: ignore[no-any-return]
                image.unsqueeze(-2), filters, bias, stride, self.padding, dilation, self.groups,
                algorithm=self.algorithm,
            ).squeeze(-2)  # fmt: skip
        return torch.ops.customconv.conv2d(  # type: ignore[no-any-return]
            image.unsqueeze(-2), filters, bias, stride, (0, self.padding[0]), dilation,
            self.groups, algorithm=self.algorithm,
        ).squeeze(-2)  # fmt: skip


class Conv2d(_WithAlgorithm, torch.nn.Conv2d):
    """A drop-in ``torch.nn.Conv2d`` that convolves by ``customconv.conv2d``.

    Parameters, initialization, padding modes and ``state_dict`` are those of ``torch.nn.Conv2d``.

    Args:
        in_channels: The number of the input's channels.
        out_channels: The number of the output's channels.
        kernel_size: The size of the filters.
        stride: The step between two windows.
        padding: The padding of both sides of the image, or "same", or "valid".
        dilation: The step between two taps of a filter.
        groups: The number of groups that the channels are split into.
        bias: Whether to add a learned value to each output channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Where the parameters are.
        dtype: The parameters' type.
        algorithm: As in ``customconv.conv2d``.

    Shape:
        Input (N, C, H, W) or (C, H, W); output (N, K, P, Q) or (K, P, Q). See
        ``customconv.conv2d`` for types, sizes and errors.
    """

    def __init__(  # noqa: D107  (the class says it)
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] | str = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        check_algorithm(type(self).__name__, algorithm)
        self.algorithm = algorithm

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(input, weight, bias)
        input, padding = padded(self, input)
        return conv2d(
            input, weight, bias, self.stride, padding, self.dilation, self.groups,
            algorithm=self.algorithm,
        )  # fmt: skip

    # TorchScript compiles the operator, and not the function, which looks at Python's types.
    def _scripted(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            pad = self._reversed_padding_repeated_twice
            return torch.ops.customconv.conv2d(  # type: ignore[no-any-return]
                functional.pad(input, pad, mode=self.padding_mode), weight, bias, self.stride,
                (0, 0), self.dilation, self.groups, algorithm=self.algorithm,
            )  # fmt: skip
        return torch.ops.customconv.conv2d(  # type: ignore[no-any-return]
            input, weight, bias, self.stride, self.padding, self.dilation, self.groups,
            algorithm=self.algorithm,
        )  # fmt: skip


class Conv3d(_WithAlgorithm, torch.nn.Conv3d):
    """A drop-in ``torch.nn.Conv3d`` that convolves by ``customconv.conv3d``.

    Parameters, initialization, padding modes and ``state_dict`` are those of ``torch.nn.Conv3d``.

    Args:
        in_channels: The number of the input's channels.
        out_channels: The number of the output's channels.
        kernel_size: The size of the filters.
        stride: The step between two windows.
        padding: The padding of both sides of the volume, or "same", or "valid".
        dilation: The step between two taps of a filter.
        groups: The number of groups that the channels are split into.
        bias: Whether to add a learned value to each output channel.
        padding_mode: "zeros", "reflect", "replicate" or "circular".
        device: Where the parameters are.
        dtype: The parameters' type.
        algorithm: As in ``customconv.conv3d``.

    Shape:
        Input (N, C, D, H, W) or (C, D, H, W); output (N, K, O, P, Q) or (K, O, P, Q). See
        ``customconv.conv3d`` for types, sizes and errors.
    """

    def __init__(  # noqa: D107  (the class says it)
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] | str = 0,
        dilation: int | tuple[int, int, int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias,
            padding_mode, device, dtype,
        )  # fmt: skip
        check_algorithm(type(self).__name__, algorithm)
        self.algorithm = algorithm

    def _conv_forward(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(input, weight, bias)
        input, padding = padded(self, input)
        return conv3d(
            input, weight, bias, self.stride, padding, self.dilation, self.groups,
            algorithm=self.algorithm,
        )  # fmt: skip

    # TorchScript compiles the operator, and not the function, which looks at Python's types.
    def _scripted(self, input: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        if self.padding_mode != "zeros":
            pad = self._reversed_padding_repeated_twice
            return torch.ops.customconv.conv3d(  # type: ignore[no-any-return]
                functional.pad(input, pad, mode=self.padding_mode), weight, bias, self.stride,
                (0, 0, 0), self.dilation, self.groups, algorithm=self.algorithm,
            )  # fmt: skip
        return torch.ops.customconv.conv3d(  # type: ignore[no-any-return]
            input, weight, bias, self.stride, self.padding, self.dilation, self.groups,
            algorithm=self.algorithm,
        )  # fmt: skip


class ConvTranspose1d(_WithAlgorithm, torch.nn.ConvTranspose1d):
    """A drop-in ``torch.nn.ConvTranspose1d`` that computes by ``customconv.conv_transpose1d``.

    Parameters, initialization and ``state_dict`` are those of ``torch.nn.ConvTranspose1d``.

    Args:
        in_channels: The number of the input's channels.
        out_channels: The number of the output's channels.
        kernel_size: The length of the filters.
        stride: The step between two windows of the output.
        padding: How much of both ends of the output is cut off.
        output_padding: How much is added at the end.
        groups: The number of groups that the channels are split into.
        bias: Whether to add a learned value to each output channel.
        dilation: The step between two taps of a filter.
        padding_mode: "zeros", the only one there is.
        device: Where the parameters are.
        dtype: The parameters' type.
        algorithm: As in ``customconv.conv_transpose1d``.

    Shape:
        Input (N, K, Q) or (K, Q); output (N, C, L) or (C, L). See ``customconv.conv_transpose1d``
        for types, sizes and errors.
    """

    def __init__(  # noqa: D107  (the class says it)
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int],
        stride: int | tuple[int] = 1,
        padding: int | tuple[int] = 0,
        output_padding: int | tuple[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int] = 1,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation, padding_mode, device, dtype,
        )  # fmt: skip
        check_algorithm(type(self).__name__, algorithm)
        self.algorithm = algorithm

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The output, of the length asked for if the stride leaves a choice.

        Args:
            input: The signals.
            output_size: The output's length, or its whole shape, in place of ``output_padding``.
        """
        if self.padding_mode != "zeros":
            raise ValueError("Only `zeros` padding mode is supported for ConvTranspose1d")
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size,  # type: ignore[arg-type]
            1, self.dilation,  # type: ignore[arg-type]
        )  # fmt: skip
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(input, output_padding)
        return conv_transpose1d(
            input, self.weight, self.bias, self.stride, self.padding,  # type: ignore[arg-type]
            output_padding, self.groups, self.dilation, algorithm=self.algorithm,
        )  # fmt: skip

    # TorchScript compiles the operator, and not the function, which looks at Python's types.
    def _scripted(self, input: Tensor, output_padding: list[int]) -> Tensor:
        image, filters = input.contiguous().unsqueeze(-2), self.weight.unsqueeze(-2)
        return torch.ops.customconv.conv_transpose2d(  # type: ignore[no-any-return]
            image, filters, self.bias, (1, self.stride[0]), (0, self.padding[0]),
            (0, output_padding[0]), self.groups, (1, self.dilation[0]), algorithm=self.algorithm,
        ).squeeze(-2)  # fmt: skip


class ConvTranspose2d(_WithAlgorithm, torch.nn.ConvTranspose2d):
    """A drop-in ``torch.nn.ConvTranspose2d`` that computes by ``customconv.conv_transpose2d``.

    Parameters, initialization and ``state_dict`` are those of ``torch.nn.ConvTranspose2d``.

    Args:
        in_channels: The number of the input's channels.
        out_channels: The number of the output's channels.
        kernel_size: The size of the filters.
        stride: The step between two windows of the output.
        padding: How much of both sides of the output is cut off.
        output_padding: How much is added below and to the right.
        groups: The number of groups that the channels are split into.
        bias: Whether to add a learned value to each output channel.
        dilation: The step between two taps of a filter.
        padding_mode: "zeros", the only one there is.
        device: Where the parameters are.
        dtype: The parameters' type.
        algorithm: As in ``customconv.conv_transpose2d``.

    Shape:
        Input (N, K, P, Q) or (K, P, Q); output (N, C, H, W) or (C, H, W). See
        ``customconv.conv_transpose2d`` for types, sizes and errors.
    """

    def __init__(  # noqa: D107  (the class says it)
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: int | tuple[int, int] = 0,
        output_padding: int | tuple[int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int] = 1,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation, padding_mode, device, dtype,
        )  # fmt: skip
        check_algorithm(type(self).__name__, algorithm)
        self.algorithm = algorithm

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The output, of the size asked for if the stride leaves a choice.

        Args:
            input: The images.
            output_size: The output's height and width, or its whole shape, in place of
                ``output_padding``.
        """
        if self.padding_mode != "zeros":
            raise ValueError("Only `zeros` padding mode is supported for ConvTranspose2d")
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size,  # type: ignore[arg-type]
            2, self.dilation,  # type: ignore[arg-type]
        )  # fmt: skip
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(input, output_padding)
        return conv_transpose2d(
            input, self.weight, self.bias, self.stride, self.padding,  # type: ignore[arg-type]
            output_padding, self.groups, self.dilation, algorithm=self.algorithm,
        )  # fmt: skip

    # TorchScript compiles the operator, and not the function, which looks at Python's types.
    def _scripted(self, input: Tensor, output_padding: list[int]) -> Tensor:
        return torch.ops.customconv.conv_transpose2d(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups,
            self.dilation, algorithm=self.algorithm,
        )  # fmt: skip


class ConvTranspose3d(_WithAlgorithm, torch.nn.ConvTranspose3d):
    """A drop-in ``torch.nn.ConvTranspose3d`` that computes by ``customconv.conv_transpose3d``.

    Parameters, initialization and ``state_dict`` are those of ``torch.nn.ConvTranspose3d``.

    Args:
        in_channels: The number of the input's channels.
        out_channels: The number of the output's channels.
        kernel_size: The size of the filters.
        stride: The step between two windows of the output.
        padding: How much of both sides of the output is cut off.
        output_padding: How much is added at the end of depth, height and width.
        groups: The number of groups that the channels are split into.
        bias: Whether to add a learned value to each output channel.
        dilation: The step between two taps of a filter.
        padding_mode: "zeros", the only one there is.
        device: Where the parameters are.
        dtype: The parameters' type.
        algorithm: As in ``customconv.conv_transpose3d``.

    Shape:
        Input (N, K, O, P, Q) or (K, O, P, Q); output (N, C, D, H, W) or (C, D, H, W). See
        ``customconv.conv_transpose3d`` for types, sizes and errors.
    """

    def __init__(  # noqa: D107  (the class says it)
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | tuple[int, int, int],
        stride: int | tuple[int, int, int] = 1,
        padding: int | tuple[int, int, int] = 0,
        output_padding: int | tuple[int, int, int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int | tuple[int, int, int] = 1,
        padding_mode: Literal["zeros", "reflect", "replicate", "circular"] = "zeros",
        device: torch.device | str | int | None = None,
        dtype: torch.dtype | None = None,
        *,
        algorithm: str = "auto",
    ) -> None:
        super().__init__(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation, padding_mode, device, dtype,
        )  # fmt: skip
        check_algorithm(type(self).__name__, algorithm)
        self.algorithm = algorithm

    def forward(self, input: Tensor, output_size: list[int] | None = None) -> Tensor:
        """The output, of the size asked for if the stride leaves a choice.

        Args:
            input: The volumes.
            output_size: The output's depth, height and width, or its whole shape, in place
                of ``output_padding``.
        """
        if self.padding_mode != "zeros":
            raise ValueError("Only `zeros` padding mode is supported for ConvTranspose3d")
        output_padding = self._output_padding(
            input, output_size, self.stride, self.padding, self.kernel_size,  # type: ignore[arg-type]
            3, self.dilation,  # type: ignore[arg-type]
        )  # fmt: skip
        if torch.jit.is_scripting():  # type: ignore[attr-defined]
            return self._scripted(input, output_padding)
        return conv_transpose3d(
            input, self.weight, self.bias, self.stride, self.padding,  # type: ignore[arg-type]
            output_padding, self.groups, self.dilation, algorithm=self.algorithm,
        )  # fmt: skip

    # TorchScript compiles the operator, and not the function, which looks at Python's types.
    def _scripted(self, input: Tensor, output_padding: list[int]) -> Tensor:
        return torch.ops.customconv.conv_transpose3d(  # type: ignore[no-any-return]
            input, self.weight, self.bias, self.stride, self.padding, output_padding, self.groups,
            self.dilation, algorithm=self.algorithm,
        )  # fmt: skip


def padded(
    module: torch.nn.Conv1d | torch.nn.Conv2d | torch.nn.Conv3d, input: Tensor
) -> tuple[Tensor, int | tuple[int, ...] | str]:
    """The input and the padding that is left to do: zeros, if the module pads by them."""
    if module.padding_mode == "zeros":
        return input, module.padding
    pad = module._reversed_padding_repeated_twice
    return functional.pad(input, pad, mode=module.padding_mode), 0
