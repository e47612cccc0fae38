"""Parameters that convolutions read, gathered: one kernel for all layers.

Weights are cast to another type or laid out channels-last, and batch norms become scales. Inductor
would have a kernel for each of them, since what reads it is no kernel of Inductor's.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from .layout import FORWARD, has_channels_last_images
from .nodes import CAST, after_placeholders, is_channels_last, items_of, new_call, tensor_of

_OPS = torch.ops.customconv
# What reads parameters from memory, whatever else Inductor makes one kernel of.
_READERS = frozenset(
    getattr(torch.ops.aten, name).default
    for name in ("addmm", "bmm", "convolution", "mm", "permute", "t", "view")
)


def gather_batch_norms(graph: fx.Graph) -> None:
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
    with graph.inserting_before(after_placeholders(graph)):
        folded = iter(items_of(graph, new_call(graph, _OPS.fold_batch_norms.default, *lists)))
    for call in calls:
        results = [next(folded) for _ in call.meta["val"]]
        for item in list(call.users):
            item.replace_all_uses_with(results[item.args[1]])
            graph.erase_node(item)
        graph.erase_node(call)


def gather_copies(graph: fx.Graph) -> None:
    """Casts parameters, and lays weights out channels-last where images are: a call for each type.

    Inductor would cast each by a kernel of its own, since what reads it is no kernel of Inductor's.
    """
    wanted: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in graph.nodes:
        cast = node.target is CAST
        origin = node.args[0] if cast else node
        if not isinstance(origin, fx.Node) or origin.op != "placeholder":
            continue
        readers = [user for user in node.users if user.op != "output"]
        before = origin.meta["val"]
        if not isinstance(before, Tensor) or has_free_symbols(before) or not readers:
            continue
        convolutions = [user for user in readers if _reads_weight(user, node)]
        last = any(has_channels_last_images(user) for user in convolutions)
        moves = last and before.shape[2:].numel() > 1
        moves = moves and not is_channels_last(before)
        if cast and all(user in convolutions or user.target in _READERS for user in readers):
            key = before.dtype, tensor_of(node).dtype, before.device, last
        elif moves and len(convolutions) == len(node.users):
            key = before.dtype, before.dtype, before.device, True
        else:
            continue
        wanted.setdefault(key, []).append(node)
    for (_, dtype, _, last), nodes in wanted.items():
        if len(nodes) < 2:
            continue
        origins = [node.args[0] if node.target is CAST else node for node in nodes]
        with graph.inserting_before(after_placeholders(graph)):
            made = new_call(graph, _OPS.copy_parameters.default, origins, dtype, last)
            copies = items_of(graph, made)
        for node, copy in zip(nodes, copies, strict=True):
            for user in [each for each in node.users if each is not made]:
                user.replace_input_with(node, copy)
            if node.target is CAST:
                graph.erase_node(node)


def _reads_weight(user: fx.Node, weight: fx.Node) -> bool:
    """Whether a node is a convolution of ours with this weight."""
    return user.target in FORWARD and user.args[1] is weight and user.args[0] is not weight
