"""Reductions, and functions that move dimensions or cut them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .exchange import Line, sum_over_ranks
from .rowed import (
    Rowed,
    aligned,
    axis_of,
    first_sharded,
    is_sharded,
    mapped,
    named,
    rule,
    touches,
    unwrapped,
    wrapped,
)
from .rows import count, shards


def reduced_along_others(line: Line, func: Any, rowed: Rowed, dim: Any, *args: Any,
                         **kwargs: Any) -> Any:  # fmt: skip
    """A function that takes dimensions away which are not sharded."""
    kwargs.pop("dim", None)
    result = func(rowed.local, dim, *args, **kwargs)
    keeps = (args[0] if args else kwargs.get("keepdim", False)) or False
    dims = [dim] if isinstance(dim, int) else dim
    behind = sum(d % rowed.local.dim() > rowed.dim for d in dims)
    axis = rowed.axis if keeps else rowed.axis + behind
    return mapped(lambda each: wrapped(Rowed(each, axis, rowed.size), line), result)


@rule(*named("sum mean amax amin all any", torch, Tensor))
def reduced(line: Line, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A reduction: over rows it is one over ranks, too."""
    dim = args[0] if args else kwargs.get("dim")
    if not is_sharded(input, line) or kwargs.get("out") is not None:
        return NotImplemented
    rowed = unwrapped(input)
    if not touches(dim, input):
        return reduced_along_others(line, func, rowed, dim, *args[1:], **kwargs)
    if func.__name__ not in ("sum", "mean") or not rowed.local.is_floating_point():
        return NotImplemented
    keeps = args[1] if len(args) > 1 else kwargs.get("keepdim", False)
    dtype = kwargs.get("dtype") or (args[2] if len(args) > 2 else None)
    if dtype is not None and not dtype.is_floating_point:
        return NotImplemented
    return total(line, rowed, dim, keeps, func.__name__ == "mean", dtype)


def total(
    line: Line, rowed: Rowed, dim: Any, keeps: bool, divides: bool, dtype: torch.dtype | None
) -> Tensor:
    """A sum or a mean over dimensions with the one that is sharded, the same on each rank."""
    local = rowed.local
    dims = [dim] if isinstance(dim, int) else list(dim or range(local.dim()))
    wide = torch.float64 if torch.float64 in (dtype, local.dtype) else torch.float32
    term = sum_over_ranks(local.sum(dims, keepdim=keeps, dtype=wide), line)
    if divides:
        pixels = math.prod(local.shape[d] if d % local.dim() != rowed.dim else rowed.size
                           for d in dims)  # fmt: skip
        term = term / pixels
    return term.to(dtype or local.dtype)


@rule(Tensor.permute, torch.permute)
def permute(line: Line, func: Any, input: Any, *dims: Any) -> Any:
    """The dimension that is sharded goes to its new place."""
    if not is_sharded(input, line):
        return NotImplemented
    rowed = unwrapped(input)
    order = [d % input.dim() for d in (dims if isinstance(dims[0], int) else dims[0])]
    axis = order.index(rowed.dim) - input.dim()
    return wrapped(Rowed(rowed.local.permute(order), axis, rowed.size), line)


@rule(*named("transpose swapaxes swapdims", torch, Tensor))
def transpose(line: Line, func: Any, input: Any, dim0: int, dim1: int) -> Any:
    """Two dimensions change places."""
    if not is_sharded(input, line):
        return NotImplemented
    order = list(range(input.dim()))
    order[dim0], order[dim1] = order[dim1], order[dim0]
    return permute(line, func, input, order)


@rule(*named("movedim moveaxis", torch, Tensor))
def movedim(line: Line, func: Any, input: Any, source: Any, destination: Any) -> Any:
    """Dimensions go to other places."""
    if not is_sharded(input, line):
        return NotImplemented
    marks = torch.empty([1] * input.dim(), device="meta").as_strided(
        [1] * input.dim(), list(range(input.dim()))
    )
    return permute(line, func, input, list(func(marks, source, destination).stride()))


@rule(*named("view reshape flatten unflatten unsqueeze squeeze view_as reshape_as", torch, Tensor))
def reshaped(line: Line, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """The same elements in the same order: the rows stay rows, or become more of them, or fewer."""
    if not is_sharded(input, line) or (args and isinstance(args[0], torch.dtype)):
        return NotImplemented
    rowed = unwrapped(input)
    others = [mapped(lambda each: torch.empty(each.shape, device="meta")
                     if isinstance(each, Tensor) else each, each) for each in args]  # fmt: skip
    shape = func(torch.empty(input.shape, device="meta"), *others, **kwargs).shape
    in_front, dim = math.prod(input.shape[: rowed.dim]), 0
    while dim < len(shape) and (math.prod(shape[:dim]), shape[dim]) < (in_front, 2):
        dim += 1  # to the first dimension of more than one row
    if dim == len(shape) or math.prod(shape[:dim]) != in_front:
        return NotImplemented
    size = shape[dim]
    own, new = shards(rowed.size, line.ranks), shards(size, line.ranks)
    if any(a * size != b * rowed.size for o, n in zip(own, new, strict=True)
           for a, b in zip(o, n, strict=True)):  # fmt: skip
        return NotImplemented
    local = [*shape[:dim], count(new[line.rank]), *shape[dim + 1 :]]
    return wrapped(Rowed(rowed.local.reshape(local), dim - len(shape), size), line)


@rule(*named("chunk split narrow select unbind tensor_split index_select", torch, Tensor))
def pieces(line: Line, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """Pieces along a dimension that is not sharded."""
    if not is_sharded(input, line):
        return NotImplemented
    name = func.__name__
    first = name in ("narrow", "select", "index_select")
    position = 0 if first or name == "unbind" else 1
    dim = kwargs.get("dim", args[position] if len(args) > position else 0)
    if not isinstance(dim, int) or touches(dim, input):
        return NotImplemented
    rowed = unwrapped(input)
    behind = name in ("select", "unbind") and dim % input.dim() > rowed.dim
    result = func(rowed.local, *args, **kwargs)
    return mapped(lambda each: wrapped(Rowed(each, rowed.axis + behind, rowed.size), line), result)


@rule(Tensor.__getitem__)
def getitem(line: Line, func: Any, input: Any, index: Any) -> Any:
    """Slices and numbers along dimensions that are not sharded."""
    if not is_sharded(input, line):
        return NotImplemented
    entries = list(index) if isinstance(index, tuple) else [index]
    if any(not (each is None or each is ... or isinstance(each, int | slice))
           or isinstance(each, bool) for each in entries):  # fmt: skip
        return NotImplemented
    taken = sum(each is not None and each is not ... for each in entries)
    if ... not in entries:
        entries.append(...)
    where = entries.index(...)
    entries[where : where + 1] = [slice(None)] * (input.dim() - taken)
    rowed = unwrapped(input)
    d, behind = 0, 0
    for each in entries:
        if each is not None:
            if d == rowed.dim and each != slice(None):
                return NotImplemented
            behind += d > rowed.dim and isinstance(each, int)
            d += 1
        else:
            behind -= d > rowed.dim
    return wrapped(Rowed(rowed.local[tuple(entries)], rowed.axis + behind, rowed.size), line)


@rule(*named("cat concat concatenate", torch))
def cat(line: Line, func: Any, tensors: Sequence[Any], dim: int = 0, **kwargs: Any) -> Any:
    """Tensors one behind the other, along a dimension that is not sharded."""
    found = first_sharded(tensors, line)
    if found is None or touches(dim, found) or kwargs:
        return NotImplemented
    axis, size = axis_of(found), found.shape[axis_of(found)]
    if any(each.dim() != found.dim() or each.shape[axis] != size for each in tensors):
        return NotImplemented
    return wrapped(Rowed(func(aligned(tensors, axis, size, line), dim), axis, size), line)


@rule(torch.stack)
def stack(line: Line, func: Any, tensors: Sequence[Any], dim: int = 0, **kwargs: Any) -> Any:
    """Tensors along a new dimension."""
    found = first_sharded(tensors, line)
    if found is None or kwargs:
        return NotImplemented
    apart = [each.unsqueeze(dim) if not is_sharded(each, line)
             else reshaped(line, torch.unsqueeze, each, dim) for each in tensors]  # fmt: skip
    if any(each is NotImplemented for each in apart):
        return NotImplemented
    return cat(line, torch.cat, apart, dim)


@rule(Tensor.expand, Tensor.expand_as, torch.broadcast_to, Tensor.broadcast_to)
def expand(line: Line, func: Any, input: Any, *args: Any) -> Any:
    """Repeats dimensions of one element that are not sharded."""
    if not is_sharded(input, line):
        return NotImplemented
    if isinstance(args[0], Tensor):
        sizes = list(args[0].shape)
    else:
        sizes = list(args if isinstance(args[0], int) else args[0])
    rowed = unwrapped(input)
    if sizes[rowed.axis] not in (-1, rowed.size):
        return NotImplemented
    sizes[rowed.axis] = -1
    return wrapped(Rowed(rowed.local.expand(sizes), rowed.axis, rowed.size), line)
