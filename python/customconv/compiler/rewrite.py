"""Graphs in which chains have become calls of fused operators, such as ``conv2d_fused``."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.nn import functional

from ..info import why_no_kernels
from .chains import IS_OURS, Chain, Refused, Scale, Shift, find, learns
from .operators import BatchNorm, Convolution, Operand, name_of, read, same_sizes, value_of
from .report import CompiledConvolution

_OPS = torch.ops.customconv
_DTYPES = torch.float64, torch.float32, torch.float16, torch.bfloat16
# Of these, a matrix product is as precise as a convolution. In float32 each has a switch for TF32.
_HALF_PRECISION = torch.float16, torch.bfloat16

# Where the node of an operator has what is reported of it.
REPORTED = "customconv_reported"
# What a chain's result has of the node that it replaces.
_KEPT = "stack_trace", "nn_module_stack", "source_fn_stack", "custom", "example_value", "val"
# What is not read, as PyTorch's functions and ATen's operators are named.
_OTHER_CONVOLUTIONS = ("conv_tbc", "convolution")


def why_not_ours(value: Tensor) -> str:
    """Why no kernels of this package compute such a tensor, or "" if they do."""
    if not value.is_cuda:
        return f"its tensors are on {value.device.type}, and kernels run on CUDA"
    return why_no_kernels()


def fuse(graph: fx.Graph) -> list[CompiledConvolution]:
    """Makes the convolutions of a graph this package's, in place, with what follows them.

    Args:
        graph: A graph of PyTorch's functions and methods, or of ATen's operators before autograd.
            Nodes carry fake tensors as ``example_value`` or ``val``.

    Returns:
        What became of each convolution, in the graph's order.
    """
    found: list[CompiledConvolution] = []
    # From the last: of two convolutions that are added, the later one takes the other's output.
    for node in reversed(list(graph.nodes)):
        value, convolution = value_of(node), read(node)
        if value is None:
            continue
        reason = why_not_ours(value)
        if not isinstance(convolution, Convolution):
            if name_of(node).removeprefix("aten.").split(".")[0] in _OTHER_CONVOLUTIONS:
                reason = reason or "only convolutions of signals, images and volumes are read"
                found.append(_left(node, name_of(node), reason))
            continue
        if value.dtype not in _DTYPES:
            reason = reason or f"no kernel computes in {value.dtype}"
        if reason:
            found.append(_left(node, convolution.kind, reason))
            continue
        chain, name = find(convolution, node), _module_of(node)
        try:
            numbers = _numbers(convolution)
            if not convolution.is_ours and (what := _makes_a_product(convolution, numbers)):
                if value.dtype in _HALF_PRECISION:
                    _write_product(graph, convolution, node)
                    raise Refused(f"{what} make it a matrix product")
                if what == _ONE_PIXEL:
                    raise Refused("its images have one pixel")
        except Refused as refusal:
            kind, is_ours = convolution.kind, convolution.is_ours
            found.append(CompiledConvolution(name, (kind,), str(refusal), is_ours))
            continue
        found.append(CompiledConvolution(name, tuple(chain.parts), chain.ends, True))
        _Writer(graph, chain, numbers).replace().meta[REPORTED] = found[-1]
    return found[::-1]


def _left(node: fx.Node, kind: str, reason: str) -> CompiledConvolution:
    """What is said of a convolution that PyTorch computes."""
    return CompiledConvolution(_module_of(node), (kind,), reason, False)


def _module_of(node: fx.Node) -> str:
    """The name of the module that a node was called in, or of the node itself."""
    stack = node.meta.get("nn_module_stack") or {}
    names = [str(entry[0]) for entry in stack.values()]
    if not names:
        return node.name
    # Dynamo's names begin with L['self'], or with the variable that holds the module.
    name = re.sub(r"^L\['(self|fn)'\]|^[LG](?=\[)", "", names[-1])
    for before, after in (("._modules['", "."), ("']", ""), ("[", "."), ("]", ""), ("'", "")):
        name = name.replace(before, after)
    return name.lstrip(".") or node.name


_ONE_PIXEL = "images of one pixel"


def _makes_a_product(convolution: Convolution, numbers: Mapping[str, Any]) -> str:
    """What makes a convolution of a batch a matrix product: filters that read all of an image.

    Returns:
        The reason, or "" if it is none. Beyond one pixel, only volumes count: patches come so to
        embeddings of videos. Images may still be laid out channels-last, and be copied then.
    """
    images, weight = value_of(convolution.input), value_of(convolution.weight)
    if images is None or weight is None or convolution.transposed or images.ndim != weight.ndim:
        return ""
    # With the channels: one group.
    if any(numbers["padding"]) or not same_sizes(images.shape[1:], weight.shape[1:]):
        return ""
    if all(statically_known_true(size == 1) for size in weight.shape[2:]):
        return _ONE_PIXEL
    if convolution.spatial == 3 and _lies_in_order(images) and _lies_in_order(weight):
        return "filters as large as the volumes"
    return ""


def _lies_in_order(value: Tensor) -> bool:
    """Whether to flatten each image, or each filter, copies nothing."""
    step: int | torch.SymInt = 1
    for size, stride in zip(reversed(value.shape[1:]), reversed(value.stride()[1:]), strict=True):
        if not (statically_known_true(size == 1) or statically_known_true(stride == step)):
            return False
        step = step * size
    return True


def _write_product(graph: fx.Graph, convolution: Convolution, node: fx.Node) -> None:
    """Makes a convolution whose filters read all of an image a matrix product.

    For single pixels, that takes the host less time.
    """
    with graph.inserting_before(node):
        rows, weight = (
            graph.call_function(torch.flatten, (each, 1))
            for each in (convolution.input, convolution.weight)
        )
        result = graph.call_function(functional.linear, (rows, weight, convolution.bias))
        for _ in range(convolution.spatial):
            result = graph.call_function(torch.unsqueeze, (result, -1))
    result.meta.update(node.meta)
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _numbers(convolution: Convolution) -> dict[str, Any]:
    """Stride, padding and so on, a number for each dimension; signals have a height of one."""
    numbers = {}
    for name, value in convolution.numbers.items():
        if name == "groups":
            numbers[name] = value
        elif isinstance(value, str):
            numbers[name] = _padding(convolution, value)
        else:
            listed = list(value) if isinstance(value, Sequence) else [value]
            if convolution.spatial == 1:
                listed = [0 if "padding" in name else 1, *listed]
            numbers[name] = listed * convolution.spatial if len(listed) == 1 else listed
    return numbers


def _padding(convolution: Convolution, word: str) -> list[int]:
    """Padding that is said by a word, in numbers."""
    weight, dilations = value_of(convolution.weight), convolution.numbers["dilation"]
    if word == "valid":
        return [0] * max(convolution.spatial, 2)
    if word != "same" or weight is None:
        raise Refused(f"its padding is {word!r}")
    taps = list(weight.shape[2:])
    if len(taps) == 1:
        taps = [1, *taps]
    listed = list(dilations) if isinstance(dilations, Sequence) else [dilations]
    steps = (listed * len(taps))[-len(taps) :]
    totals = [(count - 1) * step for count, step in zip(taps, steps, strict=True)]
    if any(total % 2 for total in totals):
        raise Refused("it pads one side more than the other")
    return [total // 2 for total in totals]


@dataclass
class _Writer:
    """Writes a chain as nodes that call this package's operators."""

    graph: fx.Graph
    chain: Chain
    numbers: dict[str, Any]

    def replace(self) -> fx.Node:
        """Puts a call in the chain's place, removes the chain, and returns the operator's node."""
        chain, last = self.chain, self.chain.last
        with self.graph.inserting_before(chain.place):
            call = self._call()
            result = self._node(torch.squeeze, call, -2) if self._is_flat else call
        for name in _KEPT:
            if name in last.meta:
                result.meta[name] = last.meta[name]
        last.replace_all_uses_with(result)
        for node in reversed(chain.nodes):
            self.graph.erase_node(node)
        return call

    @property
    def _is_flat(self) -> bool:
        """Whether signals become images with a height of one."""
        return self.chain.convolution.spatial == 1

    def _call(self) -> fx.Node:
        """The nodes for the chain; returns that of its operator."""
        convolution, chain = self.chain.convolution, self.chain
        x, w, residual = convolution.input, convolution.weight, chain.residual
        if self._is_flat:
            x = self._node(torch.unsqueeze, self._node(torch.Tensor.contiguous, x), -2)
            w = self._node(torch.unsqueeze, w, -2)
            if residual is not None:
                residual = self._node(torch.unsqueeze, residual, -2)
        order = ["stride", "padding", "dilation", "groups"]
        if convolution.transposed:
            order = ["stride", "padding", "output_padding", "groups", "dilation"]
        arguments = [self.numbers[name] for name in order]
        kind = convolution.kind.replace("1d", "2d")
        if not chain.is_fused:
            plain = getattr(_OPS, kind).default
            return self._node(plain, x, w, convolution.bias, *arguments)
        fused = getattr(_OPS, f"{kind}_fused").default
        scale, shift = self._scale_and_shift()
        more: dict[str, Any] = {"scale": scale, "residual": residual}
        if chain.activation is not None:
            more["activation"] = chain.activation.name
            if chain.activation.name == "leaky_relu":
                more["negative_slope"] = chain.activation.negative_slope
        if chain.residual_last:
            more["residual_last"] = True
        more = {name: value for name, value in more.items() if value is not None}
        return self._node(fused, x, w, shift, *arguments, **more)

    def _node(self, target: Callable[..., Any], *args: Any, **kwargs: Any) -> fx.Node:
        node = self.graph.call_function(target, args, kwargs)
        node.meta[IS_OURS] = True
        return node

    def _scale_and_shift(self) -> tuple[fx.Node | None, fx.Node | None]:
        """What each channel is multiplied with and what is added to it."""
        scale: fx.Node | None = None
        shift = self.chain.convolution.bias
        learning = learns(self.chain.last, shift)
        for step in self.chain.affine:
            if isinstance(step, BatchNorm):
                # The operator has no derivative, so that what learns is not folded by it.
                folded = self._node(
                    _OPS.fold_batch_norms.default, [step.mean], [step.variance], [step.weight],
                    [step.bias], [None if learning else shift], [step.eps],
                )  # fmt: skip
                factor, term = (self._node(operator.getitem, folded, index) for index in (0, 1))
                if learning:
                    term = self._node(torch.add, self._node(torch.mul, shift, factor), term)
                scale, shift = self._times(scale, factor), term
            elif isinstance(step, Scale):
                factor = self._vector(step.by)
                if step.divides:
                    factor = self._node(torch.reciprocal, factor)
                scale = self._times(scale, factor)
                shift = None if shift is None else self._node(torch.mul, shift, factor)
            else:
                assert isinstance(step, Shift)
                term = self._vector(step.by)
                learning = learning or learns(self.chain.last, step.by)
                if step.alpha != 1:
                    term = self._node(torch.mul, term, step.alpha)
                shift = term if shift is None else self._node(torch.add, shift, term)
        return scale, shift

    def _times(self, scale: fx.Node | None, factor: fx.Node) -> fx.Node:
        return factor if scale is None else self._node(torch.mul, scale, factor)

    def _vector(self, operand: Operand) -> fx.Node:
        """One number for each channel, in float32 beside 16 bits."""
        output = value_of(self.chain.nodes[0])
        assert output is not None
        dtype = torch.promote_types(output.dtype, torch.float32)
        if not isinstance(operand, fx.Node):
            channels = output.shape[self.chain.convolution.channel_dim]
            return self._node(torch.full, (channels,), operand, dtype=dtype, device=output.device)
        vector, value = self._node(torch.reshape, operand, (-1,)), value_of(operand)
        is_wide = value is not None and value.dtype == dtype
        return vector if is_wide else self._node(torch.Tensor.to, vector, dtype)
