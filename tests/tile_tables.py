"""The names in implicit_gemm's headers, and what a plan's variant stands for."""

from __future__ import annotations

import functools
import re
from pathlib import Path

from customconv import _C

FAMILY = Path(__file__).parents[1] / "csrc/kernels/implicit_gemm"
TILE = FAMILY / "tile.h"


@functools.cache
def table(name: str) -> list[str]:
    """The names of an enumeration in tile.h, or of the kernels, in order."""
    if name == "kernels":
        return _C.kernel_names()["implicit_gemm", "fprop"]
    body = re.search(rf"enum class {name}.*?\{{(.*?)\}};", TILE.read_text(), re.DOTALL)
    assert body is not None
    return re.findall(r"^\s*(k\w+),", body[1], re.MULTILINE)


def weight_kernels() -> set[str]:
    """The names of weight gradients' kernels, of channels-last tensors and of planes."""
    return set(_C.kernel_names()["implicit_gemm", "wgrad"])


def every_tile(*, of_3xtf32: bool) -> set[tuple[str, str]]:
    """Loader and tile of each kernel of the main loop in sm90/."""
    prefix = "3xTF32 " if of_3xtf32 else ""
    return {
        (f"{prefix}{loader}", f"{pixels} x {channels}")
        for loader, pixels, channels, halves in _C.main_loop_tiles()
        if halves == of_3xtf32
    }


@functools.cache
def flag_bits() -> dict[str, int]:
    """The flags in tile.h, without the shifts that stand beside them."""
    body = re.search(r"enum Flag : int \{(.*?)\};", TILE.read_text(), re.DOTALL)
    assert body is not None
    found = re.findall(r"(k\w+) = (\d+)", body[1])
    return {name: int(value) for name, value in found if not name.endswith("Shift")}


def is_of_main_loop(plan: _C.ConvPlan) -> bool:
    """Whether the plan is of the main loop in sm90/, whose variants are numbered apart."""
    return bool(plan.variant_index >> 20 & 1)


def row_bytes(plan: _C.ConvPlan) -> int:
    """Bytes of channels of a position in a stage, of a plan of the main loop."""
    return (plan.variant_index >> 8 & 7) * 32


def strips(plan: _C.ConvPlan) -> int:
    """Strips of an image, of a plan of the main loop."""
    return plan.variant_index >> 12 & 255


def packing(plan: _C.ConvPlan) -> str:
    """How the input is packed, of a plan of the main loop."""
    text = (FAMILY / "sm90/packed.h").read_text()
    body = re.search(r"enum class Packing.*?\{(.*?)\};", text, re.DOTALL)
    assert body is not None
    return re.findall(r"^\s*(k\w+),", body[1], re.MULTILINE)[plan.variant_index >> 21 & 3]


def loader(plan: _C.ConvPlan) -> str:
    """The loader of a plan of the main loop."""
    return plan.variant.removesuffix(" joined")


def joins_phases(plan: _C.ConvPlan) -> bool:
    """Whether the phases of an input gradient are channels, in a plan of the main loop."""
    return bool(plan.variant_index >> 23 & 1)


def flags(plan: _C.ConvPlan) -> list[str]:
    """The names of the plan's flags in tile.h."""
    if is_of_main_loop(plan):
        return []
    return [name for name, bit in flag_bits().items() if plan.variant_index & bit]


def planes_bit(name: str) -> int:
    """A bit of the variants of channels-first weight gradients."""
    text = (FAMILY / "wgrad/planes/geometry.h").read_text()
    found = re.search(rf"constexpr int {name} = (\d+)(?: << (\d+))?;", text)
    assert found is not None
    return int(found[1]) << int(found[2] or 0)


def parts(plan: _C.ConvPlan) -> tuple[str, str, str]:
    """Kernel, shape and fetch, as `variant_of` in tile.h packs them; or tile, row and loader."""
    if is_of_main_loop(plan):
        pixels, channels, row = plan.tile
        return f"{pixels} x {channels}", f"{row} channels", loader(plan)
    index = plan.variant_index
    return (
        table("kernels")[index % 16],
        table("Shape")[index >> 4 & 3],
        table("Fetch")[index >> 6 & 15],
    )
