"""Plans beside the planner's choice: which are timed, and what is said of them."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
from rich.console import Console

from bench import __main__ as command
from bench import contenders, tune
from bench.corpus import load
from bench.measure import Cell


def plan(kind, splits, predicted_ms):
    return SimpleNamespace(kind=kind, splits=splits, predicted_ms=predicted_ms)


def outcome(chosen_ms, best_ms, layout="nchw"):
    plans = tuple(
        tune.Timed("family", name, 0.0, 0.1, ms)
        for name, ms in (("this", chosen_ms), ("other", chosen_ms), ("that", best_ms))
    )
    return tune.Outcome("suite", "layer", {"N": 8}, "fp16", layout, "fprop", True, plans, 1.5)


def test_the_cheapest_of_each_kind_is_timed_and_the_choice_comes_first():
    plans = [plan("a", 1, 0.3), plan("a", 1, 0.2), plan("b", 1, 0.1), plan("a", 2, 0.4)]
    assert [p.predicted_ms for p in tune.distinct(plans, 24)] == [0.1, 0.2, 0.4]
    assert [p.predicted_ms for p in tune.distinct(plans, 2)] == [0.1, 0.2]


def test_the_best_is_named_where_the_choice_is_not_close_to_it():
    assert "that" not in tune.text_of(outcome(1.0, 0.96))
    text = tune.text_of(outcome(1.0, 0.5))
    assert "0.50 of the best of 3: this" in text
    assert "0.5000 ms: that" in text


def test_the_summary_is_by_precision_and_layout():
    console = Console(record=True, width=120)
    console.print(tune.summary([outcome(1, 1), outcome(1, 0.25), outcome(1, 0.9, "nhwc")]))
    rows = [line.split() for line in console.export_text().splitlines()[1:]]
    assert rows == [
        ["fp16", "nchw", "fprop", "2", "0.500", "0.25", "50", "%"],
        ["fp16", "nhwc", "fprop", "1", "0.900", "0.90", "0", "%"],
    ]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert command.main(["tune"]) == 2
    assert "needs a GPU" in capsys.readouterr().out


def test_what_no_family_computes_is_unmeasurable():
    layer = load(["smoke"])[0]
    cell = Cell(layer, "fp32", "nchw", "fprop", peer="aten")
    with pytest.raises(contenders.Unmeasurable, match="no family has a plan"):
        tune.tune(cell, torch.device("cpu"), list, budget_s=0.01)


def test_each_run_adds_a_line_to_the_record(tmp_path):
    path = tmp_path / "plans.jsonl"
    facts = {"commit": "abc", "sources": "0f", "device": "GPU", "driver": "1"}
    for ms in (1.0, 2.0):
        tune.append(path, outcome(ms, 0.5), facts)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert [row["plans"][0]["ms"] for row in rows] == [1.0, 2.0]
    found = {tuple(row[name] for name in ("commit", "sources", "device", "bias")) for row in rows}
    assert found == {("abc", "0f", "GPU", True)}


@pytest.mark.gpu
def test_a_layer_is_tuned(tmp_path, capsys):
    path = tmp_path / "plans.jsonl"
    words = ["tune", "--suite", "smoke", "--layer", "3x3", "--dtype", "fp16", "--layout", "nhwc"]
    assert command.main([*words, "--row-s", "0.1", "--most", "6", "--record", str(path)]) == 0
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows
    for row in rows:
        assert 2 <= len(row["plans"]) <= 6
        assert all(plan["ms"] > 0 for plan in row["plans"])
        assert row["peer_ms"] > 0
    assert "of the best" in capsys.readouterr().out
