"""The planner's picks do not get far slower than those that were accepted last."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bench import picks, replayed
from bench.picks import Pick

# Cells whose pick may be far slower than the one that is kept, and why.
GONE = "the tile of the pick before is gone"
FITTED = "prices that fit all cells better are further off here"
MAY_BE_SLOWER: dict[replayed.Key, str] = {
    ("darknet53", "512 x 16 x 16 to 1024, 3 x 3, stride 2", 1, "fp16", "nhwc", "wgrad"): GONE,
    ("deepbench_train", "deepbench_train_8", 8, "fp16", "nchw", "fprop"): FITTED,
    # Sectors that its tiles share cost it less than they do others.
    ("drawn for timings", "grouped 12", 16, "bf16", "nhwc", "dgrad"): FITTED,
    ("drawn for timings", "strided over wide images 17", 1, "bf16", "nhwc", "fprop"): FITTED,
    ("odd", "deeplabv3 aspp 1x1", 4, "tf32", "nhwc", "wgrad"): GONE,
    ("regnety_016", "120 x 28 x 28 to 120, 3 x 3, groups 5", 32, "fp16", "nhwc", "wgrad"): FITTED,
    ("regnety_016", "888 x 14 x 14 to 888, 3 x 3, stride 2, groups 37", 256, "tf32", "nchw",
     "dgrad"): FITTED,
    ("repvgg_b0", "64 x 112 x 112 to 64, 3 x 3, stride 2", 1, "tf32", "nchw", "dgrad"): FITTED,
    ("resnext50_32x4d", "layer3.0.conv1", 32, "tf32", "nhwc", "wgrad"): GONE,
    ("drawn", "stem 10", 8, "fp16", "nhwc", "wgrad"): FITTED,
    ("drawn more", "depthwise 43", 1, "bf16", "nhwc", "wgrad"): FITTED,
    ("drawn more", "depthwise 73", 1, "bf16", "nhwc", "dgrad"): FITTED,
    ("drawn more", "grouped 54", 4, "fp16", "nchw", "dgrad"): FITTED,
    ("drawn for timings", "grouped 31", 2, "fp16", "nchw", "fprop"): FITTED,
    ("hrnet_w18", "144 x 7 x 7 to 18, 1 x 1", 8, "fp16", "nchw", "dgrad"): FITTED,
    ("xception41", "64 x 150 x 150 to 64, 3 x 3, groups 64", 32, "bf16", "nhwc", "wgrad"): FITTED,
    ("drawn", "odd channels 9", 32, "tf32", "nhwc", "dgrad"): FITTED,
    ("drawn for timings", "depthwise 9", 32, "tf32", "nchw", "wgrad"): FITTED,
    ("smoke", "grouped", 2, "bf16", "nhwc", "dgrad"): FITTED,
    ("wavenet", "128 x 1 x 3999 to 128, 1 x 4, stride 2", 4, "tf32", "nhwc", "fprop"): GONE,
    ("drawn", "odd channels 26", 8, "tf32", "nhwc", "dgrad"): GONE,
    ("nf_resnet50", "256 x 16 x 16 to 1024, 1 x 1", 32, "fp16", "nchw", "wgrad"): GONE,
}  # fmt: skip


def key(name):
    return "net", name, 8, "fp16", "nhwc", "fprop"


def plan(name, predicted_ms):
    return SimpleNamespace(name=name, predicted_ms=predicted_ms)


@pytest.fixture
def cell():
    layer = SimpleNamespace(suite="net", name="a", N=8)
    of = SimpleNamespace(layer=layer, precision="fp16", layout="nhwc", op="fprop")
    plans = [plan("slow", 2.0), plan("fast", 1.0)]
    return replayed.Replayed(of, False, plans, np.array([0.5, 0.75]))


def test_a_pick_is_the_plan_of_the_least_prediction_and_its_recorded_time(cell):
    assert picks.picks([cell]) == {key("a"): Pick(0.75, "fast")}
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
