"""How images and volumes of convolutions are laid out in the graphs that Inductor compiles."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config, ir, lowering
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from .. import _bind
from .nodes import CAST, is_channels_last, operators, tensor_of

_TRANSPOSED = operators("conv_transpose2d", "conv_transpose2d_fused")
FORWARD = _TRANSPOSED | operators("conv2d", "conv2d_fused", "conv2d_statistics")
_BACKWARD = operators("conv2d_backward", "conv_transpose2d_backward")

# What converting kernels read and write: 0.7 of the memory's bandwidth on the GPU whose prices the
# planner has.
_CONVERTED_BYTES_A_MS = 0.7 * 3.35e9

_CHANNELS_LAST_ORDERS = {4: ir.NHWC_STRIDE_ORDER, 5: ir.NHWDC_STRIDE_ORDER}

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
    are_so = _are_channels_last(tensor_of(node.args[0]), tensor_of(node.args[1]))
    return node.meta.get(CHANNELS_LAST, False) or are_so


def _are_channels_last(images: Tensor, weight: Tensor) -> bool:
    """Whether a batch of images or volumes is laid out channels-last."""
    return images.ndim == weight.ndim and is_channels_last(images)


def _wants_channels_last(graph: fx.Graph, nodes: Sequence[fx.Node]) -> bool:
    """Whether all of a graph's convolutions should have channels-last images.

    The planner predicts what each takes in either layout. Channels-last images have to be converted
    where the graph begins and ends. The smaller sum decides. A graph with volumes stays as it is,
    since what the planner predicts of them has not been measured.
    """
    values = [
        tensor for node in nodes for tensor in (tensor_of(node.args[0]), tensor_of(node.args[1]))
    ]
    if any(value.ndim > 4 for value in values):
        return False
    if not config.layout_optimization or any(has_free_symbols(value) for value in values):
        return False
    if any(value.dtype is torch.float64 or value.numel() == 0 for value in values):
        return False
    seen = _seen_by_users(graph)
    with_gradients = len(_visible(graph)) < len(_outputs(graph))
    first, last = (
        sum(
            _bind.plan(problem).predicted_ms
            for node in nodes
            for problem in problems_of(
                node, channels_last=channels_last, with_gradients=with_gradients
            )
        )
        for channels_last in (False, True)
    )
    return last + _conversion_ms(nodes, seen, with_gradients) < first


def problems_of(
    node: fx.Node, *, channels_last: bool, with_gradients: bool
) -> Iterator[_bind.ConvProblem]:
    """What the planner is asked about a convolution, and about its gradients where there are any.

    The gradient of an input of the graph is rarely wanted.
    """
    names = [argument.name for argument in node.target._schema.arguments]  # type: ignore[union-attr]
    given = dict(zip(names, node.args, strict=False))
    images, weight = tensor_of(given["input"]), tensor_of(given["weight"])

    def numbers(name: str, default: int) -> tuple[int, ...]:
        """One for each dimension behind the channels."""
        value = given.get(name, default)
        listed = [value] if isinstance(value, int) else list(value)
        return tuple(listed * (weight.ndim - 2) if len(listed) == 1 else listed)

    transposed = node.target in _TRANSPOSED
    passes = ["dgrad" if transposed else "fprop"]
    if with_gradients:
        passes.append("wgrad")
        if _origin(given["input"]).op != "placeholder":
            passes.append("fprop" if transposed else "dgrad")
    # A transposed convolution is planned as the gradient of one whose input is its result.
    shape = tensor_of(node).shape if transposed else images.shape
    for op in passes:
        # Whether kernels of an input gradient do the rest depends on the layout.
        rest = _epilogue(given.get("bias"), node.kwargs) if op == "dgrad" and transposed else {}
        yield _bind.ConvProblem(
            op=op,
            dtype=str(images.dtype).removeprefix("torch."),
            input=(*[1] * (weight.ndim - len(shape)), *shape),
            weight=tuple(weight.shape),
            stride=numbers("stride", 1),
            padding=numbers("padding", 0),
            dilation=numbers("dilation", 1),
            groups=given.get("groups", 1),
            channels_last=channels_last or _are_channels_last(images, weight),
            tf32=allows_tf32(),
            **rest,
        )


def _epilogue(bias: Any, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the planner is told of what follows a transposed convolution."""
    residual = options.get("residual") is not None
    passes = (options.get("scale") is not None) + residual
    passes += options.get("activation", "none") != "none"
    return {"bias": bias is not None, "residual": residual, "epilogue_passes": passes}


def allows_tf32() -> bool:
    """Whether PyTorch's switch lets convolutions compute float32 in TF32."""
    return bool(torch._C._get_fp32_precision_getter("cuda", "conv") == "tf32")


def _conversion_ms(
    nodes: Sequence[fx.Node], seen: Sequence[fx.Node], with_gradients: bool
) -> float:
    """What it takes to convert images where the graph begins and ends.

    A conversion reads and writes an image. Another kernel of Inductor that writes a result converts
    it on the way, and only writes it less well.
    """
    given = {node.args[0] for node in nodes if _origin(node.args[0]).op == "placeholder"}
    moved = sum(2 * _bytes(each) for each in given)
    moved += sum((2 if each.target in FORWARD else 1) * _bytes(each) for each in seen)
    if with_gradients:
        moved += sum(2 * _bytes(each) for each in seen)
    return moved / _CONVERTED_BYTES_A_MS


def _origin(node: object) -> fx.Node:
    """What is cast, if a node is a cast; else the node."""
    assert isinstance(node, fx.Node)
    return _origin(node.args[0]) if node.target is CAST else node


def _outputs(graph: fx.Graph) -> Sequence[Any]:
    found = graph.output_node().args[0]
    return found if isinstance(found, (list, tuple)) else [found]


def _visible(graph: fx.Graph) -> Sequence[int]:
    """The numbers of the outputs that a user gets; the others are kept for the backward pass."""
    numbers = range(len(_outputs(graph)))
    visible: Sequence[int] = graph.output_node().meta.get("user_visible_output_idxs", numbers)
    return visible


def _seen_by_users(graph: fx.Graph) -> list[fx.Node]:
    """The images among a graph's outputs that a user gets, in the strides of the eager model."""
    outputs, seen = _outputs(graph), _visible(graph)
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
    images, weight = (tensor_of(each) for each in node.args[backward : backward + 2])
    dims = weight.ndim
    last = _lies_channels_last(args[1], dims) if backward else node.meta.get(CHANNELS_LAST, False)
    last = last or _are_channels_last(images, weight) or is_channels_last(weight)
    order = _CHANNELS_LAST_ORDERS[dims] if last else list(reversed(range(dims)))

    def laid_out(value: Any) -> Any:
        if not isinstance(value, ir.IRNode) or len(value.get_size()) != dims:
            return value
        return ir.ExternKernel.require_stride_order(value, order)

    count = 2 if backward else 1
    arranged = (*(laid_out(value) for value in args[:count]), *args[count:])
    return arranged, {
        name: laid_out(value) if name == "residual" else value for name, value in kwargs.items()
    }


def _lies_channels_last(value: Any, dims: int) -> bool:
    """Whether a buffer of so many dimensions is laid out channels-last, as far as is decided."""
    layout = value.maybe_get_layout() if isinstance(value, ir.IRNode) else None
    if not isinstance(layout, ir.FixedLayout) or len(layout.size) != dims:
        return False
    order = _CHANNELS_LAST_ORDERS[dims]
    return bool(ir.is_stride_order_storage_and_layout(value, order)) and not layout.is_contiguous()
