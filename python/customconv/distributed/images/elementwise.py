"""Functions of single elements."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate
from torch.nn import functional as F

from .exchange import Line, scatter, shared
from .rowed import (
    Rowed,
    aligned,
    along_others,
    axis_of,
    first_sharded,
    is_sharded,
    named,
    pixels,
    rule,
    touches,
    unwrapped,
    wrapped,
)
from .shapes import reduced_along_others

POINTWISE = named(
    "abs absolute acos acosh add addcdiv addcmul angle arccos arccosh arcsin arcsinh arctan "
    "arctan2 arctanh asin asinh atan atan2 atanh bitwise_and bitwise_left_shift bitwise_not "
    "bitwise_or bitwise_right_shift bitwise_xor ceil celu clamp clamp_max clamp_min clip "
    "clone contiguous copysign cos cosh deg2rad detach digamma div divide elu eq erf erfc "
    "erfinv exp exp2 expm1 fix float_power floor floor_divide fmax fmin fmod frac ge gelu "
    "greater greater_equal gt hardshrink hardsigmoid hardswish hardtanh heaviside hypot "
    "isclose isfinite isinf isnan isneginf isposinf ldexp le leaky_relu lerp less less_equal "
    "lgamma log log10 log1p log2 logaddexp logaddexp2 logical_and logical_not logical_or "
    "logical_xor logit logsigmoid lt masked_fill maximum minimum mish mul multiply nan_to_num "
    "ne neg negative nextafter not_equal polygamma positive pow rad2deg reciprocal relu relu6 "
    "remainder round rsqrt rsub selu sgn sigmoid sign signbit silu sin sinc sinh softplus "
    "softshrink softsign sqrt square sub subtract tan tanh tanhshrink threshold true_divide "
    "trunc where xlogy empty_like full_like ones_like zeros_like to type float double half "
    "bfloat16 int long short bool __add__ __radd__ __sub__ __rsub__ __mul__ __rmul__ "
    "__truediv__ __rtruediv__ __floordiv__ __rfloordiv__ __mod__ __rmod__ __pow__ __rpow__ "
    "__neg__ __pos__ __abs__ __invert__ __and__ __rand__ __or__ __ror__ __xor__ __rxor__ "
    "__eq__ __ne__ __lt__ __le__ __gt__ __ge__ __div__ __rdiv__",
    torch, Tensor, F,
)  # fmt: skip

# The same in place.
IN_PLACE = named(
    "abs_ add_ addcdiv_ addcmul_ ceil_ celu_ clamp_ clamp_max_ clamp_min_ clip_ copy_ cos_ "
    "div_ divide_ elu_ erf_ exp_ fill_ floor_ hardsigmoid_ hardswish_ hardtanh_ leaky_relu_ "
    "lerp_ log_ masked_fill_ mul_ multiply_ nan_to_num_ neg_ negative_ pow_ reciprocal_ relu_ "
    "round_ rsqrt_ selu_ sigmoid_ sign_ silu_ sin_ sqrt_ square_ sub_ subtract_ tanh_ "
    "true_divide_ zero_ __iadd__ __isub__ __imul__ __itruediv__ __ipow__",
    torch, Tensor, F,
)  # fmt: skip


# Those of them whose gradients DTensor has rules for.
DTENSORS_OWN = named(
    "add_ sub_ mul_ div_ relu_ relu copy_ fill_ zero_ __iadd__ __isub__ __imul__ __itruediv__",
    torch, Tensor, F,
)  # fmt: skip


@rule(*POINTWISE)
def pointwise(line: Line, func: Any, *args: Any, **kwargs: Any) -> Any:
    """A function of tensors that are broadcast, element by element."""
    if kwargs.get("out") is not None:
        return NotImplemented
    if kwargs.get("inplace"):
        return in_place(line, func, *args, **kwargs)
    names = list(kwargs)
    operands = [*args, *kwargs.values()]
    found = first_sharded(operands, line)
    if found is None:
        return NotImplemented
    axis, size = axis_of(found), found.shape[axis_of(found)]
    if size == 1 and any(isinstance(each, Tensor) and not is_sharded(each, line)
                         and each.dim() >= -axis and each.shape[axis] != 1
                         for each in operands):  # fmt: skip
        return NotImplemented  # broadcast along the dimension
    operands = aligned(operands, axis, size, line)
    result = func(*operands[: len(args)], **dict(zip(names, operands[len(args) :], strict=True)))
    if not isinstance(result, Tensor):  # the name of a type
        return result
    if result.device != found.device:
        return NotImplemented
    return wrapped(Rowed(result, axis, size), line)


@rule(*IN_PLACE)
def in_place(line: Line, func: Any, *args: Any, **kwargs: Any) -> Any:
    """The same in place, where the tensor that is written is sharded."""
    target, *others = args
    if not is_sharded(target, line):
        return NotImplemented
    rowed = unwrapped(target)
    names, operands = list(kwargs), [*others, *kwargs.values()]
    written: Any = target
    if torch.is_grad_enabled() and func in DTENSORS_OWN:
        operands = [as_dtensor(each, rowed, line) for each in operands]
    else:
        # Under autograd a copy is written, and DTensor is told that the tensor is now another.
        written = rowed.local.clone() if torch.is_grad_enabled() else rowed.local
        operands = aligned(operands, rowed.axis, rowed.size, line)
    func(
        written, *operands[: len(others)],
        **dict(zip(names, operands[len(others) :], strict=True)),
    )  # fmt: skip
    if torch.is_grad_enabled() and written is not target:
        target.copy_(wrapped(Rowed(written, rowed.axis, rowed.size), line))
    return target


def as_dtensor(value: Any, like: Rowed, line: Line) -> Any:
    """A tensor as DTensor's own rules take it, beside one that is sharded."""
    if not isinstance(value, Tensor) or (value.dim() == 0 and not value.requires_grad):
        return value
    (rows,) = aligned([value], like.axis, like.size, line) if is_sharded(value, line) else (value,)
    has_rows = rows.dim() >= -like.axis and rows.shape[like.axis] == like.size != 1
    if rows is value and not has_rows:  # whose gradient DTensor sums
        return DTensor.from_local(value, line.mesh, [Replicate()], run_check=False)
    if rows is value:
        rows = scatter(value, value.dim() + like.axis, line)
    return wrapped(Rowed(rows, like.axis, like.size), line)


@rule(F.prelu, torch.prelu, Tensor.prelu)
def prelu(line: Line, func: Any, input: Any, weight: Tensor) -> Any:
    """A slope for each channel."""
    if not is_sharded(input, line):
        return NotImplemented
    return along_others(line, func, unwrapped(input), shared(weight, line))


ALONG = named(
    "softmax log_softmax softmin normalize glu cumsum cumprod logcumsumexp flip argmax argmin",
    torch, Tensor, F,
)  # fmt: skip


@rule(*ALONG)
def along(line: Line, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A function along a dimension, which comes as ``dim``."""
    position, default = {"normalize": (1, 1), "glu": (0, -1)}.get(func.__name__, (0, None))
    name = "dims" if func.__name__ == "flip" else "dim"
    dim = kwargs.get(name, args[position] if len(args) > position else default)
    if not is_sharded(input, line) or touches(dim, input):
        return NotImplemented
    rowed = unwrapped(input)
    if func.__name__ in ("argmax", "argmin"):  # the dimension itself goes
        return reduced_along_others(line, func, rowed, dim, *args[1:], **kwargs)
    return along_others(line, func, rowed, *args, **kwargs)


@rule(F.channel_shuffle, torch.channel_shuffle, F.local_response_norm)
def along_channels(line: Line, func: Any, input: Any, *args: Any, **kwargs: Any) -> Any:
    """A function along the second dimension."""
    rowed = pixels(input, input.dim() - 2, line)
    if rowed is None:
        return NotImplemented
    return along_others(line, func, rowed, *args, **kwargs)
