"""Tensors of which each rank has some rows, and the rules for functions of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from .exchange import Line, gather, scatter, shared

# A rule gives the result, or NotImplemented where it knows none for these arguments.
Rule = Callable[..., Any]
RULES: dict[Any, Rule] = {}


@dataclass(frozen=True)
class Rowed:
    """A tensor of which each rank has some rows.

    Attributes:
        local: This rank's rows.
        axis: The dimension that is sharded, counted from the last.
        size: The rows of all.
    """

    local: Tensor
    axis: int
    size: int

    @property
    def dim(self) -> int:
        """The dimension, counted from the first."""
        return self.local.dim() + self.axis


def is_sharded(value: Any, line: Line) -> TypeGuard[DTensor]:
    """Whether a tensor is one of those that these ranks share."""
    return isinstance(value, DTensor) and value.device_mesh == line.mesh


def axis_of(tensor: DTensor) -> int:
    """The dimension along which ``unwrapped`` has rows, counted from the last."""
    (place,) = tensor.placements
    return place.dim - tensor.dim() if type(place) is Shard else -1


def unwrapped(tensor: DTensor) -> Rowed:
    """This rank's rows; what is not sharded yet is first sharded along its last dimension."""
    axis = axis_of(tensor)
    if type(tensor.placements[0]) is not Shard:
        tensor = tensor.redistribute(placements=[Shard(tensor.dim() + axis)])
    return Rowed(tensor.to_local(), axis, tensor.shape[axis])


def wrapped(rowed: Rowed, line: Line) -> DTensor:
    """The DTensor whose rows these are."""
    local, dim = rowed.local, rowed.dim
    spec = line.spec(local.shape, local.stride(), local.dtype, dim, rowed.size)
    if not local.requires_grad:  # then what from_local does takes ten times as long
        return DTensor(local, spec, requires_grad=False)  # type: ignore[no-untyped-call]
    return DTensor.from_local(
        local, line.mesh, spec.placements, run_check=False, shape=spec.shape, stride=spec.stride
    )


def whole(value: Any, line: Line) -> Any:
    """A plain tensor with all rows, where a value is sharded."""
    if not is_sharded(value, line):
        return value
    rowed = unwrapped(value)
    return gather(rowed.local, rowed.dim, rowed.size, line)


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """The same with each element of lists, tuples and dicts changed."""
    if isinstance(value, list | tuple):
        found = [mapped(change, each) for each in value]
        if hasattr(value, "_fields"):
            return type(value)(*found)
        return found if isinstance(value, list) else tuple(found)
    if isinstance(value, dict):
        return {key: mapped(change, each) for key, each in value.items()}
    return change(value)


def elements(value: Any) -> Iterable[Any]:
    """The elements of lists, tuples and dicts."""
    if isinstance(value, list | tuple):
        for each in value:
            yield from elements(each)
    elif isinstance(value, dict):
        for each in value.values():
            yield from elements(each)
    else:
        yield value


def distributed_tensors(args: Sequence[Any], kwargs: dict[str, Any]) -> list[DTensor]:
    """The DTensors among a function's arguments, also within lists."""
    found = []
    for each in (*args, *kwargs.values()) if kwargs else args:
        if isinstance(each, DTensor):
            found.append(each)
        elif isinstance(each, list | tuple | dict):
            found += [inner for inner in elements(each) if isinstance(inner, DTensor)]
    return found


def rule(*functions: Any) -> Callable[[Rule], Rule]:
    """Registers a rule for functions."""

    def registered(found: Rule) -> Rule:
        RULES.update(dict.fromkeys(functions, found))
        return found

    return registered


def takes(found: Rule, *args: Any, **kwargs: Any) -> bool:
    """Whether a rule has these arguments."""
    try:
        inspect.signature(found).bind(*args, **kwargs)
    except TypeError:
        return False
    return True


def named(names: str, *places: Any) -> list[Any]:
    """The functions with these names that there are."""
    return [
        getattr(place, name) for name in names.split() for place in places if hasattr(place, name)
    ]


def aligned(tensors: Sequence[Any], axis: int, size: int, line: Line) -> list[Any]:
    """What a function of broadcast tensors needs of each: this rank's rows, or all of it."""

    def part(value: Any) -> Any:
        if not isinstance(value, Tensor):
            return value
        if is_sharded(value, line):
            rowed = unwrapped(value)
            if (rowed.axis, rowed.size) == (axis, size):
                return rowed.local
            value = gather(rowed.local, rowed.dim, rowed.size, line)
        if value.dim() >= -axis and value.shape[axis] == size and size != 1:
            return scatter(value, value.dim() + axis, line)
        return shared(value, line)

    return [part(each) for each in tensors]


def first_sharded(values: Iterable[Any], line: Line) -> DTensor | None:
    """The first tensor that is sharded, of those with the most rows."""
    found: DTensor | None = None
    for each in values:
        if is_sharded(each, line):
            if found is None:
                found = each
            elif found.shape[axis_of(found)] == 1 and axis_of(each) == axis_of(found):
                found = each
    return found


def along_others(line: Line, func: Any, rowed: Rowed, *args: Any, **kwargs: Any) -> DTensor:
    """A function whose result has the same rows."""
    return wrapped(Rowed(func(rowed.local, *args, **kwargs), rowed.axis, rowed.size), line)


def touches(dims: Any, tensor: DTensor) -> bool:
    """Whether dimensions have the one that is sharded among them; None stands for all."""
    if dims is None:
        return True
    every_dim = [dims] if isinstance(dims, int) else list(dims)
    sharded = tensor.dim() + axis_of(tensor)
    return any(d % tensor.dim() == sharded for d in every_dim) or not every_dim


def pixels(input: Any, spatial: int, line: Line) -> Rowed | None:
    """The tensor, if it is images that are sharded along one of their spatial dimensions."""
    if not is_sharded(input, line):
        return None
    rowed = unwrapped(input)
    return rowed if -rowed.axis <= spatial and rowed.local.dim() > spatial else None
