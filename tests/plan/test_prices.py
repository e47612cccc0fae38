"""The planner's picks over timings that are kept: no GPU is needed to see how good they are."""

from __future__ import annotations

import pytest

from bench import corpus, replayed, timings
from bench.timing import geomean

FAR = 1.5  # times the fastest plan's time
MOST_FAR = 0.02  # the share of picks that take longer than that
WORST = 2.25  # times the fastest plan's time, that no pick takes longer than
STILL_PLANNED = 0.9  # of the plans that were timed


@pytest.fixture(scope="module")
def timed():
    return timings.read()[1]


@pytest.fixture(scope="module")
def cells():
    return replayed.recorded()


def is_outside(cell):
    return cell.cell.layer.suite not in {layer.suite for layer in corpus.known_layers()}


def test_most_plans_that_were_timed_are_still_planned(timed, cells):
    assert len(timed) >= 500
    assert sum(len(cell.plans) for cell in cells) >= STILL_PLANNED * sum(
        len(t.times) for t in timed
    )
    assert sum(map(is_outside, cells)) >= len(cells) / 2


@pytest.mark.parametrize(
    "chosen, most",
    [
        pytest.param(lambda cell: not cell.held_out, 1.055, id="fitted"),
        pytest.param(lambda cell: cell.held_out, 1.065, id="held out"),
        pytest.param(is_outside, 1.06, id="of networks and draws outside shapes.json"),
    ],
)
def test_picks_are_near_the_fastest_plan(cells, chosen, most):
    lost = [cell.lost for cell in cells if chosen(cell)]
    assert len(lost) > 200
    assert geomean(lost) <= most


def test_few_picks_take_far_longer_than_the_fastest_plan(cells):
    assert sum(cell.lost > FAR for cell in cells) <= MOST_FAR * len(cells)
    assert max(cell.lost for cell in cells) <= WORST


def test_every_plan_has_a_price(cells):
    for cell in cells:
        for plan in cell.plans:
            assert plan.has_works, plan
