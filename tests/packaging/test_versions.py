"""The versions that the sources, the workflows and the documentation name are the same."""

import re

import pytest

import build_config
import other_architectures

ROOT = build_config.ROOT
FIRST, LAST = build_config.TESTED_TORCH
TESTED = [f"{FIRST[0]}.{minor}" for minor in range(FIRST[1], LAST[1] + 1)]


PYTHONS = [f"{major}.{minor}" for major, minor in build_config.TESTED_PYTHON]


def matrix(name: str, workflow: str = "test") -> list[str]:
    """The values that the jobs of a workflow take for a name, which must be the same in all."""
    text = (ROOT / f".github/workflows/{workflow}.yml").read_text()
    (values,) = set(re.findall(rf'^ +{name}: \[(".*")\]', text, re.MULTILINE))
    return re.findall(r'"([^"]+)"', values)


@pytest.mark.parametrize("workflow", ["test", "wheels"])
def test_workflows_have_each_minor_version_of_pytorch(workflow):
    assert [release.rpartition(".")[0] for release in matrix("torch", workflow)] == TESTED


@pytest.mark.parametrize("workflow", ["test", "wheels"])
def test_workflows_have_the_oldest_and_the_newest_python(workflow):
    assert matrix("python", workflow) == PYTHONS


def test_the_oldest_python_is_the_one_that_pip_asks_for():
    text = (ROOT / "pyproject.toml").read_text()
    assert re.findall(r'^requires-python = ">=(.+)"$', text, re.MULTILINE) == [PYTHONS[0]]


def test_the_wheel_has_a_module_for_each_python():
    text = (ROOT / ".github/workflows/wheels.yml").read_text()
    (_, first), (_, last) = build_config.TESTED_PYTHON
    named = set(re.findall(r"\$\(python 3(\d+)\)", text)) | set(re.findall(r"cp3(\d+)/", text))
    assert {int(minor) for minor in named} == set(range(first, last + 1))


def test_the_wheel_has_kernels_for_every_architecture_of_a_release():
    text = (ROOT / ".github/workflows/wheels.yml").read_text()
    (own,) = re.findall(r"TORCH_CUDA_ARCH_LIST: (\d\S*)$", text, re.MULTILINE)
    built = {own, *matrix("architecture", "wheels")}
    assert built == set(build_config.RELEASE_ARCHITECTURES.split(";"))


def test_the_workflow_builds_for_every_architecture_of_a_release():
    ci = (ROOT / ".ci/run").read_text()
    (here,) = re.findall(r"TORCH_CUDA_ARCH_LIST=(\S+)", ci)
    env = {"TORCH_CUDA_ARCH_LIST": here}
    assert matrix("architecture") == other_architectures.left_out(env)
    assert here in build_config.RELEASE_ARCHITECTURES.split(";")


def test_the_readme_says_which_versions_were_tested():
    text = " ".join((ROOT / "README.md").read_text().split())
    assert f"PyTorch {TESTED[0]} to {TESTED[-1]}" in text
    assert f"Python {PYTHONS[0]} to {PYTHONS[1]}" in text
    assert build_config.RELEASE_ARCHITECTURES in text


@pytest.mark.parametrize(
    ("named", "missing"),
    [
        ("9.0a", ["8.0", "8.6", "8.9", "10.0", "12.0+PTX"]),
        ("8.0 8.6;8.9+PTX", ["9.0a", "10.0", "12.0+PTX"]),
        ("12.0;10.0;9.0", ["8.0", "8.6", "8.9", "9.0a"]),
        (build_config.RELEASE_ARCHITECTURES, []),
    ],
)
def test_architectures_that_a_build_leaves_out(named, missing):
    assert other_architectures.left_out({"TORCH_CUDA_ARCH_LIST": named}) == missing


def test_one_kernel_is_compiled_as_the_build_would(tmp_path):
    target = tmp_path / "kernel.o"
    command = other_architectures.command("ccache nvcc", tmp_path, "12.0+PTX", target)
    assert command[:2] == ["ccache", "nvcc"]
    assert set(build_config.nvcc_flags(tmp_path)) < set(command)
    assert set(build_config.gencode("12.0+PTX")) < set(command)
    assert command[command.index("-c") + 1] == str(other_architectures.SOURCE)
    assert other_architectures.SOURCE.exists()
