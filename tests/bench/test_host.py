"""Host costs: the ratios, and that every form of the call is measured."""

from __future__ import annotations

import json

import pytest

from bench import __main__ as command
from bench import host


def test_a_ratio_is_of_each_rounds_own_pair():
    times = {"F.conv2d": [1.0, 2.0, 10.0], "op": [2.0, 4.0, 20.0], "nn.Conv2d": [4.0, 4.0, 4.0],
             "customconv.Conv2d": [2.0, 2.0, 2.0]}  # fmt: skip
    ratios = {cost.call: cost.ratio for cost in host.costs("no gradient", times)}
    assert ratios == {"F.conv2d": 1.0, "op": 2.0, "nn.Conv2d": 1.0, "customconv.Conv2d": 0.5}


def test_every_mode_and_form_is_measured(tmp_path, capsys):
    path = tmp_path / "host.json"
    assert command.main(["host", "--batch", "2", "--rounds", "2", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    by_mode = {}
    for row in rows:
        by_mode.setdefault(row["mode"], set()).add(row["call"])
        assert row["us"] > 0
    expected = {"no gradient", "forward, gradient recorded", "forward and backward"}
    assert set(by_mode) - {"replay of a CUDA graph"} == expected
    for mode in expected:
        assert by_mode[mode] >= {"F.conv2d", "op", "customconv.conv2d", "customconv.Conv2d"}
    printed = capsys.readouterr().out
    assert all(mode in printed for mode in expected)


@pytest.mark.gpu
def test_replays_compute_what_was_captured():
    import torch

    x, w, b = (torch.randn(s, device="cuda") for s in ((1, 8, 8, 8), (8, 8, 3, 3), (8,)))
    with torch.no_grad():
        assert set(host.replays(host.calls(x, w, b))) == {"F.conv2d", "op"}
