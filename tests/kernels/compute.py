"""Running one pass of a convolution by one family, and the exact result to hold it against."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator

import torch
from cases import Case, Tensors, output_shape
from reference import ALL_FAMILIES, Problem, float32_precision, is_of_3xtf32
from torch import Tensor
from torch.nn import functional

import customconv
from customconv import _bind
from customconv.explain import variants

PASSES = ("fprop", "dgrad", "wgrad")
DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)

ops = torch.ops.customconv

# Elements of the column matrices that `exact` may hold at a time: 2 GiB.
MOST_COLUMNS = 1 << 28


def compute(op: str, algorithm: str, problem: Problem, t: Tensors) -> Tensor:
    """The output or a gradient, by that algorithm."""
    operator = f"conv{problem.dims}d"
    if op == "fprop":
        convolve = getattr(ops, operator)
        return convolve(t.x, t.w, t.bias, *problem.geometry, algorithm=algorithm)
    mask = [op == "dgrad", op == "wgrad", False]
    gradients = getattr(ops, f"{operator}_backward")(
        t.dy, t.x, t.w, *problem.geometry, mask, algorithm=algorithm
    )
    return gradients[0 if op == "dgrad" else 1]


def compute_fused(algorithm: str, problem: Problem, t: Tensors) -> Tensor:
    """The output with everything that an epilogue does; the gradient's values are the residual."""
    return getattr(ops, f"conv{problem.dims}d_fused")(
        t.x, t.w, t.bias, *problem.geometry, scale=_scale(t.w), residual=t.dy,
        activation="leaky_relu", residual_last=t.w.shape[0] % 2 == 0, negative_slope=0.5,
        algorithm=algorithm,
    )  # fmt: skip


def fused_by_pytorch(problem: Problem, t: Tensors) -> Tensor:
    """The same by PyTorch."""
    y = by_pytorch("fprop", problem, Tensors(t.x, t.w, None, t.dy))
    y = y * per_channel(_scale(t.w), problem)
    y = y if t.bias is None else y + per_channel(t.bias, problem)
    last = t.w.shape[0] % 2 == 0
    y = functional.leaky_relu(y if last else y + t.dy, 0.5)
    return y + t.dy if last else y


def per_channel(vector: Tensor, problem: Problem) -> Tensor:
    """A vector of the output's channels, to be added to it."""
    return vector.view(-1, *[1] * problem.dims)


def _scale(weight: Tensor) -> Tensor:
    """Of each output channel: 1, 2 or 3, in any dtype: bfloat16 can't count past 256."""
    channels = torch.arange(weight.shape[0], device=weight.device)
    return (channels % 3 + 1).to(weight.dtype)


def by_pytorch(op: str, problem: Problem, t: Tensors) -> Tensor:
    """The same by PyTorch, from contiguous copies: with some strides it is wrong on the CPU."""
    stride, padding, dilation, groups = problem.geometry
    x, w, dy = (part.clone(memory_format=torch.contiguous_format) for part in (t.x, t.w, t.dy))
    none = [0] * problem.dims
    if op == "fprop":
        return torch.convolution(x, w, t.bias, stride, padding, dilation, False, none, groups)
    mask = [op == "dgrad", op == "wgrad", False]
    gradients = torch.ops.aten.convolution_backward(
        dy, x, w, None, stride, padding, dilation, False, none, groups, mask
    )
    return gradients[0 if op == "dgrad" else 1]


def exact(op: str, problem: Problem, t: Tensors) -> Tensor:
    """The same in float64 by column matrices, on the tensors' device."""
    if problem.dims == 3:
        return _exact_of_volumes(op, problem, t)
    stride, padding, dilation, groups = problem.geometry
    n, c, h, w = problem.input
    _, k, p, q = output_shape(problem)
    taps = problem.weight[2:]
    geometry = {"kernel_size": taps, "dilation": dilation, "padding": padding, "stride": stride}
    weight = t.w.double().reshape(groups, k // groups, -1)
    step = max(1, MOST_COLUMNS // (c * taps[0] * taps[1] * p * q))

    def columns(images: slice) -> Tensor:
        """(images, groups, taps of all channels, pixels)."""
        return functional.unfold(t.x[images].double(), **geometry).unflatten(1, (groups, -1))

    def gradient(images: slice) -> Tensor:
        return t.dy[images].double().reshape(-1, groups, k // groups, p * q)

    parts = []
    for first in range(0, n, step):
        images = slice(first, min(first + step, n))
        if op == "fprop":
            parts.append((weight @ columns(images)).reshape(-1, k, p, q))
        elif op == "dgrad":
            into = (weight.mT @ gradient(images)).flatten(1, 2)
            parts.append(functional.fold(into, (h, w), **geometry))
        else:
            parts.append((gradient(images) @ columns(images).mT).sum(0).reshape(problem.weight))
    if op == "wgrad":
        return functools.reduce(torch.add, parts)
    whole = torch.cat(parts) if len(parts) > 1 else parts[0]
    return (
        whole if op == "dgrad" or t.bias is None else whole + per_channel(t.bias.double(), problem)
    )


def _exact_of_volumes(op: str, problem: Problem, t: Tensors) -> Tensor:
    """By 2-D convolutions, one for each slice of the filter."""
    (stride, *strides), (pad, *pads), (dilation, *dilations), groups = problem.geometry
    n, c, depth, *image = problem.input
    k, group_c, depth_taps, *taps = problem.weight
    sizes = {"fprop": output_shape(problem), "dgrad": problem.input, "wgrad": problem.weight}
    result = t.x.new_zeros(sizes[op], dtype=torch.float64)
    volume = t.x
    if (
        op != "dgrad"
    ):  # what is not a number in the filter, times a zero of the padding, is not either
        volume = functional.pad(t.x, (0, 0, 0, 0, pad, pad))
        depth, pad = depth + 2 * pad, 0
    for tap in range(depth_taps):
        # The output's slice o reads that of the input at o * stride + offset, where there is one.
        offset = tap * dilation - pad
        first = max(0, -(offset // stride))
        last = min(output_shape(problem)[2] - 1, (depth - 1 - offset) // stride)
        if first > last:
            continue
        outputs = slice(first, last + 1)
        inputs = slice(first * stride + offset, last * stride + offset + 1, stride)
        x, dy = (
            each.transpose(1, 2).flatten(0, 1)
            for each in (volume[:, :, inputs], t.dy[:, :, outputs])
        )
        flat = Problem(
            (len(x), c, *image), (k, group_c, *taps), tuple(strides), tuple(pads), tuple(dilations),
            groups,
        )  # fmt: skip
        part = exact(op, flat, Tensors(x, t.w[:, :, tap], None, dy))
        if op == "wgrad":
            result[:, :, tap] = part
        else:
            slices = outputs if op == "fprop" else inputs
            result[:, :, slices] += part.unflatten(0, (n, -1)).transpose(1, 2)
    if op == "fprop" and t.bias is not None:
        result += per_channel(t.bias.double(), problem)
    return result


def magnitudes(t: Tensors) -> Tensors:
    """With every value its magnitude: their convolution bounds the rounding of the sums."""
    bias = None if t.bias is None else t.bias.abs()
    return Tensors(t.x.abs(), t.w.abs(), bias, t.dy.abs())


def spoil(op: str, values: Tensors, where: str, value: float, k: int) -> None:
    """Puts a value into the image that a pass reads, into filter `k`, or into both."""
    image = values.dy if op == "dgrad" else values.x
    filters = values.dy if op == "wgrad" else values.w
    if where != "filter":
        image[(0, 1, *(size // 2 for size in image.shape[2:]))] = value
    if where != "image":
        filters[(k, 1, *[0] * (filters.ndim - 2))] = value


# Families that compute float32 only where TF32 is allowed.
TF32_ALONE = ("implicit_gemm", "grouped", "col2im")


def as_allowed(family: str) -> contextlib.AbstractContextManager[None]:
    """PyTorch's switch, set so that the family may compute float32."""
    return float32_precision("tf32") if family in TF32_ALONE else contextlib.nullcontext()


def has_plan(
    family: str,
    op: str,
    problem: Problem,
    dtype: torch.dtype = torch.float32,
    *,
    tf32: bool = False,
    channels_last: bool = False,
) -> bool:
    """Whether a family can compute a problem at all; needs no GPU."""
    planned = _bind.ConvProblem(
        op=op, dtype=str(dtype).removeprefix("torch."), input=problem.input, weight=problem.weight,
        stride=problem.stride, padding=problem.padding, dilation=problem.dilation,
        groups=problem.groups, channels_last=channels_last, tf32=tf32,
    )  # fmt: skip
    by_family = {candidate.family: candidate for candidate in _bind.candidates(planned)}
    return by_family[family].plan is not None


def takes(op: str, family: str, problem: Problem, t: Tensors) -> bool:
    """Whether a family that has a plan for the problem has one for these tensors.

    Weight gradients of implicit_gemm alone want both images in one layout, in 32 bits. A tile may
    fit one layout and not the other; volumes may be 2-D in memory in one of them.
    """
    found = customconv.explain(t.x, t.w, t.bias, *problem.geometry, op=op)
    candidate = next(c for c in found.candidates if c.family == family)
    no_tile = candidate.reason.startswith("none of its tiles")
    by_layout = family == "implicit_gemm" and (op == "wgrad" or no_tile)
    by_layout = by_layout or (problem.dims == 3 and family != "direct")
    assert candidate.plan or by_layout, candidate.reason
    return candidate.plan is not None


def plan_of(op: str, family: str, problem: Problem, t: Tensors) -> _bind.ConvPlan:
    """The plan that a forced family runs; it must be that family's."""
    found = customconv.explain(t.x, t.w, t.bias, *problem.geometry, op=op, algorithm=family)
    assert found.plan is not None, found.fallback
    assert family in (found.family, "auto"), f"{family} is not used: {found}"
    return found.plan


@contextlib.contextmanager
def forced(plan: _bind.ConvPlan) -> Iterator[_bind.ConvPlan]:
    """Calls that name the plan's family run that plan."""
    _bind.force_plan(plan)
    try:
        yield plan
    finally:
        _bind.force_plan(None)


def is_foreseen(op: str, case: Case) -> bool:
    """Whether plans from the input and weight alone fit the gradient: it lies as the output would.

    Only such plans may be forced: nothing checks that a plan is of the problem it is forced for.
    """
    if case.dims == 3 and {case.view, case.weight_view} != {"plain"}:
        return op == "fprop"
    return op == "fprop" or not (case.view == "unaligned" or case.other_weight_layout)


@contextlib.contextmanager
def by_mma_sync(op: str, case: Case, t: Tensors) -> Iterator[_bind.ConvPlan | None]:
    """A pass by implicit_gemm's kernels of warps, as on GPUs that are not Hopper's.

    Strided input gradients, weight gradients, strict float32 and most volumes need those: they stay
    as they are, and so do those nobody foresaw.
    """
    plans = variants(t.x, t.w, t.bias, *case.geometry, op) if is_foreseen(op, case) else []
    own = [plan for plan in plans if plan.family == "implicit_gemm"]
    found = [plan for plan in own if plan.word == "mma_sync"]
    if not found:
        assert op != "fprop" or case.dims == 3 or all(map(is_of_3xtf32, own))
        yield None
        return
    with forced(min(found, key=lambda plan: plan.predicted_ms)) as plan:
        yield plan


def result_bytes(op: str, problem: Problem, dtype: torch.dtype) -> int:
    shape = {"fprop": output_shape(problem), "dgrad": problem.input, "wgrad": problem.weight}[op]
    return torch.Size(shape).numel() * dtype.itemsize


def poison(*sizes: int) -> None:
    """Fills memory that allocations of these sizes, in bytes, will get next with NaN.

    All bits set are a NaN in every floating dtype. The blocks go back to PyTorch's allocator.
    """
    blocks = [
        torch.full((max(size, 1),), 255, dtype=torch.uint8, device="cuda")
        for size in sizes
        for _ in range(2)
    ]
    del blocks


def small_cases(cases: dict[str, Case]) -> dict[str, Case]:
    return {name: case for name, case in cases.items() if not case.large}


def runs_of(
    cases: dict[str, Case], dtypes: tuple[torch.dtype, ...] = DTYPES
) -> list[tuple[str, str, str, torch.dtype]]:
    """Every (case, family, pass, dtype) that there is a plan for."""
    return [
        (name, family, op, dtype)
        for name, case in cases.items()
        for family in ALL_FAMILIES
        for op in PASSES
        for dtype in dtypes
        if any(
            has_plan(family, op, case, dtype, tf32=family in TF32_ALONE, channels_last=layout)
            for layout in (False, True)[: case.dims - 1]  # volumes may be 2-D in one alone
        )
    ]
