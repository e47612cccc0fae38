"""What units earn: every loader, tile and mode of implicit_gemm pays, or is to be deleted."""

from __future__ import annotations

import io
from types import SimpleNamespace

import numpy as np
import pytest
from rich.console import Console

from bench import pays, replayed, units

# What may go together, and the geometric mean without it alone, of the passes that it is for.
# Delete it from here together with its code. Something that is added to the package must pay.
TO_DELETE = {
    "tile:gather/128x128": 1.0008,
    "tile:halo/128x64": 1.001,
    "tile:im2col/128x64": 1.0008,
    "tile:planes/256x32": 1.0003,
    "tile:planes-threads/3x3-taps": 1.0013,
    "tile:registers/2x128": 1.0008,
}


def cells_of(times, op="fprop"):
    """Cells of plans: of each cell, times by the names of the units that the plan needs."""
    found = []
    for number, plans in enumerate(times):
        layer = SimpleNamespace(suite="net", name=str(number), N=8)
        cell = SimpleNamespace(layer=layer, precision="fp16", layout="nhwc", op=op)
        named = [SimpleNamespace(units=frozenset(names.split())) for names in plans]
        found.append(replayed.Replayed(cell, False, named, np.array(list(plans.values()))))
    return found


@pytest.fixture(autouse=True)
def named_units(request, monkeypatch):
    if "recorded" not in request.fixturenames:
        monkeypatch.setattr(units, "units_of", lambda plan: plan.units)


@pytest.fixture(scope="module")
def recorded():
    return pays.Recorded(replayed.recorded())


def test_without_a_unit_the_next_plan_takes_the_fastest_ones_place():
    some = pays.Recorded(cells_of([
        {"loader:a tile:a/1": 1.0, "loader:a tile:a/2": 1.05, "loader:b": 2.0},
        {"loader:b": 1.0, "loader:a tile:a/1": 3.0},
    ]))  # fmt: skip
    assert some.cost(["tile:a/1"]) == pays.Cost(2, pytest.approx(1.05**0.5), 0, 0)
    assert some.cost(["loader:a"]) == pays.Cost(2, pytest.approx(2**0.5), 1, 0)
    assert some.cost(["tile:a/1", "loader:b"]) == pays.Cost(2, pytest.approx(1.05), 0, 1)
    assert some.cost(["loader:a", "loader:b"]) == pays.Cost(2, 1.0, 0, 2)


def test_cells_without_another_plan_are_apart_but_count_as_slower_in_the_rule():
    assert pays.Cost(cells=1000, mean=1.0, slower=0, alone=11).of_the_rule > 1
    assert pays.Cost(cells=1000, mean=1.0, slower=5, alone=5).of_the_rule <= 1


@pytest.mark.parametrize(
    "mean, slower, may_go",
    [(1.0099, 0, True), (1.0101, 0, False), (1.0, 10, True), (1.0, 11, False)],
)
def test_a_unit_goes_if_the_mean_and_the_slower_cells_are_few_enough(mean, slower, may_go):
    assert (pays.Cost(1000, mean, slower, 0).of_the_rule <= 1) is may_go


def test_each_kind_of_passes_has_to_keep_the_rule():
    many = cells_of([{"loader:a": 1.0}] * 1000)
    few = cells_of([{"loader:b": 1.0, "loader:a": 1.2}], op="wgrad")
    some = pays.Recorded(many + few)
    assert some.pays("loader:b")
    assert some.cost(["loader:b"]).of_the_rule <= 1


def test_units_that_may_go_alone_may_not_all_go_together():
    cells = cells_of([
        {"loader:a": 1.0, "loader:b": 1.001, "loader:c": 1.5},
        *[{"loader:c": 1.0, "loader:b": 1.02}] * 99,
    ])  # fmt: skip
    some = pays.Recorded(cells)
    assert [unit for unit in some.units if some.pays(unit)] == ["loader:c"]
    assert some.may_go_together() == ["loader:b", "loader:a"]
    more = pays.Recorded(cells_of([
        *[{"loader:a": 1.0, "loader:b": 1.0, "loader:c": 1.5}] * 2, *[{"loader:c": 1.0}] * 98,
    ]))  # fmt: skip
    assert more.may_go_together() == ["loader:a"]
    assert more.pays("loader:b", ["loader:a"]) and not more.pays("loader:b")


def test_kept_units_are_not_judged():
    some = pays.Recorded(cells_of([{"family:a loader:mma.sync-a mode:b": 1.0}]))
    assert some.judged() == ["mode:b"]


def test_rows_newly_behind_cudnn_were_ahead_and_have_another_plan():
    some = pays.Recorded(cells_of([{"loader:a": 1.0, "loader:b": 2.0}] * 3 + [{"loader:a": 1.0}]))
    cudnn = dict(zip(some.keys, (1.5, 0.5, 2.5, 1.5), strict=True))
    assert some.newly_behind(["loader:a"], cudnn) == 1


def test_patterns_name_units_and_an_unknown_name_is_an_error():
    some = pays.Recorded(cells_of([{"loader:a tile:a/1": 1.0, "tile:a/2 loader:b": 2.0}]))
    assert some.matching(["tile:*", "loader:a", "tile:a/1"]) == ["tile:a/1", "tile:a/2", "loader:a"]
    with pytest.raises(LookupError, match="loader:c"):
        some.matching(["loader:c"])


def test_the_report_has_a_line_for_each_unit_and_one_for_all():
    cells = cells_of([{"loader:a mode:x": 1.0, "loader:b": 2.0}])
    file = io.StringIO()
    assert pays.report(cells, ["loader:*"], Console(file=file, width=200)) == 0
    lines = file.getvalue().splitlines()
    assert [line.split("  ")[0].strip() for line in lines[1:4]] == [
        "loader:a", "loader:b", "all of these"
    ]  # fmt: skip
    assert "2.0000" in lines[1]
    assert pays.report(cells, ["loader:c"], Console(file=file)) == 2


def test_some_published_rows_have_the_times_of_cudnn(recorded):
    cudnn = pays.cudnn_times()
    assert len(cudnn) > 500
    assert any(key in cudnn for key in recorded.keys)


def test_what_is_compiled_has_timings(recorded):
    untimed = units.compiled() - set(recorded.units)
    assert [unit for unit in untimed if pays.why_kept(unit) is None] == []


def test_what_is_to_be_deleted_is_still_there_and_keeps_the_rule_together(recorded):
    assert TO_DELETE.keys() <= set(recorded.judged()), "it is gone: take it off the list"
    assert recorded.may_go(TO_DELETE), "some of it pays: see `bench calibrate --without`"


def test_all_else_pays(recorded):
    others = set(recorded.judged()) - TO_DELETE.keys()
    assert [unit for unit in sorted(others) if not recorded.pays(unit, TO_DELETE)] == []


def test_figures_are_those_of_the_timings(recorded):
    means = {
        unit: max(cost.mean for cost in recorded.costs([unit])) for unit in TO_DELETE
    }  # fmt: skip
    assert means == pytest.approx(TO_DELETE, abs=6e-5)
