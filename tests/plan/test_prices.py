"""The planner's picks over timings that are kept: no GPU is needed to see how good they are."""

from __future__ import annotations

import pytest

from bench import calibrate, corpus, timings
from bench.timing import geomean
from customconv import _C

MEAN = 1.05  # of the time of a pick over that of the fastest plan
WORST = 1.5
STILL_PLANNED = 0.95  # of the plans that were timed


@pytest.fixture(scope="module")
def timed():
    return timings.read()[1]


@pytest.fixture(scope="module")
def cells(timed):
    return calibrate.replay(timed)


def is_outside(cell):
    return cell.cell.layer.suite not in {layer.suite for layer in corpus.known_layers()}


def test_most_plans_that_were_timed_are_still_planned(timed, cells):
    assert len(timed) >= 500
    assert sum(len(cell.plans) for cell in cells) >= STILL_PLANNED * sum(
        len(t.times) for t in timed
    )
    assert sum(map(is_outside, cells)) >= len(cells) / 2


@pytest.mark.parametrize(
    "chosen",
    [
        pytest.param(lambda cell: not cell.held_out, id="fitted"),
        pytest.param(lambda cell: cell.held_out, id="held out"),
        pytest.param(is_outside, id="of networks and draws outside shapes.json"),
    ],
)
def test_picks_are_near_the_fastest_plan(cells, chosen):
    lost = [cell.lost for cell in cells if chosen(cell)]
    assert len(lost) > 200
    assert geomean(lost) <= MEAN


def test_no_pick_takes_far_longer_than_the_fastest_plan(cells):
    far = [cell.cell for cell in cells if cell.lost > WORST]
    assert not far


def test_every_plan_has_a_price(cells):
    assert all(plan.has_works for cell in cells for plan in cell.plans)


def test_every_kind_has_numbers_that_make_sense():
    assert len(_C.price_rows()) < 250
