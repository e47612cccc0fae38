"""Programs exported with the operator inside, run again, saved, and compiled ahead of time."""

from __future__ import annotations

import io

import pytest
import torch
from op_support import needs_compiler
from reference import LAYOUTS, assert_equal, tolerances
from torch.utils.cpp_extension import CUDA_HOME

import customconv

FP32 = tolerances(torch.float32, 200)
BATCH = {"x": {0: torch.export.Dim("batch", max=64)}}
ANY_SIZE = {"x": {0: torch.export.Dim("batch"), 2: torch.export.Dim("height", min=4, max=999)}}


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.first = customconv.Conv2d(3, 8, 3, stride=2, padding=1)
        self.second = customconv.Conv2d(8, 6, (3, 2), padding="same", groups=2, bias=False)

    def forward(self, x):
        return self.second(self.first(x).relu())


def operators(program):
    return [str(node.target) for node in program.graph.nodes if node.op == "call_function"]


@pytest.mark.parametrize("strict", [False, True])
@pytest.mark.parametrize("shapes", [None, BATCH, ANY_SIZE], ids=["static", "batch", "any_size"])
def test_export(shapes, strict, device):
    model = Network().to(device).eval()
    x = torch.randn(2, 3, 12, 10, device=device)
    program = torch.export.export(model, (x,), dynamic_shapes=shapes, strict=strict)
    assert operators(program)[::2] == ["customconv.conv2d.default", "customconv.conv2d.padding"]
    others = [x] if shapes is None else [x, torch.randn(5, 3, 12, 10, device=device)]
    if shapes is ANY_SIZE:
        others.append(torch.randn(3, 3, 17, 10, device=device))
    lowered = program.run_decompositions()
    assert operators(lowered).count("customconv.conv2d.default") == 2
    for other in others:
        assert_equal(program.module()(other), model(other))
        assert_equal(lowered.module()(other), model(other))


def test_saved_program(device):
    model = Network().to(device).eval()
    x = torch.randn(2, 3, 12, 10, device=device)
    file = io.BytesIO()
    torch.export.save(torch.export.export(model, (x,), dynamic_shapes=BATCH), file)
    file.seek(0)
    loaded = torch.export.load(file).module()
    other = torch.randn(7, 3, 12, 10, device=device)
    assert_equal(loaded(other), model(other))


@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
def test_exported_for_training(layout, device):
    """A program that still has its gradients."""
    model = Network().to(device, memory_format=layout)
    x = torch.randn(2, 3, 12, 10, device=device).contiguous(memory_format=layout)
    exported = torch.export.export(model, (x,)).module()
    for actual, expected in zip(
        torch.autograd.grad(exported(x).sum(), list(exported.parameters())),
        torch.autograd.grad(model(x).sum(), list(model.parameters())),
        strict=True,
    ):
        assert_equal(actual, expected)


@pytest.mark.slow
@needs_compiler
def test_compiled_ahead_of_time(tmp_path, device):
    if device == "cuda" and CUDA_HOME is None:
        pytest.skip("needs CUDA's headers")
    model = Network().to(device).eval()
    x = torch.randn(2, 3, 12, 10, device=device)
    with torch.no_grad():
        program = torch.export.export(model, (x,), dynamic_shapes=BATCH)
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=str(tmp_path / "network.pt2")
        )
        compiled = torch._inductor.aoti_load_package(path)
        for batch in (1, 2, 5):
            other = torch.randn(batch, 3, 12, 10, device=device)
            assert_equal(compiled(other), model(other), **FP32)
