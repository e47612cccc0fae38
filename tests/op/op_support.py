"""What the tests of the operator share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import (
    FAMILIES,
    assert_close_to,
    assert_equal,
    assert_nearly,
    assert_same,
    layout_of,
    tolerances,
)
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode

import customconv

conv2d = torch.ops.customconv.conv2d
conv2d_backward = torch.ops.customconv.conv2d_backward
conv3d = torch.ops.customconv.conv3d
conv3d_backward = torch.ops.customconv.conv3d_backward

conv_transpose2d = torch.ops.customconv.conv_transpose2d
conv_transpose2d_backward = torch.ops.customconv.conv_transpose2d_backward
conv_transpose3d = torch.ops.customconv.conv_transpose3d
conv_transpose3d_backward = torch.ops.customconv.conv_transpose3d_backward

# By dimensions: 2 of images, 3 of volumes.
CONV = {2: conv2d, 3: conv3d}
CONV_BACKWARD = {2: conv2d_backward, 3: conv3d_backward}
CONV_TRANSPOSE = {2: conv_transpose2d, 3: conv_transpose3d}
CONV_TRANSPOSE_BACKWARD = {2: conv_transpose2d_backward, 3: conv_transpose3d_backward}
PYTORCHS = {2: F.conv2d, 3: F.conv3d}
PYTORCHS_TRANSPOSE = {2: F.conv_transpose2d, 3: F.conv_transpose3d}
each_dims = pytest.mark.parametrize("dims", [2, 3], ids=["images", "volumes"])


def by_weight(functions: dict[int, Callable[..., Any]]) -> Callable[..., Any]:
    """Of two functions, that for the dimensions of the weight, which follows the input."""

    def call(input: Tensor, weight: Tensor, *rest: Any, **keywords: Any) -> Any:
        return functions[weight.ndim - 2](input, weight, *rest, **keywords)

    return call


def by_last_weight(functions: dict[int, Callable[..., Any]]) -> Callable[..., Any]:
    """The same of backward functions, which take the gradient of the output first."""

    def call(grad: Tensor, input: Tensor, weight: Tensor, *rest: Any, **keywords: Any) -> Any:
        return functions[weight.ndim - 2](grad, input, weight, *rest, **keywords)

    return call


conv, pytorchs = by_weight(CONV), by_weight(PYTORCHS)
conv_backward = by_last_weight(CONV_BACKWARD)
conv_transpose, pytorchs_transpose = by_weight(CONV_TRANSPOSE), by_weight(PYTORCHS_TRANSPOSE)
conv_transpose_backward = by_last_weight(CONV_TRANSPOSE_BACKWARD)


def opinfo_of(name: str) -> OpInfo:
    """PyTorch's samples and error inputs of a function."""
    return next(op for op in op_db if op.name == f"nn.functional.{name}")


OPINFO = {dims: opinfo_of(f"conv{dims}d") for dims in (2, 3)}
OPINFO_TRANSPOSE = {dims: opinfo_of(f"conv_transpose{dims}d") for dims in (2, 3)}
needs_compiler = pytest.mark.skipif(
    not shutil.which(os.environ.get("CXX", "g++")), reason="Inductor needs a C++ compiler"
)
FLOATS = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def families(x: Tensor, *arguments: Any, op: str = "fprop", **keywords: Any) -> list[str]:
    """The families of kernels that can compute this: none on the CPU."""
    if x.is_complex() or not x.dtype.is_floating_point:
        return []
    explanation = customconv.explain(x, *arguments, op=op, **keywords)
    return [c.family for c in explanation.candidates if c.plan and c.family in FAMILIES]


def samples(
    device: str,
    dtype: torch.dtype,
    layout: torch.memory_format = torch.contiguous_format,
    *,
    opinfo: OpInfo = OPINFO[2],
) -> Iterator[tuple[list[Tensor | None], dict[str, Any]]]:
    """PyTorch's own samples as (input, weight, bias) and keywords, batches in the layout."""
    for sample in opinfo.sample_inputs(device, dtype):
        input, weight, *bias = sample.input, *sample.args
        in_layout = layout_of(layout, weight.ndim)
        placed = [
            t.contiguous(memory_format=in_layout) if t.ndim == weight.ndim else t
            for t in (input, weight)
        ]
        yield [*placed, *bias], sample.kwargs


def _nondeterminism(tensors: Any) -> float:
    """How far apart two runs may be: PyTorch's own kernels compute volumes in double precision."""
    volumes = any(t is not None and t.is_cuda and t.ndim >= 5 for t in tensors)
    return 1e-10 if volumes else 0.0


def gradcheck(function: Callable[..., Any], tensors: Any, **keywords: Any) -> bool:
    """PyTorch's; what is ours must repeat bit by bit."""
    return torch.autograd.gradcheck(
        function, tensors, nondet_tol=_nondeterminism(tensors), **keywords
    )


def gradgradcheck(function: Callable[..., Any], tensors: Any, **keywords: Any) -> bool:
    """PyTorch's; what is ours must repeat bit by bit."""
    return torch.autograd.gradgradcheck(
        function, tensors, nondet_tol=_nondeterminism(tensors), **keywords
    )


def widened(value: Any) -> Any:
    """A tensor in double precision; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def assert_as_pytorch(
    actual: Tensor,
    *arguments: Any,
    pytorch: Callable[..., Tensor] = pytorchs,
    what: str = "result",
    **keywords: Any,
) -> None:
    """The output is what PyTorch's function gives for these arguments: bit for bit on the CPU.

    On CUDA kernels differ, so values are held against PyTorch's in double precision. Complex ones
    are made of several real ones, whose sums cancel; so do a rounded sum and its bias, which a
    transposed convolution's output is.
    """
    theirs = pytorch(*arguments, **keywords)
    if not actual.is_cuda:
        assert_same(actual, theirs, what=what)
        return
    exact = pytorch(*map(widened, arguments), **{k: widened(v) for k, v in keywords.items()})
    dims = arguments[1].ndim - 2
    rounded_twice = pytorch is pytorchs_transpose and actual.dtype.itemsize == 2
    if dims == 2 and (actual.is_complex() or rounded_twice):
        assert_close_to(actual, exact, theirs, factor=4, what=what)
    else:
        assert_rounded(actual, exact, theirs, dims, what=what)
    assert actual.stride() == theirs.stride()


def assert_rounded(
    actual: Tensor, exact: Tensor, theirs: Tensor, dims: int, *, what: str = "result"
) -> None:
    """A result is the exact one, rounded; of volumes on CUDA, which PyTorch may compute, nearly."""
    if dims == 3 and actual.is_cuda:
        assert_nearly(actual, exact, theirs, what=what)
    else:
        rounded = exact.to(theirs.dtype)
        assert_equal(actual, rounded, **tolerances(theirs.dtype), what=what)


def leaves(*tensors: Tensor | None) -> list[Tensor | None]:
    """Copies with the same strides, to differentiate by."""
    return [None if t is None else t.detach().clone().requires_grad_() for t in tensors]


def gradients(
    convolve: Callable[..., Tensor], tensors: list[Tensor | None], *rest: Any, **keywords: Any
) -> tuple[Tensor, ...]:
    """Gradients of the output's product with fixed random numbers."""
    output = convolve(*tensors, *rest, **keywords)
    generator = torch.Generator().manual_seed(1)
    eighths = torch.randint(-16, 17, output.shape, generator=generator) / 8  # exact in every dtype
    direction = torch.empty_like(output).copy_(eighths)
    return torch.autograd.grad(output, [t for t in tensors if t is not None], direction)


def on_each_device(*families: str) -> pytest.MarkDecorator:
    """Runs a test by the planner's choice on each device, and by each of the families on CUDA."""
    gpu = pytest.mark.gpu
    cuda = [pytest.param("cuda", name, marks=gpu) for name in ("auto", *families)]
    return pytest.mark.parametrize(("device", "algorithm"), [("cpu", "auto"), *cuda])


class Seen(TorchDispatchMode):
    """Below autograd: the convolutions that run, and the masks of the gradients asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.operators: list[Any] = []
        self.masks: list[tuple[bool, ...]] = []

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if "conv" in func.name():
            self.operators.append(func)
        if func.name().endswith("_backward"):
            self.masks.append(tuple(args[-1]))
        return func(*args, **(kwargs or {}))


def kernels_of(call: Callable[[], Any]) -> list[str]:
    """Names of the kernels that a call launches."""
    call()
    torch.cuda.synchronize()
    with profile(activities=[ProfilerActivity.CUDA]) as profiler:
        call()
        torch.cuda.synchronize()
    return [e.name for e in profiler.events() if e.device_type == torch.autograd.DeviceType.CUDA]
