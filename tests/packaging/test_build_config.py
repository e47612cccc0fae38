"""The decisions of a build: which files, by which toolkit, for which GPUs, how many at once."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

import build_config
from build_config import ConfigError
from customconv import build


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
    ("forced", "torch_cuda", "nvcc", "gpu", "words"),
    [
        (None, "13.0", False, False, ["no GPU is in sight", "PyTorch has CUDA 13.0"]),
        (None, "13.0", True, False, ["no GPU is in sight", "bin/nvcc", "CUSTOMCONV_CUDA=1"]),
        (None, None, True, False, ["CPU build", "bin/nvcc", "install a CUDA build"]),
        (None, None, False, True, ["CPU build", "there is a GPU"]),
        (None, None, False, False, None),
        ("0", "13.0", True, True, None),
    ],
)
def test_a_build_that_leaves_cuda_out_warns(
    bare_machine, monkeypatch, tmp_path, forced, torch_cuda, nvcc, gpu, words
):
    """Where it could be built; and it needs no warning where that was asked for."""
    if nvcc:
        monkeypatch.setattr(build_config, "SYSTEM_TOOLKIT", toolkit(tmp_path / "cuda", "13.0"))
    monkeypatch.setattr(build_config, "gpu_in_sight", lambda: gpu)
    env = {} if forced is None else {"CUSTOMCONV_CUDA": forced}
    assert not build_config.wants_cuda(env, torch_cuda)
    warning = build_config.left_out_warning(env, torch_cuda)
    assert (warning is None) == (words is None)
    assert not [word for word in words or () if word not in warning]


@pytest.mark.parametrize(
    ("env", "torch_cuda", "reason"),
    [
        ({"CUSTOMCONV_CUDA": "0"}, "13.0", "CUSTOMCONV_CUDA=0"),
        ({}, None, "CPU build"),
        ({}, "13.0", "no GPU was in sight"),
    ],
)
def test_a_build_notes_why_it_leaves_cuda_out(env, torch_cuda, reason):
    assert reason in build_config.why_left_out(env, torch_cuda)


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
    assert build_config.operators.jobs(env, cores, gib << 30) == expected


def test_each_library_has_the_sources_of_its_layer(monkeypatch, tmp_path):
    common = [f"csrc/plan/{name}.cpp" for name in ("algorithm", "fold", "problem", "text")]
    build = "csrc/core/build.cpp"
    core = [build, "csrc/core/state.cpp", *common, "csrc/plan/planner.cpp"]
    core += ["csrc/kernels/direct/plan.cpp"]
    kernels = ["csrc/kernels/direct/fprop.cu", "csrc/kernels/direct/sm90/fprop.cu"]
    torch, cpu, cuda = "csrc/torch/schema.cpp", "csrc/torch/cpu/run.cpp", "csrc/torch/cuda/run.cpp"
    binding = "csrc/bind/module.cpp"
    for name in (*core, *kernels, torch, cpu, cuda, binding):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(build_config, "ROOT", tmp_path)
    assert sorted(build_config.core_sources()) == sorted(core)
    assert sorted(build_config.kernel_sources()) == sorted([*kernels, build])
    assert set(build_config.torch_sources(with_cuda=True)) == {torch, cuda, *common, build}
    assert set(build_config.torch_sources(with_cuda=False)) == {torch, cpu, *common, build}
    assert build_config.binding_sources() == [binding, build]


def test_a_kernel_and_host_code_of_one_name_are_refused(monkeypatch, tmp_path):
    for name in ("csrc/core/build.cpp", "csrc/core/build.cu"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    monkeypatch.setattr(build_config, "ROOT", tmp_path)
    with pytest.raises(ConfigError, match="same object file: csrc/core/build"):
        build_config._sources("csrc/core/*")


def test_architectures_that_torch_has_names_for():
    flags = ["-gencode=arch=compute_90a,code=sm_90a", "-gencode=arch=compute_120,code=sm_120"]
    assert build_config.numbered(flags) == "9.0a;12.0"
    flags += ["-gencode=arch=compute_120,code=compute_120"]
    assert build_config.numbered(flags) == "9.0a;12.0+PTX"


@pytest.mark.parametrize(
    ("arch", "library"), [("8.0", "sm80"), ("9.0a", "sm90a"), ("12.0+PTX", "sm120_ptx")]
)
def test_a_library_is_named_after_its_architecture(arch, library):
    assert build_config.library_of(arch) == library


@pytest.mark.parametrize(
    ("minor", "with_cuda", "library"),
    [((2, 9), True, "torch_2_9_cuda"), ((2, 14), False, "torch_2_14")],
)
def test_operators_are_named_after_their_pytorch(minor, with_cuda, library):
    assert build.library_name(minor, with_cuda) == library


def test_the_interface_is_what_headers_say(monkeypatch, tmp_path):
    """What passes between libraries changes with headers, and with nothing else."""
    shutil.copytree(build_config.ROOT / "csrc", tmp_path / "csrc")
    before = build_config.hash_of_interface(tmp_path)
    (tmp_path / "csrc/plan/planner.cpp").write_text("// another planner\n")
    (tmp_path / "csrc/torch/ops.h").write_text("// other operators\n")
    assert build_config.hash_of_interface(tmp_path) == before
    header = tmp_path / "csrc/kernels/launch.h"
    header.write_text(header.read_text() + "// more\n")
    assert build_config.hash_of_interface(tmp_path) != before


def test_what_a_library_is_told_is_written_when_it_changes(tmp_path):
    header = build.build_header(tmp_path, "abc", "8.0")
    assert '#define CUSTOMCONV_ARCHITECTURE "8.0"' in header.read_text()
    os.utime(header, (1, 1))
    build.build_header(tmp_path, "abc", "8.0")
    assert header.stat().st_mtime == 1
    build.build_header(tmp_path, "def", "8.0")
    assert header.stat().st_mtime > 1


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


def test_kernels_have_their_own_standard(tmp_path):
    flags = build_config.nvcc_flags(toolkit(tmp_path, "13.0"))
    assert "-std=c++17" in flags  # torch would add the one of its headers
    assert not [flag for flag in flags if "arch" in flag]


@pytest.mark.parametrize(
    ("arch", "codes"),
    [
        ("8.6", ["compute_86,code=sm_86"]),
        ("9.0a", ["compute_90a,code=sm_90a"]),
        ("12.0+PTX", ["compute_120,code=sm_120", "compute_120,code=compute_120"]),
    ],
)
def test_gencode(arch, codes):
    assert build_config.gencode(arch) == [f"-gencode=arch={code}" for code in codes]


@pytest.mark.parametrize("release", ["2.9.0", "2.9.0a0+git1234", "2.11.0+cu130", "2.14.1"])
def test_a_tested_torch_passes_without_a_word(release):
    assert build_config.check_torch(release) is None


@pytest.mark.parametrize("release", ["2.8.0", "2.8.1+cu128", "1.13.1", "unknown"])
def test_a_torch_that_is_too_old_is_refused(release):
    with pytest.raises(ConfigError) as raised:
        build_config.check_torch(release)
    assert f"tested with PyTorch 2.9 to 2.14; this is {release}, which" in str(raised.value)
    assert 'pip install "torch>=2.9,<2.15"' in str(raised.value)


@pytest.mark.parametrize("release", ["2.15.0", "2.15.0a0+git1234", "2.100.0", "3.0.0"])
def test_a_torch_that_is_newer_gets_a_warning(release):
    warning = build_config.check_torch(release)
    assert f"tested with PyTorch 2.9 to 2.14; this is {release}, with" in warning


def program(path: Path, script: str = "") -> Path:
    """A program of the shell."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def ccache_env(tmp_path):
    """An environment in which there is a ccache."""
    program(tmp_path / "bin/ccache")
    return {"PATH": str(tmp_path / "bin")}


def test_without_ccache_nothing_changes(tmp_path):
    env = {"PATH": str(tmp_path), "CUDA_HOME": "/toolkit"}
    before = dict(env)
    assert not build_config.use_ccache(env, tmp_path / "root")
    assert env == before


@pytest.mark.parametrize("value", ["1", ""])
def test_ccache_that_is_switched_off_is_left_alone(ccache_env, tmp_path, value):
    env = {**ccache_env, "CCACHE_DISABLE": value}
    before = dict(env)
    assert not build_config.use_ccache(env, tmp_path / "root")
    assert env == before


def test_compilers_run_through_ccache(ccache_env, tmp_path):
    ccache, root = tmp_path / "bin/ccache", tmp_path / "root"
    env = {**ccache_env, "CUDA_HOME": "/toolkit"}
    assert build_config.use_ccache(env, root)
    assert Path(env["CXX"]) == root / "build/ccache/c++"
    assert os.readlink(env["CXX"]) == str(ccache)
    assert env["PYTORCH_NVCC"] == f"{ccache} /toolkit/bin/nvcc"
    assert env["CCACHE_BASEDIR"] == str(root)
    assert "CCACHE_NOHASHDIR" in env
    assert "CCACHE_PATH" not in env
    assert env["PATH"] == ccache_env["PATH"]

    again = {**ccache_env}  # a second build; this one without CUDA
    assert build_config.use_ccache(again, root)
    assert again["CXX"] == env["CXX"]
    assert "PYTORCH_NVCC" not in again


def test_a_link_to_another_ccache_is_replaced(ccache_env, tmp_path):
    link = tmp_path / "root/build/ccache/c++"
    link.parent.mkdir(parents=True)
    link.symlink_to(tmp_path / "gone")
    assert build_config.use_ccache(ccache_env, tmp_path / "root")
    assert os.readlink(link) == str(tmp_path / "bin/ccache")


def test_ccache_finds_a_compiler_that_is_named_with_its_path(ccache_env, tmp_path):
    env = {**ccache_env, "CXX": "/opt/gcc/bin/g++-14"}
    assert build_config.use_ccache(env, tmp_path / "root")
    assert Path(env["CXX"]) == tmp_path / "root/build/ccache/g++-14"
    assert env["CCACHE_PATH"] == f"/opt/gcc/bin:{ccache_env['PATH']}"


def test_what_the_user_has_set_for_ccache_stays(ccache_env, tmp_path):
    chosen = {
        "CXX": "distcc g++",
        "PYTORCH_NVCC": "sccache nvcc",
        "CCACHE_BASEDIR": "/src",
        "CCACHE_NOHASHDIR": "true",
        "CCACHE_COMPILERCHECK": "none",
    }
    home = "/venv/lib/python3.12/site-packages/nvidia/cu13"
    env = {**ccache_env, **chosen, "CUDA_HOME": home}
    assert build_config.use_ccache(env, tmp_path / "root")
    assert {name: env[name] for name in chosen} == chosen


@pytest.mark.parametrize(
    ("home", "check"),
    [("/usr/local/cuda", None), ("/venv/lib/python3.12/site-packages/nvidia/cu13", "content")],
)
def test_a_compiler_from_wheels_is_known_by_its_content(ccache_env, tmp_path, home, check):
    env = {**ccache_env, "CUDA_HOME": home}
    build_config.use_ccache(env, tmp_path / "root")
    assert env.get("CCACHE_COMPILERCHECK") == check


def real_compiler() -> str:
    """The C++ compiler itself, though ccache's link to it may come first on PATH."""
    named = os.environ.get("CXX", "c++")
    for folder in os.get_exec_path():
        found = shutil.which(named, path=folder)
        if found and not Path(found).resolve().name.startswith("ccache"):
            return found
    raise AssertionError(f"no {named} on PATH")


@pytest.mark.skipif(shutil.which("ccache") is None, reason="needs ccache")
@pytest.mark.parametrize("named", ["c++", "its path"])
def test_another_checkout_compiles_nothing_again(tmp_path, named):
    """With the real ccache: what one checkout compiled, another takes from the cache."""
    marks = tmp_path / "compiled"
    compiler = program(
        tmp_path / "compilers/c++",
        f'case "$*" in *" -E "*) ;; *" -c "*) echo x >> {marks} ;; esac\n'
        f'exec {real_compiler()} "$@"',
    )
    compiled = []
    for name in ("one", "two"):
        root = tmp_path / name
        (root / "csrc").mkdir(parents=True)
        (root / "csrc/part.h").write_text("inline int part() { return 1; }\n")
        (root / "csrc/whole.cpp").write_text('#include "part.h"\nint whole() { return part(); }\n')
        env = {name: value for name, value in os.environ.items() if not name.startswith("CCACHE_")}
        env["CCACHE_DIR"] = str(tmp_path / "cache")
        env["PATH"] = os.pathsep.join([str(compiler.parent), env["PATH"]])
        env["CXX"] = "c++" if named == "c++" else str(compiler)
        assert build_config.use_ccache(env, root)
        objects = root / f"build/temp-{name}"
        objects.mkdir(parents=True)
        command = [env["CXX"], f"-I{root}/csrc", "-MMD", "-MF", f"{objects}/whole.o.d", "-g0", "-c"]
        command += [f"{root}/csrc/whole.cpp", "-o", f"{objects}/whole.o"]
        subprocess.run(command, cwd=objects, env=env, check=True)
        assert (objects / "whole.o").exists()
        compiled.append(len(marks.read_text().split()))
    assert compiled == [1, 1]


def test_the_hash_of_plans_is_that_of_the_planner_and_the_kernels(tmp_path):
    for name in ("plan/a.h", "kernels/b/c.cu", "torch/d.cpp"):
        path = tmp_path / "csrc" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("old\n")
    before = build_config.hash_of_plans(tmp_path)
    (tmp_path / "csrc/torch/d.cpp").write_text("new\n")
    (tmp_path / "csrc/plan/notes.txt").write_text("new\n")
    (tmp_path / "csrc/plan/a.h").write_bytes(b"old\r\n")
    assert build_config.hash_of_plans(tmp_path) == before
    (tmp_path / "csrc/kernels/b/c.cu").write_text("new\n")
    assert build_config.hash_of_plans(tmp_path) != before
