"""The names of what a plan needs."""

from __future__ import annotations

import pytest
from reference import is_of_3xtf32

from bench import replayed, units
from customconv import _bind


def plans_of(**changes):
    problem = {
        "op": "fprop", "dtype": "float16", "input": (8, 64, 56, 56), "weight": (64, 64, 3, 3),
        "padding": (1, 1), "channels_last": True,
    }  # fmt: skip
    return _bind.plans(_bind.ConvProblem(**problem | changes))


def test_a_plan_of_the_main_loop_needs_its_loader_and_tile():
    plans = plans_of(input=(1, 64, 14, 14))
    plan = next(p for p in plans if p.label == "main_loop im2col" and p.splits == 2)
    tile = f"tile:im2col/{plan.fields['tile']}"
    assert units.units_of(plan) == {
        "family:implicit_gemm", "loader:im2col", tile, "mode:clusters"
    }  # fmt: skip


def test_strict_float32_and_joined_phases_are_modes():
    plans = plans_of(op="dgrad", dtype="float32", stride=(2, 2))
    strict = (p for p in plans if p.label == "main_loop im2col" and is_of_3xtf32(p))
    plan = next(plan for plan in strict if plan.fields["joined"])
    own = units.units_of(plan)
    assert {"loader:im2col", "mode:3xtf32", "mode:joined"} < own
    assert any(unit.startswith("tile:im2col/3xtf32-") for unit in own)


def test_a_plan_of_warps_says_so_in_all_its_units():
    plans = plans_of(input=(1, 256, 14, 14), weight=(64, 256, 3, 3))
    of_kernel = (plan for plan in plans if plan.fields.get("kernel") == "128-pixels-x-64")
    plan = next(plan for plan in of_kernel if plan.splits > 1)
    assert units.units_of(plan) == {
        "family:implicit_gemm", "loader:mma.sync-shared", "tile:mma.sync-shared/128x64",
        "mode:mma.sync", "mode:mma.sync-splits",
    }  # fmt: skip


@pytest.mark.parametrize("channels_last, loader", [(True, "boxes"), (False, "planes-runs")])
def test_weight_gradients_have_loaders(channels_last, loader):
    plans = plans_of(op="wgrad", channels_last=channels_last)
    own = [units.units_of(plan) for plan in plans if plan.family == "implicit_gemm"]
    assert any(f"loader:{loader}" in each for each in own)


def test_every_plan_of_a_family_has_a_loader_and_a_tile_or_a_kernel():
    for cell in replayed.recorded()[::10]:
        for plan in cell.plans:
            kinds = sorted(unit.partition(":")[0] for unit in units.units_of(plan))
            expected = ["loader", "tile"] if plan.family == "implicit_gemm" else []
            expected += ["kernel"] * (plan.family not in ("implicit_gemm", "col2im"))
            assert [kind for kind in kinds if kind != "mode"] == sorted(["family", *expected])


def test_units_are_single_words():
    names = {unit for cell in replayed.recorded()[::10] for plan in cell.plans
             for unit in units.units_of(plan)}  # fmt: skip
    assert not [name for name in names | units.compiled() if " " in name]
    others = {name for name in names if name.startswith(("kernel:", "tile:im2col/"))}
    assert others and others <= units.compiled()
