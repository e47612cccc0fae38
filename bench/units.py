"""What a plan needs of the package, by names: the units that could be deleted.

A unit is a family, a loader, a tile of a loader, a kernel of a family without loaders, or a mode.
They follow from the fields of plans (csrc/plan/name.h).
"""

from __future__ import annotations

from typing import Any

from customconv import _bind

Units = frozenset[str]
Fields = dict[str, Any]


def tile_unit(loader: str, tile: str) -> str:
    """The unit of a tile of a loader."""
    return f"tile:{loader}/{tile.lower()}"


def kernel_units(family: str, label: str) -> set[str]:
    """The unit of a kernel of a family without loaders; none where the family has one."""
    return {f"kernel:{family}/{label.replace(' ', '-').lower()}"} if label else set()


def _units(loader: str, tile: str, modes: dict[str, bool]) -> set[str]:
    strict = tile.startswith("3xTF32-")
    used = {f"mode:{name}" for name, holds in (modes | {"3xtf32": strict}).items() if holds}
    return {f"loader:{loader}", tile_unit(loader, tile), *used}


def _main_loop(plan: _bind.ConvPlan, fields: Fields) -> set[str]:
    loader = fields["loader"]
    return _units(loader, fields["tile"], {
        "joined": fields["joined"],
        "clusters": plan.splits > 1 and not fields["stream_k"],
        "stream-k": fields["stream_k"],
        f"{loader}-strips": fields["strips"] > 1,
        f"packed-{fields['packing']}": fields["packing"] != "none",
    })  # fmt: skip


def _mma_sync(plan: _bind.ConvPlan, fields: Fields) -> set[str]:
    loader = f"mma.sync-{fields['fetch'].replace('-', '')}"
    return _units(loader, fields["kernel"].replace("-pixels-x-", "x"), {
        "mma.sync": True,
        "mma.sync-splits": plan.splits > 1,
        "mma.sync-apart": fields["apart_h"] or fields["apart_w"],
    })  # fmt: skip


def _gradient_boxes(plan: _bind.ConvPlan, fields: Fields) -> set[str]:
    return _units("boxes", fields["kernel"], {
        "gradient-clusters": fields["clustered"],
        # A warpgroup fills boxes, but a single warp starts TMA's copies.
        "filled-boxes": plan.threads % 128 == 0,
    })  # fmt: skip


def _gradient_planes(plan: _bind.ConvPlan, fields: Fields) -> set[str]:
    loaders = {"boxes": "planes-boxed", "class-runs": "planes-runs"}
    loader = loaders.get(fields["loader"], f"planes-{fields['loader']}")
    return _units(loader, fields["kernel"].replace("planes-", ""), {
        "gradient-clusters": fields["cluster"] > 1,
        "one-class": fields["loader"] == "class-runs",
        "flat": fields["flat"],
    })  # fmt: skip


def _gradient_registers(plan: _bind.ConvPlan, fields: Fields) -> set[str]:
    kernel = fields["kernel"]
    loader = "few" if "few-" in kernel else "registers"
    modes = {"gradient-clusters": fields["clustered"]}
    return _units(loader, kernel.replace(f"{loader}-", ""), modes)


_KINDS = {
    "main_loop": _main_loop,
    "mma_sync": _mma_sync,
    "wgrad_boxes": _gradient_boxes,
    "wgrad_planes": _gradient_planes,
    "wgrad_registers": _gradient_registers,
}


def units_of(plan: _bind.ConvPlan) -> Units:
    """The units that a plan needs: without one of them there is no such plan."""
    if plan.family == "implicit_gemm":
        own = _KINDS[plan.word](plan, plan.fields)
    else:
        own = kernel_units(plan.family, plan.label)
    return frozenset({f"family:{plan.family}", *own})


def compiled() -> Units:
    """The units that the compiled module lists: tiles of the main loop, and named kernels."""
    tiles = {tile_unit(loader, tile) for loader, tile in _bind.main_loop_tiles()}
    kernels: set[str] = set()
    for (family, word), fields in _bind.plan_words().items():
        if family != "implicit_gemm":
            for kernel in next(filter(None, fields.values()), [""]):
                kernels |= kernel_units(family, f"{word} {kernel}".strip())
    return frozenset(tiles | kernels)
