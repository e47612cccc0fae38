"""The arguments of operators: settled as PyTorch's functions settle theirs, and its errors."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, cast

import torch
from torch import SymInt, Tensor
from torch.fx import Proxy
from torch.nn import functional
from torch.overrides import handle_torch_function

from . import _bind

# What an operator raises for its arguments. Other errors are not its own: a hook on saved tensors
# raises one to end the recomputation of a checkpoint.
ERRORS = (RuntimeError, TypeError, ValueError, IndexError, AttributeError)

# What PyTorch's functions take a batch of.
_DIMENSIONS: dict[Callable[..., Tensor], int] = {
    torch.conv1d: 3,
    torch.conv2d: 4,
    torch.conv3d: 5,
    torch.conv_transpose1d: 3,
    torch.conv_transpose2d: 4,
    torch.conv_transpose3d: 5,
}

# What a batch holds, by the number of its spatial dimensions.
BATCH_OF = {2: "images", 3: "volumes"}

# The memory format that has the channels last, by the number of a tensor's dimensions.
LAST = {4: torch.channels_last, 5: torch.channels_last_3d}


@functools.cache
def algorithms() -> tuple[str, ...]:
    """The names that ``algorithm`` may have."""
    problem = _bind.ConvProblem(input=(1, 1, 1, 1), weight=(1, 1, 1, 1))
    *families, aten = (candidate.family for candidate in _bind.candidates(problem))
    return (*families, "auto", aten)


def check_algorithm(function: str, algorithm: object) -> None:
    """Refuses what names no algorithm.

    Raises:
        TypeError: It is no string.
        ValueError: There is no algorithm of that name.
    """
    if not isinstance(algorithm, str):
        raise _type_error(function, "algorithm", str, algorithm)
    if algorithm not in algorithms():
        names = ", ".join(map(repr, algorithms()))
        raise ValueError(f"unknown algorithm {algorithm!r}: expected one of {names}")


def check_fused(
    function: str,
    spatial: int,
    input: Tensor,
    output: Tensor,
    bias: Tensor | None,
    scale: Tensor | None,
    residual: Tensor | None,
) -> None:
    """Raises what a fused operator of ``spatial`` dimensions raises for its other tensors."""
    wide = torch.promote_types(input.dtype, torch.float32)
    channels = output.shape[-1 - spatial : -spatial]
    for name, tensor, shape, dtypes in (
        ("bias", bias, channels, {input.dtype, wide}),
        ("scale", scale, channels, {input.dtype, wide}),
        ("residual", residual, output.shape, {input.dtype}),
    ):
        if tensor is None:
            continue
        if tensor.shape != shape:
            raise RuntimeError(f"{function}: expected a {name} of shape {list(shape)}")
        if tensor.dtype not in dtypes or tensor.device != input.device:
            raise RuntimeError(
                f"{function}: expected a {name} of type {input.dtype} on {input.device}, as the "
                f"input is, but got {tensor.dtype} on {tensor.device}"
            )


def numbered_padding(
    name: str, input: Tensor, weight: Tensor, stride: Sequence[int], dilation: Sequence[int]
) -> tuple[Tensor, list[int]]:
    """Padding by name in numbers; where "same" is uneven, the odd one is padded in front first."""
    if name == "valid":
        return input, [0] * (weight.ndim - 2)
    if name != "same":
        raise ValueError(f"padding must be numbers, 'same' or 'valid', but is {name!r}")
    if any(step != 1 for step in stride):
        raise RuntimeError("padding='same' is not supported for strided convolutions")
    sizes: Sequence[int] = weight.shape[2:]
    if torch.jit.is_tracing():  # type: ignore[attr-defined,no-untyped-call]
        # They are tensors then, which a custom operator does not take for integers.
        sizes = [torch.ops.aten.sym_size.int(weight, i) for i in range(2, weight.ndim)]
    steps = dilation if len(dilation) != 1 else [*dilation] * len(sizes)
    total = [d * (size - 1) for d, size in zip(steps, sizes, strict=False)]
    if any(t % 2 for t in total):
        input = functional.pad(input, [n for t in reversed(total) for n in (0, t % 2)])
    return input, [t // 2 for t in total]


def pair(value: Any) -> Sequence[int] | None:
    """One number as two, or a sequence as it is; None if PyTorch has to be asked about it."""
    kind = type(value)
    if kind is int:
        return value, value
    if kind is tuple or kind is list:
        # The first and the last are all of them: operators refuse more than two by themselves.
        plain = len(value) == 0 or (is_integer(value[0]) and is_integer(value[-1]))
        return value if plain else None
    return (value, value) if kind is SymInt else None


def triple(value: Any) -> Sequence[int] | None:
    """One number as three, or a sequence as it is; None if PyTorch has to be asked about it."""
    kind = type(value)
    if kind is int or kind is SymInt:
        return value, value, value
    if kind is tuple or kind is list:
        for each in value:
            if not is_integer(each):
                return None
        numbers: Sequence[int] = value
        return numbers
    return None


def after(neutral: int, value: Any) -> Sequence[int] | None:
    """The numbers of one dimension after a neutral one for the height; else as ``pair``."""
    if is_integer(value):
        return neutral, value
    numbers = pair(value)
    return numbers if numbers is None or len(numbers) == 0 else (neutral, *numbers)


def is_integer(value: Any) -> bool:
    """Whether a number goes straight to the operator."""
    kind = type(value)
    return kind is int or kind is SymInt


def settled(
    function: Callable[..., Tensor],
    pytorchs: Callable[..., Tensor],
    *arguments: Any,
    **options: Any,
) -> Tensor:
    """Calls a function of ``ops`` again, with its numbers in plain integers.

    Args:
        function: The function.
        pytorchs: PyTorch's function of these arguments.
        arguments: Three tensors, and numbers.
        options: The function's other arguments.

    Raises:
        Exception: PyTorch's function refuses the arguments.
    """
    if any(isinstance(argument, Proxy) for argument in arguments):
        return as_proxy(function, *arguments, **options)
    if error := _refusal(pytorchs, *arguments):
        raise error
    numbers = [_plain(value) for value in arguments[3:]]
    return function(*arguments[:3], *numbers, **options)


def as_proxy(function: Callable[..., Tensor], *arguments: Any, **options: Any) -> Tensor:
    """The call of a function of ``ops`` in the graph that torch.fx traces, as it is written."""
    proxies = [argument for argument in arguments if isinstance(argument, Proxy)]
    return cast(Tensor, handle_torch_function(function, proxies, *arguments, **options))


def _plain(value: Any) -> Any:
    if isinstance(value, SymInt):
        return value
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, str):
        return str.__str__(value)  # of an enumeration of strings, the string itself
    if isinstance(value, (tuple, list)):
        return [_plain(v) for v in value]
    return int(value)


def pytorchs_error(
    error: Exception, algorithm: str, function: Callable[..., Tensor], *arguments: Any
) -> Exception | None:
    """What to raise in place of an operator's error, or None if the error is the right one."""
    if isinstance(error, torch.OutOfMemoryError):
        return None
    if other := _refusal(function, *arguments):
        return other
    if isinstance(algorithm, str):
        return None
    return _type_error(function.__name__, "algorithm", str, algorithm)


def wrong_option(function: str, **options: object) -> TypeError | None:
    """The error for what a fused operator takes besides the geometry, if a type is wrong."""
    types: dict[str, tuple[type, ...]] = {
        "scale": (Tensor, type(None)),
        "residual": (Tensor, type(None)),
        "activation": (str,),
        "residual_last": (bool,),
        "negative_slope": (float, int),
    }
    for name, value in options.items():
        if not isinstance(value, types[name]):
            return _type_error(function, name, types[name][0], value)
    return None


def _type_error(function: str, argument: str, expected: type, value: object) -> TypeError:
    """An argument of another type than it must have, in PyTorch's words."""
    kinds = expected.__name__, type(value).__name__
    return TypeError(f"{function}(): argument {argument!r} must be {kinds[0]}, not {kinds[1]}")


def _refusal(function: Callable[..., Tensor], *arguments: Any) -> Exception | None:
    """What PyTorch's function raises for these arguments, or None if it takes them.

    It is tried with tensors that hold no image, which costs nothing, and called with the arguments
    themselves only if it refuses those, for an error that tells of these.
    """
    try:
        function(*_hollow(function, arguments))
    except Exception:
        pass
    else:
        return None
    try:
        function(*arguments)
    except Exception as error:
        return error
    return None


def _hollow(function: Callable[..., Tensor], arguments: Sequence[Any]) -> list[Any]:
    """The arguments with tensors that take no memory: a batch of no images, weight and bias."""
    dimensions = _DIMENSIONS[function]
    hollow = []
    for position, value in enumerate(arguments):
        if position < 3 and isinstance(value, Tensor):
            shape = value.shape
            if position == 0 and dimensions - 1 <= len(shape) <= dimensions:
                shape = torch.Size((0, *shape[1 - dimensions :]))
            value = torch.empty((), device="cpu").expand(shape)
        hollow.append(value)
    return hollow
