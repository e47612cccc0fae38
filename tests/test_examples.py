"""The examples run as they are, and find that their results agree with PyTorch's."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
COMPILE = {"train.py", "export/export.py"}  # they need a C++ compiler, and most of a minute
RUN = [
    "audio.py", "export/export.py", "infer.py", "several_gpus.py", "train.py", "vae_decode.py",
    "video_decode.py",
]  # fmt: skip

marked = [pytest.param(name, marks=pytest.mark.slow if name in COMPILE else ()) for name in RUN]


def run(name: str, *launcher: str, **env: str) -> str:
    if name in COMPILE and not shutil.which(os.environ.get("CXX", "c++")):
        pytest.skip("needs a C++ compiler")
    done = subprocess.run(
        [sys.executable, *launcher, EXAMPLES / name],
        env={**os.environ, **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.parametrize("name", marked)
def test_an_example_runs_on_a_cpu(name):
    assert run(name, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")


# Without export/export.py: PyTorch cannot load packages of its own on every machine with a GPU, and
# tests/op/test_export.py tells its failures from ours.
@pytest.mark.gpu
@pytest.mark.parametrize("name", [name for name in RUN if name != "export/export.py"])
def test_an_example_runs_on_a_gpu(name):
    assert run(name)


def test_two_processes_share_an_image():
    launcher = "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"
    output = run("several_gpus.py", *launcher, CUDA_VISIBLE_DEVICES="", OMP_NUM_THREADS="1")
    assert "rows   conv2d" in output


def test_every_example_is_run_and_listed():
    assert RUN == sorted(str(path.relative_to(EXAMPLES)) for path in EXAMPLES.rglob("*.py"))
    listed = (EXAMPLES / "README.md").read_text()
    assert [name for name in RUN if f"]({name})" not in listed] == []
