"""Products of matrices, and attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .exchange import Line, fetch, shared
from .rowed import Rowed, aligned, along_others, is_sharded, rule, unwrapped, wrapped


@rule(F.linear)
def linear(line: Line, func: Any, input: Any, weight: Tensor, bias: Tensor | None = None) -> Any:
    """The last dimension is that of features."""
    if not is_sharded(input, line):
        return NotImplemented
    rowed = unwrapped(input)
    if rowed.axis == -1:
        return NotImplemented
    return along_others(line, func, rowed, shared(weight, line), shared(bias, line))


@rule(torch.matmul, Tensor.matmul, Tensor.__matmul__, torch.bmm, Tensor.bmm)
def matmul(line: Line, func: Any, input: Any, other: Any) -> Any:
    """Rows of the left matrix times the whole right one, or matrices of a batch."""
    if not is_sharded(input, line) or other.dim() < 2 or input.dim() < 2:
        return NotImplemented
    rowed = unwrapped(input)
    if rowed.axis == -2:
        right = fetched(other, line)
    elif rowed.axis < -2 and is_sharded(other, line):
        theirs = unwrapped(other)
        if (theirs.axis, theirs.size) != (rowed.axis, rowed.size):
            return NotImplemented
        right = theirs.local
    else:
        return NotImplemented
    return wrapped(Rowed(func(rowed.local, right), rowed.axis, rowed.size), line)


@rule(F.scaled_dot_product_attention)
def attention(
    line: Line, func: Any, query: Any, key: Any, value: Any, attn_mask: Any = None,
    dropout_p: float = 0.0, is_causal: bool = False, **kwargs: Any,
) -> Any:  # fmt: skip
    """Each rank has some of the queries, and asks for all keys and values."""
    if not is_sharded(query, line) or is_causal:
        return NotImplemented
    rowed = unwrapped(query)
    if rowed.axis != -2:
        return NotImplemented
    (mask,) = aligned([attn_mask], -2, rowed.size, line)
    result = func(rowed.local, fetched(key, line), fetched(value, line), mask, dropout_p, **kwargs)
    return wrapped(Rowed(result, -2, rowed.size), line)


def fetched(value: Any, line: Line) -> Tensor:
    """The whole tensor, of which each rank computes something else."""
    if not is_sharded(value, line):
        plain: Tensor = shared(value, line)
        return plain
    rowed = unwrapped(value)
    return fetch(rowed.local, rowed.dim, rowed.size, [(0, rowed.size)] * line.ranks, line)
