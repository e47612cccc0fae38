"""Compiled networks beside Inductor and eager mode: the check, the times, and the options."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench import __main__ as command
from bench import compiled, networks

CPU = torch.device("cpu")


class Small(nn.Module):
    """A chain and another convolution, quick to compile."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x):
        return self.last(F.relu(self.norm(self.first(x))))


@pytest.fixture
def small(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "small", Small)
    return "small"


def arguments(*more):
    words = "models --compile --networks small --precisions fp32 --layouts nhwc --batch 2"
    return [*words.split(), *"--image 16 --row-s 0.02 --device cpu".split(), *more]


def test_rows_are_checked_timed_and_kept(small, tmp_path, capsys):
    path = tmp_path / "compiled.json"
    assert command.main(arguments("--modes", "forward", "--json", str(path))) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["error"] == ""
    assert row["ours_err"] < 1e-5
    assert row["ms"].keys() == row["compile_s"].keys() == {"ours", "inductor", "eager"}
    assert row["ratio"] == min(row["ratios"].values())
    assert row["compiled_graphs"] == {"ours": 1, "inductor": 1, "eager": 0}
    assert not row["graphs"]  # which a CPU has not
    assert "compile times over Inductor's" in capsys.readouterr().out
    assert command.main(arguments("--resume", "--json", str(path), "--modes", "forward")) == 0
    assert json.loads(path.read_text())["rows"] == [row]


def test_compile_times_are_left_out_with_caches(small):
    made = compiled.Comparison(small, 16, CPU, ("eager",), cached=True)
    outcome = made.compare("step", "fp32", "nchw", 2, 0.02)
    assert outcome.error == ""
    assert outcome.compile_s == {}
    assert outcome.ratios.keys() == {"eager"}


def test_a_wrong_network_is_not_timed(small, monkeypatch):
    def wrong(network, by):
        other = networks.build(small)
        nn.init.zeros_(other.last.weight)
        return other

    monkeypatch.setattr(compiled.networks, "ours", wrong)
    made = compiled.Comparison(small, 16, CPU, ("eager",), cached=True)
    outcome = made.compare("forward", "fp32", "nchw", 2, 0.02)
    assert outcome.error.startswith("off by ")
    assert outcome.ms == {}


def test_networks_are_compiled_ahead_in_other_processes(small, monkeypatch):
    started = []

    def run(words, env, **_):
        started.append((words[words.index("models") + 1 :], env["TORCHINDUCTOR_COMPILE_THREADS"]))

    monkeypatch.setattr(compiled, "subprocess", SimpleNamespace(run=run, DEVNULL=None))
    monkeypatch.setattr(compiled.os, "cpu_count", lambda: 16)
    monkeypatch.setattr(compiled.Run, "all", lambda self: [])
    more = "--cached --ahead 5 --modes step --networks small,unet --autotune unet"
    assert command.main(arguments(*more.split())) == 0
    assert [threads for _, threads in started] == ["3", "3"]
    asked_for = [dict(zip(words[2::2], words[3::2], strict=True)) for words, _ in started]
    for name, asked in zip(
        ["small", "unet"], sorted(asked_for, key=lambda each: each["--networks"]), strict=True
    ):
        assert asked == {
            "--row-s": "0", "--networks": name, "--modes": "step", "--layouts": "nhwc",
            "--precisions": "fp32", "--batch": "2", "--image": "16", "--device": "cpu",
            "--autotune": "unet",
        }  # fmt: skip


@pytest.mark.parametrize("more", ["--layers", "--tuned", "--ahead 2"])
def test_options_that_do_not_go_together_are_refused(small, more, capsys):
    assert command.main(arguments(*more.split())) == 2
    assert "--" in capsys.readouterr().out
