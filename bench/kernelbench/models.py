"""The modules for KernelBench's level-1 2-D convolutions, with KernelBench's signatures.

Each takes the arguments of KernelBench's ``ModelNew`` and creates its parameters in the same order,
so that the same seed gives the same weights. The layer types are class attributes: the reference is
the same class with PyTorch's layers.
"""

from __future__ import annotations

from torch import Tensor, nn

import customconv

Pair = tuple[int, int]


class Model(nn.Module):
    """The base class, with the types of the layers that convolve."""

    layer: type[nn.Conv2d] = customconv.Conv2d
    transposed_layer: type[nn.ConvTranspose2d] = customconv.ConvTranspose2d


class OneConvolution(Model):
    """A single convolution, whose result ``forward`` returns."""

    conv2d: nn.Conv2d

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv2d(x)
        return y


class FirstLayer(OneConvolution):
    """AlexNet's first layer. KernelBench does not use the number of classes either."""

    def __init__(self, num_classes: int = 1000) -> None:
        super().__init__()
        self.conv2d = self.layer(3, 96, kernel_size=11, stride=4, padding=2)


class Dense(OneConvolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: int | Pair,
        stride: int | Pair = 1,
        padding: int | Pair = 0,
        dilation: int | Pair = 1,
        groups: int = 1,
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv2d = self.layer(
            in_channels, out_channels, kernel_size, stride, padding, dilation, groups, bias
        )


class Dilated(OneConvolution):
    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        kernel_size: Pair,
        stride: int = 1,
        padding: Pair = (0, 0),
        dilation: Pair = (1, 1),
        bias: bool = False,
    ) -> None:
        super().__init__()
        self.conv2d = self.layer(
            in_channels, out_channels, kernel_size, stride, padding, dilation, bias=bias
        )


class Depthwise(OneConvolution):
    def __init__(
        self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
        bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv2d = self.layer(
            in_channels, in_channels, kernel_size, stride, padding, groups=in_channels, bias=bias
        )


class DepthwiseColumn(OneConvolution):
    """A depthwise convolution whose filters are one column wide."""

    def __init__(
        self, in_channels: int, kernel_size: int, stride: int = 1, padding: int = 0,
        dilation: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv2d = self.layer(
            in_channels, in_channels, (kernel_size, 1), stride, padding, dilation,
            groups=in_channels, bias=bias,
        )  # fmt: skip


class DepthwiseMultiplied(OneConvolution):
    """A depthwise convolution with a channel multiplier."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1,
        padding: int = 0, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv2d = self.layer(
            in_channels, out_channels, kernel_size, stride, padding, groups=in_channels, bias=bias
        )


class DepthwiseAsymmetric(OneConvolution):
    """KernelBench does not use ``out_channels`` and ``groups`` either."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size_h: int, kernel_size_w: int,
        stride_h: int = 1, stride_w: int = 1, padding_h: int = 0, padding_w: int = 0,
        dilation_h: int = 1, dilation_w: int = 1, groups: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv2d = self.layer(
            in_channels, in_channels, (kernel_size_h, kernel_size_w), (stride_h, stride_w),
            (padding_h, padding_w), (dilation_h, dilation_w), in_channels, bias,
        )  # fmt: skip


class Separable(Model):
    """Depthwise, then pointwise."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1,
        padding: int = 0, dilation: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.depthwise = self.layer(
            in_channels, in_channels, kernel_size, stride, padding, dilation, in_channels, bias
        )
        self.pointwise = self.layer(in_channels, out_channels, 1, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.pointwise(self.depthwise(x))
        return y


class Pointwise(OneConvolution):
    def __init__(self, in_channels: int, out_channels: int, bias: bool = False) -> None:
        super().__init__()
        self.conv2d = self.layer(in_channels, out_channels, 1, bias=bias)


class OneTransposed(Model):
    """A single transposed convolution, whose result ``forward`` returns."""

    conv_transpose2d: nn.ConvTranspose2d

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.conv_transpose2d(x)
        return y


class Transposed(OneTransposed):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int | Pair, stride: int = 1,
        padding: int = 0, output_padding: int = 0, groups: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_transpose2d = self.transposed_layer(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias
        )


class TransposedByPairs(OneTransposed):
    """A transposed convolution with every option."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = (1, 1),
        padding: Pair = (0, 0), output_padding: Pair = (0, 0), dilation: Pair = (1, 1),
        groups: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_transpose2d = self.transposed_layer(
            in_channels, out_channels, kernel_size, stride, padding, output_padding, groups, bias,
            dilation,
        )  # fmt: skip


class TransposedGrouped(OneTransposed):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = (1, 1),
        padding: Pair = (0, 0), dilation: Pair = (1, 1), groups: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_transpose2d = self.transposed_layer(
            in_channels, out_channels, kernel_size, stride, padding, groups=groups, bias=bias,
            dilation=dilation,
        )  # fmt: skip


class TransposedPadded(OneTransposed):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Pair, stride: Pair = (1, 1),
        padding: Pair = (0, 0), bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_transpose2d = self.transposed_layer(
            in_channels, out_channels, kernel_size, stride, padding, bias=bias
        )


class TransposedDilated(OneTransposed):
    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: int, stride: int = 1,
        padding: int = 0, dilation: int = 1, bias: bool = False,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv_transpose2d = self.transposed_layer(
            in_channels, out_channels, kernel_size, stride, padding, bias=bias, dilation=dilation
        )
