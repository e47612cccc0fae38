"""The programs that measure the GPU: what they accept, and that they compile and are right."""

from __future__ import annotations

import argparse
import shutil
import sys
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from bench.layers import Layer
from bench.micro import __main__ as command
from bench.micro import launch, mainloop, tma, wgrad

LAYER = Layer("", "", 2, 64, 14, 14, 64, 3, 3, pad=(1, 1))
needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"stride": (2, 2)}, True),
        ({"stride": (2, 1)}, False),
        ({"pad": (1, 0)}, False),
        ({"C": 12}, False),
        ({"K": 12}, False),
        ({"groups": 2}, False),
    ],
)
def test_the_main_loop_says_what_it_computes(changes, fits):
    assert mainloop.fits(replace(LAYER, **changes)) == fits


@pytest.mark.parametrize(
    ("changes", "fits"),
    [
        ({}, True),
        ({"R": 1, "S": 1, "pad": (0, 0)}, True),
        ({"R": 5, "S": 5}, False),
        ({"stride": (2, 2)}, False),
        ({"C": 12}, False),
    ],
)
def test_the_weight_gradient_says_what_it_computes(changes, fits):
    assert wgrad.fits(replace(LAYER, **changes)) == fits


def test_stages_of_the_load_program_fit_shared_memory():
    for load in tma.loads():
        stage = load.copies * load.width * load.height * load.channels * 2
        assert 2 * stage <= 200 << 10
        assert load.copies % load.share == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_it_says_so(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["micro", "launch"])
    assert command.main() == 2
    assert "needs a GPU" in capsys.readouterr().out


@pytest.mark.gpu
@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("program", [launch, tma, mainloop, wgrad], ids=lambda p: p.__name__)
def test_a_program_runs(program):
    parser = argparse.ArgumentParser()
    program.add_arguments(parser)
    arguments = parser.parse_args([])
    changes = {"budget_s": 0.1, "row_s": 0.05, "suite": ["resnet50"], "layer": "layer3.1.conv2"}
    vars(arguments).update(changes, dtype=["fp16", "tf32"], layout=["nchw", "nhwc"], batch=4)
    console = Console(record=True, width=200)
    assert program.main(arguments, console) == 0
    assert len(console.export_text().splitlines()) >= 1
