"""The convolutions that a network calls, and the time that ours and PyTorch's take for each."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from . import contenders, timing
from .layers import Layer, Numbers

DTYPES = {torch.float16: "fp16", torch.bfloat16: "bf16"}  # float32 depends on the TF32 switch


@dataclass(frozen=True)
class Call:
    """A pass of a convolution that a network calls. 1-D convolutions have a height of one."""

    layer: Layer  # named after the first module that calls it
    op: str
    precision: str
    layout: str


@dataclass(frozen=True)
class Cost:
    """A call, how often it is made, and its milliseconds per call from a cold cache."""

    name: str
    op: str
    shape: str
    calls: int
    family: str
    ours_ms: float
    pytorch_ms: float

    @property
    def lost_ms(self) -> float:
        """How much longer all of ours take than PyTorch's."""
        return self.calls * (self.ours_ms - self.pytorch_ms)


def shape_of(layer: Layer) -> str:
    """Formats a layer's sizes in one line."""
    sizes, taps = ("x".join(map(str, each)) for each in (layer.input, layer.weight[2:]))
    text = f"{sizes} -> {layer.K}, {taps}"
    for what, value, usual in (
        ("stride", layer.stride, 1), ("padding", layer.pad, 0), ("dilation", layer.dil, 1),
    ):  # fmt: skip
        if set(value) != {usual}:
            text += f", {what} {value[0] if len(set(value)) == 1 else value}"
    text += f", groups {layer.groups}" if layer.groups > 1 else ""
    return text + (", transposed" if layer.transposed else "")


class Recorder(TorchDispatchMode):
    """Counts PyTorch's convolutions, forward and backward, by what a call's cost depends on."""

    def __init__(self, network: nn.Module, float32: str, layout: str) -> None:
        super().__init__()
        self.float32, self.layout = float32, layout
        self.counts: Counter[Call] = Counter()
        self.names: dict[Layer, str] = {}
        self.inside: list[str] = []
        self.hooks = []
        for name, module in network.named_modules():
            self.hooks.append(module.register_forward_pre_hook(self._entering(name)))
            self.hooks.append(module.register_forward_hook(self._leaving, always_call=True))

    def _entering(self, name: str) -> Callable[..., None]:
        return lambda *_: self.inside.append(name)

    def _leaving(self, *_: Any) -> None:
        self.inside.pop()

    def __exit__(self, *raised: Any) -> None:
        super().__exit__(*raised)
        for hook in self.hooks:
            hook.remove()

    def _layout_of(self, x: Tensor) -> str:
        first = x.is_contiguous()
        formats = contenders.LAST
        last = x.ndim in formats and x.is_contiguous(memory_format=formats[x.ndim])
        return self.layout if first == last else "nhwc" if last else "nchw"

    def _count(self, ops: Sequence[str], x: Tensor, w: Tensor, bias: bool, *geometry: Any) -> None:
        stride, pad, dil, transposed, output_padding, groups = geometry
        if x.ndim not in (3, 4, 5):
            return

        def numbers(values: Sequence[int], of_the_height: int) -> Numbers:
            if x.ndim == 3:
                return (of_the_height, values[0])
            return tuple(values if len(values) > 1 else [values[0]] * (x.ndim - 2))

        *deep, high, wide = x.shape[2:] if x.ndim > 3 else (1, *x.shape[2:])
        *depth, r, s = w.shape[2:] if x.ndim > 3 else (1, *w.shape[2:])
        layer = Layer(
            "", "", x.shape[0], x.shape[1], high, wide,
            w.shape[1] * groups if transposed else w.shape[0], r, s, numbers(stride, 1),
            numbers(pad, 0), numbers(dil, 1), groups, False, transposed, numbers(output_padding, 0),
            D=deep[0] if deep else None, T=depth[0] if depth else 1,
        )  # fmt: skip
        name = self.names.setdefault(layer, self.inside[-1] if self.inside else "")
        for op in ops:
            # Only the forward pass adds a bias.
            of = replace(layer, name=name, bias=bias and op == "fprop")
            precision = DTYPES.get(x.dtype, self.float32)
            self.counts[Call(of, op, precision, self._layout_of(x))] += 1

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Any = None
    ) -> Any:
        if func is torch.ops.aten.convolution.default:
            x, w, bias, *geometry = args
            self._count(("fprop",), x, w, bias is not None, *geometry)
        elif func is torch.ops.aten.convolution_backward.default:
            _, x, w, bias_sizes, *geometry, mask = args
            ops = [op for op, asked in zip(("dgrad", "wgrad"), mask[:2], strict=True) if asked]
            self._count(ops, x, w, bias_sizes is not None, *geometry)
        return func(*args, **(kwargs or {}))


def recorded(
    network: nn.Module, run: Callable[[], Any], float32: str, layout: str
) -> Counter[Call]:
    """Counts the convolutions that one run of the network calls.

    Args:
        network: The network that ``run`` runs.
        run: A forward pass, with or without a backward pass.
        float32: How float32 is computed, "fp32" or "tf32".
        layout: The layout to assume for tensors that fit both, such as 1x1 images.
    """
    recorder = Recorder(network, float32, layout)
    with recorder:
        run()
    return recorder.counts


@cache
def timed(call: Call, device: torch.device, budget_s: float) -> tuple[str, float, float] | None:
    """Returns our family, our time and tuned PyTorch's; None if the call can't be measured."""
    peer = "cudnn" if device.type == "cuda" else "aten"
    if contenders.why_not(call.layer, call.precision, call.op, peer, device):
        return None
    with contenders.switches(call.precision, peer):
        buffers = contenders.make_buffers(call.layer, call.precision, call.layout, device)
        family, _ = contenders.plan_of(call.layer, call.op, buffers, "auto")
        calls = {
            "ours": [contenders.ours(call.layer, call.op, buffers)],
            "pytorch": [contenders.peers(call.layer, call.op, buffers, peer)],
        }
        found = timing.interleaved(calls, device, least_runs=5, budget_s=budget_s).times
    return family, found["ours"].median, found["pytorch"].median


def costs(
    calls: Mapping[Call, int], device: torch.device, *, budget_s: float, call_s: float = 0.05
) -> list[Cost]:
    """Times the calls until the budget is spent; returns those that lose most time first."""
    began = time.monotonic()
    found = []
    for call, times in calls.items():
        if time.monotonic() - began > budget_s:
            break
        if (taken := timed(call, device, call_s)) is not None:
            what = call.layer.name, call.op, shape_of(call.layer), times
            found.append(Cost(*what, *taken))
    return sorted(found, key=lambda each: -each.lost_ms)
