"""What is told, once in a process, of GPUs whose convolutions are left to PyTorch."""

import subprocess
import sys
import warnings

import pytest
import torch
from torch import nn

import customconv
from customconv import _bind, notices
from customconv.compiler import backend

A100, H100 = ("NVIDIA A100", (8, 0)), ("NVIDIA H100", (9, 0))


@pytest.fixture
def machine(monkeypatch):
    """Makes this process one on such a machine; returns what PyTorch calls when it starts CUDA."""

    def make(*gpus, architectures, broken="", why=""):
        if not architectures:
            why = "customconv was built without CUDA (no GPU was in sight)"
        record = {"cuda": "13.0" if architectures else None}
        names = ["sm" + arch.replace(".", "") for arch in filter(None, architectures.split(";"))]

        def why_no_kernels(index):
            major, minor = gpus[index][1]
            if _bind.library_for(major, minor, names):
                return broken
            return f"this GPU's compute capability is {major}.{minor}, and the kernels are others"

        monkeypatch.setattr(_bind, "why_no_kernels", why_no_kernels)
        monkeypatch.setattr(notices, "why_no_kernels", lambda: why)
        monkeypatch.setattr(notices, "build_record", lambda: record)
        monkeypatch.setattr(notices, "_noticed", False)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda i: gpus[i][0])
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda i: gpus[i][1])
        waiting = []
        monkeypatch.setattr(torch.cuda, "_lazy_call", waiting.append)
        return waiting

    yield make
    _bind.clear_tuned_plans()


def told(call):
    """The texts of the warnings of a call, all of which are in the name of this file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    assert {each.filename for each in caught} <= {__file__}
    return [str(each.message) for each in caught]


def enter(context):
    with context:
        pass


WAYS = {
    "enable": lambda: enter(customconv.enable()),
    "enabled": lambda: enter(customconv.enabled()),
    "convert": lambda: customconv.convert(nn.Conv2d(1, 1, 1)),
    "compile": lambda: customconv.compile(nn.Conv2d(1, 1, 1)),
}


@pytest.mark.parametrize("way", ["enable", "enabled", "convert", "compile"])
def test_a_build_without_cuda_is_told_at_once_and_once(machine, monkeypatch, way):
    machine(H100, architectures="")
    (text,) = told(lambda: [WAYS[way]() for _ in range(3)])
    assert "built without CUDA (no GPU was in sight), so PyTorch computes all" in text
    assert "CUSTOMCONV_CUDA=1" in text


@pytest.mark.parametrize("way", ["enable", "convert", "compile"])
def test_a_gpu_of_a_pytorch_without_cuda_is_told(machine, way):
    """One of AMD's, say. Nothing that could be built would help."""
    machine(H100, architectures="9.0a", why="this PyTorch was built without CUDA")
    (text,) = told(WAYS[way])
    assert text == (
        "this PyTorch was built without CUDA, so PyTorch computes all convolutions on this GPU"
    )


def test_a_build_without_cuda_is_told_to_users_of_the_backend(machine, monkeypatch):
    machine(H100, architectures="")
    monkeypatch.setattr("torch._inductor.compile_fx.compile_fx", lambda graph, *_, **__: graph)
    graph = torch.fx.symbolic_trace(nn.ReLU())
    (text,) = told(lambda: backend(graph, [torch.ones(1)]))
    assert "built without CUDA" in text


@pytest.mark.parametrize("architectures", ["", "9.0a"])
def test_nothing_is_told_without_a_gpu(machine, architectures):
    machine(architectures=architectures)
    assert told(lambda: [WAYS[way]() for way in ("enable", "convert", "compile")]) == []


@pytest.mark.parametrize("way", ["enable", "enabled", "convert", "compile"])
def test_a_gpu_without_code_is_told_when_cuda_starts(machine, way):
    """Not before: to ask for the GPU would start CUDA."""
    waiting = machine(A100, H100, architectures="9.0a;10.0")
    assert told(lambda: [WAYS[way]() for _ in range(2)]) == []
    (start,) = waiting
    (text,) = told(start)
    assert "do not run on NVIDIA A100, so PyTorch computes all convolutions on it: " in text
    assert text.endswith("build it from source with TORCH_CUDA_ARCH_LIST=8.0")


def test_an_old_driver_is_told_with_no_build(machine):
    (text,) = when_cuda_starts(machine(H100, architectures="9.0a", broken="the driver is old"))
    assert text.endswith("do not run on NVIDIA H100, so PyTorch computes all convolutions on it: "
                         "the driver is old")  # fmt: skip


def test_where_cuda_has_started_it_is_told_at_once(machine, monkeypatch):
    machine(A100, architectures="9.0a")
    monkeypatch.setattr(torch.cuda, "_lazy_call", lambda call: call())
    assert len(told(customconv.enable)) == 1
    customconv.disable()


def test_a_gpu_that_is_too_old_is_told_no_remedy(machine):
    (text,) = when_cuda_starts(machine(("Tesla V100", (7, 0)), architectures="8.0;9.0a"))
    assert "do not run on Tesla V100" in text and "compute capability is 7.0" in text
    assert "build" not in text


def when_cuda_starts(waiting):
    """What is told then to a program that routes."""
    assert told(WAYS["enable"]) == []
    return [text for start in waiting for text in told(start)]


def test_a_gpu_that_nobody_has_measured_is_told_with_what_to_do(machine):
    (text,) = when_cuda_starts(machine(A100, A100, H100, architectures="8.0;9.0a"))
    assert "not been measured on NVIDIA A100" in text
    assert "customconv.tune(model, x)" in text
    assert "python -m customconv tune" in text


@pytest.mark.parametrize("architectures", ["9.0a", "8.0;9.0a", "9.0"])
def test_nothing_is_told_of_a_gpu_that_is_measured(machine, architectures):
    assert when_cuda_starts(machine(H100, architectures=architectures)) == []


def test_who_tunes_is_not_told_to(machine):
    problem = _bind.ConvProblem(input=(1, 8, 9, 9), weight=(8, 8, 3, 3))
    waiting = machine(A100, architectures="8.0")
    with customconv.tuning():
        assert [told(start) for start in waiting] == [[]]
    _bind.set_tuned_plan(0, problem, _bind.TunedPlan("aten"))
    assert when_cuda_starts(machine(A100, architectures="8.0")) == []


def test_errors_made_of_warnings_keep_nothing_from_starting(machine, capsys):
    machine(H100, architectures="")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with customconv.enabled():
            assert customconv.is_enabled()
    assert "customconv: warning: customconv was built without CUDA" in capsys.readouterr().err


@pytest.mark.parametrize(("topic", "words"), [("plan", ""), ("", ""), ("plans", "'plan'")])
def test_an_unknown_topic_of_the_log_is_told(monkeypatch, topic, words):
    monkeypatch.setenv("CUSTOMCONV_LOG", topic)
    texts = told(notices.notice_log_topic)
    assert len(texts) == bool(words)
    assert words in "".join(texts)


def test_the_log_is_looked_at_when_the_package_is_imported(monkeypatch):
    monkeypatch.setenv("CUSTOMCONV_LOG", "nothing")
    done = subprocess.run(
        [sys.executable, "-c", "import customconv"], capture_output=True, text=True, check=True
    )
    assert done.stderr.count("CUSTOMCONV_LOG='nothing'") == 1
