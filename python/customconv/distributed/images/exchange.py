"""What ranks send one another: rows, whole tensors and sums, with gradients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import prod
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Shard
from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta

from .rows import Rows, common, count, moves, shards

MaybeTensor = TypeVar("MaybeTensor", bound=Tensor | None)


@dataclass
class Exchanged:
    """What a function of a module has received, on this rank.

    Attributes:
        calls: How often ranks exchanged something for it.
        bytes: What this rank received.
    """

    calls: int = 0
    bytes: int = 0


@dataclass
class Line:
    """The ranks along a mesh of one dimension, among which rows are shared.

    Attributes:
        mesh: The mesh.
        exchanged: What was received, by the module's name, the function's and why.
        where: The name of the module and the function that run.
    """

    mesh: DeviceMesh
    exchanged: dict[tuple[str, str, str], Exchanged] = field(default_factory=dict)
    where: tuple[str, str] = ("", "")

    def __post_init__(self) -> None:
        """Looks up the group."""
        self.group = self.mesh.get_group()
        self.ranks = self.mesh.size()
        self.rank = self.mesh.get_local_rank()
        self.spec = lru_cache(maxsize=4096)(self._spec)

    def _spec(
        self, shape: torch.Size, stride: tuple[int, ...], dtype: torch.dtype, dim: int, size: int
    ) -> DTensorSpec:
        """That of a DTensor of which this rank has rows of such a shape, of ``size`` rows."""
        sizes, strides = list(shape), list(stride)
        sizes[dim] = size
        for d, step in enumerate(stride):
            if step > stride[dim] and shape[dim]:
                strides[d] = step // shape[dim] * size
        if not shape.numel():
            strides = list(torch.empty(sizes, device="meta").stride())
        meta = TensorMeta(torch.Size(sizes), tuple(strides), dtype)
        return DTensorSpec(self.mesh, (Shard(dim),), tensor_meta=meta)

    def shards(self, size: int) -> list[Rows]:
        """The rows of each rank."""
        return shards(size, self.ranks)

    def own(self, size: int) -> Rows:
        """The rows of this rank."""
        return self.shards(size)[self.rank]

    def at(self, where: tuple[str, str]) -> _At:
        """While this is open, what is received is put down to a module and a function."""
        return _At(self, where)

    def count(self, why: str, received: int) -> None:
        """Puts bytes down to what runs."""
        entry = self.exchanged.setdefault((*self.where, why), Exchanged())
        entry.calls += 1
        entry.bytes += received


class _At:
    """The context of ``Line.at``; a generator's would take ten times as long."""

    __slots__ = ("before", "line", "where")

    def __init__(self, line: Line, where: tuple[str, str]) -> None:
        self.line, self.where = line, where

    def __enter__(self) -> None:
        self.before, self.line.where = self.line.where, self.where

    def __exit__(self, *_: object) -> None:
        self.line.where = self.before


def narrowed(tensor: Tensor, dim: int, rows: Rows, first: int = 0) -> Tensor:
    """The rows of a tensor whose own begin at ``first``."""
    return tensor.narrow(dim, rows[0] - first, count(rows))


def buffer(like: Tensor, dim: int, rows: int) -> Tensor:
    """Memory for so many rows, in a tensor's memory format."""
    sizes = list(like.shape)
    sizes[dim] = rows
    return torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=_format_of(like))


def _format_of(tensor: Tensor) -> torch.memory_format:
    """Channels-last where channels are side by side, also of some rows of such a tensor."""
    formats = {4: torch.channels_last, 5: torch.channels_last_3d}
    is_last = tensor.dim() in formats and tensor.stride(1) == 1 < tensor.shape[1]
    if not is_last or tensor.is_contiguous():
        return torch.contiguous_format
    return formats[tensor.dim()]


def _order(dims: int, dim: int) -> list[int]:
    """The order in which dimensions travel, channels last; the same on each rank.

    The memory format would not do: ranks with few rows may have another one.
    """
    if dims < 3 or dim == 1:
        return list(range(dims))
    return [0, *range(2, dims), 1]


class Transfer:
    """Rows that ranks send one another.

    Every rank makes one at the same time, from the same numbers.

    Args:
        sent: For each rank, the rows that it gets from this one, in several pieces.
        received: For each rank, the numbers of rows in the pieces that come from it.
        like: A tensor whose other sizes they have.
        dim: The dimension that is sharded.
        line: The ranks.
    """

    def __init__(  # noqa: D107  (the class says it)
        self, sent: Sequence[Sequence[Tensor]], received: Sequence[Sequence[int]], like: Tensor,
        dim: int, line: Line,
    ) -> None:  # fmt: skip
        sizes, order = list(like.shape), _order(like.dim(), dim % like.dim())
        sizes[dim] = 1
        row = prod(sizes)
        packed = [part.permute(order).reshape(-1) for parts in sent for part in parts]
        packed = packed or [like.new_empty(0)]
        self._sent = packed[0].contiguous() if len(packed) == 1 else torch.cat(packed)
        arriving = like.new_empty(row * sum(map(sum, received)))
        self._work = dist.all_to_all_single(
            arriving, self._sent,
            [row * sum(rows) for rows in received],
            [row * sum(part.shape[dim] for part in parts) for parts in sent],
            group=line.group, async_op=True,
        )  # fmt: skip
        line.count("rows", arriving.nbytes)
        back = [order.index(d) for d in range(len(order))]
        self._pieces: list[list[Tensor]] = []
        start = 0
        for counts in received:
            pieces = []
            for rows in counts:
                sizes[dim] = rows
                flat = arriving[start : start + row * rows]
                pieces.append(flat.view([sizes[d] for d in order]).permute(back))
                start += row * rows
            self._pieces.append(pieces)

    def wait(self) -> list[list[Tensor]]:
        """For each rank, the pieces that come from it."""
        self._work.wait()
        return self._pieces


class RowsUnderWay:
    """Rows that this rank has asked for.

    Args:
        local: This rank's rows of a tensor.
        dim: The dimension that is sharded.
        size: The tensor's number of rows.
        wanted: For each rank, the ranges of rows that it wants, within the tensor.
        line: The ranks.
    """

    def __init__(  # noqa: D107  (the class says it)
        self, local: Tensor, dim: int, size: int, wanted: tuple[tuple[Rows, ...], ...], line: Line
    ) -> None:
        self._how = moves(size, wanted, line.ranks, line.rank)
        self._local, self._dim, self._line = local, dim, line
        self._first = line.own(size)[0]
        self._transfer = None
        # A rank that neither sends nor receives takes part, too: the others count on it.
        if self._how.needed:
            sent = [[self._own(rows) for rows in ranges] for ranges in self._how.sent]
            self._transfer = Transfer(sent, self._how.received, local, dim, line)

    def _own(self, rows: Rows) -> Tensor:
        return narrowed(self._local, self._dim, rows, self._first)

    def wait(self) -> list[list[Tensor]]:
        """For each range, its rows in order, in one piece or several."""
        pieces = self._transfer.wait() if self._transfer else []
        left = [iter(each) for each in pieces]
        return [
            [self._own(rows) if rank == self._line.rank else next(left[rank])
             for rank, rows in sources]
            for sources in self._how.sources
        ]  # fmt: skip


class _Fetch(torch.autograd.Function):
    """Rows of other ranks; their gradients are added to those of the rank that has the rows."""

    @staticmethod
    def forward(
        ctx: Any, local: Tensor, dim: int, size: int, wanted: Sequence[Rows], line: Line
    ) -> Tensor:
        ctx.dim, ctx.size, ctx.wanted, ctx.line, ctx.where = dim, size, wanted, line, line.where
        ranges = tuple((rows,) for rows in wanted)
        (segments,) = RowsUnderWay(local, dim, size, ranges, line).wait()
        if len(segments) == 1:  # a view of what this rank has would be one of the input
            return segments[0].clone() if segments[0]._is_view() else segments[0]
        return torch.cat(segments, dim) if segments else buffer(local, dim, 0)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        line: Line = ctx.line
        with line.at(ctx.where):
            return _returned(grad, ctx.dim, ctx.size, ctx.wanted, line), None, None, None, None


def _returned(grad: Tensor, dim: int, size: int, wanted: Sequence[Rows], line: Line) -> Tensor:
    """The gradient of this rank's rows: the sum of what ranks have that fetched them, in order."""
    how = moves(size, tuple((rows,) for rows in wanted), line.ranks, line.rank)
    (sources,) = how.sources
    parts = {rank: narrowed(grad, dim, rows, wanted[line.rank][0]) for rank, rows in sources}
    own = parts.pop(line.rank, None)
    # What was sent comes back, and what came goes back.
    sent = [[parts[rank]] if rank in parts else [] for rank in range(line.ranks)]
    received = [list(map(count, rows)) for rows in how.sent]
    pieces = Transfer(sent, received, grad, dim, line).wait()
    first, stop = line.own(size)
    result = buffer(grad, dim, stop - first).zero_()
    for rank, rows in enumerate(how.sent):
        if rank == line.rank and own is not None:
            narrowed(result, dim, dict(sources)[rank], first).add_(own)
        for each, part in zip(rows, pieces[rank], strict=True):
            narrowed(result, dim, each, first).add_(part)
    return result


def fetch(local: Tensor, dim: int, size: int, wanted: Sequence[Rows], line: Line) -> Tensor:
    """The rows that this rank wants; their gradients go back to the ranks that have them.

    Args:
        local: This rank's rows.
        dim: The dimension that is sharded.
        size: The whole tensor's number of rows.
        wanted: For each rank, a range of rows within the tensor.
        line: The ranks.
    """
    if all(common(rows, own) == rows for rows, own in zip(wanted, line.shards(size), strict=True)):
        return narrowed(local, dim, wanted[line.rank], line.own(size)[0])
    return _Fetch.apply(local, dim, size, wanted, line)  # type: ignore[no-any-return,no-untyped-call]


def gathered(local: Tensor, dim: int, size: int, line: Line, why: str = "whole") -> Tensor:
    """The whole tensor, without gradients."""
    each = -(-size // line.ranks)
    own = local.contiguous()
    if local.shape[dim] != each:
        own = buffer(own, dim, each)
        own.narrow(dim, 0, local.shape[dim]).copy_(local)
    parts = [torch.empty_like(own) for _ in range(line.ranks)]
    dist.all_gather(parts, own, group=line.group)
    line.count(why, own.nbytes * (line.ranks - 1))
    kept = [
        part.narrow(dim, 0, count(rows))
        for part, rows in zip(parts, line.shards(size), strict=True)
    ]
    return torch.cat(kept, dim)


class _Gather(torch.autograd.Function):
    """The whole tensor, of which every rank then computes the same."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, dim: int, size: int, line: Line) -> Tensor:
        ctx.dim, ctx.rows = dim, line.own(size)
        return gathered(local, dim, size, line)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return narrowed(grad, ctx.dim, ctx.rows), None, None, None


class _Scatter(torch.autograd.Function):
    """This rank's rows of a tensor that every rank has."""

    @staticmethod
    def forward(ctx: Any, whole: Tensor, dim: int, line: Line) -> Tensor:
        ctx.dim, ctx.size, ctx.line, ctx.where = dim, whole.shape[dim], line, line.where
        return narrowed(whole, dim, line.own(whole.shape[dim])).clone()

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        with ctx.line.at(ctx.where):
            return gathered(grad, ctx.dim, ctx.size, ctx.line, "gradient"), None, None


class _Sum(torch.autograd.Function):
    """The sum over ranks, of which every rank then computes the same."""

    @staticmethod
    def forward(ctx: Any, term: Tensor, line: Line) -> Tensor:
        return summed(term, line)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        return grad, None


class _Shared(torch.autograd.Function):
    """A tensor that every rank has, and of which every rank computes something else."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, line: Line) -> Tensor:
        ctx.line, ctx.where = line, line.where
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        line: Line = ctx.line
        total = grad.clone(memory_format=torch.contiguous_format)
        dist.all_reduce(total, group=line.group)
        with line.at(ctx.where):
            line.count("gradient", 2 * total.nbytes * (line.ranks - 1) // line.ranks)
        return total, None


def every(term: Tensor, line: Line) -> Tensor:
    """The terms of all ranks, one behind the other along a new first dimension."""
    own = term.contiguous()
    if line.ranks == 1:
        return own.unsqueeze(0)
    terms = own.new_empty(line.ranks * own.numel())
    dist.all_gather_into_tensor(terms, own.view(-1), group=line.group)
    line.count("sum", own.nbytes * (line.ranks - 1))
    return terms.view(line.ranks, *own.shape)


def summed(term: Tensor, line: Line) -> Tensor:
    """The sum over ranks, in their order, without gradients."""
    return every(term, line).sum(0)


def needs_gradient(*tensors: Tensor | None) -> bool:
    """Whether a function of tensors is to be recorded; if not, it takes less time."""
    return torch.is_grad_enabled() and any(
        each is not None and each.requires_grad for each in tensors
    )


def gather(local: Tensor, dim: int, size: int, line: Line) -> Tensor:
    """The whole tensor on every rank, of which every rank must compute the same."""
    return _Gather.apply(local, dim, size, line)  # type: ignore[no-any-return,no-untyped-call]


def scatter(whole: Tensor, dim: int, line: Line) -> Tensor:
    """This rank's rows of a tensor that every rank has."""
    return _Scatter.apply(whole, dim, line)  # type: ignore[no-any-return,no-untyped-call]


def sum_over_ranks(term: Tensor, line: Line) -> Tensor:
    """The sum over ranks, of which every rank must compute the same."""
    return _Sum.apply(term, line)  # type: ignore[no-any-return,no-untyped-call]


def shared(tensor: MaybeTensor, line: Line) -> MaybeTensor:
    """The same tensor, or None; its gradient is summed over the ranks."""
    if not needs_gradient(tensor):
        return tensor
    return _Shared.apply(tensor, line)  # type: ignore[no-any-return,no-untyped-call]
