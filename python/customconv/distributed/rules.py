"""The operators on ``DTensor``: what ``parallelize_module`` and ``distribute_module`` need.

Each operator gets a rule for DTensor by ``torch.library.register_torch_dispatch``. The rule changes
the operands' placements to those of a row of the table in ``sharding.py``, where they are of none,
and calls the operator on what this rank has. So a placement that nothing is known of costs an
exchange, and is never wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from .sharding import REPLICATED, SUMMED, Operand, Row, chosen, rows

Call = dict[str, Any]

_CONVOLUTIONS = ("conv2d", "conv3d", "conv_transpose2d", "conv_transpose3d")
_STATISTICS = ("conv2d_statistics", "conv3d_statistics")

# The names of results that are tensors, as the table has them.
RESULTS = {
    **{name: ("output",) for name in _CONVOLUTIONS},
    **{f"{name}_fused": ("output",) for name in _CONVOLUTIONS},
    **{f"{name}_backward": ("grad_input", "grad_weight", "grad_bias") for name in _CONVOLUTIONS},
    **{name: ("output", "variance", "mean", "reciprocal_std") for name in _STATISTICS},
}


def named_arguments(operator: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call:
    """All arguments of a call by their names, defaults too."""
    schema = operator._schema.arguments
    found = {each.name: each.default_value for each in schema if each.has_default_value()}
    found.update(zip((each.name for each in schema), args, strict=False))
    found.update(kwargs)
    return found


def name_of(operator: OpOverload) -> str:
    """An operator's name without its namespace."""
    return str(operator._schema.name.partition("::")[2])


def distributed(operator: OpOverload, tensors: Mapping[str, Tensor]) -> dict[str, DTensor]:
    """The operands, all of them on one mesh.

    Raises:
        RuntimeError: They are on several, or one is a plain tensor.
    """
    found = {}
    for name, each in tensors.items():
        if not isinstance(each, DTensor):
            raise RuntimeError(
                f"{operator}: got mixed torch.Tensor and DTensor, need to convert all torch.Tensor "
                f"to DTensor before calling distributed operators! ({name} is a torch.Tensor)"
            )
        found[name] = each
    if len({each.device_mesh for each in found.values()}) > 1:
        raise RuntimeError(f"{operator}: expected all DTensors on one device mesh")
    return found


def local_part(tensor: DTensor, placements: Sequence[Placement]) -> Tensor:
    """This rank's part of a tensor, after a change of placements where it needs one."""
    # What calls the rules has recorded the operator. What they do is not recorded again.
    with torch.no_grad():
        local = tensor.to_local().detach()
        if tuple(placements) == tuple(tensor.placements):
            return local
        bare = DTensor.from_local(
            local, tensor.device_mesh, tensor.placements, run_check=False,
            shape=tensor.shape, stride=tensor.stride(),
        )  # fmt: skip
        return bare.redistribute(placements=placements).to_local()


@dataclass(frozen=True)
class Whole:
    """What is known of a whole tensor without its values.

    Attributes:
        shape: Its sizes.
        stride: Its strides.
        dtype: Its type.
        placements: For each dimension of the mesh, how it lies there; of a result not yet known.
    """

    shape: torch.Size
    stride: tuple[int, ...]
    dtype: torch.dtype
    placements: tuple[Placement, ...] = ()


def whole_part(
    local: Tensor, mesh: DeviceMesh, placements: Sequence[Placement], like: Whole
) -> DTensor:
    """A result whose part on this rank is ``local``, with the sizes and strides of ``like``."""
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=like.shape, stride=like.stride
    )


@dataclass(frozen=True)
class Shared:
    """A call that has been divided among the ranks.

    Attributes:
        mesh: Where all operands are.
        rows: The row of the table for each dimension of the mesh.
        call: The arguments of this rank's call.
        results: The whole results: one, or one for each that was asked for.
    """

    mesh: DeviceMesh
    rows: Sequence[Row]
    call: Call
    results: Whole | Sequence[Whole | None]

    def placements(self, name: str) -> list[Placement]:
        """Of an operand or a result."""
        return [row.place(name) for row in self.rows]


def planned(
    operator: OpOverload, arguments: Sequence[tuple[str, Any]], mesh: Sequence[int]
) -> tuple[list[Row], Any]:
    """The rows of the table for a call, and its results; the errors of a call that does not fit.

    Args:
        operator: The operator.
        arguments: All arguments; tensors as ``Whole``.
        mesh: The ranks along each dimension of the mesh.
    """
    call = dict(arguments)
    operands = {name: each for name, each in arguments if isinstance(each, Whole)}
    meta = {
        name: torch.empty_strided(each.shape, each.stride, dtype=each.dtype, device="meta")
        for name, each in operands.items()
    }
    results = operator(**call | meta)
    name = name_of(operator)
    # Nothing but a bias may follow where ranks have terms of the output's sum.
    linear = name not in _STATISTICS and call.get("activation", "none") == "none"
    table = rows(
        transposed="transpose" in name or bool(call.get("transposed")),
        batched=len(call["input"].shape) == len(call["weight"].shape),
        grouped=call["groups"] > 1,
        linear=linear and call.get("scale") is None and call.get("residual") is None,
    )
    sizes = {
        name: Operand(each.shape, each.dtype.itemsize, each.placements)
        for name, each in operands.items()
    }
    return chosen(table, sizes, call["groups"], mesh), mapped(without_values, results)


_planned = lru_cache(maxsize=4096)(planned)


def mapped(change: Callable[[Any], Any], results: Any) -> Any:
    """The same of a result, or of each of several."""
    return tuple(map(change, results)) if isinstance(results, tuple | list) else change(results)


def without_values(value: Any) -> Any:
    """What is known of a tensor; a list as a tuple; anything else as it is."""
    if isinstance(value, Tensor):
        places = tuple(value.placements) if isinstance(value, DTensor) else ()
        return Whole(value.shape, value.stride(), value.dtype, places)
    return tuple(value) if isinstance(value, list) else value


def share(operator: OpOverload, call: Call) -> Shared:
    """Divides a call, and changes placements of operands as the choice asks."""
    tensors = {name: each for name, each in call.items() if isinstance(each, Tensor)}
    operands = distributed(operator, tensors)
    mesh = operands["input"].device_mesh
    arguments = tuple((name, without_values(each)) for name, each in call.items())
    try:
        plan = _planned(operator, arguments, tuple(mesh.shape))
    except TypeError:  # symbolic sizes are no keys
        plan = planned(operator, arguments, tuple(mesh.shape))
    found = Shared(mesh, plan[0], dict(call), plan[1])
    for name, each in operands.items():
        found.call[name] = local_part(each, found.placements(name))
    for dimension, row in enumerate(found.rows):
        if row.splits_groups:
            found.call["groups"] //= mesh.size(dimension)
        if row.splits_sum and "bias" in call and mesh.get_local_rank(dimension) != 0:
            found.call["bias"] = None  # one rank adds it
    return found


def on_meta(value: Any) -> Any:
    """A tensor of the same sizes and strides as the whole one, without values."""
    if not isinstance(value, DTensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")


def convolve(operator: OpOverload, call: Call) -> Any:
    """A convolution or its gradients."""
    shared = share(operator, call)
    whole = shared.results
    local = operator(**shared.call)
    if isinstance(whole, Whole):
        return whole_part(local, shared.mesh, shared.placements("output"), whole)
    results = [
        None if like is None else whole_part(part, shared.mesh, shared.placements(name), like)
        for name, part, like in zip(RESULTS[name_of(operator)], local, whole, strict=True)
    ]
    # The input's gradient is summed here. PyTorch 2.9 takes a gradient that is a sum for a
    # replicated one where the tensor itself was a sum when it came to be.
    if results[0] is not None and SUMMED in results[0].placements:
        places = [REPLICATED if each == SUMMED else each for each in results[0].placements]
        with torch.no_grad():
            results[0] = results[0].redistribute(placements=places)
    return tuple(results)


def convolve_and_measure(operator: OpOverload, call: Call) -> tuple[DTensor, ...]:
    """A convolution with statistics, which are those of all images, also of other ranks."""
    running = {name: call[name] for name in ("running_mean", "running_var")}
    distributed(operator, {name: each for name, each in running.items() if each is not None})
    shared = share(operator, call | dict.fromkeys(running))
    whole: Any = shared.results
    pixels = whole[0].shape.numel() // max(1, whole[0].shape[1])
    output, variance, mean, _ = operator(**shared.call)
    if any(row.name == "batch" for row in shared.rows):
        share_of = output.numel() // output.shape[1] / pixels if output.shape[1] else 0.0

        def summed(term: Tensor) -> Tensor:
            """The sum over ranks; one without images has no mean, and no part in it."""
            term = term * share_of if share_of else torch.zeros_like(term)
            terms = [SUMMED if row.name == "batch" else REPLICATED for row in shared.rows]
            alone = DTensor.from_local(term, shared.mesh, terms, run_check=False)
            return alone.redistribute(placements=[REPLICATED] * shared.mesh.ndim).to_local()

        own, mean = mean, summed(mean)
        variance = summed(variance + (own - mean).square())
    local = (output, variance, mean, (variance + call["eps"]).rsqrt())
    results = tuple(
        whole_part(part, shared.mesh, shared.placements(name), like)
        for name, part, like in zip(RESULTS[name_of(operator)], local, whole, strict=True)
    )
    unbiased = pixels / (pixels - 1) if pixels != 1 else math.inf
    for each, value in (
        (running["running_mean"], results[2]),
        (running["running_var"], results[1] * unbiased),
    ):
        if each is not None:
            each.mul_(1 - call["momentum"]).add_(value.view(-1), alpha=call["momentum"])
    return results


def fold(operator: OpOverload, call: Call) -> list[DTensor]:
    """``fold_batch_norms``: every rank folds all channels, of which there are few."""
    lists = ("means", "variances", "weights", "biases", "shifts")
    tensors = {
        f"{name}[{i}]": each
        for name in lists
        for i, each in enumerate(call[name])
        if each is not None
    }
    operands = distributed(operator, tensors)
    mesh = next(iter(operands.values())).device_mesh
    places = [REPLICATED] * mesh.ndim
    local = dict(call)
    for name in lists:
        local[name] = [each if each is None else local_part(each, places) for each in call[name]]
    return [whole_part(each, mesh, places, without_values(each)) for each in operator(**local)]


def copy(operator: OpOverload, call: Call) -> list[DTensor]:
    """``copy_parameters``: each copy lies as its parameter does."""
    operands = distributed(
        operator, {f"parameters[{i}]": each for i, each in enumerate(call["parameters"])}
    )
    whole = operator(**call | {"parameters": [on_meta(each) for each in call["parameters"]]})
    local = [local_part(each, each.placements) for each in operands.values()]
    return [
        whole_part(part, each.device_mesh, each.placements, without_values(like))
        for part, each, like in zip(
            operator(**call | {"parameters": local}), operands.values(), whole, strict=True
        )
    ]


def describe(operator: OpOverload, call: Call) -> Any:
    """``_describe_call``: what ``customconv.explain`` says is of this rank's call."""
    return operator(**share(operator, call).call)


RULES: dict[str, Callable[[OpOverload, Call], Any]] = {
    **dict.fromkeys(RESULTS, convolve),
    **dict.fromkeys(_STATISTICS, convolve_and_measure),
    "fold_batch_norms": fold,
    "copy_parameters": copy,
    "_describe_call": describe,
}


def register() -> None:
    """Registers the rules of all operators with DTensor."""

    def rule(
        cls: type, operator: OpOverload, types: Sequence[type], args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> Any:  # fmt: skip
        return RULES[name_of(operator)](operator, named_arguments(operator, args, kwargs))

    for name in RULES:
        torch.library.register_torch_dispatch(f"customconv::{name}", DTensor, rule)
