"""Statistics of times, and who runs when."""

from __future__ import annotations

import random
import statistics
import time

import pytest
import torch

from bench import timing

CPU = torch.device("cpu")


def test_the_interval_of_a_median_by_hand():
    # Of 10 values at most one lies below the median in 11 of 1024 cases, at most two in 56.
    values = list(range(10))
    assert timing.median_interval(values, confidence=0.95) == (1, 8)
    assert timing.median_interval(values, confidence=0.85) == (2, 7)


def test_too_few_values_give_the_extremes():
    assert timing.median_interval([3.0, 1.0, 2.0]) == (1.0, 3.0)


def test_the_interval_holds_the_median_as_often_as_it_says():
    rng = random.Random(0)
    held = 0
    for _ in range(2000):
        low, high = timing.median_interval([rng.lognormvariate(0, 1) for _ in range(25)])
        held += low <= 1.0 <= high
    assert 0.95 <= held / 2000 <= 0.99


def test_a_ratio_is_formed_turn_by_turn():
    ours = [1.0, 2.0, 10.0]  # a disturbance in the third turn slows both
    peer = [2.0, 4.0, 20.0]
    assert timing.ratio_of(ours, peer) == timing.Ratio(2.0, 2.0, 2.0)


def test_contenders_and_their_buffers_take_turns():
    order = []
    calls = {
        "ours": [lambda: order.append("a0"), lambda: order.append("a1")],
        "peer": [lambda: order.append("b0")],
    }
    timing.interleaved(calls, CPU, least_runs=4, most_runs=4, ratio_width=0.0)
    assert order[-8:] == ["a0", "b0", "a1", "b0", "a0", "b0", "a1", "b0"]


def test_a_slower_peer_is_measured_as_much_slower():
    calls = {"ours": [lambda: time.sleep(0.002)], "peer": [lambda: time.sleep(0.006)]}
    found = timing.interleaved(calls, CPU, budget_s=1.0)
    assert found.ratios["peer"].median == pytest.approx(3, rel=0.15)
    assert found.ratios["peer"].low <= found.ratios["peer"].median <= found.ratios["peer"].high
    ours = found.times["ours"]
    assert ours.low <= ours.median <= ours.high


def test_it_stops_at_the_budget():
    calls = {"ours": [lambda: time.sleep(0.01)], "peer": [lambda: time.sleep(0.01)]}
    began = time.monotonic()
    found = timing.interleaved(calls, CPU, most_runs=10_000, ratio_width=0.0, budget_s=0.3)
    assert time.monotonic() - began < 1.0
    assert found.times["ours"].runs >= timing.FEWEST_RUNS


def test_quartiles():
    values = [float(v) for v in range(101)]
    assert timing.quartiles(values) == timing.Timing(50.0, 25.0, 75.0, 101)
    assert timing.quartiles([2.0]) == timing.Timing(2.0, 2.0, 2.0, 1)
    assert timing.quartiles(values).median == statistics.median(values)
