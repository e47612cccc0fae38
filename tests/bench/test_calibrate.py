"""The fit of prices to timings: it finds prices that times were made with, and repeats itself."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from bench import calibrate, replayed, timings


@pytest.fixture(scope="module")
def cells():
    """A tenth of the cells."""
    return replayed.replay(timings.read()[1][::10])


def with_times(cells, table):
    """The cells as if their plans took what a table of prices predicts."""
    made = []
    for cell in cells:
        plans = [plan for plan in cell.plans if plan.has_works]
        load = calibrate.workload(plans)
        if plans:
            made.append(replace(cell, plans=plans, ms=load.predict(table, np.arange(len(plans)))))
    return made


def test_prices_that_times_were_made_with_predict_these_times(cells):
    generator = np.random.default_rng(0)
    fit = calibrate.Fit(cells)
    table = calibrate.start_table(len(fit.parts))
    table *= np.exp(generator.normal(0, 0.3, table.shape))
    table[:, 3] = np.minimum(table[:, 3], 1)
    made = with_times(cells, table)
    fitted = calibrate.Fit(made)
    off = fitted.predict(fitted.run(), fitted.all) - fitted.logs
    start = fitted.predict(calibrate.start_table(len(fit.parts)), fitted.all) - fitted.logs
    assert np.sqrt((off**2).mean()) < 0.05
    assert np.sqrt((off**2).mean()) < np.sqrt((start**2).mean()) / 3


def test_the_same_timings_give_the_same_table(cells):
    first, second = (calibrate.rounded(calibrate.Fit(cells).run()) for _ in range(2))
    assert first == second


def test_every_number_is_within_its_bounds(cells):
    table = calibrate.Fit(cells).run()
    for column, values in zip(calibrate.COLUMNS, table.T, strict=True):
        low, high = calibrate.BOUNDS[column]
        assert values.min() >= low * (1 - 1e-9)
        assert values.max() <= high * (1 + 1e-9)


def test_the_table_is_written_a_row_a_kind():
    parts = [("one", 0), ("one", 1), ("two", 0)]
    table = np.array([[0.5, 100, 15, 0.9], [0.25, 1000, 15, 0.8], [1, 1, 20.04, 0.7123]])
    facts = {"device": "NVIDIA H100 80GB HBM3", "sources": "0123"}
    lines = calibrate.written(table, parts, facts).splitlines()
    assert "H100" in lines[0] and "0123" in lines[1]
    assert [line for line in lines if not line.startswith("//")] == [
        "{0.5, 100, 15, 0.9},", "{0.25, 1000, 15, 0.8},", "{1, 1, 20, 0.712},"
    ]  # fmt: skip
    assert lines.index("// one") < lines.index("// two")
