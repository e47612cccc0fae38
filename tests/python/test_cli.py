"""The command line: what it runs, and its exit codes."""

import subprocess
import sys

import pytest
import torch

import customconv
from customconv.__main__ import main


def test_info(capsys):
    assert main(["info"]) == 0
    first, *_ = capsys.readouterr().out.splitlines()
    assert first.split() == ["customconv", customconv.__version__]


def test_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "customconv", "info"], capture_output=True, text=True
    )
    assert result.returncode == 0
    assert torch.__version__ in result.stdout


@pytest.mark.parametrize("arguments", [[], ["fly"], ["demo", "--device", "tpu"]])
def test_wrong_usage_exits_with_2(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    assert "usage: python -m customconv" in capsys.readouterr().err


def refusal(arguments, capsys):
    with pytest.raises(SystemExit) as exit:
        main(arguments)
    assert exit.value.code == 2
    return capsys.readouterr().err


def test_cuda_that_is_not_there(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert "no CUDA device" in refusal(["demo", "--device", "cuda"], capsys)


def test_demo_without_a_compiler(monkeypatch, capsys):
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert "install g++" in refusal(["demo"], capsys)


def test_demo_without_its_packages(monkeypatch, capsys):
    for name in [name for name in sys.modules if name.startswith("customconv.demo")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delattr(customconv, "demo", raising=False)
    monkeypatch.setitem(sys.modules, "rich.console", None)
    said = refusal(["demo", "--quick"], capsys)
    assert "the demo needs rich" in said
    assert 'pip install "customconv[demo]"' in said


@pytest.mark.parametrize("code", [0, 1])
def test_the_demos_verdict_is_the_exit_code(monkeypatch, tmp_path, code):
    demo = pytest.importorskip("customconv.demo")
    calls = []
    monkeypatch.setattr(demo, "run", lambda *arguments: calls.append(arguments) or code)
    assert main(["demo", "--quick", "--device", "cpu", "--out", str(tmp_path)]) == code
    assert calls == [(tmp_path, torch.device("cpu"), True)]
