"""What of a convolution may be sharded: a table, and the choice among its rows.

For each dimension of a mesh one row of the table holds. It says how each operand lies along that
dimension, and how each result then lies: nothing of an operand is read that a rank does not have,
and what each rank computes is a shard of the result or one of the terms of its sum.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch.distributed.tensor import Partial, Placement, Replicate, Shard

REPLICATED = Replicate()
SUMMED = Partial("sum")
IMAGES = ("input", "output", "residual", "grad_output", "grad_input")


@dataclass(frozen=True)
class Row:
    """One way to share a pass along a dimension of a mesh.

    Attributes:
        name: What is shared, for reports.
        places: The placements of operands and results; what is missing is replicated.
        splits_groups: Whether each rank has some of the groups.
        splits_sum: Whether each rank has some terms of the output's sum, and so no part in a bias.
    """

    name: str
    places: Mapping[str, Placement] = field(default_factory=dict)
    splits_groups: bool = False
    splits_sum: bool = False

    def place(self, operand: str) -> Placement:
        """Where an operand or a result lies."""
        return self.places.get(operand, REPLICATED)


@dataclass(frozen=True)
class Operand:
    """A tensor of a pass: its sizes, the bytes of an element, and its placements on the mesh."""

    sizes: Sequence[int]
    element: int
    placements: Sequence[Placement]

    @property
    def bytes(self) -> int:
        """Of the whole tensor."""
        count = self.element
        for size in self.sizes:
            count *= size
        return count


def rows(transposed: bool, batched: bool, grouped: bool, linear: bool) -> list[Row]:
    """The rows for a convolution and its gradients, the most wanted first.

    Args:
        transposed: Whether it is transposed: its weight has the input's channels first.
        batched: Whether images have a batch dimension.
        grouped: Whether it has several groups.
        linear: Whether nothing but a bias follows, so that a sum's terms may be computed apart.
    """
    channels = Shard(int(batched))
    of_output = {name: channels for name in ("output", "residual", "grad_output")}
    of_input = {name: channels for name in ("input", "grad_input")}
    vectors: dict[str, Placement] = {name: Shard(0) for name in ("bias", "scale", "grad_bias")}
    vectors |= dict.fromkeys(("variance", "mean", "reciprocal_std"), Shard(1))
    weight = ("weight", "grad_weight")
    found = [Row("nothing")]
    if batched:
        images: dict[str, Placement] = {name: Shard(0) for name in IMAGES}
        found.append(Row("batch", images | {"grad_weight": SUMMED, "grad_bias": SUMMED}))
    if grouped:
        filters = {name: Shard(0) for name in weight}
        places = of_input | of_output | vectors | filters
        return [*found, Row("groups", places, splits_groups=True)]
    out, into = (Shard(1), Shard(0)) if transposed else (Shard(0), Shard(1))
    filters = {name: out for name in weight}
    found.append(Row("output channels", of_output | vectors | filters | {"grad_input": SUMMED}))
    if linear:
        filters = {name: into for name in weight}
        places = of_input | filters | {"output": SUMMED}
        found.append(Row("input channels", places, splits_sum=True))
    return found


def cost(now: Placement, then: Placement, bytes: int, ranks: int) -> tuple[float, int]:
    """What it takes to change a placement: bytes that a rank receives, and whether it changes."""
    if now == then:
        return 0.0, 0
    share = bytes * (ranks - 1) / ranks
    if now.is_replicate():
        return 0.0, 1
    if now.is_partial():
        return (2 * share if then.is_replicate() else share), 1
    if then.is_shard():  # from another dimension
        return share / ranks, 1
    return share, 1


def parts(size: int, ranks: int) -> set[int]:
    """The sizes of a dimension's shards: those of ``torch.chunk``, with 0 where a rank has none."""
    each = -(-size // ranks)
    return {max(0, min(each, size - rank * each)) for rank in range(ranks)}


def fits(row: Row, shards: Mapping[str, Sequence[set[int]]], groups: int, ranks: int) -> bool:
    """Whether each rank would have channels, and whole groups."""
    if row.splits_groups:
        return groups % ranks == 0
    if row.name == "batch":  # of no images there are no results, and gradients are zero
        return True
    places = ((row.place(name), sizes) for name, sizes in shards.items())
    return all(
        0 not in parts(size, ranks)
        for place, sizes in places
        if isinstance(place, Shard)
        for size in sizes[place.dim]
    )


def chosen(
    table: Sequence[Row], operands: Mapping[str, Operand], groups: int, mesh: Sequence[int]
) -> list[Row]:
    """The row for each dimension of a mesh: the one that moves the fewest bytes."""
    shards = {name: [{size} for size in each.sizes] for name, each in operands.items()}
    found = []
    for dimension, ranks in enumerate(mesh):

        def price(row: Row, dimension: int = dimension, ranks: int = ranks) -> tuple[float, int]:
            costs = [
                cost(each.placements[dimension], row.place(name), each.bytes, ranks)
                for name, each in operands.items()
            ]
            return sum(bytes for bytes, _ in costs), sum(changes for _, changes in costs)

        row = min((row for row in table if fits(row, shards, groups, ranks)), key=price)
        found.append(row)
        groups //= ranks if row.splits_groups else 1
        for name, sizes in shards.items():
            place = row.place(name)
            if isinstance(place, Shard):
                of = sizes[place.dim]
                sizes[place.dim] = {part for size in of for part in parts(size, ranks)}
    return found
