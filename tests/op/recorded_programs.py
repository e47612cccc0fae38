"""Programs for the tests of what records, transforms or counts them instead of running them."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import torch
import torch.nn.functional as F
from reference import assert_accurate
from torch import Tensor, nn

import customconv

ops = torch.ops.customconv


class WithTensors(nn.Module):
    """A module of functions, and the tensors that they take."""

    SHAPES: Mapping[str, tuple[int, ...]]

    def __init__(self) -> None:
        super().__init__()
        for name, shape in self.SHAPES.items():
            setattr(self, name, nn.Parameter(torch.randn(shape)))


class Functions(WithTensors):
    SHAPES = MappingProxyType({
        "dense": (6, 4, 3, 3), "bias": (6,), "up": (6, 4, 2, 2), "signal": (6, 4, 3),
        "signal_up": (6, 5, 4),
    })  # fmt: skip

    def forward(self, x):
        x = F.conv2d(x, self.dense, self.bias, padding=1).relu_()
        x = F.conv_transpose2d(x, self.up, stride=2)
        x = F.conv1d(x.flatten(2), self.signal, padding="same").sin_()
        return F.conv_transpose1d(x, self.signal_up, stride=2, padding=1)


class OurFunctions(WithTensors):
    SHAPES = Functions.SHAPES

    def forward(self, x):
        x = customconv.conv2d(x, self.dense, self.bias, padding=1).relu_()
        x = customconv.conv_transpose2d(x, self.up, stride=2)
        x = customconv.conv1d(x.flatten(2), self.signal, padding="same").sin_()
        return customconv.conv_transpose1d(x, self.signal_up, stride=2, padding=1)


class OurOperators(WithTensors):
    SHAPES = MappingProxyType({
        "dense": (6, 4, 3, 3), "bias": (6,), "up": (6, 4, 2, 2), "uneven": (6, 4, 3, 2)
    })  # fmt: skip

    def forward(self, x):
        x = ops.conv2d(x, self.dense, self.bias, 1, 1).relu_()
        x = ops.conv_transpose2d(x, self.up, None, [2, 2]).sin_()
        return ops.conv2d(x, self.uneven, None, [1, 1], "same")


class Fused(WithTensors):
    """All that is fused, with a residual before the activation and after it."""

    SHAPES = MappingProxyType({
        "dense": (6, 4, 3, 3), "bias": (6,), "scale": (6,), "uneven": (4, 3, 3, 2),
        "up": (4, 6, 2, 2), "down": (6, 6, 3, 3),
    })  # fmt: skip

    def forward(self, x):
        y = customconv.conv2d_fused(
            x, self.dense, self.bias, 1, 1, scale=self.scale, activation="silu"
        )
        y = ops.conv2d_fused(y[:, :4], self.dense, None, 1, 1, residual=y, activation="relu")
        y = customconv.conv2d_fused(
            y, self.uneven, padding="same", groups=2, residual=x, activation="sigmoid",
            residual_last=True,
        )  # fmt: skip
        y = customconv.conv_transpose2d_fused(
            y, self.up, self.bias, 2, scale=self.scale, activation="hardswish"
        )
        return ops.conv_transpose2d_fused(y, self.down, None, 1, 1, residual=y, activation="relu")


class Residual(nn.Module):
    """A block as ResNets have it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 8, 3, stride=2, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(8)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(8, 8, 3, padding=1, groups=2, bias=False)
        self.bn2 = nn.BatchNorm2d(8)
        self.downsample = nn.Sequential(nn.Conv2d(4, 8, 1, stride=2, bias=False), nn.BatchNorm2d(8))

    def forward(self, x):
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.downsample(x)
        return self.relu(out)


def training() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.Hardswish(inplace=True),
        nn.Conv2d(8, 8, 3, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True),
        nn.ConvTranspose2d(8, 5, 2, stride=2),
    )  # fmt: skip


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(4, 8, 3, stride=2, padding=1), nn.Hardswish(inplace=True), Conv2dNorm(),
        nn.ReLU6(inplace=True), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5),
    )  # fmt: skip


class Conv2dNorm(nn.Sequential):
    """A part of a network that has a class of its own."""

    def __init__(self) -> None:
        super().__init__(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8))


def ends_in_convolution() -> nn.Module:
    """Each in-place activation changes what a convolution has made."""
    return nn.Sequential(
        nn.Conv2d(4, 6, 3), nn.Hardswish(inplace=True), nn.Conv2d(6, 5, 3, padding=1)
    )


def our_modules() -> nn.Module:
    return nn.Sequential(
        customconv.Conv2d(4, 6, 3, padding=1, padding_mode="reflect"), nn.ReLU(inplace=True),
        customconv.ConvTranspose2d(6, 4, 2, stride=2), nn.Flatten(2),
        customconv.Conv1d(4, 6, 3, padding="same"), nn.Hardswish(inplace=True),
        customconv.ConvTranspose1d(6, 5, 3, stride=2),
    )  # fmt: skip


IMAGES = (2, 4, 8, 6), (3, 4, 11, 9)
SIGNALS = (2, 4, 12), (3, 4, 17)
VOLUMES = ((2, 4, 5, 6, 7), (3, 4, 4, 7, 6))


@dataclass(frozen=True)
class Program:
    """A module, the shape of an input that it is recorded with, and another shape.

    Attributes:
        make: Makes the module.
        convolutions: How many it computes.
        shapes: The two shapes.
        trains: Whether it is recorded in training mode.
        ours: Whether it calls this package's operators.
        scripts: Whether TorchScript can compile it.
    """

    make: Callable[[], nn.Module]
    convolutions: int = 1
    shapes: tuple[tuple[int, ...], tuple[int, ...]] = IMAGES
    trains: bool = False
    ours: bool = False
    scripts: bool = True

    def module(self, device: str) -> nn.Module:
        """The module, in float64 on the CPU, where it is nearly exact, and in float32 on CUDA."""
        torch.manual_seed(3)
        module = self.make()
        for norm in module.modules():
            if isinstance(norm, nn.BatchNorm2d):
                nn.init.uniform_(norm.running_var, 0.5, 2.0)
                nn.init.normal_(norm.running_mean)
        module.train(self.trains)
        if self.ours:
            module, _ = customconv.convert(module, fold_batchnorm=not self.trains)
        return module.to(device, torch.float64 if device == "cpu" else torch.float32)

    def inputs(self, device: str) -> list[Tensor]:
        """What it is recorded with, other numbers, and another size and batch."""
        dtype = torch.float64 if device == "cpu" else torch.float32
        first, other = self.shapes
        return [torch.randn(shape, device=device, dtype=dtype) for shape in (first, first, other)]


PROGRAMS = {
    "conv1d": Program(lambda: nn.Conv1d(4, 6, 3, stride=2, padding=1, bias=False), shapes=SIGNALS),
    "conv2d": Program(lambda: nn.Conv2d(4, 6, (3, 2), dilation=2, groups=2, bias=False)),
    "bias": Program(lambda: nn.Conv2d(4, 6, 3, padding=(1, 0))),
    "transposed1d": Program(
        lambda: nn.ConvTranspose1d(4, 6, 3, stride=2, bias=False), shapes=SIGNALS
    ),
    "transposed2d": Program(lambda: nn.ConvTranspose2d(4, 6, 3, 2, 1, output_padding=1)),
    "conv3d": Program(lambda: nn.Conv3d(4, 6, 3, padding=(1, 0, 1)), shapes=VOLUMES),
    # In one group: ONNX's reference evaluator fails at several, of images too.
    "transposed3d": Program(lambda: nn.ConvTranspose3d(4, 6, (2, 3, 3), 2, 1), shapes=VOLUMES),
    "functions": Program(Functions, 4),
    "training": Program(training, 3, trains=True),
    "network": Program(network, 2),
    "ends_in_convolution": Program(ends_in_convolution, 2),
    "residual": Program(Residual, 3),
    "our_conv1d": Program(
        lambda: customconv.Conv1d(4, 6, 3, stride=2, padding=1), shapes=SIGNALS, ours=True
    ),
    "our_conv2d": Program(lambda: customconv.Conv2d(4, 6, (3, 2), padding="same"), ours=True),
    "our_conv3d": Program(
        lambda: customconv.Conv3d(4, 6, (1, 3, 2), padding="same"), shapes=VOLUMES, ours=True
    ),
    "our_transposed": Program(lambda: customconv.ConvTranspose2d(4, 6, 3, 2, 1, 1), ours=True),
    "our_modules": Program(our_modules, 4, ours=True),
    "our_functions": Program(OurFunctions, 4, ours=True, scripts=False),
    "our_operators": Program(OurOperators, 3, ours=True),
    "fused": Program(Fused, 3, ours=True, scripts=False),
    "converted": Program(Residual, 3, ours=True),
    "converted_training": Program(training, 3, trains=True, ours=True),
}


@contextlib.contextmanager
def opaque() -> Iterator[None]:
    """Lets routing on the CPU compute below everything that records, as kernels on CUDA do."""
    torch.ops.customconv._route_on_cpu(True)
    try:
        yield
    finally:
        torch.ops.customconv._route_on_cpu(False)
        assert not customconv.is_enabled()


def counted(call: Callable[[], Any]) -> customconv.Stats:
    """What a call adds to the counts while routing is on. On the CPU each call falls back then."""
    torch.ops.customconv._route_on_cpu(False)
    customconv.stats(reset=True)
    with customconv.enabled():
        call()
    torch.ops.customconv._route_on_cpu(True)
    return customconv.stats(reset=True)


def step(
    function: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor
) -> list[Tensor]:
    """The output, and the gradients of the input and the parameters."""
    x = x.detach().clone().requires_grad_()
    output = function(x)
    return [output.detach(), *torch.autograd.grad(output.square().sum(), [x, *parameters])]


def accumulate(
    function: Callable[[Tensor], Tensor], parameters: Sequence[Tensor], x: Tensor
) -> list[Tensor]:
    """As ``step``, by ``backward``."""
    for parameter in parameters:
        parameter.grad = None
    x = x.detach().clone().requires_grad_()
    output = function(x)
    output.square().sum().backward()
    return [output.detach(), x.grad, *(parameter.grad for parameter in parameters)]


def forward(function: Callable[[Tensor], Tensor], _: Sequence[Tensor], x: Tensor) -> list[Tensor]:
    """The output."""
    with torch.no_grad():
        return [function(x)]


def eager(module: nn.Module, x: Tensor, gradients: bool) -> list[Tensor]:
    """What a program gives that is not recorded."""
    module = copy.deepcopy(module)
    return (step if gradients else forward)(module, list(module.parameters()), x)


def expected(module: nn.Module, x: Tensor, gradients: bool) -> list[Tensor]:
    """What a program gives that is neither recorded nor routed."""
    assert not customconv.is_enabled()
    return eager(module, x, gradients)


def assert_right(
    actual: Sequence[Tensor], wanted: Sequence[Tensor], what: str, *, at_least: float = 0.0
) -> None:
    """Each result is within rounding of what it should be."""
    assert len(actual) == len(wanted), f"{what}: {len(actual)} results instead of {len(wanted)}"
    for index, (ours, theirs) in enumerate(zip(actual, wanted, strict=True)):
        at_most = max(at_least, 1e-12 if theirs.dtype == torch.float64 else 1e-4)
        assert ours.dtype == theirs.dtype, f"{what}: {ours.dtype} instead of {theirs.dtype}"
        name = "the output" if index == 0 else f"gradient {index}"
        assert_accurate(ours, theirs, at_most, what=f"{what}, {name}")
