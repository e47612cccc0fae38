"""The planner's picks do not get far slower than those that were accepted last."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bench import picks, replayed
from bench.picks import Pick

# Cells whose pick may be far slower than the one that is kept, and why.
MAY_BE_SLOWER: dict[replayed.Key, str] = {}


def key(name):
    return "net", name, 8, "fp16", "nhwc", "fprop"


def plan(variant, predicted_ms):
    return SimpleNamespace(
        family="direct", variant=variant, tile=(1, 2, 3), splits=4, predicted_ms=predicted_ms
    )


@pytest.fixture
def cell():
    layer = SimpleNamespace(suite="net", name="a", N=8)
    of = SimpleNamespace(layer=layer, precision="fp16", layout="nhwc", op="fprop")
    plans = [plan("slow", 2.0), plan("fast", 1.0)]
    return replayed.Replayed(of, False, plans, np.array([0.5, 0.75]))


def test_a_pick_is_the_plan_of_the_least_prediction_and_its_recorded_time(cell):
    assert picks.picks([cell]) == {key("a"): Pick(0.75, "direct fast tile 1 x 2 x 3 splits 4")}
    assert picks.pick(cell, 0).ms == 0.5


def test_only_what_got_far_slower_is_a_cliff_and_the_worst_is_first():
    before = {key(name): Pick(1.0, "old") for name in "abcd"} | {key("gone"): Pick(1.0, "old")}
    times = {"a": 1.31, "b": 1.3, "c": 3.0, "d": 0.2, "new": 9.0}
    found = picks.cliffs(before, {key(name): Pick(ms, "new") for name, ms in times.items()})
    assert [(cliff.key, cliff.ratio) for cliff in found] == [(key("c"), 3.0), (key("a"), 1.31)]
    assert picks.table(found).row_count == 2


def test_picks_are_read_as_they_were_written(tmp_path):
    kept = {key('b "quoted"'): Pick(0.25, "one"), key("a, tab"): Pick(1e-3, "two")}
    picks.write(kept, tmp_path / "picks.tsv")
    assert picks.read(tmp_path / "picks.tsv") == kept


def test_no_pick_is_far_slower_than_the_one_that_was_accepted():
    kept, now = picks.read(), picks.picks(replayed.recorded())
    assert kept.keys() == now.keys(), "run `python -m bench calibrate --accept`"
    found = {cliff.key: cliff for cliff in picks.cliffs(kept, now)}
    assert [cliff for own, cliff in found.items() if own not in MAY_BE_SLOWER] == []
    assert MAY_BE_SLOWER.keys() <= found.keys(), "no longer needed"
