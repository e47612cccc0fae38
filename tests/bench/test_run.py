"""Rows, measured on the CPU: what a run keeps, resumes, marks and refuses."""

from __future__ import annotations

import itertools
import json
import threading

import pytest
import torch
from rich.console import Console

from bench import __main__ as command
from bench import contenders, machine, measure, results, run, sources, timing
from bench.corpus import load
from bench.layers import Layer
from bench.measure import Cell

CPU = torch.device("cpu")
QUICK = ["--device", "cpu", "--dtype", "fp32", "--layout", "nchw", "--row-s", "0.01"]


def bench_run(path, *more):
    return command.main(["run", "--suite", "smoke", *QUICK, "--out", str(path), *more])


@pytest.mark.parametrize(("layer", "height"), [("3x3", 14), ("transposed", 18)])
def test_a_run_measures_every_row_of_its_cells(layer, height, tmp_path, capsys):
    path = tmp_path / "cpu.json"
    assert bench_run(path, "--layer", layer, "--op", "fprop,dgrad,wgrad") == 0
    rows = results.load(path)["rows"]
    assert [row["op"] for row in rows] == ["fprop", "dgrad", "wgrad"]
    for row in rows:
        assert row["family"] == "aten"
        assert row["peer"] == "aten"
        assert 0 < row["ours_low"] <= row["ours_ms"] <= row["ours_high"]
        assert row["ratio_lo"] <= row["ratio"] <= row["ratio_hi"]
        assert row["ours_err"] < 1e-6
        assert row["floor_ms"] is None
        assert row["problem"]["P"] == height
    assert "3 of 3 rows, 0 with a wrong result" in capsys.readouterr().out


def test_volumes_are_measured_as_images_are(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    words = ["run", "--suite", "smoke volumes", *QUICK, "--out", str(path)]
    assert command.main([*words, "--layout", "nchw,nhwc", "--op", "fprop,dgrad,wgrad"]) == 0
    rows = results.load(path)["rows"]
    assert len(rows) == 6 * len(load(["smoke volumes"]))
    assert {row["family"] for row in rows} == {"aten"}
    assert all(row["ours_err"] < 1e-6 and "D" in row["problem"] for row in rows)
    printed = capsys.readouterr().out
    assert "8x6x10x10 to 16, 3x3x3 " in printed
    assert f"{len(rows)} rows: geomean " in printed


def test_patches_are_compared_with_a_matrix_product(tmp_path):
    path = tmp_path / "cpu.json"
    words = ["run", "--suite", "smoke,smoke volumes", *QUICK, "--out", str(path)]
    words += ["--layout", "nchw,nhwc", "--op", "fprop,dgrad,wgrad", "--peer", "linear"]
    assert command.main(words) == 0
    kept = [row for row in results.load(path)["rows"] if "error" not in row]
    assert {row["name"] for row in kept} >= {"patches", "one patch"}
    assert all(row["ours_err"] < 1e-6 and row["peer_err"] < 1e-6 for row in kept)
    assert len(kept) == 6 * len({(row["suite"], row["name"]) for row in kept})


def test_the_last_line_counts_rows_that_are_far_below_1():
    rows = [{"ratio": ratio} for ratio in (0.5, 0.89, 0.95, 2.0)]
    assert run.total([*rows, {"error": "out of memory"}]) == (
        "4 rows: geomean 0.959, 75 % below 1.0, 50.0 % (2) below 0.9, worst 0.50"
    )
    assert run.total([{"error": "out of memory"}]) == "no rows"


def test_resume_measures_what_is_missing_and_keeps_the_rest(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    bench_run(path, "--layer", "3x3")
    before = results.load(path)["rows"]
    capsys.readouterr()
    assert bench_run(path, "--resume") == 0
    assert "6 of 6 rows" in capsys.readouterr().out
    rows = results.load(path)["rows"]
    assert rows[0] == before[0]
    assert len(rows) == 7


def test_rows_say_which_sources_they_are_of_and_whether_the_layer_has_a_bias(tmp_path):
    path = tmp_path / "cpu.json"
    bench_run(path, "--layer", "st")
    bench_run(path, "--layer", "st", "--no-bias")
    rows = results.load(path)["rows"]
    assert [(row["name"], row["bias"]) for row in rows] == [("stem", True), ("stem", False)]
    present = sources.hash_tree(sources.hash_sources())
    assert {row["sources"] for row in rows} == {present}


@pytest.mark.parametrize("before", [{"sources": "0f"}, {}])
def test_rows_of_other_sources_are_not_mixed_with_new_ones(before, tmp_path, capsys):
    path = tmp_path / "cpu.json"
    bench_run(path, "--layer", "3x3")
    file = results.load(path)
    (measured,) = file["rows"]
    old = {name: value for name, value in measured.items() if name != "sources"} | before
    results.save(
        path, {**file, "rows": [old, {**old, "name": "gone"}, {**measured, "name": "kept"}]}
    )
    text = path.read_text()
    assert bench_run(path, "--layer", "3x3") == 2
    assert "has 2 rows of other sources" in capsys.readouterr().out
    assert path.read_text() == text
    assert bench_run(path, "--layer", "3x3", "--resume") == 0
    assert "1 of 1 rows" in capsys.readouterr().out
    rows = results.load(path)["rows"]
    assert [row["name"] for row in rows] == ["kept", "3x3"]
    assert len({row["sources"] for row in rows}) == 1


def test_rows_whose_floor_is_long_are_left_out(tmp_path, monkeypatch, capsys):
    path = tmp_path / "cpu.json"
    assert bench_run(path, "--most-ms", "1") == 2
    assert "the peaks of cpu, which are not known" in capsys.readouterr().out
    peaks = machine.Peaks({"fp32": 1e-3}, 1.0)
    monkeypatch.setattr(machine, "peaks_of", lambda _: peaks)
    assert bench_run(path, "--most-ms", "0.5") == 0
    kept = results.load(path)["rows"]
    assert kept and all(row["floor_ms"] <= 0.5 for row in kept)
    bench_run(path, "--resume")
    rest = results.load(path)["rows"][len(kept) :]
    assert rest and all(row["floor_ms"] > 0.5 for row in rest)


def test_without_resume_rows_are_replaced_in_place(tmp_path):
    path = tmp_path / "cpu.json"
    bench_run(path)
    names = [row["name"] for row in results.load(path)["rows"]]
    bench_run(path, "--layer", "stem")
    assert [row["name"] for row in results.load(path)["rows"]] == names


def test_a_row_with_an_error_is_measured_again_on_resume(tmp_path):
    path = tmp_path / "cpu.json"
    bench_run(path, "--layer", "3x3")
    file = results.load(path)
    file["rows"][0] = {**file["rows"][0], "error": "out of memory"}
    results.save(path, file)
    bench_run(path, "--layer", "3x3", "--resume")
    assert "error" not in results.load(path)["rows"][0]


def test_a_wrong_result_is_a_row_without_times_and_a_failure(tmp_path, monkeypatch, capsys):
    right = contenders.ours

    def with_one_wrong(*arguments):
        def call():
            result = right(*arguments)().clone()
            result.view(-1)[-1] = float("nan")
            return result

        return call

    monkeypatch.setattr(contenders, "ours", with_one_wrong)
    path = tmp_path / "cpu.json"
    assert bench_run(path, "--layer", "3x3") == 1
    (row,) = results.load(path)["rows"]
    assert row["error"].startswith("wrong: ours is off by nan")
    assert "ours_ms" not in row
    assert "1 with a wrong result" in capsys.readouterr().out


def test_a_ratio_that_is_too_good_is_measured_twice_and_marked(monkeypatch):
    taken = []

    def implausible(calls, device, *, budget_s):
        taken.append(calls)
        ratio = timing.Ratio(12.0, 11.0, 13.0)
        one = timing.Timing(1.0, 1.0, 1.0, 9)
        return timing.Measurement({"ours": one, "peer": one}, {"peer": ratio})

    monkeypatch.setattr(timing, "interleaved", implausible)
    row = measure.measure(Cell(load(["smoke"])[0], "fp32", "nchw", "fprop", "aten"), CPU, None)
    assert len(taken) == 2
    assert row["marks"] == ["implausible", "wide spread"]


def test_a_run_stops_before_the_budget_is_spent(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    assert bench_run(path, "--minutes", "0") == 0
    printed = capsys.readouterr().out
    assert "stopped for the budget of 0 minutes" in printed
    assert "0 of 7 rows" in printed


def test_peers_are_compiled_side_by_side_in_their_own_precision(monkeypatch):
    seen = []

    def call_peer(cell, device):
        seen.append((cell.layer.name, cell.precision, torch.backends.cudnn.allow_tf32))

    monkeypatch.setattr(run, "_call_peer", call_peer)
    layers = load(["smoke"])
    known = [layer for layer in layers if min(layer.P, layer.Q) > 0][:3]
    todo = [
        Cell(known[i % 3], p, "nchw", "fprop", "cudnn") for i, p in enumerate(("tf32", "fp32") * 3)
    ]
    todo.append(Cell(known[0], "fp16", "nchw", "fprop", "aten-heuristic"))
    run.compile_peers(todo, torch.device("cuda"))
    assert len(seen) == 6
    assert {(precision, tf32) for _, precision, tf32 in seen} == {("tf32", True), ("fp32", False)}


def test_the_budget_counts_the_longest_row_of_late(monkeypatch):
    now = [0.0]
    monkeypatch.setattr("bench.run.time.monotonic", lambda: now[0])
    budget = run.Budget(10 / 60)
    now[0] = 4.0
    budget.spend(5.0)
    assert budget.has_room()
    now[0] = 6.0
    assert not budget.has_room()


def test_rows_that_cannot_be_compared_say_why():
    tf32 = Cell(load(["smoke"])[0], "tf32", "nchw", "fprop", "aten")
    with pytest.raises(contenders.Unmeasurable, match="the CPU has no TF32"):
        measure.measure(tf32, CPU, None)
    forced = Cell(load(["smoke"])[0], "fp32", "nchw", "fprop", "aten", "tiled")
    with pytest.raises(contenders.Unmeasurable, match="tiled"):
        measure.measure(forced, CPU, None)


def test_a_beginning_of_the_order_is_spread_over_all_layers():
    layers = [Layer("", str(i), 1, 1, 1, 1, 1, 1, 1) for i in range(100)]
    order = [int(layer.name) for layer in run.spread(layers)]
    assert sorted(order) == list(range(100))
    first = sorted(order[:10])
    assert first[0] < 20
    assert first[-1] > 79
    assert max(b - a for a, b in itertools.pairwise(first)) < 25


def test_the_untuned_peer_runs_in_a_thread_of_its_own(monkeypatch):
    threads = []
    monkeypatch.setattr(run, "measure", lambda *_: threads.append(threading.get_ident()) or {})
    for peer in ("aten", "aten-heuristic", "aten-heuristic"):
        run.measured_row(Cell(load(["smoke"])[0], "fp32", "nchw", "fprop", peer), CPU, None, 0.1)
    assert threads[0] == threading.get_ident()
    assert threading.get_ident() not in threads[1:]


def test_an_unknown_choice_is_refused_with_the_known_ones(tmp_path, capsys):
    with pytest.raises(SystemExit):
        bench_run(tmp_path / "cpu.json", "--peer", "mkl")
    assert "expected some of cudnn, aten-heuristic, inductor, aten" in capsys.readouterr().err


def test_a_file_of_another_device_is_left_alone(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    path.write_text(json.dumps({"meta": {"device": "another"}, "rows": []}))
    assert bench_run(path) == 2
    assert "is of another, not of cpu" in capsys.readouterr().out


def test_what_is_no_results_file_is_named(tmp_path):
    path = tmp_path / "cpu.json"
    path.write_text('{"rows": ')
    with pytest.raises(results.BadResults, match=r"cpu\.json: "):
        results.load(path)
    assert bench_run(path) == 2


def test_the_switches_are_put_back():
    cudnn = torch.backends.cudnn
    before = cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32
    with contenders.switches("tf32", "cudnn"):
        assert (cudnn.benchmark, cudnn.allow_tf32) == (True, True)
    with contenders.switches("fp32", "aten-heuristic"):
        assert (cudnn.benchmark, cudnn.allow_tf32) == (False, False)
    assert before == (cudnn.benchmark, cudnn.benchmark_limit, cudnn.allow_tf32)


def test_the_summary_has_means_and_slower_rows_by_precision_layout_and_pass():
    rows = [
        {"precision": "fp16", "layout": layout, "op": "fprop", "ratio": ratio}
        for layout, ratio in (("nchw", 2.0), ("nchw", 0.5), ("nhwc", 1.5), ("nhwc", 1.5))
    ]
    rows.append({"precision": "fp16", "layout": "nhwc", "op": "fprop", "error": "out of memory"})
    console = Console(record=True, width=100)
    console.print(run.summary(rows))
    lines = [line.split() for line in console.export_text().splitlines()[1:]]
    assert lines == [
        ["fp16", "nchw", "fprop", "2", "1.000", "50", "%", "0.50"],
        ["fp16", "nhwc", "fprop", "2", "1.500", "0", "%", "1.50"],
    ]


def test_a_run_ends_with_a_summary_of_its_rows(tmp_path, capsys):
    path = tmp_path / "cpu.json"
    assert bench_run(path, "--layer", "3x3", "--op", "fprop") == 0
    rows = len(results.load(path)["rows"])
    assert bench_run(path, "--layer", "3x3", "--op", "fprop", "--resume") == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert sum(line[:4] == ["fp32", "nchw", "fprop", str(rows)] for line in lines) == 2
