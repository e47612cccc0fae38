"""What compiling a model does to its convolutions."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CompiledConvolution:
    """What became of one convolution.

    Attributes:
        module: The name of the module that calls it.
        parts: The convolution, and what is computed with it in one.
        reason: Why the operator that follows is not one of the parts; or why PyTorch computes it.
        ours: Whether this package computes it.
    """

    module: str
    parts: tuple[str, ...]
    reason: str
    ours: bool


@dataclass(frozen=True)
class CompileReport:
    """What compiling a model does to its convolutions. ``print`` it.

    Attributes:
        convolutions: One entry for each, in the order in which they run; what is checkpointed
            comes last.
        graphs: How many graphs the model was compiled to.
        problems: Why graphs were left to Inductor as they were.
    """

    convolutions: tuple[CompiledConvolution, ...]
    graphs: int
    problems: tuple[str, ...] = ()

    def __str__(self) -> str:
        """A line that counts, and a table: which module, what it became, where that ends."""
        total = len(self.convolutions)
        ours = sum(each.ours for each in self.convolutions)
        fused = sum(len(each.parts) > 1 for each in self.convolutions)
        graphs = f"{self.graphs} graph{'' if self.graphs == 1 else 's'}"
        convolutions = f"{total} convolution{'' if total == 1 else 's'}"
        counts = (
            f"customconv: {convolutions} in {graphs}, {fused} fused, {ours - fused} computed "
            f"alone, {total - ours} left to PyTorch"
        )
        rows = [
            (
                each.module,
                " + ".join(each.parts),
                each.reason if each.ours else f"left: {each.reason}",
            )
            for each in self.convolutions
        ]
        widths = [max((len(row[i]) for row in rows), default=0) for i in range(2)]
        lines = ["  ".join([*map(str.ljust, row[:2], widths), row[2]]).rstrip() for row in rows]
        return "\n".join([counts, *lines, *self.problems])
