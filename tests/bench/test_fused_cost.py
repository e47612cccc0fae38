"""The cost of an epilogue: what is timed, checked and said."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from bench import __main__ as command
from bench import contenders, fused, verify
from bench.corpus import load
from bench.measure import Cell

CPU = torch.device("cpu")


def cost(bare, fused_ms, composed, peer):
    return fused.Cost(
        "suite", "layer", {"N": 8}, "fp16", "nchw", False, bare, fused_ms, composed, peer
    )


def test_layers_are_timed_with_and_without_a_residual(tmp_path, capsys):
    path = tmp_path / "fused.json"
    words = ["fused", "--suite", "smoke", "--layer", "3x3", "--layout", "nchw", "--dtype", "fp32"]
    assert command.main([*words, "--device", "cpu", "--row-s", "0.01", "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["layers"]
    assert [row["residual"] for row in rows] == [False, True]
    assert all(row[f"{way}_ms"] > 0 for row in rows for way in ("bare", "fused", "peer"))
    assert "of the bare convolution" in capsys.readouterr().out


@pytest.mark.parametrize("suite", ["smoke", "smoke volumes"])
@pytest.mark.parametrize("residual", [False, True])
def test_all_ways_but_the_bare_one_compute_the_same(residual, suite):
    layer = load([suite])[0]
    buffers = contenders.make_buffers(layer, "fp32", "nchw", CPU)
    buffers = replace(buffers, bias=torch.randn(layer.K))
    ways = fused.calls(layer, buffers, residual)
    with torch.no_grad():
        expected = ways.pop("peer")()
        del ways["bare"]
        for way in ways.values():
            torch.testing.assert_close(way(), expected)


def test_a_wrong_result_is_not_timed(monkeypatch):
    layer = load(["smoke"])[0]
    right = fused.calls

    def wrong(*arguments):
        ways = right(*arguments)
        return ways | {"fused": ways["bare"]}

    monkeypatch.setattr(fused, "calls", wrong)
    with pytest.raises(verify.Wrong):
        fused.measure(Cell(layer, "fp32", "nchw", "fprop", "aten"), CPU, False, 0.01)


def test_the_summary_has_geometric_means():
    console = Console(record=True, width=160)
    console.print(fused.summary([cost(1, 1, 4, 2), cost(1, 1.21, 1, 2)]))
    row = console.export_text().splitlines()[1].split()
    assert row == ["fp16", "nchw", "relu", "2", "1.100", "1.21", "2.000", "1.818"]


@pytest.mark.gpu
def test_fused_calls_are_measured_on_a_gpu(capsys):
    words = ["fused", "--suite", "smoke", "--layer", "3x3", "--dtype", "fp16", "--row-s", "0.05"]
    assert command.main(words) == 0
    assert "wrong" not in capsys.readouterr().out
