"""Planning takes about as long as it may."""

from __future__ import annotations

import pytest
from rich.console import Console

from bench import planning

SLACK = 3  # other processes share the cores


@pytest.fixture(scope="module")
def measured():
    return planning.measure(planning.recorded(), rounds=5)


@pytest.mark.parametrize("op", planning.WANTED_US)
def test_a_plan_is_found_in_time(measured, op):
    assert planning.slow(measured[op]) <= SLACK * planning.WANTED_US[op]


def test_problems_are_timed_by_pass():
    problems = planning.recorded()[:20]
    times = planning.measure(problems, rounds=1)
    assert sum(map(len, times.values())) == 20
    assert times.keys() == {problem.fields["op"] for problem in problems}
    assert all(0 < us < 1e6 for own in times.values() for us in own)


def test_the_table_has_the_slowest_but_a_few():
    console = Console(width=200)
    with console.capture() as capture:
        console.print(planning.table({"wgrad": [*range(1, 102)], "fprop": [7.0]}))
    rows = [line.split() for line in capture.get().splitlines()]
    assert rows[1:] == [["fprop", "1", "7", "7", "100"], ["wgrad", "101", "51", "96", "500"]]
