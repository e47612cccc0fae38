"""What computes a convolution, and why: the planner's decision, printable."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import _C
from .ops import numbered_padding


@dataclass(frozen=True)
class Explanation:
    """How one convolution is computed. ``print`` it.

    Attributes:
        summary: The problem in one line.
        plan: The plan taken, or None where PyTorch's own convolution is.
        fallback: Why PyTorch's own convolution is taken, or "".
        candidates: Every family of kernels in the planner's order, with its plan if it has one,
            and the reason that it was not taken.
        problem: The problem as the planner sees it, or None where it is not the planner's.
        tuned: What tuning chose, with its times, or None where it is not tuning's choice.
    """

    summary: str
    plan: _C.ConvPlan | None
    fallback: str
    candidates: tuple[_C.Candidate, ...]
    problem: _C.ConvProblem | None
    tuned: _C.TunedPlan | None = None

    @property
    def family(self) -> str:
        """The name of the family that computes it, "aten" for PyTorch's own convolution."""
        return self.plan.family if self.plan else "aten"

    @property
    def is_batch_invariant(self) -> bool:
        """Whether the plan was chosen so that what an image gets does not depend on its batch."""
        return self.plan is not None and self.problem is not None and self.problem.batch_invariant

    def __str__(self) -> str:
        """A table of two columns."""
        rows = [("problem", self.summary), ("family", self.family)]
        if self.plan is None:
            rows.append(("reason", self.fallback))
        else:
            rows += [
                ("variant", self.plan.variant),
                ("grid", f"{_by(self.plan.grid)} blocks of {self.plan.block} threads"),
                ("shared memory", _bytes(self.plan.shared_bytes)),
                ("workspace", _bytes(self.plan.workspace_bytes)),
                ("predicted time", f"{self.plan.predicted_ms:.3g} ms"),
                ("offsets", "64 bits" if self.plan.wide_index else ""),
                ("splits", f"{self.plan.splits}" if self.plan.splits > 1 else ""),
                ("batch", "an image gets the same bits in any" if self.is_batch_invariant else ""),
            ]
        if self.tuned is not None:
            peer = f", PyTorch {self.tuned.pytorch_ms:.3g} ms" if self.tuned.pytorch_ms else ""
            rows.append(("tuned", f"{self.tuned.ms:.3g} ms{peer}"))
        rows += [(f"not {other.family}", other.reason) for other in self.candidates]
        rows = [(name, text) for name, text in rows if text]
        width = max(len(name) for name, _ in rows)
        return "\n".join(f"{name:<{width}}  {text}" for name, text in rows)


def explain(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Sequence[int] = 1,
    padding: int | Sequence[int] | str = 0,
    dilation: int | Sequence[int] = 1,
    groups: int = 1,
    *,
    op: str = "fprop",
    transposed: bool = False,
    output_padding: int | Sequence[int] = 0,
    algorithm: str = "auto",
) -> Explanation:
    """Says what computes a convolution, without computing it.

    Args:
        input: The images, of shape (N, C, H, W) or (C, H, W).
        weight: The filters, of shape (K, C / groups, R, S).
        bias: What is added to each output channel, of shape (K,), or None.
        stride: As in ``customconv.conv2d``.
        padding: As in ``customconv.conv2d``.
        dilation: As in ``customconv.conv2d``.
        groups: As in ``customconv.conv2d``.
        op: "fprop" for the output, "dgrad" for the input's gradient, "wgrad" for the weight's.
        transposed: Whether the call is one of ``customconv.conv_transpose2d``.
        output_padding: As in ``customconv.conv_transpose2d``, if transposed.
        algorithm: As in ``customconv.conv2d``.

    Returns:
        The decision: what is taken, and for each family that is not, the reason.

    Raises:
        RuntimeError: The arguments do not fit together.
        TypeError: A number is not an integer.
        ValueError: There is no algorithm, no op or no padding of that name.
    """
    stride, dilation, output_padding = _pair(stride), _pair(dilation), _pair(output_padding)
    if isinstance(padding, str):
        if transposed:
            raise ValueError(f"a transposed convolution has padding in numbers, not {padding!r}")
        if padding == "same" and any(step != 1 for step in stride):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        input, padding = numbered_padding(padding, input, weight, dilation)
    padding = _pair(padding)
    found = _C.explain(
        input, weight, bias, stride, padding, dilation, groups, op, algorithm, transposed,
        output_padding,
    )  # fmt: skip
    summary = (
        f"{op}{' transposed' if transposed else ''}, {_tensor(input)}, weight {_by(weight.shape)}, "
        f"{'no bias' if bias is None else 'bias'}, stride {_by(stride)}, padding {_by(padding)}, "
        f"{f'output padding {_by(output_padding)}, ' if transposed else ''}"
        f"dilation {_by(dilation)}, groups {groups}"
    )
    candidates = tuple(found.candidates)
    return Explanation(summary, found.plan, found.fallback, candidates, found.problem, found.tuned)


def _pair(value: int | Sequence[int]) -> list[int]:
    values = value if isinstance(value, Sequence) else [value]
    numbers = [operator.index(each) for each in values]
    return numbers * 2 if len(numbers) == 1 else numbers


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _bytes(count: int) -> str:
    """A number of bytes for people; nothing for none."""
    if count < 2**20:
        return f"{count / 2**10:.3g} KiB" if count else ""
    return f"{count / 2**20:.4g} MiB"


def _tensor(tensor: Tensor) -> str:
    last = tensor.ndim == 4 and tensor.is_contiguous(memory_format=torch.channels_last)
    layout = ", channels last" if last and not tensor.is_contiguous() else ""
    return f"input {_by(tensor.shape)} of {str(tensor.dtype)[6:]} on {tensor.device}{layout}"
