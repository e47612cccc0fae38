"""What tuning gains: what is said of it, and a layer on a GPU."""

from __future__ import annotations

import json

import pytest
import torch
from rich.console import Console

from bench import __main__ as command
from bench import tuned


def outcome(ratio, plan="implicit_gemm"):
    return tuned.Tuned(
        "suite", "layer", {"N": 8}, "fp16", "nchw", "fprop", 1.0, 1.5, ratio, ratio, 1.5, plan,
        "direct",
    )  # fmt: skip


def test_the_summary_has_the_mean_and_the_worst_ratio():
    console = Console(record=True, width=120)
    console.print(tuned.summary([outcome(1.0), outcome(4.0)]))
    rows = [line.split() for line in console.export_text().splitlines()[1:]]
    assert rows == [["fp16", "nchw", "fprop", "2", "2.000", "1.000"]]


def test_a_line_has_both_ratios_and_the_plan():
    text = tuned.text_of(outcome(2.0))
    assert "2.000 of the peer's speed, 1.500 of the plan's; implicit_gemm" in text


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(capsys):
    assert command.main(["tuned"]) == 2
    assert "needs a GPU" in capsys.readouterr().out


@pytest.mark.gpu
def test_a_layer_is_tuned_and_timed(tmp_path, capsys):
    path = tmp_path / "tuned.json"
    words = ["tuned", "--suite", "smoke", "--layer", "3x3", "--dtype", "fp16", "--layout", "nhwc"]
    assert command.main([*words, "--row-s", "0.1", "--json", str(path)]) == 0
    layers = json.loads(path.read_text())["layers"]
    assert layers
    assert all(min(each["tuned_ms"], each["planned_ms"], each["peer_ms"]) > 0 for each in layers)
    assert "of the planner's choices'" in capsys.readouterr().out
