"""The cost of batch invariance: what is timed and said."""

from __future__ import annotations

import torch
from rich.console import Console

import customconv
from bench import contenders, invariance
from bench.corpus import load
from bench.measure import Cell

CPU = torch.device("cpu")


def cost(name, op, invariant_ms, ordinary_ms):
    return invariance.Cost(
        "suite", name, {"N": 8}, "fp16", "nchw", op, invariant_ms, ordinary_ms, "one", "other"
    )


def test_only_one_of_both_calls_is_batch_invariant(monkeypatch):
    monkeypatch.setattr(contenders, "ours", lambda *_: customconv.is_batch_invariant)
    layer = load(["smoke"])[0]
    buffers = contenders.make_buffers(layer, "fp32", "nchw", CPU)
    ways = invariance.calls(Cell(layer, "fp32", "nchw", "fprop", "aten", "auto"), buffers)
    assert {name: call() for name, call in ways.items()} == {"invariant": True, "ordinary": False}
    assert next(iter(ways)) == "invariant"


def test_ratios_are_of_the_speed_with_over_the_speed_without():
    costs = [
        cost("a", "fprop", 2.0, 1.0),
        cost("b", "fprop", 1.0, 2.0),
        cost("c", "dgrad", 2.5, 2.0),
    ]
    console = Console(width=200)
    with console.capture() as capture:
        console.print(invariance.summary(costs))
    rows = [line.split() for line in capture.get().splitlines()]
    assert ["fp16", "nchw", "fprop", "2", "1.000", "0.50"] in rows
    assert ["fp16", "nchw", "dgrad", "1", "0.800", "0.80"] in rows
    assert "0.500 of the ordinary plan's speed; one" in invariance.text_of(costs[0])
