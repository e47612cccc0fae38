"""The tensors of a row, and the calls that compute it: ours, with any family, and the peers'."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import customconv

from .layers import Layer
from .timing import Call

DTYPES = {
    "fp32": torch.float32, "tf32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16,
}  # fmt: skip
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
OPS = ("fprop", "dgrad", "wgrad")

# cudnn: PyTorch's call with cudnn.benchmark, which tries BENCHMARK_LIMIT algorithms once per shape
# and keeps the best. aten-heuristic: PyTorch's call with its default settings. inductor: that call
# compiled. aten: PyTorch's call on the CPU.
PEERS = ("cudnn", "aten-heuristic", "inductor", "aten")
BENCHMARK_LIMIT = 10


class Unmeasurable(Exception):
    """Raised if a row cannot be measured; says why."""


@dataclass(frozen=True)
class Buffers:
    """One set of inputs of a row."""

    x: Tensor
    w: Tensor
    bias: Tensor | None
    dy: Tensor


def why_not(layer: Layer, precision: str, op: str, peer: str, device: torch.device) -> str | None:
    """Returns why a row can't be measured, or None if it can."""
    if min(layer.P, layer.Q) < 1:
        return "the output is empty"
    if any(p >= s for p, s in zip(layer.output_padding, layer.stride, strict=True)):
        return "only PyTorch computes output padding as wide as the stride"
    if device.type == "cpu" and precision == "tf32":
        return "the CPU has no TF32"
    if peer == "inductor" and op != "fprop":
        return "Inductor compiles the forward pass only"
    return None


def make_buffers(layer: Layer, precision: str, layout: str, device: torch.device) -> Buffers:
    """Makes normal random tensors; weights are scaled so that results are of order one."""
    dtype, memory = DTYPES[precision], LAYOUTS[layout]

    def normal(shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        values = torch.empty(shape, dtype=dtype, device=device, memory_format=memory)
        return values.normal_(0, scale)

    terms = layer.weight[1] * layer.R * layer.S
    bias = torch.randn(layer.K, device=device).to(dtype) if layer.bias else None
    return Buffers(
        normal(layer.input), normal(layer.weight, terms**-0.5), bias, normal(layer.output)
    )


def ours(layer: Layer, op: str, buffers: Buffers, family: str = "auto") -> Call:
    """Returns our operator's call, by one family or by the planner's choice."""
    x, w, bias, dy = buffers.x, buffers.w, buffers.bias, buffers.dy
    if op == "fprop" and layer.transposed:
        return lambda: torch.ops.customconv.conv_transpose2d(
            x, w, bias, *layer.transposed_geometry, algorithm=family
        )
    if op == "fprop":
        return lambda: torch.ops.customconv.conv2d(x, w, bias, *layer.geometry, algorithm=family)
    mask = [op == "dgrad", op == "wgrad", False]
    index = 0 if op == "dgrad" else 1
    if layer.transposed:
        return lambda: torch.ops.customconv.conv_transpose2d_backward(
            dy, x, w, *layer.transposed_geometry, mask, algorithm=family
        )[index]
    return lambda: torch.ops.customconv.conv2d_backward(
        dy, x, w, *layer.geometry, mask, algorithm=family
    )[index]


def _forward(layer: Layer, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    if layer.transposed:
        return functional.conv_transpose2d(x, w, bias, *layer.transposed_geometry)
    return functional.conv2d(x, w, bias, *layer.geometry)


def peers(layer: Layer, op: str, buffers: Buffers, peer: str) -> Call:
    """Returns the peer's call for the same row."""
    x, w, bias, dy = buffers.x, buffers.w, buffers.bias, buffers.dy
    if op == "fprop":
        if peer == "inductor":
            compiled = torch.compile(_forward, fullgraph=True, dynamic=False)
            return lambda: compiled(layer, x, w, bias)
        return lambda: _forward(layer, x, w, bias)
    stride, pad, dil, groups = layer.geometry
    mask = [op == "dgrad", op == "wgrad", False]
    return lambda: torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, pad, dil, layer.transposed, layer.output_padding, groups, mask
    )[0 if op == "dgrad" else 1]


@contextlib.contextmanager
def switches(precision: str, peer: str) -> Iterator[None]:
    """Sets PyTorch's switches for a row: float32 or TF32, and cuDNN's benchmark mode."""
    flags = torch.backends.cudnn.flags(
        enabled=True,
        benchmark=peer == "cudnn",
        benchmark_limit=BENCHMARK_LIMIT,
        allow_tf32=precision == "tf32",
    )
    with flags, torch.no_grad():
        yield


def planned(layer: Layer, op: str, buffers: Buffers) -> dict[str, Any]:
    """Returns the arguments of ``customconv.explain`` for a row."""
    return {
        "input": buffers.x, "weight": buffers.w, "bias": buffers.bias if op == "fprop" else None,
        "stride": layer.stride, "padding": layer.pad, "dilation": layer.dil,
        "groups": layer.groups, "op": op, "transposed": layer.transposed,
        "output_padding": layer.output_padding,
    }  # fmt: skip


def plan_of(layer: Layer, op: str, buffers: Buffers, family: str) -> tuple[str, str]:
    """Returns the family that runs and its plan in one line; PyTorch's own is "aten".

    Raises:
        RuntimeError: The family cannot compute it.
    """
    found = customconv.explain(**planned(layer, op, buffers), algorithm=family)
    if found.raises:
        raise RuntimeError(found.fallback)
    return found.family, str(found.plan) if found.plan is not None else "aten"
