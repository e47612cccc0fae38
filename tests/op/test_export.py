"""Programs exported with the operator inside, run again, saved, and compiled ahead of time."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from op_support import each_dims, needs_compiler
from reference import LAYOUTS, assert_equal, layout_of, tolerances
from torch.utils.cpp_extension import CUDA_HOME

import customconv

MODULES = {2: customconv.Conv2d, 3: customconv.Conv3d}
FP32 = tolerances(torch.float32, 200)
BATCH = {"x": {0: torch.export.Dim("batch", max=64)}}
ANY_SIZE = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4, max=999)}}


class Network(torch.nn.Module):
    def __init__(self, dims=2):
        super().__init__()
        kind = MODULES[dims]
        self.first = kind(3, 8, 3, stride=2, padding=1)
        self.second = kind(8, 6, (1, 3, 2)[-dims:], padding="same", groups=2, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu())


def batch(size, dims, device, height=12):
    """Images, or volumes, whose third size is the height of the one and the depth of the other."""
    return torch.randn(size, 3, height, *(9, 10)[1 - dims :], device=device)


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("shapes", [None, BATCH, ANY_SIZE], ids=["static", "batch", "any_size"])
@each_dims
def test_export(dims, shapes, strict, device):
    model = Network(dims).to(device).eval()
    x = batch(2, dims, device)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=strict)
    name = f"customconv.conv{dims}d"
    assert operators(program)[::2] == [f"{name}.default", f"{name}.padding"]
    others = [x] if shapes is None else [x, batch(5, dims, device)]
    if shapes is ANY_SIZE:
        others.append(batch(3, dims, device, height=17))
    lowered = program.run_decompositions()
    assert operators(lowered).count(f"{name}.default") == 2
    for other in others:
        assert_equal(program.module()(other), model(other))
        assert_equal(lowered.module()(other), model(other))


@each_dims
def test_saved_program(dims, device):
    model = Network(dims).to(device).eval()
    x = batch(2, dims, device)
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=BATCH), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    other = batch(7, dims, device)
    assert_equal(loaded(other), model(other))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@each_dims
def test_exported_for_training(dims, layout, device):
    """A program that still has its gradients."""
    layout = layout_of(layout, dims + 2)
    model = Network(dims).to(device, memory_format=layout)
    x = batch(2, dims, device).contiguous(memory_format=layout)
    exported = torch.export.export(model, (x,)).module()
    for actual, expected in zip(
        torch.autograd.grad(exported(x).sum(), list(exported.parameters())),
        torch.autograd.grad(model(x).sum(), list(model.parameters())),
        strict=True,
    ):
        # PyTorch computes gradients of volumes on CUDA, which need not repeat bit by bit.
        exact = dims == 2 or device == "cpu"
        assert_equal(actual, expected, **({} if exact else FP32))


# Compiles a network ahead of time, loads it and compares, in a process of its own.
AHEAD_OF_TIME = """
import sys, torch
from reference import assert_equal, tolerances
from test_export import BATCH, Network
device, path, plain = sys.argv[1], sys.argv[2], sys.argv[3] == "plain"
model = (torch.nn.Conv2d(3, 8, 3) if plain else Network()).to(device).eval()
batches = [torch.randn(n, 3, 12, 10, device=device) for n in (2, 1, 5)]
with torch.no_grad():
    program = torch.export.export(model, (batches[0],), dynamic_shapes=None if plain else BATCH)
    package = torch._inductor.aoti_compile_and_package(program, package_path=path)
    compiled = torch._inductor.aoti_load_package(package)
    for x in batches[: 1 if plain else None]:
        assert_equal(compiled(x), model(x), **tolerances(torch.float32, 200))
"""


def compile_ahead_of_time(device, path, kind):
    folders = os.pathsep.join(str(Path(__file__).parents[i]) for i in (0, 1))
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join([folders, os.environ.get("PYTHONPATH", "")])
    }
    command = [sys.executable, "-c", AHEAD_OF_TIME, device, str(path), kind]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)


@pytest.mark.slow
@needs_compiler
def test_compiled_ahead_of_time(tmp_path, device):
    if device == "cuda" and CUDA_HOME is None:
        pytest.skip("needs CUDA's headers")
    done = compile_ahead_of_time(device, tmp_path / "network.pt2", "ours")
    if done.returncode < 0:  # killed: PyTorch may be unable to load packages of its own here
        plain = compile_ahead_of_time(device, tmp_path / "plain.pt2", "plain")
        if plain.returncode == done.returncode:
            pytest.skip(f"PyTorch's own nn.Conv2d ends with signal {-plain.returncode} too")
    assert done.returncode == 0, done.stdout + done.stderr
