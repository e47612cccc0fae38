"""`make build`: what it asks pip for, and when it has nothing to do."""

import os
import subprocess
import sys

import pytest

import bootstrap
import build_config


@pytest.mark.parametrize(
    ("release", "requirement"), [("2.14.1", "torch==2.14.1"), ("2.14", "torch==2.14.*")]
)
def test_torch_requirement(monkeypatch, release, requirement):
    monkeypatch.setattr(bootstrap, "TORCH", release)
    assert bootstrap.torch_requirement() == requirement


@pytest.mark.parametrize(
    ("release", "reason"), [("latest", "set it to a release"), ("2.8.0", "too old")]
)
def test_a_torch_that_cannot_be_is_refused(monkeypatch, release, reason):
    monkeypatch.setattr(bootstrap, "TORCH", release)
    with pytest.raises(build_config.ConfigError, match=reason):
        bootstrap.torch_requirement()


def test_a_newer_torch_is_tried_with_a_warning(monkeypatch, capsys):
    monkeypatch.setattr(bootstrap, "TORCH", "2.99.0")
    assert bootstrap.torch_requirement() == "torch==2.99.0"
    assert "this is 2.99.0" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({}, ".venv"),
        ({"TORCH": ""}, ".venv"),
        ({"TORCH": "2.14.1"}, ".venv-torch2.14.1"),
        ({"TORCH": "2.14.1", "VENV": "mine"}, "mine"),
    ],
)
def test_each_torch_has_its_environment(env, folder):
    base = {"PATH": "/usr/bin:/bin"}
    code = "import bootstrap; print(bootstrap.VENV)"
    said = subprocess.run(
        [sys.executable, "-c", code],
        cwd=build_config.ROOT / "tools", env=base | env, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert said.stdout.strip() == str(build_config.ROOT / folder)
    if "VENV" in env:
        return
    said = subprocess.run(
        ["make", "-n", "demo", *(f"{name}={value}" for name, value in env.items())],
        cwd=build_config.ROOT, env=base, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert f"\n{folder}/bin/python -m customconv demo" in f"\n{said.stdout}"


@pytest.fixture
def make_build(monkeypatch, tmp_path):
    """Runs `make build` for an environment, without pip; says whether it built."""
    record = tmp_path / "customconv/_build.json"
    record.parent.mkdir()
    built = []

    def pip_install(python, *arguments):
        built.append(arguments)
        (record.parent / f"_bind.{sys.implementation.cache_tag}-linux.so").touch()
        record.write_text("{}")
        os.utime(record, ns=(len(built), len(built)))

    def run(environment, sources="as they are"):
        venv = tmp_path / environment
        venv.mkdir(exist_ok=True)
        monkeypatch.setattr(bootstrap, "STAMP", venv / "stamp")
        monkeypatch.setattr(bootstrap, "inputs", lambda: sources)
        before = len(built)
        bootstrap.main()
        return len(built) > before

    monkeypatch.setattr(bootstrap, "RECORD", record)
    monkeypatch.setattr(bootstrap, "pip_install", pip_install)
    monkeypatch.setattr(bootstrap, "install_requirements", lambda python, torch: None)
    monkeypatch.setattr(bootstrap, "create_venv", lambda: tmp_path / "python")
    monkeypatch.setattr(sys, "argv", ["bootstrap.py"])
    return run


def test_what_is_up_to_date_is_left_alone(make_build):
    assert make_build("one")
    assert not make_build("one")
    assert make_build("one", sources="others")


def test_another_environment_puts_its_extension_in_the_same_place(make_build):
    assert make_build("one")
    assert make_build("two")
    assert make_build("one")
    assert not make_build("one")


def test_an_extension_that_is_gone_is_built(make_build, tmp_path):
    assert make_build("one")
    for file in (tmp_path / "customconv").glob("_bind*"):
        file.unlink()
    assert make_build("one")


def test_a_build_without_a_gpu_in_sight_warns(monkeypatch, capsys):
    """pip hides what setup.py says."""
    monkeypatch.delenv("CUSTOMCONV_CUDA", raising=False)
    monkeypatch.setattr(build_config, "gpu_in_sight", lambda: False)
    monkeypatch.setattr(bootstrap, "pip_install", lambda python, *arguments: None)
    cuda = subprocess.CompletedProcess([], 0, stdout="13.0\n")
    monkeypatch.setattr(bootstrap.subprocess, "run", lambda *_, **__: cuda)
    bootstrap.install_requirements("python", "torch")
    assert "warning: customconv is built without CUDA" in capsys.readouterr().err
