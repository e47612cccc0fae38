"""Batch norms in training mode, whose statistics come with the convolution in front of them.

After autograd a batch norm consists of simple operators: the variance and mean of each channel, the
reciprocal of the standard deviation, the running statistics, and a product and a sum for each
pixel. The last two are left to Inductor, which computes them with what follows. The others become
``conv2d_statistics`` or ``conv3d_statistics`` together with the convolution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols

from .layout import CHANNELS_LAST
from .nodes import CAST, after_placeholders, items_of, new_call, tensor_of

_ATEN = torch.ops.aten
_OPS = torch.ops.customconv
# What also computes the statistics, by the convolution.
_WITH_STATISTICS = {
    _OPS.conv2d.default: _OPS.conv2d_statistics.default,
    _OPS.conv3d.default: _OPS.conv3d_statistics.default,
}


@dataclass(frozen=True)
class _Update:
    """How a running statistic follows: it becomes (1 - momentum) * itself + momentum * the new."""

    running: fx.Node
    momentum: float
    store: fx.Node


def fuse_statistics(graph: fx.Graph) -> None:
    """Lets convolutions compute the statistics of batch norms that follow them."""
    found = [_fuse(graph, n) for n in list(graph.nodes) if n.target is _ATEN.var_mean.correction]
    if any(found):
        graph.eliminate_dead_code()


def _fuse(graph: fx.Graph, var_mean: fx.Node) -> bool:
    convolution = _convolution_of(var_mean)
    if convolution is None:
        return False
    items = {user.args[1]: user for user in var_mean.users}
    variance, mean = items.get(0), items.get(1)
    eps, reciprocal = _reciprocal_std(variance)
    updates = [_update(mean, 1.0), _update(variance, _sample_factor(convolution))]
    both = [update for update in updates if update is not None]
    running: list[fx.Node | None] = [None, None]
    momentum = 0.0
    if len(both) == 2 and math.isclose(both[0].momentum, both[1].momentum):
        running, momentum = [update.running for update in both], both[0].momentum
        for update in both:
            graph.erase_node(update.store)
    given = convolution.args
    operator: Any = convolution.target
    defaults = [each.default_value for each in operator._schema.arguments[len(given) : 7]]
    arguments = [*given, *defaults, eps, *running, momentum]
    with graph.inserting_before(convolution):
        fused = new_call(graph, _WITH_STATISTICS[operator], *arguments)
        results = items_of(graph, fused)
    if CHANNELS_LAST in convolution.meta:
        fused.meta[CHANNELS_LAST] = convolution.meta[CHANNELS_LAST]
    before = (convolution, variance, mean, reciprocal)
    for node, result in zip(before, results, strict=True):
        if node is not None:
            node.replace_all_uses_with(result)
    return True


def _convolution_of(var_mean: fx.Node) -> fx.Node | None:
    """The convolution of whose output these are the statistics of each channel, or None."""
    images = var_mean.args[0]
    dims = var_mean.args[1] if len(var_mean.args) > 1 else var_mean.kwargs.get("dim")
    assert isinstance(images, fx.Node)
    if var_mean.kwargs.get("correction") != 0 or not var_mean.kwargs.get("keepdim"):
        return None
    dtype = tensor_of(images).dtype
    if images.target is CAST:
        images = images.args[0]
    assert isinstance(images, fx.Node)
    if images.target not in _WITH_STATISTICS or images.kwargs:
        return None
    output, rank = tensor_of(images), tensor_of(images.args[1]).ndim
    others = [0, *range(2, rank)]  # than the channels
    if not isinstance(dims, (list, tuple)) or sorted(d % rank for d in dims) != others:
        return None
    # The operator's statistics have this type, whatever others would have.
    is_wide = dtype == torch.promote_types(output.dtype, torch.float32)
    return images if is_wide and output.ndim == rank else None


def _sample_factor(convolution: fx.Node) -> float | None:
    """What makes a variance of the population one of the sample: n / (n - 1)."""
    output = tensor_of(convolution)
    if has_free_symbols(output):
        return None
    pixels = output.numel() // output.shape[1]
    return pixels / (pixels - 1) if pixels > 1 else None


def _scaled(node: fx.Node) -> Iterator[tuple[fx.Node, float]]:
    """The products of a node with a number."""
    for user in node.users:
        if user.target is _ATEN.mul.Tensor and isinstance(user.args[1], (int, float)):
            yield user, float(user.args[1])


def _reciprocal_std(variance: fx.Node | None) -> tuple[float, fx.Node | None]:
    """The number that is added to a variance, and the node that computes 1 / sqrt(sum)."""
    for user in variance.users if variance else ():
        if user.target is not _ATEN.add.Tensor or user.kwargs:
            continue
        if not isinstance(user.args[1], (int, float)):
            continue
        roots = list(user.users)
        if len(roots) == 1 and roots[0].target is _ATEN.rsqrt.default:
            return float(user.args[1]), roots[0]
    return 0.0, None


def _update(statistic: fx.Node | None, factor: float | None) -> _Update | None:
    """The update of a running statistic, of which ``factor`` times the new one becomes a part."""
    if statistic is None or factor is None:
        return None
    vectors = [user for user in statistic.users if user.target is _ATEN.squeeze.dims]
    for scaled, number in (each for vector in vectors for each in _scaled(vector)):
        found = [(scaled, number)]
        if factor != 1:
            found = list(_scaled(scaled)) if math.isclose(number, factor, rel_tol=1e-6) else []
        for new, momentum in found:
            if update := _stored(new, momentum):
                return update
    return None


def _stored(new: fx.Node, momentum: float) -> _Update | None:
    """The update that adds a node to a running statistic, if nobody else reads what it computes."""
    added = next(iter(new.users), None)
    if added is None or added.target is not _ATEN.add.Tensor or added.kwargs:
        return None
    kept = added.args[1] if added.args[0] is new else added.args[0]
    if not isinstance(kept, fx.Node) or kept.target is not _ATEN.mul.Tensor:
        return None
    running, rest = kept.args
    if not isinstance(running, fx.Node) or running.op != "placeholder":
        return None
    if not isinstance(rest, (int, float)) or not math.isclose(momentum + rest, 1):
        return None
    store = _store_of(added, running, reader=kept)
    is_vector = tensor_of(running).dtype is torch.float32 and tensor_of(running).ndim == 1
    return _Update(running, momentum, store) if store is not None and is_vector else None


def _store_of(value: fx.Node, to: fx.Node, reader: fx.Node) -> fx.Node | None:
    """The one user of a value, if it stores it in an input that ``reader`` alone reads."""
    users = list(value.users)
    if len(users) != 1 or users[0].target is not _ATEN.copy_.default or users[0].args[0] is not to:
        return None
    return users[0] if set(to.users) == {reader, users[0]} else None


def count_together(graph: fx.Graph) -> None:
    """Adds to all counters of batches by one kernel, where Inductor has one for each."""
    counters: dict[tuple[Any, ...], list[fx.Node]] = {}
    for node in graph.nodes:
        if node.target is not _ATEN.add.Tensor or node.kwargs or node.args[1] != 1:
            continue
        counter = node.args[0]
        if not isinstance(counter, fx.Node) or counter.op != "placeholder":
            continue
        value = counter.meta["val"]
        if not isinstance(value, torch.Tensor) or value.ndim > 0 or value.is_floating_point():
            continue
        if _store_of(node, counter, reader=node) is not None:
            counters.setdefault((value.dtype, value.device), []).append(node)
    for nodes in counters.values():
        if len(nodes) < 2:
            continue
        with graph.inserting_before(after_placeholders(graph)):
            sums = new_call(graph, _ATEN._foreach_add.Scalar, [n.args[0] for n in nodes], 1)
            results = items_of(graph, sums)
        for node, result in zip(nodes, results, strict=True):
            node.replace_all_uses_with(result)
            graph.erase_node(node)
