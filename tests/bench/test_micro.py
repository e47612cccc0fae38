"""The programs that measure the GPU: what they accept, and that they compile and are right."""

from __future__ import annotations

import argparse
import shutil
import sys

import pytest
import torch
from rich.console import Console

from bench.micro import __main__ as command
from bench.micro import build, launch, tma

needs_nvcc = pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no nvcc")


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


@needs_nvcc
@pytest.mark.parametrize("name", ["launch", "tma"])
def test_a_program_compiles(name, monkeypatch, tmp_path):
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    assert build.library(name, "90a").exists()


@pytest.mark.gpu
@pytest.mark.slow
@needs_nvcc
@pytest.mark.parametrize("program", [launch, tma], ids=lambda p: p.__name__)
def test_a_program_runs(program):
    parser = argparse.ArgumentParser()
    program.add_arguments(parser)
    console = Console(record=True, width=200)
    assert program.main(parser.parse_args([]), console) == 0
    assert len(console.export_text().splitlines()) >= 1
