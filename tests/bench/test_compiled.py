"""Compiled networks beside Inductor and eager mode: the check, the times, and the options."""

from __future__ import annotations

import contextlib
import json
import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from bench import __main__ as command
from bench import compiled, networks
from bench.workers import workers

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
    def wrong(name, network, graphs):
        other = networks.build(small)
        nn.init.zeros_(other.last.weight)
        return other

    monkeypatch.setattr(compiled, "compiled_copy", wrong)
    made = compiled.Comparison(small, 16, CPU, ("eager",), cached=True)
    outcome = made.compare("forward", "fp32", "nchw", 2, 0.02)
    assert outcome.error.startswith("off by ")
    assert outcome.ms == {}


def test_rows_are_checked_and_compiled_ahead_in_other_processes(tmp_path, monkeypatch):
    path = tmp_path / "compiled.json"
    words = (
        "models --compile --cached --ahead 1 --networks chain_relu_hardswish --layouts nhwc "
        "--precisions fp32 --modes forward --batch 1 --image 16 --row-s 0.02 --device cpu --json"
    ).split()
    checked_here = []
    monkeypatch.setattr(compiled.Comparison, "check", lambda self, *what: checked_here.append(what))
    assert command.main([*words, str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert [(row["layout"], row["error"]) for row in rows] == [("nhwc", "")]
    assert rows[0]["ms"].keys() == {"ours", "inductor", "eager"}
    assert checked_here == []


@pytest.fixture
def beside(monkeypatch):
    """Threads in the place of other processes."""

    @contextlib.contextmanager
    def workers(count):
        with ThreadPoolExecutor(count) as pool:
            yield pool

    monkeypatch.setattr(compiled, "workers", workers)


def test_rows_that_the_file_lacks_are_prepared(small, tmp_path, monkeypatch, beside):
    prepared = []
    monkeypatch.setattr(compiled, "_prepared", lambda *what: prepared.append(what))
    path = tmp_path / "compiled.json"
    assert command.main(arguments("--cached", "--modes", "forward", "--json", str(path))) == 0
    monkeypatch.setattr(compiled.Run, "all", lambda self: [])
    words = arguments("--cached", "--ahead", "2", "--resume", "--autotune", small)
    assert command.main([*words, "--json", str(path)]) == 0
    assert prepared == [(small, ("step", "fp32", "nhwc", 2), 16, "cpu")]


def test_what_max_autotune_compiles_is_not_prepared(small, monkeypatch, beside):
    built = []
    monkeypatch.setattr(compiled.Comparison, "prepare", lambda self, *_: built.append(self.others))
    monkeypatch.setattr(compiled.Run, "all", lambda self: [])
    compiled._built.cache_clear()
    words = arguments("--cached", "--ahead", "1", "--modes", "step", "--autotune", small)
    assert command.main(words) == 0
    assert built == [("inductor", "eager")]
    compiled._built.cache_clear()


def test_configurations_chosen_beside_others_are_forgotten(small, tmp_path, monkeypatch, beside):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(compiled, "_prepared", lambda *_: None)
    monkeypatch.setattr(compiled.Run, "all", lambda self: [])
    (tmp_path / "ab").mkdir()
    choice, code = tmp_path / "ab" / "one.best_config", tmp_path / "ab" / "one.py"
    for each in (choice, code):
        each.touch()
    assert command.main(arguments("--cached", "--ahead", "1")) == 0
    assert code.exists()
    assert not choice.exists()


def threads_of_inductor():
    from torch._inductor import config

    return config.compile_threads


def test_workers_share_the_cores(monkeypatch):
    monkeypatch.delenv("TORCHINDUCTOR_COMPILE_THREADS", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 7)
    with workers(2) as pool:
        assert pool.submit(threads_of_inductor).result() == 3
    assert "TORCHINDUCTOR_COMPILE_THREADS" not in os.environ


def test_what_fails_ahead_is_done_again(small, tmp_path):
    # Other processes do not know the network, which only this one has.
    path = tmp_path / "compiled.json"
    words = arguments("--cached", "--ahead", "1", "--modes", "forward", "--json", str(path))
    assert command.main(words) == 0
    (row,) = json.loads(path.read_text())["rows"]
    assert row["ms"].keys() == {"ours", "inductor", "eager"}


@pytest.mark.parametrize("more", ["--layers", "--tuned", "--ahead 2"])
def test_options_that_do_not_go_together_are_refused(small, more, capsys):
    assert command.main(arguments(*more.split())) == 2
    assert "--" in capsys.readouterr().out
