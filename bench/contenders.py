"""The tensors of a row, and the calls that compute it: ours, with any family, and the peers'."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import prod
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
LAYOUTS = ("nchw", "nhwc")  # of volumes, too: channels first or last
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}  # by a tensor's number of dimensions
OPS = ("fprop", "dgrad", "wgrad")

# cudnn: PyTorch's call with cudnn.benchmark, which tries BENCHMARK_LIMIT algorithms once per shape
# and keeps the best. aten-heuristic: PyTorch's call with its default settings. inductor: that call
# compiled. aten: PyTorch's call on the CPU. linear: a matrix product of patches.
PEERS = ("cudnn", "aten-heuristic", "inductor", "aten", "linear")
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
    if min(layer.output[2:]) < 1:
        return "the output is empty"
    if any(p >= s for p, s in zip(layer.output_padding, layer.stride, strict=True)):
        return "only PyTorch computes output padding as wide as the stride"
    if device.type == "cpu" and precision == "tf32":
        return "the CPU has no TF32"
    if peer == "inductor" and op != "fprop":
        return "Inductor compiles the forward pass only"
    if peer == "linear" and not is_patches(layer):
        return "its filter does not cut the input into patches"
    return None


def is_patches(layer: Layer) -> bool:
    """Whether it is a matrix product of patches: each input pixel meets one place of the filter."""
    fits = all(
        size % taps == 0 for size, taps in zip(layer.input[2:], layer.weight[2:], strict=True)
    )
    is_plain = max(layer.pad) == 0 and max(layer.dil) == 1 == layer.groups and not layer.transposed
    return fits and is_plain and layer.stride == layer.weight[2:]


def memory_format(layout: str, ndim: int) -> torch.memory_format:
    """Returns the memory format that a layout means for tensors of so many dimensions."""
    return LAST[ndim] if layout == "nhwc" else torch.contiguous_format


def make_buffers(layer: Layer, precision: str, layout: str, device: torch.device) -> Buffers:
    """Makes normal random tensors; weights are scaled so that results are of order one."""
    dtype, memory = DTYPES[precision], memory_format(layout, layer.dims + 2)

    def normal(shape: tuple[int, ...], scale: float = 1.0) -> Tensor:
        values = torch.empty(shape, dtype=dtype, device=device, memory_format=memory)
        return values.normal_(0, scale)

    terms = prod(layer.weight[1:])
    bias = torch.randn(layer.K, device=device).to(dtype) if layer.bias else None
    return Buffers(
        normal(layer.input), normal(layer.weight, terms**-0.5), bias, normal(layer.output)
    )


def operator(layer: Layer, suffix: str = "") -> Any:
    """Returns our operator for a layer, such as ``conv2d`` or ``conv_transpose3d_backward``."""
    kind = "conv_transpose" if layer.transposed else "conv"
    return getattr(torch.ops.customconv, f"{kind}{layer.dims}d{suffix}")


def _geometry(layer: Layer) -> tuple[Any, ...]:
    """What follows the tensors in a call, of ours and of PyTorch's."""
    return layer.transposed_geometry if layer.transposed else layer.geometry


def ours(layer: Layer, op: str, buffers: Buffers, family: str = "auto") -> Call:
    """Returns our operator's call, by one family or by the planner's choice."""
    x, w, bias, dy = buffers.x, buffers.w, buffers.bias, buffers.dy
    geometry = _geometry(layer)
    if op == "fprop":
        forward = operator(layer)
        return lambda: forward(x, w, bias, *geometry, algorithm=family)
    backward = operator(layer, "_backward")
    mask = [op == "dgrad", op == "wgrad", False]
    index = 0 if op == "dgrad" else 1
    return lambda: backward(dy, x, w, *geometry, mask, algorithm=family)[index]


FORWARD: dict[tuple[int, bool], Callable[..., Tensor]] = {
    (2, False): functional.conv2d, (2, True): functional.conv_transpose2d,
    (3, False): functional.conv3d, (3, True): functional.conv_transpose3d,
}  # fmt: skip


def _forward(layer: Layer, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    return FORWARD[layer.dims, layer.transposed](x, w, bias, *_geometry(layer))


def _linear(layer: Layer, op: str, buffers: Buffers) -> Call:
    """Returns the call by a matrix product of patches, which are copied if they are not in order.

    The output and its gradient are rows of tokens, as in a network with ``nn.Linear``.
    """
    x, w, bias = buffers.x, buffers.w, buffers.bias
    # Split, an input is (N, C, O, T, P, R, Q, S). Patches are (N, O, P, Q, C, T, R, S), or their
    # channels come last, as in memory.
    along = zip(layer.output[2:], layer.weight[2:], strict=True)
    split = [*layer.input[:2], *itertools.chain.from_iterable(along)]
    places, taps = range(2, len(split), 2), range(3, len(split), 2)
    last = not x.is_contiguous()
    order = [0, *places, *taps, 1] if last else [0, *places, 1, *taps]
    filters = w.movedim(1, -1) if last else w
    rows = buffers.dy.movedim(1, -1).reshape(-1, layer.K)

    def patches() -> Tensor:
        return x.view(split).permute(order).reshape(len(rows), -1)

    def fprop() -> Tensor:
        found = functional.linear(patches(), filters.flatten(1), bias)
        return found.view(layer.N, *layer.output[2:], layer.K).movedim(-1, 1)

    def dgrad() -> Tensor:
        found = (rows @ filters.flatten(1)).view([split[i] for i in order])
        return found.permute([order.index(i) for i in range(len(order))]).reshape(layer.input)

    def wgrad() -> Tensor:
        found = (rows.t() @ patches()).view(filters.shape)
        return found.movedim(-1, 1) if last else found

    return {"fprop": fprop, "dgrad": dgrad, "wgrad": wgrad}[op]


def peers(layer: Layer, op: str, buffers: Buffers, peer: str) -> Call:
    """Returns the peer's call for the same row."""
    x, w, bias, dy = buffers.x, buffers.w, buffers.bias, buffers.dy
    if peer == "linear":
        return _linear(layer, op, buffers)
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
