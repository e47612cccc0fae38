"""Rules by which ``vmap`` maps the operators: one call computes all examples.

A mapped dimension is folded into the batch where all examples share the weight, and into the groups
where each has its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Gradients = tuple[Tensor | None, Tensor | None, Tensor | None]  # of input, weight, bias
Operator = Callable[..., Any]


@dataclass(frozen=True)
class Mapped:
    """A tensor, with the examples as its first dimension if it has one for each."""

    value: Tensor
    is_mapped: bool

    def each(self, count: int) -> Tensor:
        """The tensor for each of ``count`` examples; a shared one is expanded, not copied."""
        return self.value if self.is_mapped else self.value.expand(count, *self.value.shape)


def _mapped(tensor: Tensor, dimension: int | None) -> Mapped:
    if dimension is None:
        return Mapped(tensor, False)
    return Mapped(tensor.movedim(dimension, 0), True)


def _of_none(operator: Operator, in_dims: Sequence[int | None], *tensors: Tensor | None) -> Any:
    """An operator's results for no examples: those of one example of zeros, without the example."""
    one = [
        tensor if tensor is None or dimension is None else tensor.sum(dimension)
        for tensor, dimension in zip(tensors, in_dims, strict=True)
    ]
    results = operator(*one)
    if isinstance(results, Tensor):
        return results.unsqueeze(0)[:0], 0
    none = tuple(each if each is None else each.unsqueeze(0)[:0] for each in results)
    return none, tuple(None if each is None else 0 for each in results)


def _spatial(weight: Mapped) -> int:
    """2 for images, 3 for volumes."""
    return weight.value.ndim - 2 - weight.is_mapped


def _with_batch(images: Mapped, spatial: int) -> Mapped:
    """Images of shape (B, N, C, H, W), or (N, C, H, W) if they are shared; so are volumes."""
    before_channels = int(images.is_mapped)
    if images.value.ndim == before_channels + 2 + spatial:
        return images
    return Mapped(images.value.unsqueeze(before_channels), images.is_mapped)


def _into_batch(images: Tensor) -> Tensor:
    """(B, N, C, H, W) as (B * N, C, H, W)."""
    return images.flatten(0, 1)


def _into_channels(images: Tensor) -> Tensor:
    """(B, N, C, H, W) as (N, B * C, H, W)."""
    return images.movedim(0, 1).flatten(1, 2)


def _from_channels(images: Tensor, count: int) -> Tensor:
    """(N, B * C, H, W) as (B, N, C, H, W)."""
    return torch.unflatten(images, 1, (count, -1)).movedim(1, 0)


def _into_groups(weight: Tensor) -> Tensor:
    """(B, K, C, R, S) as (B * K, C, R, S)."""
    return weight.flatten(0, 1)


def _output(
    convolve: Callable[[Tensor, Tensor, Tensor | None, int], Tensor],
    count: int,
    in_dims: Sequence[int | None],
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    groups: int,
) -> tuple[Tensor, int]:
    """An output for each example. ``convolve`` takes input, weight, bias and groups."""
    w = _mapped(weight, in_dims[1])
    b = None if bias is None else _mapped(bias, in_dims[2])
    given = _mapped(input, in_dims[0])
    x = _with_batch(given, _spatial(w))
    shared = b.value if b is not None and not b.is_mapped and not w.is_mapped else None
    if w.is_mapped:
        found = convolve(_into_channels(x.each(count)), _into_groups(w.value), None, groups * count)
        output = _from_channels(found, count)
    elif x.is_mapped:
        output = convolve(_into_batch(x.value), w.value, shared, groups)
        output = torch.unflatten(output, 0, (count, -1))
    else:
        output = convolve(x.value, w.value, None, groups).unsqueeze(0)
    if b is not None and shared is None:
        channels = b.value.reshape(*b.value.shape, *[1] * _spatial(w))
        output = output + (channels.unsqueeze(1) if b.is_mapped else channels)
    return (output if x is given else output.squeeze(1)), 0


def _gradients(
    differentiate: Callable[[Tensor, Tensor, Tensor, int, list[bool]], Gradients],
    count: int,
    in_dims: Sequence[int | None],
    grad_output: Tensor,
    input: Tensor,
    weight: Tensor,
    groups: int,
    mask: Sequence[bool],
) -> tuple[Gradients, tuple[int | None, int | None, int | None]]:
    """Gradients for each example. ``differentiate`` takes three tensors, groups and a mask."""
    w = _mapped(weight, in_dims[2])
    given = _mapped(input, in_dims[1])
    spatial = _spatial(w)
    x, g = _with_batch(given, spatial), _with_batch(_mapped(grad_output, in_dims[0]), spatial)
    grad_input = grad_weight = grad_bias = None
    input_dim = 0 if w.is_mapped or g.is_mapped else None
    weight_dim = 0 if x.is_mapped or g.is_mapped else None
    bias_dim = 0 if g.is_mapped else None
    one, other = [True, False, False], [False, True, False]

    def by_groups(which: list[bool]) -> Gradients:
        images, grads = _into_channels(x.each(count)), _into_channels(g.each(count))
        return differentiate(grads, images, _into_groups(w.each(count)), groups * count, which)

    if mask[0]:
        if w.is_mapped:
            found = by_groups(one)[0]
            assert found is not None
            grad_input = _from_channels(found, count)
        elif g.is_mapped:
            # Only the shape of the input matters here, so that a shared one is not copied.
            shape = x.each(count).shape
            images = x.value if x.is_mapped else x.value.new_empty(1).expand(shape)
            grads = _into_batch(g.value)
            found = differentiate(grads, _into_batch(images), w.value, groups, one)[0]
            assert found is not None
            grad_input = torch.unflatten(found, 0, (count, -1))
        else:
            images = x.value[0] if x.is_mapped else x.value
            grad_input = differentiate(g.value, images, w.value, groups, one)[0]
        if x is not given and grad_input is not None:
            grad_input = grad_input.squeeze(0 if input_dim is None else 1)
    if mask[1]:
        if weight_dim == 0:
            found = by_groups(other)[1]
            assert found is not None
            grad_weight = torch.unflatten(found, 0, (count, -1))
        else:
            grad_weight = differentiate(g.value, x.value, w.value[0], groups, other)[1]
    if mask[2]:
        grad_bias = g.value.sum((-2 - spatial, *range(-spatial, 0)))
    dims = (
        input_dim if grad_input is not None else None,
        weight_dim if grad_weight is not None else None,
        bias_dim if grad_bias is not None else None,
    )
    return (grad_input, grad_weight, grad_bias), dims


_GROUPS = 3  # where the groups stand in the geometry of each operator


def _rule_for_output(operator: Operator, defaults: tuple[Any, ...]) -> Operator:
    """A rule for an operator that takes input, weight, bias and then a geometry.

    Args:
        operator: The operator.
        defaults: The geometry's defaults, since PyTorch leaves out what equals them at the end.
    """

    def rule(
        info: Any,
        in_dims: Sequence[int | None],
        input: Tensor,
        weight: Tensor,
        bias: Tensor | None = None,
        *given: Any,
        algorithm: str = "auto",
    ) -> tuple[Tensor, int]:
        geometry = [*given, *defaults[len(given) :]]
        dims = [*in_dims, None][:3]  # one is missing where the bias is
        if info.batch_size == 0:

            def convolve_one(x: Tensor, w: Tensor, b: Tensor | None) -> Tensor:
                output: Tensor = operator(x, w, b, *geometry, algorithm=algorithm)
                return output

            found: tuple[Tensor, int] = _of_none(convolve_one, dims, input, weight, bias)
            return found

        def convolve(x: Tensor, w: Tensor, b: Tensor | None, groups: int) -> Tensor:
            numbers = [*geometry[:_GROUPS], groups, *geometry[_GROUPS + 1 :]]
            output: Tensor = operator(x, w, b, *numbers, algorithm=algorithm)
            return output

        return _output(convolve, info.batch_size, dims, input, weight, bias, geometry[_GROUPS])

    return rule


def _rule_for_gradients(operator: Operator) -> Operator:
    """A rule for an operator that takes grad_output, input, weight, a geometry and a mask."""

    def rule(
        info: Any,
        in_dims: Sequence[int | None],
        grad_output: Tensor,
        input: Tensor,
        weight: Tensor,
        *given: Any,
        algorithm: str = "auto",
    ) -> tuple[Gradients, tuple[int | None, int | None, int | None]]:
        *geometry, output_mask = given
        if info.batch_size == 0:

            def differentiate_one(g: Tensor, x: Tensor, w: Tensor) -> Gradients:
                found: Gradients = operator(g, x, w, *geometry, output_mask, algorithm=algorithm)
                return found

            none: tuple[Gradients, tuple[int | None, int | None, int | None]] = _of_none(
                differentiate_one, in_dims[:3], grad_output, input, weight
            )
            return none

        def differentiate(
            g: Tensor, x: Tensor, w: Tensor, groups: int, mask: list[bool]
        ) -> Gradients:
            numbers = [*geometry[:_GROUPS], groups, *geometry[_GROUPS + 1 :]]
            found: Gradients = operator(g, x, w, *numbers, mask, algorithm=algorithm)
            return found

        groups = geometry[_GROUPS]
        return _gradients(
            differentiate, info.batch_size, in_dims, grad_output, input, weight, groups, output_mask
        )

    return rule


def _fold_batch_norms(
    info: Any,
    in_dims: Sequence[Any],
    means: Sequence[Tensor],
    variances: Sequence[Tensor],
    weights: Sequence[Tensor | None],
    biases: Sequence[Tensor | None],
    shifts: Sequence[Tensor | None],
    eps: Sequence[float],
) -> tuple[list[Tensor], list[int]]:
    """The rule of ``fold_batch_norms``: what each example has is more channels."""
    count = info.batch_size
    lists = [
        [None if t is None else _mapped(t, dim).each(count).reshape(-1) for t, dim in pairs]
        for pairs in map(zip, (means, variances, weights, biases, shifts), in_dims[:5])
    ]
    folded = _ops.fold_batch_norms.default(*lists, eps)
    shapes = [_mapped(t, dim).each(count).shape for t, dim in zip(means, in_dims[0], strict=True)]
    vectors = [each.reshape(shapes[i // 2]) for i, each in enumerate(folded)]
    return vectors, [0] * len(vectors)


_ops = torch.ops.customconv

# Geometries: stride, padding, dilation, groups; and stride, padding, output_padding, groups,
# dilation.
for _dimensions in (2, 3):
    _one, _none = (1,) * _dimensions, (0,) * _dimensions
    for _name, _defaults in {
        f"conv{_dimensions}d": (_one, _none, _one, 1),
        f"conv_transpose{_dimensions}d": (_one, _none, _none, 1, _one),
    }.items():
        _forward = getattr(_ops, _name).default
        _backward = getattr(_ops, f"{_name}_backward").default
        torch.library.register_vmap(_forward, _rule_for_output(_forward, _defaults))
        torch.library.register_vmap(_backward, _rule_for_gradients(_backward))
torch.library.register_vmap("customconv::fold_batch_norms", _fold_batch_norms)
