"""What computes a convolution, and why: the planner's decision, printable."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from . import _bind
from .arguments import LAST, check_algorithm, numbered_padding
from .nn import (
    Conv1d,
    Conv2d,
    Conv3d,
    ConvTranspose1d,
    ConvTranspose2d,
    ConvTranspose3d,
    padded,
)

_PASSES = "fprop", "dgrad", "wgrad"
_PLAIN = nn.Conv1d, nn.Conv2d, nn.Conv3d
_CONVOLUTIONS = (*_PLAIN, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)
_OURS = Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d


@dataclass(frozen=True)
class Explanation:
    """How one convolution is computed. ``print`` it.

    Attributes:
        summary: The problem in one line.
        plan: The plan taken, or None where PyTorch's own convolution is, or where the call raises.
        fallback: Why PyTorch's own convolution is taken, or why the call raises, or "".
        candidates: Every family of kernels in the planner's order, with its plan if it has one,
            and the reason that it was not taken.
        problem: The problem as the planner sees it, or None where it is not the planner's.
        tuned: What tuning chose, with its times, or None where it is not tuning's choice.
        raises: Whether the call raises, because what is asked for cannot be done: a family by its
            name, or batch invariance.
    """

    summary: str
    plan: _bind.ConvPlan | None
    fallback: str
    candidates: tuple[_bind.Candidate, ...]
    problem: _bind.ConvProblem | None
    tuned: _bind.TunedPlan | None = None
    raises: bool = False

    @property
    def family(self) -> str:
        """The family that computes it; "aten" for PyTorch's own, "none" where the call raises."""
        if self.raises:
            return "none"
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
            fields = (word.partition("=") for word in self.plan.name.split() if "=" in word)
            rows += [
                ("kind", self.plan.word),
                *((field, text) for field, _, text in fields),
                ("thread blocks", f"{self.plan.blocks} of {self.plan.threads} threads"),
                ("shared memory", _bytes(self.plan.shared_bytes)),
                ("workspace", _bytes(self.plan.workspace_bytes)),
                ("predicted time", f"{self.plan.predicted_ms:.3g} ms"),
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
    input: Tensor | nn.Module,
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

    It is asked as ``explain(input, weight, ...)``, with the arguments of ``customconv.conv1d``,
    ``conv2d`` or ``conv3d``, or as ``explain(module, input)`` with a convolution of this package or
    of PyTorch, which brings its arguments. Of a whole model, ``customconv.explain_compile`` tells
    what becomes of its convolutions when it is compiled, and ``customconv.stats`` what computed
    them.

    Args:
        input: The images, of shape (N, C, H, W) or (C, H, W), the volumes, of shape (N, C, D, H, W)
            or (C, D, H, W), or the signals, of shape (N, C, L) or (C, L); or a module, such as
            ``Conv2d`` or ``ConvTranspose3d``. The weight tells one volume from several images.
        weight: The filters, of shape (K, C / groups, R, S), (K, C / groups, T, R, S) for volumes or
            (K, C / groups, R) for signals; with a module, its input.
        bias: What is added to each output channel, of shape (K,), or None.
        stride: As in ``customconv.conv2d``.
        padding: As in ``customconv.conv2d``.
        dilation: As in ``customconv.conv2d``.
        groups: As in ``customconv.conv2d``.
        op: "fprop" for the output, "dgrad" for the input's gradient, "wgrad" for the weight's.
        transposed: Whether the call is one of ``customconv.conv_transpose2d``, or of its likes for
            signals and volumes.
        output_padding: As in ``customconv.conv_transpose2d``, if transposed.
        algorithm: As in ``customconv.conv2d``. Where the family cannot compute the call, such as on
            the CPU, the call would raise, and the explanation says so.

    Returns:
        The decision: what is taken, and for each family that is not, the reason.

    Raises:
        RuntimeError: The arguments do not fit together, or a module's parameters are not
            initialized yet.
        TypeError: An argument is not of its type, or a module is no convolution.
        ValueError: There is no algorithm, no op or no padding of that name.
    """
    if op not in _PASSES:
        raise ValueError(f"unknown op {op!r}: expected one of {', '.join(map(repr, _PASSES))}")
    check_algorithm("explain", algorithm)
    if not isinstance(input, Tensor) and callable(input):
        others = stride, padding, dilation, groups, transposed, output_padding
        if bias is not None or others != (1, 0, 1, 1, False, 0):
            raise TypeError("explain() takes a module, its input, op and algorithm, and no more")
        return _explain_module(input, weight, op, algorithm)
    tensors = {"input": input, "weight": weight} | ({} if bias is None else {"bias": bias})
    for position, (name, value) in enumerate(tensors.items(), start=1):
        if not isinstance(value, Tensor):
            hint = "; a module comes first: explain(module, input)" * isinstance(value, nn.Module)
            raise TypeError(
                f"explain(): argument {name!r} (position {position}) must be Tensor, not "
                f"{type(value).__name__}{hint}"
            )
    assert isinstance(input, Tensor)
    groups = operator.index(groups)
    if is_signal := weight.ndim == 3 and input.ndim in (2, 3):  # an image of height one
        input, weight = input.contiguous().unsqueeze(-2), weight.unsqueeze(-2)

    def numbers(value: int | Sequence[int], of_height: int) -> list[int]:
        given = [operator.index(each) for each in _listed(value)]
        if is_signal:
            return [of_height, *given]
        return given * (weight.ndim - 2) if len(given) == 1 else given

    stride, dilation = numbers(stride, 1), numbers(dilation, 1)
    output_padding = numbers(output_padding, 0)
    if isinstance(padding, str):
        if transposed:
            raise ValueError(f"a transposed convolution has padding in numbers, not {padding!r}")
        input, padding = numbered_padding(padding, input, weight, stride, dilation)
    else:
        padding = numbers(padding, 0)

    arguments = stride, padding, dilation, groups, op
    geometry = transposed, output_padding
    refusal = ""
    try:
        found = _ask(input, weight, bias, *arguments, algorithm, *geometry)
    except RuntimeError as error:
        if algorithm == "auto" or isinstance(error, torch.OutOfMemoryError):
            raise
        refusal = str(error).splitlines()[0]
    if refusal:  # what follows raises where the arguments do not fit together
        found = _ask(input, weight, bias, *arguments, "auto", *geometry)
    summary = (
        f"{op}{' transposed' if transposed else ''}, {_tensor(input)}, weight {_by(weight.shape)}, "
        f"{'no bias' if bias is None else 'bias'}, stride {_by(stride)}, padding {_by(padding)}, "
        f"{f'output padding {_by(output_padding)}, ' if transposed else ''}"
        f"dilation {_by(dilation)}, groups {groups}"
    )
    if refusal:
        fallback = f"the call raises: {refusal}"
        return replace(
            found, summary=summary, plan=None, fallback=fallback, raises=True, tuned=None
        )
    return replace(found, summary=summary)


def variants(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    op: str = "fprop",
    transposed: bool = False,
    output_padding: Sequence[int] | None = None,
) -> list[_bind.ConvPlan]:
    """Every plan that the planner chooses from for a call, none where it is not the planner's.

    The arguments are those of ``explain``; there is a number for each spatial dimension.
    """
    problem, _, why_not = torch.ops.customconv._describe_call(
        input, weight, bias, stride, padding, dilation, groups, op, "auto", transposed,
        output_padding or [0] * (weight.ndim - 2),
    )  # fmt: skip
    if not problem or why_not or _bind.why_no_kernels(input.get_device()):
        return []
    device = _bind.device_properties(input.get_device())
    return _bind.plans(_bind.ConvProblem.from_text(problem), device)


def _ask(
    input: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: Sequence[int],
    padding: Sequence[int],
    dilation: Sequence[int],
    groups: int,
    op: str,
    algorithm: str,
    transposed: bool,
    output_padding: Sequence[int],
) -> Explanation:
    """What the planner says of a call, but for the summary."""
    text, channels_last, why_not = torch.ops.customconv._describe_call(
        input, weight, bias, stride, padding, dilation, groups, op, algorithm, transposed,
        output_padding,
    )  # fmt: skip
    problem = _bind.ConvProblem.from_text(text) if text else None
    if problem is not None and not why_not:
        device = input.get_device()
        why_no_kernels = _bind.why_no_kernels(device)
        if not why_no_kernels:
            found = _bind.explain(device, problem, channels_last, algorithm)
            candidates = tuple(found.candidates)
            return Explanation("", found.plan, found.fallback, candidates, problem, found.tuned)
        why_not = f"no kernels of this installation run on the GPU: {why_no_kernels}"
    raises = _bind.is_batch_invariant() and op != "wgrad"
    if raises:
        why_not += "; the call raises, because PyTorch's own convolution is not batch invariant"
    return Explanation("", None, why_not, tuple(_bind.refused(why_not)), problem, raises=raises)


def _explain_module(module: object, input: Tensor, op: str, algorithm: str) -> Explanation:
    """What computes the convolution of a module."""
    if not isinstance(module, _CONVOLUTIONS):
        raise TypeError(
            "explain() takes tensors, or a module such as Conv2d or ConvTranspose3d, not "
            f"{type(module).__name__}; customconv.explain_compile(model, x) tells of the "
            "convolutions of a whole model"
        )
    if not isinstance(input, Tensor):
        kind = type(input).__name__
        raise TypeError(f"explain() of a module takes its input, a Tensor, not {kind}")
    if any(is_lazy(each) for each in module.parameters(recurse=False)):
        raise RuntimeError("explain(): the module's parameters are not initialized yet")
    padding: int | Sequence[int] | str = module.padding
    transposed = True
    if isinstance(module, _PLAIN):
        input, padding = padded(module, input)
        transposed = False
    if isinstance(module, _OURS) and algorithm == "auto":
        algorithm = module.algorithm
    return explain(
        input, module.weight, module.bias, module.stride, padding, module.dilation, module.groups,
        op=op, transposed=transposed, output_padding=module.output_padding, algorithm=algorithm,
    )  # fmt: skip


def _listed(value: int | Sequence[int]) -> Sequence[int]:
    return value if isinstance(value, Sequence) else [value]


def _by(sizes: Sequence[int]) -> str:
    return " x ".join(map(str, sizes))


def _bytes(count: int) -> str:
    """A number of bytes for people; nothing for none."""
    if count < 2**20:
        return f"{count / 2**10:.3g} KiB" if count else ""
    return f"{count / 2**20:.4g} MiB"


def _tensor(tensor: Tensor) -> str:
    last = LAST.get(tensor.ndim)
    is_last = last is not None and tensor.is_contiguous(memory_format=last)
    layout = ", channels last" if is_last and not tensor.is_contiguous() else ""
    return f"input {_by(tensor.shape)} of {str(tensor.dtype)[6:]} on {tensor.device}{layout}"
