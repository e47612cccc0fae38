"""What passes over Inductor's graphs share: nodes' values, and new nodes."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, fx

CAST = torch.ops.prims.convert_element_type.default


def operators(*names: str) -> frozenset[Any]:
    """This package's operators of these names, where "2d" stands for "3d" too."""
    return frozenset(
        getattr(torch.ops.customconv, name.replace("2d", dimensions)).default
        for name in names
        for dimensions in ("2d", "3d")
    )


def tensor_of(node: object) -> Tensor:
    """A node's fake tensor."""
    assert isinstance(node, fx.Node)
    value = node.meta["val"]
    assert isinstance(value, Tensor)
    return value


def new_call(graph: fx.Graph, op: Callable[..., Any], *args: Any) -> fx.Node:
    """A node for a call, with the fake value of its result."""
    node = graph.call_function(op, args)
    values = fx.node.map_arg(args, lambda each: each.meta["val"])
    mode = next(each.meta["val"].fake_mode for each in node.all_input_nodes)
    with mode:
        node.meta["val"] = op(*values)
    return node


def items_of(graph: fx.Graph, node: fx.Node) -> list[fx.Node]:
    """A node for each tensor of a list."""
    found = []
    for index, value in enumerate(node.meta["val"]):
        item = graph.call_function(operator.getitem, (node, index))
        item.meta["val"] = value
        found.append(item)
    return found


def after_placeholders(graph: fx.Graph) -> fx.Node:
    """The first node that computes something."""
    nodes: Iterable[fx.Node] = graph.nodes
    return next(node for node in nodes if node.op not in ("placeholder", "get_attr"))


def is_channels_last(tensor: Tensor) -> bool:
    """Whether images or volumes, or a weight of theirs, are laid out channels-last."""
    return torch._prims_common.suggest_memory_format(tensor) is not torch.contiguous_format
