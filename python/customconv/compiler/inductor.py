"""What Inductor is told about this package's operators: their layouts, and parameters together.

A pass over each graph that Inductor compiles, after autograd, does two things. It decides whether
images are laid out channels-last. And it gathers what is computed from parameters alone, which is
weights cast to another type or laid out channels-last, and batch norms as scales: one kernel does
it for all layers, where Inductor has one for each.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, fx
from torch._inductor import config, ir, lowering
from torch._inductor.custom_graph_pass import CustomGraphPass
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from .. import _C
from ..info import build_info

_OPS = torch.ops.customconv
_FORWARD = frozenset(
    {_OPS.conv2d.default, _OPS.conv2d_fused.default, _OPS.conv_transpose2d.default}
)
_BACKWARD = frozenset({_OPS.conv2d_backward.default, _OPS.conv_transpose2d_backward.default})
_CASTS = frozenset({torch.ops.prims.convert_element_type.default, torch.ops.aten._to_copy.default})
# What reads parameters from memory, whatever else Inductor makes one kernel of.
_READERS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("addmm", "bmm", "convolution", "mm", "permute", "t", "view")
)

# Where a node is marked to have its images channels-last.
_CHANNELS_LAST = "customconv_channels_last"


class InductorPass(CustomGraphPass):
    """The pass, after another one that a user has asked for."""

    def __init__(self, before: CustomGraphPass | None = None) -> None:
        """Takes the user's pass, or None."""
        self.before = before

    def __call__(self, graph: fx.Graph) -> None:
        """Changes a graph in place."""
        if self.before is not None:
            self.before(graph)
        nodes = [node for node in graph.nodes if node.target in _FORWARD]
        if nodes and _wants_channels_last(graph, nodes):
            for node in nodes:
                node.meta[_CHANNELS_LAST] = True
        _gather_batch_norms(graph)
        _gather_copies(graph)

    def uuid(self) -> Any:
        """What cached code depends on: this package's version and build, and the user's pass."""
        before = None if self.before is None else self.before.uuid()
        if self.before is not None and not before:
            return None  # which keeps Inductor from caching
        return "customconv", build_info()["version"], _hash(), _autocast_state(), before


def _autocast_state() -> tuple[tuple[str, bool, str], ...]:
    """What autocast makes of a graph. Caches that see the graph before autograd do not look."""
    return tuple(
        (kind, torch.is_autocast_enabled(kind), str(torch.get_autocast_dtype(kind)))
        for kind in ("cuda", "cpu")
    )


@functools.cache
def _hash() -> str:
    """A hash of the binary, and of the Python code that graphs are changed by."""
    package = Path(_C.__file__).parent
    digest = hashlib.sha256(Path(_C.__file__).read_bytes())
    for path in (package / "fake.py", *sorted((package / "compiler").glob("*.py"))):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def register() -> None:
    """Tells Inductor how this package's operators want their images. Repeated calls do nothing."""
    make_fallback: Any = lowering.make_fallback
    for op in (*_FORWARD, *_BACKWARD):
        if op not in lowering.lowerings:
            make_fallback(op, layout_constraint=_constrain, warn=False)


# --- Layout ---


def _wants_channels_last(graph: fx.Graph, nodes: Sequence[fx.Node]) -> bool:
    """Whether all of a graph's convolutions should have channels-last images.

    Channels-first images are packed, or turned while they are loaded, which takes about as long as
    reading them once more. Channels-last ones have to be converted where the graph begins and ends,
    which reads and writes them. The smaller number of bytes decides.
    """
    values = [tensor for node in nodes for tensor in (_value(node.args[0]), _value(node.args[1]))]
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
    return _origin(node.args[0]) if node.target in _CASTS else node


def _seen_by_users(graph: fx.Graph) -> list[fx.Node]:
    """The images among a graph's outputs that a user gets, in the strides of the eager model."""
    output = graph.output_node()
    outputs = output.args[0] if isinstance(output.args[0], (list, tuple)) else [output.args[0]]
    seen = output.meta.get("user_visible_output_idxs", range(len(outputs)))
    nodes = [outputs[index] for index in seen if isinstance(outputs[index], fx.Node)]
    values = {node: node.meta.get("val") for node in nodes}
    return [n for n, v in values.items() if isinstance(v, Tensor) and v.ndim == 4
            and not has_free_symbols(v) and not _is_channels_last(v)]  # fmt: skip


def _bytes(node: object) -> int:
    """The size of a node's images, which is nothing if they are channels-last already."""
    value = _value(node)
    return 0 if _is_channels_last(value) else value.numel() * value.element_size()


def _constrain(node: fx.Node, *args: Any, **kwargs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Lays out images in one order, so that no operand has to be copied when the operator runs."""
    backward = node.target in _BACKWARD
    images = _value(node.args[1 if backward else 0])
    last = node.meta.get(_CHANNELS_LAST, False)
    if backward:
        last = _lies_channels_last(args[1]) or _is_channels_last(_value(node.args[2]))
    last = last or _is_channels_last(images) or _is_channels_last(_value(node.args[1]))
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


def _is_channels_last(tensor: Tensor) -> bool:
    return tensor.ndim == 4 and (
        torch._prims_common.suggest_memory_format(tensor) is torch.channels_last
    )


def _lies_channels_last(value: Any) -> bool:
    """Whether a buffer of four dimensions is laid out channels-last, as far as that is decided."""
    layout = value.maybe_get_layout() if isinstance(value, ir.IRNode) else None
    if not isinstance(layout, ir.FixedLayout) or len(layout.size) != 4:
        return False
    return bool(ir.is_stride_order_storage_and_layout(value, ir.NHWC_STRIDE_ORDER)) and (
        not layout.is_contiguous()
    )


# --- Parameters ---


def _value(node: object) -> Tensor:
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def _new(graph: fx.Graph, op: Callable[..., Any], *args: Any) -> fx.Node:
    """A node for a call, with the fake value of its result."""
    node = graph.call_function(op, args)
    values = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
    mode = next(each.meta["val"].fake_mode for each in node.all_input_nodes)
    with mode:
        node.meta["val"] = op(*values)
    return node


def _items(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """A node for each tensor of a list."""
    found = []
    for index, value in enumerate(node.meta["val"]):
        item = graph.call_function(operator.getitem, (node, index))
        item.meta["val"] = value
        found.append(item)
    return found


def _after_placeholders(graph: fx.Graph) -> fx.Node:
    nodes: Iterable[fx.Node] = graph.nodes
    return next(node for node in nodes if node.op not in ("placeholder", "get_attr"))


def _gather_batch_norms(graph: fx.Graph) -> None:
    """Folds batch norms whose vectors are all parameters by one call."""
    calls = [
        node for node in graph.nodes
        if node.target is _OPS.fold_batch_norms.default
        and all(each.op == "placeholder" for each in node.all_input_nodes)
    ]  # fmt: skip
    if len(calls) < 2:
        return
    columns = zip(*(call.args for call in calls), strict=True)
    lists = [list(itertools.chain.from_iterable(column)) for column in columns]
    with graph.inserting_before(_after_placeholders(graph)):
        folded = iter(_items(graph, _new(graph, _OPS.fold_batch_norms.default, *lists)))
    for call in calls:
        results = [next(folded) for _ in call.meta["val"]]
        for item in list(call.users):
            item.replace_all_uses_with(results[item.args[1]])
            graph.erase_node(item)
        graph.erase_node(call)


def _gather_copies(graph: fx.Graph) -> None:
    """Casts parameters, and lays weights out channels-last where images are: a call for each type.

    Inductor would cast each by a kernel of its own, since what reads it is no kernel of Inductor's.
    """
    wanted: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in graph.nodes:
        cast = node.target in _CASTS
        origin = node.args[0] if cast else node
        if not isinstance(origin, fx.Node) or origin.op != "placeholder":
            continue
        readers = [user for user in node.users if user.op != "output"]
        before = origin.meta["val"]
        if not isinstance(before, Tensor) or has_free_symbols(before) or not readers:
            continue
        convolutions = [user for user in readers if _reads_weight(user, node)]
        last = any(_has_channels_last_images(user) for user in convolutions)
        moves = last and before.ndim == 4 and before.shape[2:].numel() > 1
        moves = moves and not _is_channels_last(before)
        if cast and all(user in convolutions or user.target in _READERS for user in readers):
            key = before.dtype, _value(node).dtype, before.device, last
        elif moves and len(convolutions) == len(node.users):
            key = before.dtype, before.dtype, before.device, True
        else:
            continue
        wanted.setdefault(key, []).append(node)
    for (_, dtype, _, last), nodes in wanted.items():
        if len(nodes) < 2:
            continue
        origins = [node.args[0] if node.target in _CASTS else node for node in nodes]
        with graph.inserting_before(_after_placeholders(graph)):
            made = _new(graph, _OPS.copy_parameters.default, origins, dtype, last)
            copies = _items(graph, made)
        for node, copy in zip(nodes, copies, strict=True):
            for user in [each for each in node.users if each is not made]:
                user.replace_input_with(node, copy)
            if node.target in _CASTS:
                graph.erase_node(node)


def _reads_weight(user: fx.Node, weight: fx.Node) -> bool:
    """Whether a node is a convolution of ours with this weight."""
    return user.target in _FORWARD and user.args[1] is weight and user.args[0] is not weight


def _has_channels_last_images(node: fx.Node) -> bool:
    return node.meta.get(_CHANNELS_LAST, False) or _is_channels_last(_value(node.args[0]))
