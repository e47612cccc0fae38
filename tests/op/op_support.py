"""What the tests of the operator share."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from reference import FAMILIES, assert_close_to, assert_equal, assert_same, tolerances
from torch import Tensor
from torch.profiler import ProfilerActivity, profile
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo
from torch.utils._python_dispatch import TorchDispatchMode

import customconv

conv2d = torch.ops.customconv.conv2d
conv2d_backward = torch.ops.customconv.conv2d_backward

conv_transpose2d = torch.ops.customconv.conv_transpose2d
conv_transpose2d_backward = torch.ops.customconv.conv_transpose2d_backward

OPINFO = next(op for op in op_db if op.name == "nn.functional.conv2d")
OPINFO_TRANSPOSE = next(op for op in op_db if op.name == "nn.functional.conv_transpose2d")
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
    opinfo: OpInfo = OPINFO,
) -> Iterator[tuple[list[Tensor | None], dict[str, Any]]]:
    """PyTorch's own samples as (input, weight, bias) and keywords, images in the layout."""
    for sample in opinfo.sample_inputs(device, dtype):
        tensors = [sample.input, *sample.args]
        yield [t.contiguous(memory_format=layout) if t is not None and t.ndim == 4 else t
               for t in tensors], sample.kwargs  # fmt: skip


def widened(value: Any) -> Any:
    """A tensor in double precision; anything else as it is."""
    if not isinstance(value, Tensor):
        return value
    return value.detach().to(torch.complex128 if value.is_complex() else torch.float64)


def assert_as_pytorch(
    actual: Tensor,
    *arguments: Any,
    pytorch: Callable[..., Tensor] = F.conv2d,
    **keywords: Any,
) -> None:
    """The output is what PyTorch's function gives for these arguments: bit for bit on the CPU.

    On CUDA kernels differ, so values are held against PyTorch's in double precision. Complex ones
    are made of several real ones, whose sums cancel; so do a transposed convolution's rounded sum
    and its bias.
    """
    theirs = pytorch(*arguments, **keywords)
    if not actual.is_cuda:
        assert_same(actual, theirs)
        return
    exact = pytorch(*map(widened, arguments), **{k: widened(v) for k, v in keywords.items()})
    rounded_twice = pytorch is F.conv_transpose2d and actual.dtype.itemsize == 2
    if actual.is_complex() or rounded_twice:
        assert_close_to(actual, exact, theirs, factor=4)
    else:
        assert_equal(actual, exact.to(theirs.dtype), **tolerances(theirs.dtype))
    assert actual.stride() == theirs.stride()


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
        if func in (conv2d_backward.default, conv_transpose2d_backward.default):
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
