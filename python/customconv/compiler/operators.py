"""What the nodes of a graph compute, in the few terms that matter for fusion.

Graphs come from Dynamo, whose nodes call PyTorch's functions and methods as the user's code does,
or from ``torch.export``, whose nodes call ATen's operators. Both are read into the same terms.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

aten = torch.ops.aten

# What an operator is called with: a node for a tensor, or a number.
Operand: TypeAlias = fx.Node | float


@dataclass(frozen=True)
class Convolution:
    """A convolution of signals, images or volumes, or its transpose.

    Attributes:
        kind: "conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d" or
            "conv_transpose3d".
        input: The images.
        weight: The filters.
        bias: What is added to each output channel, or None.
        numbers: The other arguments, as this package's function of that name takes them.
        is_ours: Whether the model calls this package's operator.
    """

    kind: str
    input: fx.Node
    weight: fx.Node
    bias: fx.Node | None
    numbers: Mapping[str, Any]
    is_ours: bool = False

    @property
    def transposed(self) -> bool:
        """Whether it is the transpose of a convolution."""
        return "transpose" in self.kind

    @property
    def spatial(self) -> int:
        """The number of dimensions behind the channels."""
        return int(self.kind[-2])

    @property
    def channel_dim(self) -> int:
        """The dimension of the channels, counted from the end."""
        return -1 - self.spatial


@dataclass(frozen=True)
class BatchNorm:
    """A batch norm with fixed statistics; ``weight`` and ``bias`` are None if it has none."""

    input: fx.Node
    mean: fx.Node
    variance: fx.Node
    weight: fx.Node | None
    bias: fx.Node | None
    eps: float


@dataclass(frozen=True)
class Add:
    """One operand plus ``alpha`` times the other."""

    input: Operand
    other: Operand
    alpha: float = 1.0


@dataclass(frozen=True)
class Multiply:
    """The product of two operands, or the first one divided by a number or tensor."""

    input: Operand
    other: Operand
    divides: bool = False


@dataclass(frozen=True)
class Activation:
    """A function of each element, by the name that fused operators have for it."""

    input: fx.Node
    name: str
    negative_slope: float = 0.01


@dataclass(frozen=True)
class Same:
    """An operator whose result is its input: dropout in evaluation mode, for example."""

    input: fx.Node


Operator: TypeAlias = Convolution | BatchNorm | Add | Multiply | Activation | Same


def value_of(node: object) -> Tensor | None:
    """The fake tensor that a node stands for, or None if it is no tensor or none was recorded."""
    if not isinstance(node, fx.Node):
        return None
    value = node.meta.get("example_value", node.meta.get("val"))
    return value if isinstance(value, Tensor) else None


def same_sizes(a: Sequence[int | torch.SymInt], b: Sequence[int | torch.SymInt]) -> bool:
    """Whether two shapes are known to be equal, without a guard on symbolic sizes."""
    return len(a) == len(b) and all(
        statically_known_true(x == y) for x, y in zip(a, b, strict=True)
    )


def same_layout(a: Tensor, b: Tensor) -> bool:
    """Whether tensors of the same size are known to have the same strides, where they matter."""
    return all(
        statically_known_true(size == 1) or statically_known_true(x == y)
        for size, x, y in zip(a.shape, a.stride(), b.stride(), strict=True)
    )


def name_of(node: fx.Node) -> str:
    """The name of what a node calls, as in PyTorch's documentation."""
    if isinstance(node.target, str):
        return node.target
    if isinstance(node.target, torch._ops.OpOverload):
        return str(node.target)
    return getattr(node.target, "__name__", str(node.target))


def read(node: fx.Node) -> Operator | None:
    """What a node computes, or None if it is none of the operators above."""
    if node.op == "call_function":
        reader = _FUNCTIONS.get(node.target)
    elif node.op == "call_method":
        reader = _METHODS.get(str(node.target))
    else:
        return None
    if reader is None:
        return None
    try:
        return reader(node)
    except _Unread:
        return None


# --- Arguments ---


class _Unread(Exception):
    """A call that is not one of the forms that are read."""


def _arguments(node: fx.Node, *names: str, **defaults: Any) -> dict[str, Any]:
    """The call's arguments by name; ``defaults`` follow ``names`` in the signature."""
    order = [*names, *defaults]
    if len(node.args) > len(order) or not node.kwargs.keys() <= set(order):
        raise _Unread
    given = dict(zip(order, node.args, strict=False)) | dict(node.kwargs)
    if not given.keys() >= set(names):
        raise _Unread
    return defaults | given


def _node(value: object) -> fx.Node:
    if not isinstance(value, fx.Node):
        raise _Unread
    return value


def _node_or_none(value: object) -> fx.Node | None:
    return None if value is None else _node(value)


def _number(value: object) -> float:
    """A number. One that dynamic shapes have made symbolic becomes constant, by a guard."""
    if isinstance(value, fx.Node):
        value = value.meta.get("example_value", value.meta.get("val"))
        if isinstance(value, torch.SymFloat):
            return float(value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _Unread
    return float(value)


def _operand(value: object) -> Operand:
    return value if isinstance(value, fx.Node) else _number(value)


# --- Readers ---

_Reader: TypeAlias = Callable[[fx.Node], Operator]


def _convolution(kind: str) -> _Reader:
    defaults: dict[str, Any] = {"bias": None, "stride": 1, "padding": 0}
    if "transpose" in kind:
        defaults |= {"output_padding": 0, "groups": 1, "dilation": 1}
    else:
        defaults |= {"dilation": 1, "groups": 1}

    def reader(node: fx.Node) -> Operator:
        found = _arguments(node, "input", "weight", **defaults, algorithm="auto")
        if found.pop("algorithm") != "auto":
            raise _Unread
        tensors = _node(found.pop("input")), _node(found.pop("weight"))
        bias = _node_or_none(found.pop("bias"))
        return Convolution(kind, *tensors, bias, found, node.target in _OURS)

    return reader


def _batch_norm(node: fx.Node) -> Operator:
    if node.target is functional.batch_norm:
        found = _arguments(
            node, "input", "mean", "variance", weight=None, bias=None, training=False,
            momentum=0.1, eps=1e-5,
        )  # fmt: skip
    else:  # torch.batch_norm and ATen's
        found = _arguments(
            node, "input", "weight", "bias", "mean", "variance", "training", "momentum", "eps",
            cudnn_enabled=True,
        )  # fmt: skip
    if found["training"] is not False:
        raise _Unread
    return BatchNorm(
        _node(found["input"]), _node(found["mean"]), _node(found["variance"]),
        _node_or_none(found["weight"]), _node_or_none(found["bias"]), _number(found["eps"]),
    )  # fmt: skip


def _sum(sign: int) -> _Reader:
    def reader(node: fx.Node) -> Operator:
        found = _arguments(node, "input", "other", alpha=1)
        operands = _operand(found["input"]), _operand(found["other"])
        return Add(*operands, sign * _number(found["alpha"]))

    return reader


def _product(divides: bool) -> _Reader:
    def reader(node: fx.Node) -> Operator:
        found = _arguments(node, "input", "other")
        return Multiply(_operand(found["input"]), _operand(found["other"]), divides)

    return reader


_add, _subtract, _multiply, _divide = _sum(1), _sum(-1), _product(False), _product(True)


def _activation(name: str) -> _Reader:
    """Reads a function of one tensor; ``inplace`` may be said or not."""

    def reader(node: fx.Node) -> Operator:
        found = _arguments(node, "input", inplace=False)
        return Activation(_node(found["input"]), name)

    return reader


def _leaky_relu(node: fx.Node) -> Operator:
    found = _arguments(node, "input", negative_slope=0.01, inplace=False)
    slope = _number(found["negative_slope"])
    return Activation(_node(found["input"]), "leaky_relu", slope)


def _gelu(node: fx.Node) -> Operator:
    found = _arguments(node, "input", approximate="none")
    names = {"none": "gelu", "tanh": "gelu_tanh"}
    if found["approximate"] not in names:
        raise _Unread
    return Activation(_node(found["input"]), names[found["approximate"]])


def _clamped(input: object, low: object, high: object) -> Operator:
    """A clamp to [0, 6], or to [0, inf)."""
    if low is None or _number(low) != 0:
        raise _Unread
    name = "relu" if high is None else "relu6"
    if high is not None and _number(high) != 6:
        raise _Unread
    return Activation(_node(input), name)


def _hardtanh(node: fx.Node) -> Operator:
    found = _arguments(node, "input", min_val=-1.0, max_val=1.0, inplace=False)
    return _clamped(found["input"], found["min_val"], found["max_val"])


def _clamp(node: fx.Node) -> Operator:
    found = _arguments(node, "input", min=None, max=None)
    value = value_of(node)
    if value is None or value.requires_grad:  # at the bounds it has a gradient, and ReLU has none
        raise _Unread
    return _clamped(found["input"], found["min"], found["max"])


def _dropout(node: fx.Node) -> Operator:
    found = _arguments(node, "input", p=0.5, training=True, inplace=False)
    if found["training"] is not False and found["p"] != 0:
        raise _Unread
    return Same(_node(found["input"]))


def _same(node: fx.Node) -> Operator:
    return Same(_node(_arguments(node, "input")["input"]))


def _by_overload(packet: str, reader: _Reader) -> dict[Any, _Reader]:
    """The reader for ATen's operators of that name which work on tensors, and in place."""
    found: dict[Any, _Reader] = {}
    for name in (packet, packet + "_"):
        for overload in ("default", "Tensor", "Scalar", "padding", "input"):
            target = getattr(getattr(aten, name, None), overload, None)
            if target is not None:
                found[target] = reader
    return found


_ACTIVATIONS: dict[str, _Reader] = {
    "relu": _activation("relu"),
    "relu6": _activation("relu6"),
    "silu": _activation("silu"),
    "gelu": _gelu,
    "hardswish": _activation("hardswish"),
    "hardsigmoid": _activation("hardsigmoid"),
    "leaky_relu": _leaky_relu,
    "sigmoid": _activation("sigmoid"),
    "hardtanh": _hardtanh,
    "clamp": _clamp,
}
_ARITHMETIC: dict[str, _Reader] = {
    "add": _add,
    "sub": _subtract,
    "mul": _multiply,
    "div": _divide,
    "true_divide": _divide,
}
_CONVOLUTIONS: dict[str, _Reader] = {
    f"{name}{spatial}d": _convolution(f"{name}{spatial}d")
    for name in ("conv", "conv_transpose")
    for spatial in (1, 2, 3)
}


def _ours() -> dict[Any, str]:
    """This package's operators, which its modules call, with their kinds."""
    found: dict[Any, str] = {}
    for kind in ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d"):
        packet = getattr(torch.ops.customconv, kind)
        found |= dict.fromkeys([packet, *(getattr(packet, o) for o in packet.overloads())], kind)
    return found


_OURS = _ours()


def _functions() -> dict[Any, _Reader]:
    found: dict[Any, _Reader] = {
        functional.batch_norm: _batch_norm,
        torch.batch_norm: _batch_norm,
        aten.batch_norm.default: _batch_norm,
        functional.dropout: _dropout,
        functional.dropout2d: _dropout,
        functional.dropout3d: _dropout,
        aten.dropout.default: _dropout,
        operator.add: _add,
        operator.iadd: _add,
        operator.sub: _subtract,
        operator.isub: _subtract,
        operator.mul: _multiply,
        operator.imul: _multiply,
        operator.truediv: _divide,
        operator.itruediv: _divide,
    }
    for name, reader in (_ACTIVATIONS | _ARITHMETIC | _CONVOLUTIONS).items():
        for module in (torch, functional):
            for function in (getattr(module, name, None), getattr(module, name + "_", None)):
                if function is not None:
                    found[function] = reader
        found |= _by_overload(name, reader)
    return found | {target: _CONVOLUTIONS[kind] for target, kind in _OURS.items()}


_FUNCTIONS = _functions()
_METHODS: dict[str, _Reader] = {
    name + suffix: reader
    for name, reader in (_ACTIVATIONS | _ARITHMETIC).items()
    for suffix in ("", "_")
    if hasattr(Tensor, name + suffix)
} | {"contiguous": _same}
