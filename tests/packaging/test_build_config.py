"""The decisions of a build: which files, by which toolkit, for which GPUs, how many at once."""

from pathlib import Path

import pytest

import build_config
from build_config import ConfigError


def toolkit(path: Path, version: str) -> Path:
    """A directory that looks like a CUDA toolkit of this version."""
    (path / "bin").mkdir(parents=True)
    (path / "include").mkdir()
    (path / "include/cuda_runtime.h").touch()
    nvcc = path / "bin/nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.1'\n")
    nvcc.chmod(0o755)
    return path


@pytest.fixture
def bare_machine(monkeypatch, tmp_path):
    """No toolkit on the path or in the environment's packages."""
    monkeypatch.setattr(build_config.shutil, "which", lambda name: None)
    monkeypatch.setattr(build_config, "SYSTEM_TOOLKIT", tmp_path / "none")
    monkeypatch.setattr(build_config, "wheel_toolkit", lambda major: None)


@pytest.mark.parametrize(
    ("forced", "torch_cuda", "gpu", "expected"),
    [
        (None, "13.0", True, True),
        (None, "13.0", False, False),
        (None, None, True, False),
        ("0", "13.0", True, False),
        ("1", "13.0", False, True),
    ],
)
def test_wants_cuda(monkeypatch, forced, torch_cuda, gpu, expected):
    monkeypatch.setattr(build_config, "gpu_in_sight", lambda: gpu)
    env = {} if forced is None else {"CUSTOMCONV_CUDA": forced}
    assert build_config.wants_cuda(env, torch_cuda) is expected


def test_wants_cuda_refuses_what_cannot_be():
    with pytest.raises(ConfigError, match="CPU build"):
        build_config.wants_cuda({"CUSTOMCONV_CUDA": "1"}, None)
    with pytest.raises(ConfigError, match="set it to 0 or 1"):
        build_config.wants_cuda({"CUSTOMCONV_CUDA": "yes"}, "13.0")


@pytest.mark.parametrize(
    ("named", "capabilities", "expected"),
    [
        ("8.0;9.0a", [(9, 0)], "8.0;9.0a"),
        (" 8.0 9.0a+PTX ", [], "8.0;9.0a+PTX"),
        (None, [(9, 0)], "9.0a"),
        ("native", [(8, 6), (8, 0), (8, 6)], "8.0;8.6"),
        ("", [(12, 0)], "12.0"),
        (None, [], build_config.RELEASE_ARCHITECTURES),
    ],
)
def test_arch_list(named, capabilities, expected):
    env = {} if named is None else {"TORCH_CUDA_ARCH_LIST": named}
    assert build_config.arch_list(env, capabilities) == expected


def test_check_architectures():
    known = "sm_75\nsm_80\nsm_90\nsm_100\n"
    build_config.check_architectures("8.0;9.0a;10.0+PTX;Turing", known)
    with pytest.raises(ConfigError, match=r"cannot compile for 12\.0, 7\.0") as raised:
        build_config.check_architectures("8.0;12.0+PTX;7.0", known)
    assert "75, 80, 90, 100" in str(raised.value)


def test_cuda_home_is_respected(bare_machine, tmp_path):
    home = toolkit(tmp_path / "toolkit", "13.2")
    assert build_config.find_cuda_home({"CUDA_HOME": str(home)}, "13.0") == home
    with pytest.raises(ConfigError, match=r"holds a CUDA 13\.2 toolkit; this torch needs CUDA 12"):
        build_config.find_cuda_home({"CUDA_HOME": str(home)}, "12.8")
    with pytest.raises(ConfigError, match="holds no complete CUDA toolkit"):
        build_config.find_cuda_home({"CUDA_HOME": str(tmp_path)}, "13.0")


def test_toolkits_are_tried_in_order(bare_machine, monkeypatch, tmp_path):
    with pytest.raises(ConfigError, match=r'pip install "cuda-toolkit\[.*\]==13\.0\.\*"'):
        build_config.find_cuda_home({}, "13.0")

    wheels = toolkit(tmp_path / "wheels", "13.0")
    monkeypatch.setattr(build_config, "wheel_toolkit", lambda major: wheels)
    assert build_config.find_cuda_home({}, "13.0") == wheels

    monkeypatch.setattr(build_config, "SYSTEM_TOOLKIT", toolkit(tmp_path / "old", "12.8"))
    assert build_config.find_cuda_home({}, "13.0") == wheels  # another major version is passed over

    on_path = toolkit(tmp_path / "on_path", "13.1")
    monkeypatch.setattr(build_config.shutil, "which", lambda name: str(on_path / "bin" / name))
    assert build_config.find_cuda_home({}, "13.0") == on_path


@pytest.mark.parametrize(
    ("env", "cores", "gib", "expected"),
    [
        ({}, 8, 64, 8),
        ({}, 8, 5, 2),
        ({}, 8, 1, 1),
        ({"MAX_JOBS": "3"}, 8, 1, 3),
        ({"MAX_JOBS": "0"}, 8, 64, 1),
        ({"MAX_JOBS": ""}, 2, 64, 2),
    ],
)
def test_jobs(env, cores, gib, expected):
    assert build_config.jobs(env, cores, gib * build_config.GIB) == expected


def test_sources_are_the_layers(monkeypatch, tmp_path):
    files = [
        "csrc/plan/planner.cpp",
        "csrc/kernels/direct/plan.cpp",
        "csrc/kernels/direct/fprop.cu",
        "csrc/kernels/direct/sm90/fprop.cu",
        "csrc/torch/module.cpp",
        "csrc/torch/cuda/launch.cpp",
    ]
    for name in files:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(build_config, "ROOT", tmp_path)
    assert set(build_config.sources(with_cuda=True)) == set(files)
    assert set(build_config.sources(with_cuda=False)) == {files[0], files[1], files[4]}

    (tmp_path / "csrc/kernels/direct/plan.cu").touch()
    with pytest.raises(ConfigError, match="same object file: csrc/kernels/direct/plan"):
        build_config.sources(with_cuda=True)


def test_a_missing_compiler_is_named():
    with pytest.raises(ConfigError, match="'no-such-compiler' does not run"):
        build_config.compiler_version({"CXX": "no-such-compiler"})


@pytest.mark.parametrize(
    ("says", "flags"), [("--compress-mode", ["--compress-mode=size"]), ("", [])]
)
def test_kernels_are_packed_where_the_compiler_can(tmp_path, says, flags):
    nvcc = toolkit(tmp_path, "13.0") / "bin/nvcc"
    nvcc.write_text(f"#!/bin/sh\necho 'usage: {says} [default,size]'\n")
    assert build_config.nvcc_compression(tmp_path) == flags
