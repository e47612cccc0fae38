"""The planner's picks over timings that are kept: no GPU is needed to see how good they are."""

from __future__ import annotations

import pytest

from bench import calibrate, corpus, timings
from bench.timing import geomean

FAR = 1.5  # times the fastest plan's time
MOST_FAR = 0.05  # the share of picks that take longer than that
STILL_PLANNED = 0.9  # of the plans that were timed


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
    "chosen, most",
    [
        pytest.param(lambda cell: not cell.held_out, 1.075, id="fitted"),
        pytest.param(lambda cell: cell.held_out, 1.13, id="held out"),
        pytest.param(is_outside, 1.09, id="of networks and draws outside shapes.json"),
    ],
)
def test_picks_are_near_the_fastest_plan(cells, chosen, most):
    lost = [cell.lost for cell in cells if chosen(cell)]
    assert len(lost) > 200
    assert geomean(lost) <= most


def test_few_picks_take_far_longer_than_the_fastest_plan(cells):
    assert sum(cell.lost > FAR for cell in cells) <= MOST_FAR * len(cells)


def test_plans_of_the_main_loop_and_of_whole_families_have_prices(cells):
    loaders = ("im2col", "halo", "planes", "im2col joined", "halo joined", "planes joined")
    for cell in cells:
        for plan in cell.plans:
            is_counted = plan.family in ("depthwise", "grouped") or (
                plan.family == "implicit_gemm"
                and (plan.variant in loaders or cell.cell.op == "wgrad")
            )
            assert plan.has_works == is_counted, plan
