"""The fit of prices to timings: it finds prices that times were made with, and repeats itself."""

from __future__ import annotations

import argparse
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bench import calibrate, picks, replayed
from customconv import _bind


@pytest.fixture(scope="module")
def cells():
    """A fifth of the cells: of fewer, some plans are the only ones with a price."""
    return replayed.recorded()[::5]


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


def compiled_table():
    lines = calibrate.OUT.read_text().splitlines()
    return np.array([[float(value) for value in line.strip("{},").split(",")]
                     for line in lines if line.startswith("{")])  # fmt: skip


def outcome_of(table, cells, monkeypatch, tmp_path):
    """What the command returns if a fit gives this table, and what it wrote."""
    fit = SimpleNamespace(parts=_bind.price_rows(), run=lambda: table)
    monkeypatch.setattr(calibrate, "Fit", lambda cells: fit)
    monkeypatch.setattr(calibrate, "replay", lambda timed: cells)
    parser = argparse.ArgumentParser()
    calibrate.add_arguments(parser)
    out = tmp_path / "prices.inc"
    return calibrate.main(parser.parse_args(["--out", str(out)])), out.read_text()


def test_by_the_prices_that_are_compiled_in_picks_are_the_planners(cells):
    now, again = picks.picks(cells), calibrate.picks_by(compiled_table(), cells)
    assert sum(now[key] != again[key] for key in now) <= 0.02 * len(now)  # rounding decides ties


def test_prices_that_pick_alike_are_written(cells, monkeypatch, tmp_path):
    table = compiled_table()
    status, text = outcome_of(table, cells, monkeypatch, tmp_path)
    assert status == 0
    assert text.count("\n{") == len(table)


def test_prices_that_pick_far_slower_plans_are_written_but_not_accepted(
    cells, monkeypatch, tmp_path, capsys
):
    table = compiled_table()
    table[:, 0] = np.random.default_rng(0).uniform(0.05, 1, len(table))
    status, text = outcome_of(table, cells, monkeypatch, tmp_path)
    assert status == 1
    assert text.count("\n{") == len(table)
    assert f"more than {picks.FAR} times" in capsys.readouterr().out


def test_the_picks_are_kept_on_request(cells, monkeypatch, tmp_path):
    monkeypatch.setattr(calibrate, "replay", lambda timed: cells)
    parser = argparse.ArgumentParser()
    calibrate.add_arguments(parser)
    path = tmp_path / "picks.tsv"
    assert calibrate.main(parser.parse_args(["--accept", str(path)])) == 0
    kept = picks.read(path)
    assert kept.keys() == picks.picks(cells).keys()
    first, *others = kept
    earlier = {first: picks.Pick(1e-6, "a faster plan"), ("gone", *first[1:]): kept[first]}
    picks.write(earlier, path)
    assert calibrate.main(parser.parse_args(["--accept", str(path)])) == 0
    assert picks.read(path) == {first: earlier[first]} | {key: kept[key] for key in others}
