"""How the images of convolutions are laid out in the graphs that Inductor compiles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config, ir, lowering
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from .nodes import CAST, is_channels_last, tensor_of

_OPS = torch.ops.customconv
FORWARD = frozenset(
    {
        _OPS.conv2d.default,
        _OPS.conv2d_fused.default,
        _OPS.conv2d_statistics.default,
        _OPS.conv_transpose2d.default,
    }
)
_BACKWARD = frozenset({_OPS.conv2d_backward.default, _OPS.conv_transpose2d_backward.default})

# Where a node is marked to have its images channels-last.
CHANNELS_LAST = "customconv_channels_last"


def register() -> None:
    """Tells Inductor how this package's operators want their images. Repeated calls do nothing."""
    make_fallback: Any = lowering.make_fallback
    for op in (*FORWARD, *_BACKWARD):
        if op not in lowering.lowerings:
            make_fallback(op, warn=False)
        # Inductor has one of its own if it has met the operator before.
        lowering.add_layout_constraint(op, _constrain)


def choose_layout(graph: fx.Graph) -> None:
    """Marks all convolutions of a graph if their images should be channels-last."""
    nodes = [node for node in graph.nodes if node.target in FORWARD]
    if nodes and _wants_channels_last(graph, nodes):
        for node in nodes:
            node.meta[CHANNELS_LAST] = True


def has_channels_last_images(node: fx.Node) -> bool:
    """Whether a convolution has channels-last images, by choice or as they are."""
    return node.meta.get(CHANNELS_LAST, False) or is_channels_last(tensor_of(node.args[0]))


def _wants_channels_last(graph: fx.Graph, nodes: Sequence[fx.Node]) -> bool:
    """Whether all of a graph's convolutions should have channels-last images.

    Channels-first images are packed, or turned while they are loaded, which takes about as long as
    reading them once more. Channels-last ones have to be converted where the graph begins and ends,
    which reads and writes them. The smaller number of bytes decides.
    """
    values = [
        tensor for node in nodes for tensor in (tensor_of(node.args[0]), tensor_of(node.args[1]))
    ]
    if not config.layout_optimization or any(has_free_symbols(value) for value in values):
        return False
    if any(value.dtype is torch.float64 for value in values):
        return False
    packed = sum(_bytes(node.args[0]) for node in nodes)
    given = {node.args[0] for node in nodes if _origin(node.args[0]).op == "placeholder"}
    converted = sum(2 * _bytes(each) for each in (*given, *_seen_by_users(graph)))
    return converted < packed


def _origin(node: object) -> fx.Node:
    """What is cast, if a node is a cast; else the node."""
    assert isinstance(node, fx.Node)
    return _origin(node.args[0]) if node.target is CAST else node


def _seen_by_users(graph: fx.Graph) -> list[fx.Node]:
    """The images among a graph's outputs that a user gets, in the strides of the eager model."""
    output = graph.output_node()
    outputs = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    seen = output.meta.get("user_visible_output_idxs", range(len(outputs)))
    nodes = [outputs[index] for index in seen if isinstance(outputs[index], fx.Node)]
    values = {node: node.meta.get("val") for node in nodes}
    return [n for n, v in values.items() if isinstance(v, Tensor) and v.ndim == 4
            and not has_free_symbols(v) and not is_channels_last(v)]  # fmt: skip


def _bytes(node: object) -> int:
    """The size of a node's images, which is nothing if they are channels-last already."""
    value = tensor_of(node)
    return 0 if is_channels_last(value) else value.numel() * value.element_size()


def _constrain(node: fx.Node, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Lays out images in one order, so that no operand has to be copied when the operator runs."""
    backward = node.target in _BACKWARD
    images = tensor_of(node.args[1 if backward else 0])
    last = node.meta.get(CHANNELS_LAST, False)
    if backward:
        last = _lies_channels_last(args[1]) or is_channels_last(tensor_of(node.args[2]))
    last = last or is_channels_last(images) or is_channels_last(tensor_of(node.args[1]))
    order = ir.NHWC_STRIDE_ORDER if last else [3, 2, 1, 0]

    def laid_out(value: Any) -> Any:
        if not isinstance(value, ir.IRNode) or len(value.get_size()) != 4:
            return value
        return ir.ExternKernel.require_stride_order(value, order)

    count = 2 if backward else 1
    arranged = (*(laid_out(value) for value in args[:count]), *args[count:])
    return arranged, {
        name: laid_out(value) if name == "residual" else value for name, value in kwargs.items()
    }


def _lies_channels_last(value: Any) -> bool:
    """Whether a buffer of four dimensions is laid out channels-last, as far as that is decided."""
    layout = value.maybe_get_layout() if isinstance(value, ir.IRNode) else None
    if not isinstance(layout, ir.FixedLayout) or len(layout.size) != 4:
        return False
    return bool(ir.is_stride_order_storage_and_layout(value, ir.NHWC_STRIDE_ORDER)) and (
        not layout.is_contiguous()
    )
