"""KernelBench's rules, and our modules for its problems."""

from __future__ import annotations

import inspect
import json

import pytest
import torch

import bench.kernelbench as kernelbench
from bench import __main__ as command
from bench import corpus
from bench.kernelbench import Outcome
from bench.kernelbench.problems import PROBLEMS

CPU = torch.device("cpu")

# Names and defaults of the constructors' arguments, as KernelBench calls them.
SIGNATURES = {
    50: "(num_classes=1000)",
    57: "(in_channels, out_channels, kernel_size, stride=1, padding=0, output_padding=0, groups=1, "
    "bias=False)",
    63: "(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, groups=1, "
    "bias=False)",
    69: "(in_channels, out_channels, kernel_size, stride=(1, 1), padding=(0, 0), "
    "output_padding=(0, 0), dilation=(1, 1), groups=1, bias=False)",
    75: "(in_channels, out_channels, kernel_size, stride=(1, 1), padding=(0, 0), dilation=(1, 1), "
    "groups=1, bias=False)",
    78: "(in_channels, out_channels, kernel_size, stride=(1, 1), padding=(0, 0), bias=False)",
    80: "(in_channels, out_channels, kernel_size, stride=1, padding=(0, 0), dilation=(1, 1), "
    "bias=False)",
    81: "(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False)",
    82: "(in_channels, kernel_size, stride=1, padding=0, bias=False)",
    83: "(in_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False)",
    84: "(in_channels, out_channels, kernel_size, stride=1, padding=0, bias=False)",
    85: "(in_channels, out_channels, kernel_size_h, kernel_size_w, stride_h=1, stride_w=1, "
    "padding_h=0, padding_w=0, dilation_h=1, dilation_w=1, groups=1, bias=False)",
    86: "(in_channels, out_channels, kernel_size, stride=1, padding=0, dilation=1, bias=False)",
    87: "(in_channels, out_channels, bias=False)",
}


def test_every_problem_is_there_once():
    numbers = {
        int(layer.name.split("_")[0])
        for layer in corpus.load(["kernelbench_l1"])
        if layer.name[:2].isdigit()
    }
    assert {*PROBLEMS} == numbers


@pytest.mark.parametrize("number", SIGNATURES)
def test_constructors_are_called_as_kernelbench_does(number):
    parameters = list(inspect.signature(PROBLEMS[number].ModelNew.__init__).parameters.values())
    words = [p.name if p.default is p.empty else f"{p.name}={p.default}" for p in parameters[1:]]
    assert f"({', '.join(words)})" == SIGNATURES[number]


@pytest.mark.parametrize("number", PROBLEMS)
def test_sizes_are_those_of_the_layers(number):
    if number == 86:
        return  # two layers
    problem = PROBLEMS[number]
    (layer,) = (
        layer for layer in corpus.load(["kernelbench_l1"]) if layer.name.startswith(f"{number}_")
    )
    assert problem.input == layer.input
    (convolution,) = (
        m for m in problem.ModelNew(*problem.arguments).modules() if hasattr(m, "dilation")
    )
    assert tuple(convolution.weight.shape) == layer.weight
    assert convolution.stride == layer.stride
    assert convolution.padding == layer.pad
    assert convolution.dilation == layer.dil
    assert (convolution.bias is not None) == layer.bias


@pytest.mark.parametrize("number", PROBLEMS)
def test_modules_agree_with_their_references(number):
    assert kernelbench.check(PROBLEMS[number].smaller(64), "fp32", CPU) == ""


def test_a_wrong_module_is_caught(monkeypatch):
    problem = PROBLEMS[82].smaller(64)
    right = problem.ModelNew.forward
    monkeypatch.setattr(
        problem.ModelNew,
        "forward",
        lambda self, x: right(self, x) + (1e-3 if "custom" in type(self.conv2d).__module__ else 0),
    )
    assert "seed 42: off by up to 0.001" in kernelbench.check(problem, "fp32", CPU)


def test_fast_p_counts_what_is_right_and_faster():
    def outcome(wrong, speedup):
        return Outcome(1, "", "fp32", wrong, speedup, 1.0)

    outcomes = [outcome("", 0.9), outcome("", 1.2), outcome("", 3.0), outcome("off", 5.0)]
    shares = [kernelbench.fast_p(outcomes, p) for p in (0.5, 1.0, 1.5, 4.0)]
    assert shares == [0.75, 0.5, 0.25, 0.0]


def test_the_command_prints_and_keeps_its_tables(tmp_path, capsys):
    path = tmp_path / "kernelbench.json"
    words = ["--problems", "57,82", "--smaller", "64", "--trials", "2", "--precision", "fp32"]
    words += ["--device", "cpu", "--json", str(path)]
    assert command.main(["kernelbench", *words]) == 0
    printed = capsys.readouterr().out
    assert "fast_1" in printed
    kept = json.loads(path.read_text())["outcomes"]
    assert [(outcome["number"], outcome["wrong"]) for outcome in kept] == [(57, ""), (82, "")]


def test_an_unknown_problem_is_refused(capsys):
    assert command.main(["kernelbench", "--problems", "1", "--device", "cpu"]) == 2
    assert "no 1: expected some of 50," in capsys.readouterr().out
