"""PyTorch's convolutions and ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from .convolution import Geometry, convolve, convolved, output_size, values
from .exchange import Line, shared
from .rowed import Rowed, pixels, rule, wrapped

_OPS = torch.ops.customconv


def _with_ours(name: str) -> dict[Any, int]:
    """PyTorch's functions of a name, and our operators, with the number of spatial dimensions."""
    found = {getattr(torch, f"{name}{spatial}d"): spatial for spatial in (1, 2, 3)}
    for spatial in (2, 3):
        packet = getattr(_OPS, f"{name}{spatial}d")
        overloads = (getattr(packet, each) for each in packet.overloads())
        found |= dict.fromkeys([packet, *overloads], spatial)
    return found


_SPATIAL, _SPATIAL_TRANSPOSED = _with_ours("conv"), _with_ours("conv_transpose")


CAST = (torch.float32, torch.float16, torch.bfloat16)


def cast_for_autocast(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Tensors in autocast's type, where it is on."""
    kind = next(each for each in tensors if each is not None).device.type
    if not torch.is_autocast_enabled(kind):
        return list(tensors)
    dtype = torch.get_autocast_dtype(kind)
    return [each.to(dtype) if each is not None and each.dtype in CAST else each for each in tensors]


@lru_cache(maxsize=1024)
def check(shapes: Sequence[torch.Size | None], dtypes: Sequence[Any], geometry: Geometry) -> None:
    """Raises what a convolution of whole tensors raises: an input, a weight and a bias."""
    x, weight, bias = (
        None if shape is None else torch.empty(shape, dtype=dtype, device="meta")
        for shape, dtype in zip(shapes, dtypes, strict=True)
    )
    assert x is not None and weight is not None
    spatial = len(geometry.stride)
    found = convolved(x, weight, bias, geometry)
    if 0 in found.shape[-spatial:]:  # which PyTorch raises of tensors that hold something
        padded = [
            size + 2 * p for size, p in zip(x.shape[-spatial:], geometry.padding, strict=True)
        ]
        raise RuntimeError(
            f"Calculated padded input size per channel: ({' x '.join(map(str, padded))}). "
            f"Kernel size: ({' x '.join(map(str, weight.shape[2:]))}). "
            "Kernel size can't be greater than actual input size"
        )


def convolution(
    line: Line, input: Any, weight: Tensor, bias: Tensor | None, geometry: Geometry, behind: int
) -> Any:
    """A convolution; ``behind`` is the padding behind the last row, less that in front."""
    rowed = pixels(input, len(geometry.stride), line)
    if rowed is None:
        return NotImplemented
    x, w, b = cast_for_autocast([rowed.local, weight, bias])
    assert x is not None and w is not None
    w, b = shared(w, line), shared(b, line)
    window = geometry.window(weight, rowed.axis)
    extra = geometry.output_padding[rowed.axis]
    result = output_size(rowed.size + behind, window, extra, geometry.transposed)
    sizes = list(input.shape)
    sizes[rowed.axis] += behind
    check(
        (torch.Size(sizes), w.shape, None if b is None else b.shape),
        (x.dtype, w.dtype, None if b is None else b.dtype),
        geometry,
    )
    autocasts = torch.is_autocast_enabled(x.device.type)
    with torch.autocast(x.device.type, enabled=False) if autocasts else nullcontext():
        y = convolve(x, w, b, rowed.axis, (rowed.size, result), geometry, line)
    return wrapped(Rowed(y, rowed.axis, result), line)


@rule(*_SPATIAL)
def conv(
    line: Line, func: Any, input: Any, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, dilation: Any = 1, groups: int = 1,
    algorithm: str | None = "auto",
) -> Any:  # fmt: skip
    """PyTorch's convolutions and ours, by our kernels where there are any."""
    spatial = _SPATIAL[func]
    steps, holes = values(stride, spatial), values(dilation, spatial)
    behind = 0
    if isinstance(padding, str):
        if padding not in ("same", "valid"):
            raise RuntimeError(
                f"Invalid padding string: {padding!r}, should be one of {{'valid', 'same'}}"
            )
        if padding == "same" and any(step != 1 for step in steps):
            raise RuntimeError("padding='same' is not supported for strided convolutions")
        spans = [0] * spatial
        if padding == "same":
            taps = weight.shape[2:]
            spans = [hole * (each - 1) for hole, each in zip(holes, taps, strict=True)]
        rowed = pixels(input, spatial, line)
        if rowed is None:
            return NotImplemented
        odd = [span % 2 for span in spans]
        behind, odd[rowed.axis] = odd[rowed.axis], 0
        if any(odd):  # one more behind than in front
            ends = [end for each in reversed(odd) for end in (0, each)]
            input = wrapped(Rowed(F.pad(rowed.local, ends), rowed.axis, rowed.size), line)
        padding = [span // 2 for span in spans]
    geometry = Geometry(
        steps, values(padding, spatial), holes, (0,) * spatial, groups, transposed=False,
        algorithm=algorithm or "auto",
    )  # fmt: skip
    return convolution(line, input, weight, bias, geometry, behind)


@rule(*_SPATIAL_TRANSPOSED)
def conv_transpose(
    line: Line, func: Any, input: Any, weight: Tensor, bias: Tensor | None = None,
    stride: Any = 1, padding: Any = 0, output_padding: Any = 0, groups: int = 1, dilation: Any = 1,
    algorithm: str | None = "auto",
) -> Any:  # fmt: skip
    """PyTorch's transposed convolutions and ours."""
    spatial = _SPATIAL_TRANSPOSED[func]
    geometry = Geometry(
        values(stride, spatial), values(padding, spatial), values(dilation, spatial),
        values(output_padding, spatial), groups, transposed=True, algorithm=algorithm or "auto",
    )  # fmt: skip
    return convolution(line, input, weight, bias, geometry, 0)
