"""Host costs: the ratios, and that every form of the call is measured."""

from __future__ import annotations

import json

import pytest

import customconv
from bench import __main__ as command
from bench import bare, host


def test_a_ratio_is_of_each_rounds_own_pair():
    times = {"F.conv2d": [1.0, 2.0, 10.0], "op": [2.0, 4.0, 20.0], "nn.Conv2d": [4.0, 4.0, 4.0],
             "customconv.Conv2d": [2.0, 2.0, 2.0]}  # fmt: skip
    ratios = {cost.call: cost.ratio for cost in host.costs("no gradient", times)}
    assert ratios == {"F.conv2d": 1.0, "op": 2.0, "nn.Conv2d": 1.0, "customconv.Conv2d": 0.5}


def test_every_mode_and_form_is_measured(tmp_path, capsys):
    path = tmp_path / "host.json"
    words = ["host", "--batch", "2", "--rounds", "2", "--processes", "1", "--json", str(path)]
    assert command.main(words) == 0
    held = json.loads(path.read_text())
    rows = held["rows"]
    by_mode = {}
    for row in rows:
        by_mode.setdefault(row["mode"], set()).add(row["call"])
        assert row["us"] > 0
    expected = {"no gradient", "forward, gradient recorded", "forward and backward"}
    assert set(by_mode) - {"replay of a CUDA graph"} == expected
    for mode in expected:
        assert by_mode[mode] >= {
            "F.conv2d", "F.conv2d, routed", "op", "customconv.conv2d", "customconv.Conv2d"
        }  # fmt: skip
    assert {each["mode"] for each in held["presence"]} == set(by_mode)
    for each in held["presence"]:
        assert min(each["without_us"], each["off_us"]) > 0
    printed = capsys.readouterr().out
    assert all(mode in printed for mode in expected)


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_signals_images_and_volumes_are_measured(dims, tmp_path):
    path = tmp_path / "host.json"
    words = ["host", "--dims", str(dims), "--batch", "2", "--rounds", "2", "--processes", "0"]
    assert command.main([*words, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    calls = {row["call"] for row in rows if row["mode"] == "no gradient"}
    name = f"onv{dims}d"
    assert calls >= {
        f"F.c{name}", f"F.c{name}, routed", f"customconv.c{name}", f"nn.C{name}",
        f"customconv.C{name}",
    }  # fmt: skip
    assert ("op" in calls) is (dims > 1)
    ones = [row["ratio"] for row in rows if row["call"] in (f"F.c{name}", f"nn.C{name}")]
    assert set(ones) == {1.0}


def test_routing_is_on_for_the_routed_call_alone():
    seen = {}
    found = {
        name: lambda name=name: seen.setdefault(name, customconv.is_enabled())
        for name in ("F.conv2d", "F.conv2d, routed", "op")
    }
    host.measure(found, 1, 1)
    assert seen == {"F.conv2d": False, "F.conv2d, routed": True, "op": False}


def test_what_presence_costs_is_of_the_least_times_of_processes():
    without = [[1.5, 1.0, 3.0], [1.25, 2.0, 3.0], [9.0, 9.0, 9.0]]
    off = [[2.5, 1.5, 3.5], [1.5, 2.5, 3.5], [1.0, 8.0, 8.0]]
    found = host.presence("no gradient", without, off)
    assert (found.without_us, found.off_us, found.more_us) == (1.25, 1.5, 0.25)
    assert found.spread_us == 8.0


@pytest.mark.parametrize("words", [[], ["customconv"]])
def test_a_process_answers_each_question(words):
    process = host.Process(*words)
    process.wait()
    for mode in bare.MODES:
        assert 0 < process.us(mode, 2) < 1e6
    process.end()
    assert process.child.returncode == 0


def test_a_process_without_us_is_without_us(monkeypatch):
    """It fails where customconv is imported before it looks, as here."""
    with pytest.raises(RuntimeError, match="was to be without it"):
        bare.main([])


@pytest.mark.gpu
def test_replays_compute_what_was_captured():
    import torch

    x, w, b = (torch.randn(s, device="cuda") for s in ((1, 8, 8, 8), (8, 8, 3, 3), (8,)))
    with torch.no_grad():
        assert set(host.replays(host.calls(x, w, b))) == {"F.conv2d", "F.conv2d, routed", "op"}
