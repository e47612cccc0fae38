"""Transposed convolutions, taken apart where kernels of Inductor do the rest as well."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import torch
from torch import Tensor, fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses import FakeTensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import has_free_symbols
from torch.fx.passes.fake_tensor_prop import FakeTensorProp
from torch.nn import functional

from .. import _bind
from .layout import CHANNELS_LAST, choose_layout, has_channels_last_images, problems_of
from .nodes import operators, tensor_of
from .operators import name_of
from .report import CompiledConvolution
from .rewrite import REPORTED

_PLAIN, _FUSED = operators("conv_transpose2d"), operators("conv_transpose2d_fused")
_ACTIVATIONS: Mapping[str, Callable[..., Tensor]] = {
    "none": lambda x: x,
    "relu": functional.relu,
    "relu6": functional.relu6,
    "leaky_relu": functional.leaky_relu,
    "sigmoid": functional.sigmoid,
    "hardsigmoid": functional.hardsigmoid,
    "silu": functional.silu,
    "hardswish": functional.hardswish,
    "gelu": functional.gelu,
    "gelu_tanh": functools.partial(functional.gelu, approximate="tanh"),
}


def compose_unfused(graph: fx.Graph) -> None:
    """Leaves to Inductor what it does better behind transposed convolutions.

    Where no kernel of ours does it, PyTorch's operators would pass over the output one after the
    other. Where all that read the output compute element by element, Inductor makes one kernel of
    them, and of what is left to it here.
    """
    for node in _calls(graph):
        if not _is_worth_it(node):
            _compose(graph, node)


def foreseen(
    module: fx.GraphModule, found: Sequence[CompiledConvolution]
) -> list[CompiledConvolution]:
    """What ``rewrite.fuse`` reports of a graph of Dynamo's, less what will be taken apart.

    As there are no gradients yet, the layout is that of inference.
    """
    calls = _calls(module.graph)
    if not calls:
        return list(found)
    inputs = [node.meta["example_value"] for node in module.graph.find_nodes(op="placeholder")]
    mode = next(each.fake_mode for each in inputs if isinstance(each, FakeTensor))
    values: Any = FakeTensorProp(module, mode)
    values.propagate_dont_convert_inputs(*inputs)
    choose_layout(module.graph)
    apart = {id(node.meta.get(REPORTED)): node for node in calls if not _is_worth_it(node)}
    return [_apart(each, apart.get(id(each))) for each in found]


def _apart(convolution: CompiledConvolution, node: fx.Node | None) -> CompiledConvolution:
    own, *rest = convolution.parts
    if node is None or not rest:
        return convolution
    reason = "what follows makes one kernel with" if _is_fused(node) else "no kernel also does"
    return replace(convolution, parts=(own,), reason=f"{reason} {', '.join(rest)}")


def _calls(graph: fx.Graph) -> list[fx.Node]:
    """Those of transposed convolutions that do more than to convolve."""
    nodes: Sequence[fx.Node] = list(graph.nodes)
    return [
        *(node for node in nodes if node.target in _FUSED),
        *(
            node
            for node in nodes
            if node.target in _PLAIN and len(node.args) > 2 and node.args[2] is not None
        ),
    ]


def _is_worth_it(node: fx.Node) -> bool:
    """Whether a kernel of ours does all of a call, and that saves a pass over the output."""
    is_read_whole = not all(_is_elementwise(user) for user in node.users)
    return is_read_whole and _is_fused(node)


def _is_elementwise(node: fx.Node) -> bool:
    """Whether Inductor may compute it in one kernel with other operators on the same tensor."""
    if isinstance(node.target, torch._ops.OpOverload):
        return torch.Tag.pointwise in node.target.tags
    # A function or a method of PyTorch's, by the operator of that name.
    operators: Any = getattr(torch.ops.aten, name_of(node).removesuffix("_"), None)
    if not isinstance(operators, torch._ops.OpOverloadPacket):
        return False
    tags = [getattr(operators, each).tags for each in cast(Any, operators).overloads()]
    return any(torch.Tag.pointwise in each for each in tags)


def _is_fused(node: fx.Node) -> bool:
    """Whether the planner has a kernel for all of it, or sizes are not known yet."""
    value = tensor_of(node)
    if has_free_symbols([tensor_of(each) for each in (*node.all_input_nodes, node)]):
        return True
    last = has_channels_last_images(node)
    problem = next(problems_of(node, channels_last=last, with_gradients=False))
    if not value.is_cuda:
        return _bind.plan(problem).fuses
    index = value.device.index
    device = _bind.device_properties(torch.cuda.current_device() if index is None else index)
    return _bind.plan(problem, device).fuses


def _compose(graph: fx.Graph, node: fx.Node) -> None:
    """Writes a call as the convolution and simple operators, in float32 beside 16 bits."""
    nodes = node.all_input_nodes
    name = name_of(node).removeprefix("customconv.").removesuffix(".default")
    convolve = getattr(torch.ops.customconv, name.removesuffix("_fused")).default
    mode = tensor_of(node).fake_mode  # type: ignore[attr-defined]

    def composed(*tensors: Tensor) -> Tensor:
        given = dict(zip(nodes, tensors, strict=True))
        values: Any = fx.node.map_arg((node.args, node.kwargs), given.__getitem__)
        args, kwargs = values
        return _computed(convolve, *args, **kwargs)

    with mode:
        traced = make_fx(composed, select_decomp_table())(*map(tensor_of, nodes))
    for each in traced.graph.nodes:
        if each.target is convolve and CHANNELS_LAST in node.meta:
            each.meta[CHANNELS_LAST] = node.meta[CHANNELS_LAST]
    placeholders = [each for each in traced.graph.nodes if each.op == "placeholder"]
    with graph.inserting_before(node):
        result = graph.graph_copy(traced.graph, dict(zip(placeholders, nodes, strict=True)))
    assert isinstance(result, fx.Node)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _computed(
    convolve: Callable[..., Tensor],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *geometry: Any,
    scale: Tensor | None = None,
    residual: Tensor | None = None,
    activation: str = "none",
    residual_last: bool = False,
    negative_slope: float = 0.01,
) -> Tensor:
    """What ``conv_transpose2d_fused`` computes, or that of volumes, around ``convolve``."""
    output = convolve(input, weight, None, *geometry)
    vector = [-1, *[1] * (weight.ndim - 2)]
    y = output.to(torch.promote_types(output.dtype, torch.float32))
    if scale is not None:
        y = y * scale.view(vector)
    if bias is not None:
        y = y + bias.view(vector)
    if residual is not None and not residual_last:
        y = y + residual
    slope = {"negative_slope": negative_slope} if activation == "leaky_relu" else {}
    y = _ACTIVATIONS[activation](y, **slope)
    if residual is not None and residual_last:
        y = y + residual
    return y.to(output.dtype)
