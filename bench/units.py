"""What a plan needs of the package, by names: the units that could be deleted.

A unit is a family, a loader, a tile of a loader, a kernel of a family without loaders, or a mode.

The compiled module names families, kernels and the main loop's tiles. It does not name how a plan
of implicit_gemm loads its input, nor its modes: those are bits of the plan's variant. Only this
module reads them. It looks up their places in the sources, by the names that they have there.
"""

from __future__ import annotations

import functools
import re
from pathlib import Path

from customconv import _C

GEMM = Path(__file__).parents[1] / "csrc" / "kernels" / "implicit_gemm"
OLDER = GEMM / "tile.h"
MAIN_LOOP = GEMM / "sm90" / "plan.cpp"
PACKED = GEMM / "sm90" / "packed.h"
BOXES = GEMM / "wgrad" / "geometry.h"
REGISTERS = GEMM / "wgrad" / "registers" / "geometry.h"
PLANES = GEMM / "wgrad" / "planes" / "geometry.h"

STRICT = "3xTF32 "  # what names of kernels for strict float32 begin with
JOINED = " joined"
STRIPS_MASK, PACKING_MASK, FETCH_MASK, CLUSTER_MASK = 255, 3, 15, 3

Units = frozenset[str]


@functools.cache
def _text(path: Path) -> str:
    return path.read_text()


@functools.cache
def constant(path: Path, name: str) -> int:
    """A number that a source defines."""
    found = re.search(rf"\b{name} = (\d+)(?: << (\d+))?", _text(path))
    if found is None:
        raise LookupError(f"{path.name} does not define {name}")
    return int(found[1]) << int(found[2] or 0)


@functools.cache
def enumerators(path: Path, name: str) -> list[str]:
    """The names of an enumeration, in order, in lower case and without the k."""
    body = re.search(rf"enum class {name}\b.*?\{{(.*?)\}};", _text(path), re.DOTALL)
    if body is None:
        raise LookupError(f"{path.name} does not define {name}")
    return [found.lower() for found in re.findall(r"^\s*k(\w+),", body[1], re.MULTILINE)]


@functools.cache
def _kernels(operation: str) -> frozenset[str]:
    return frozenset(_C.kernel_names()["implicit_gemm", operation])


def slug(name: str) -> str:
    """A kernel's name as a word of a command line."""
    return re.sub(r"[ ,]+", "-", re.sub(r"(?<=\d) x (?=\d)", "x", name)).lower()


def tile_unit(loader: str, tile: str, strict: bool = False) -> str:
    """The unit of a tile of a loader."""
    return f"tile:{loader}/{slug(STRICT) if strict else ''}{slug(tile)}"


def kernel_unit(family: str, kernel: str) -> str:
    """The unit of a kernel of a family without loaders."""
    return f"kernel:{family}/{slug(kernel)}"


def _main_loop(plan: _C.ConvPlan) -> set[str]:
    variant = plan.variant.removeprefix(STRICT)
    loader = variant.removesuffix(JOINED)
    strict = variant != plan.variant
    packings = enumerators(PACKED, "Packing")
    packing = packings[plan.variant_index >> constant(MAIN_LOOP, "kPackingShift") & PACKING_MASK]
    strips = plan.variant_index >> constant(MAIN_LOOP, "kStripShift") & STRIPS_MASK
    modes = {
        "3xtf32": strict,
        "joined": loader != variant,
        "clusters": plan.splits > 1,
        f"{loader}-strips": strips > 1,
        f"packed-{packing}": packing != "none",
    }
    return {
        f"loader:{loader}",
        tile_unit(loader, f"{plan.tile[0]} x {plan.tile[1]}", strict),
        *(f"mode:{name}" for name, used in modes.items() if used),
    }


def _older(plan: _C.ConvPlan) -> set[str]:
    index = plan.variant_index
    by_warps = bool(index & constant(OLDER, "kByWarps"))
    fetches = enumerators(OLDER, "Fetch")
    fetch = fetches[index >> constant(OLDER, "kFetchShift") & FETCH_MASK]
    loader = f"mma.sync-{fetch}" if by_warps else fetch
    clustered = bool(index & constant(OLDER, "kClustered"))
    apart = constant(OLDER, "kApartH") | constant(OLDER, "kApartW")
    modes = {
        "mma.sync": by_warps,
        "older-clusters": clustered,
        "older-splits": plan.splits > 1 and not clustered,
        "mma.sync-apart": bool(index & apart),
    }
    return {
        f"loader:{loader}",
        tile_unit(loader, plan.variant.replace(" pixels", "")),
        *(f"mode:{name}" for name, used in modes.items() if used),
    }


def _gradient(plan: _C.ConvPlan) -> set[str]:
    index = plan.variant_index
    name = plan.variant.removeprefix(STRICT)
    kind, _, tile = name.replace(",", "").partition(" ")
    modes = {"3xtf32": name != plan.variant}
    if kind in ("registers", "few"):
        loader = kind
        modes["gradient-clusters"] = bool(index & constant(REGISTERS, "kClustered"))
    elif kind == "planes":
        boxed, runs = (index & constant(PLANES, name) for name in ("kBoxed", "kRuns"))
        loader = "planes-boxed" if boxed else "planes-runs" if runs else "planes-threads"
        cluster = index >> constant(PLANES, "kClusterShift") & CLUSTER_MASK
        modes["gradient-clusters"] = cluster > 0
        modes["one-class"] = bool(index & constant(PLANES, "kOneClass"))
        modes["flat"] = bool(index & constant(PLANES, "kFlat"))
    else:
        loader, tile = "boxes", name
        modes["gradient-clusters"] = bool(index & constant(BOXES, "kClustered"))
        # A warpgroup fills boxes, but a single warp starts the copies of the copy engine.
        modes["filled-boxes"] = plan.block % 128 == 0
    return {
        f"loader:{loader}",
        tile_unit(loader, tile, name != plan.variant),
        *(f"mode:{name}" for name, used in modes.items() if used),
    }


def units_of(plan: _C.ConvPlan) -> Units:
    """The units that a plan needs: without one of them there is no such plan."""
    if plan.family != "implicit_gemm":
        own = {kernel_unit(plan.family, plan.variant)}
    elif plan.variant in _kernels("fprop"):
        own = _older(plan)
    elif plan.variant in _kernels("wgrad"):
        own = _gradient(plan)
    else:
        own = _main_loop(plan)
    return frozenset({f"family:{plan.family}", *own})


def compiled() -> Units:
    """The units that the compiled module lists: tiles of the main loop, and named kernels."""
    tiles = {
        tile_unit(loader, f"{pixels} x {channels}", strict)
        for loader, pixels, channels, strict in _C.main_loop_tiles()
    }
    kernels = {
        kernel_unit(family, kernel)
        for (family, _), names in _C.kernel_names().items()
        if family != "implicit_gemm"
        for kernel in names
    }
    return frozenset(tiles | kernels)
