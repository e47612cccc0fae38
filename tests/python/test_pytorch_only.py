"""A PyTorch that there are no operators for: the package imports, and PyTorch computes.

Each test is a process of its own, in which PyTorch says that it is of a version to come.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import customconv
from customconv import _load, build, pytorch_only

NEWER = "import torch, warnings; torch.__version__ = '2.99.0'"
QUIET = NEWER + "; warnings.simplefilter('ignore', UserWarning)"
START = """
import torch.nn.functional as F
import customconv
ops = torch.ops.customconv
torch.manual_seed(0)
x = torch.randn(2, 8, 9, 10, dtype=torch.float64, requires_grad=True)
w = torch.randn(6, 4, 3, 3, dtype=torch.float64, requires_grad=True)
b = torch.randn(6, dtype=torch.float64, requires_grad=True)
volumes = torch.randn(2, 8, 5, 6, 7, dtype=torch.float64, requires_grad=True)
filters = torch.randn(6, 4, 2, 3, 3, dtype=torch.float64, requires_grad=True)
close = torch.testing.assert_close
"""


def run(
    code: str, folder: Path, first: str = QUIET, *words: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", first + START + code, *words],
        capture_output=True, text=True, env=os.environ | {"XDG_CACHE_HOME": str(folder)},
    )  # fmt: skip


def check(code: str, folder: Path) -> str:
    done = run(code, folder)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_warning_says_what_there_is_and_what_to_do(tmp_path):
    done = run("", tmp_path, NEWER)
    assert done.returncode == 0, done.stderr
    (warning,) = (line for line in done.stderr.splitlines() if "UserWarning" in line)
    known = build.listed(build.supported_torch(_load.PACKAGE))
    assert f"has no operators for PyTorch 2.99.0 (it has for {known})" in warning
    assert "PyTorch computes all convolutions" in warning
    assert "python -m customconv build" in warning


@pytest.mark.parametrize(
    "first",
    [
        "import os; os.environ['XDG_CACHE_HOME'] = 'relative'",
        "import pathlib\ndef home(): raise RuntimeError('no home')\n"
        "import os; del os.environ['XDG_CACHE_HOME']; pathlib.Path.home = home",
        "import pathlib; exists = pathlib.Path.exists\n"
        "def denied(path):\n    if 'torch-2.99' in str(path): raise PermissionError(path)\n"
        "    return exists(path)\n"
        "pathlib.Path.exists = denied",
        "import warnings; warnings.simplefilter('error')",
    ],
    ids=["relative cache", "no home", "a folder that may not be read", "warnings as errors"],
)
def test_it_imports_wherever_it_runs(tmp_path, first):
    done = run("print(customconv.conv2d(x, w, groups=2).shape)", tmp_path, f"{NEWER}\n{first}")
    assert done.returncode == 0, done.stderr
    assert "has no operators for PyTorch 2.99.0" in done.stderr


@pytest.mark.parametrize("content", ["no library", f"no library of {customconv._bind.build}"])
def test_a_broken_library_in_the_cache_is_told(tmp_path, content):
    """Another PyTorch may have the same version, if people built it themselves."""
    folder = tmp_path / "customconv" / customconv._bind.build / "torch-2.99.0"
    folder.mkdir(parents=True)
    for with_cuda in (False, True):
        (folder / f"{build.library_name((2, 99), with_cuda)}.so").write_text(content)
    done = run("print(customconv.conv2d(x, w, groups=2).shape)", tmp_path, NEWER)
    assert done.returncode == 0, done.stderr
    assert f"{folder}" in done.stderr and "does not fit" in done.stderr
    assert "PyTorch computes all convolutions; `python -m customconv build`" in done.stderr


def test_what_came_before_a_release_is_none(tmp_path):
    major, minor = _load.torch_minor(torch.__version__)
    early = f"import torch; torch.__version__ = '{major}.{minor}.0a0+git1234'"
    done = run("print(open('/proc/self/maps').read())", tmp_path, early)
    assert done.returncode == 0, done.stderr
    assert f"for PyTorch {major}.{minor}.0a0+git1234 (it has for releases of " in done.stderr
    assert "customconv/lib/torch_" not in done.stdout


def test_nothing_is_loaded_that_was_built_for_another_pytorch(tmp_path):
    said = check("print(open('/proc/self/maps').read())", tmp_path)
    assert "libcustomconv.so" in said
    assert "customconv/lib/torch_" not in said


def test_all_operators_are_there_with_their_schemas(tmp_path):
    schemas = pytorch_only.schemas(_load.sources())
    names = [f"customconv::{schema.partition('(')[0]}" for schema in schemas]
    code = "print(*sorted(map(str, torch._C._jit_get_all_schemas())), sep='\\n')"

    def ours(printed: str) -> list[str]:
        return [line for line in printed.splitlines() if line.partition("(")[0] in names]

    compiled = subprocess.run(
        [sys.executable, "-c", f"import torch{START}{code}"], capture_output=True, text=True
    )
    there = ours(check(code, tmp_path))
    assert there == ours(compiled.stdout)
    assert len(there) == len(schemas) == 33


CASES = {
    "forward": """
close(customconv.conv2d(x, w, b, 2, 1, 1, 2), F.conv2d(x, w, b, 2, 1, 1, 2))
close(ops.conv2d(x, w, b, [2, 2], [1, 1], [1, 1], 2), F.conv2d(x, w, b, 2, 1, 1, 2))
close(ops.conv2d(x, w, b, padding="same", groups=2), F.conv2d(x, w, b, padding="same", groups=2))
lines, taps = x[:, :, 0], w[..., 0]
close(customconv.conv1d(lines, taps, b, 1, 1, 1, 2), F.conv1d(lines, taps, b, 1, 1, 1, 2))
v = torch.randn(8, 3, 3, 3, dtype=torch.float64)
y = customconv.conv_transpose2d(x, v, None, 2, 1, 1, 2)
close(y, F.conv_transpose2d(x, v, None, 2, 1, 1, 2))
""",
    "volumes": """
ours, theirs = customconv.conv3d, F.conv3d
close(ours(volumes, filters, b, 2, 1, 1, 2), theirs(volumes, filters, b, 2, 1, 1, 2))
close(ours(volumes[0], filters, b, groups=2), theirs(volumes[0], filters, b, groups=2))
numbers = [2, 1, 1], [0, 1, 2], [1, 2, 1], 2
y = theirs(volumes, filters, b, *numbers)
close(ops.conv3d(volumes, filters, b, *numbers), y)
options = {"padding": "same", "groups": 2}
close(ops.conv3d(volumes, filters, b, **options), theirs(volumes, filters, b, **options))
leaves = [volumes, filters, b]
close(ours(*leaves, *numbers), y)
assert torch.autograd.gradcheck(lambda *t: ours(*t, *numbers), leaves, fast_mode=True)
direction = torch.randn_like(y)
expected = torch.autograd.grad(y, leaves, direction)
plain = volumes.detach(), filters.detach()
close(ops.conv3d_backward(direction, *plain, *numbers, [True, True, True]), expected)
one = ops.conv3d_backward(direction[0], plain[0][0], plain[1], *numbers, [True, False, False])
close(one[0], expected[0][0])
assert one[1] is None and one[2] is None
v = torch.randn(8, 3, 2, 3, 3, dtype=torch.float64, requires_grad=True)
numbers = [2, 1, 2], [1, 1, 0], [1, 0, 0], 2, [1, 1, 2]
y = F.conv_transpose3d(volumes, v, b, *numbers)
close(customconv.conv_transpose3d(volumes, v, b, *numbers), y)
direction = torch.randn_like(y)
found = ops.conv_transpose3d_backward(
    direction, plain[0], v.detach(), *numbers, [True, True, True])
close(found, torch.autograd.grad(y, [volumes, v, b], direction))
""",
    "fused volumes": """
scale = torch.rand(6, dtype=torch.float64)
plain = F.conv3d(volumes, filters, None, padding=1, groups=2)
residual = torch.randn_like(plain)
sums = plain * scale.view(-1, 1, 1, 1) + b.view(-1, 1, 1, 1)
for last in (False, True):
    expected = F.silu(sums) + residual if last else F.silu(sums + residual)
    close(customconv.conv3d_fused(volumes, filters, b, padding=1, groups=2, scale=scale,
        residual=residual, activation="silu", residual_last=last), expected)
v = torch.randn(8, 3, 2, 3, 3, dtype=torch.float64)
sums = F.conv_transpose3d(volumes, v, groups=2) * scale.view(-1, 1, 1, 1) + b.view(-1, 1, 1, 1)
found = customconv.conv_transpose3d_fused(
    volumes, v, b, groups=2, scale=scale, activation="relu")
close(found, sums.relu())
try:
    customconv.conv3d_fused(volumes, filters, groups=2, scale=scale[:2])
except RuntimeError as error:
    assert "conv3d_fused: expected a scale of shape [6]" in str(error)
else:
    raise AssertionError
mean, var = torch.zeros(6).double(), torch.ones(6).double()
expected_mean, expected_var = mean.clone(), var.clone()
y, variance, average, reciprocal = ops.conv3d_statistics(volumes.detach(), filters.detach(), None,
    [1, 1, 1], [1, 1, 1], [1, 1, 1], 2, 1e-5, mean, var, 0.1)
close(y, plain)
F.batch_norm(y, expected_mean, expected_var, training=True, momentum=0.1)
close((mean, var), (expected_mean, expected_var))
close(reciprocal, (y.var((0, 2, 3, 4), correction=0, keepdim=True) + 1e-5).rsqrt())
copied = ops.copy_parameters([filters.detach(), w.detach(), b.detach()], torch.float16, True)
assert copied[0].is_contiguous(memory_format=torch.channels_last_3d)
assert copied[1].is_contiguous(memory_format=torch.channels_last)
program = torch.compile(
    lambda a, c: customconv.conv3d(a, c, groups=2).relu(), backend="aot_eager", fullgraph=True)
close(program(volumes, filters), F.conv3d(volumes, filters, groups=2).relu())
mapped = torch.vmap(lambda a: customconv.conv3d(a[None], filters, groups=2)[0])(volumes)
close(mapped, F.conv3d(volumes, filters, groups=2))
explained = customconv.explain(volumes, filters, groups=2)
assert explained.family == "aten" and "has no operators" in explained.fallback
""",
    "gradients": """
call = lambda *t: customconv.conv2d(*t, padding=1, groups=2)
assert torch.autograd.gradcheck(call, (x, w, b)) and torch.autograd.gradgradcheck(call, (x, w, b))
y = call(x, w, b)
assert type(y.grad_fn).__name__ == "ConvolutionBackward0"
direction = torch.randn_like(y)
expected = torch.autograd.grad(y, (x, w, b), direction)
numbers = [1, 1], [1, 1], [1, 1], 2
found = ops.conv2d_backward(direction, x.detach(), w.detach(), *numbers, [True, True, True])
close(found, expected)
found = ops.conv2d_backward(direction, x.detach(), w.detach(), *numbers, [False, True, False])
assert found[0] is None and found[2] is None
close(found[1], expected[1])
one = ops.conv2d_backward(direction[0], x[0].detach(), w.detach(), *numbers, [True, False, False])
close(one[0], expected[0][0])
v = torch.randn(8, 3, 3, 3, dtype=torch.float64, requires_grad=True)
y = F.conv_transpose2d(x, v, None, 2, 1, 1, 2)
direction = torch.randn_like(y)
found = ops.conv_transpose2d_backward(
    direction, x.detach(), v.detach(), [2, 2], [1, 1], [1, 1], 2, [1, 1], [True, True, True])
close(found[:2], torch.autograd.grad(y, (x, v), direction))
close(found[2], direction.sum((0, 2, 3)))
""",
    "fused": """
scale, residual = torch.rand(6, dtype=torch.float64), torch.randn(2, 6, 9, 10, dtype=torch.float64)
sums = F.conv2d(x, w, None, padding=1, groups=2) * scale.view(-1, 1, 1) + b.view(-1, 1, 1)
for last in (False, True):
    expected = F.silu(sums) + residual if last else F.silu(sums + residual)
    close(customconv.conv2d_fused(x, w, b, padding=1, groups=2, scale=scale, residual=residual,
                                  activation="silu", residual_last=last), expected)
try:
    customconv.conv2d_fused(x, w, padding=1, groups=2, scale=scale[:2])
except RuntimeError as error:
    assert "expected a scale of shape [6]" in str(error)
else:
    raise AssertionError
half = customconv.conv2d_fused(x.bfloat16(), w.bfloat16(), b.float(), groups=2, activation="relu")
assert half.dtype == torch.bfloat16
""",
    "batch norms": """
mean, var = torch.zeros(6).double(), torch.ones(6).double()
expected_mean, expected_var = mean.clone(), var.clone()
y, variance, average, reciprocal = ops.conv2d_statistics(
    x.detach(), w.detach(), None, [1, 1], [1, 1], [1, 1], 2, 1e-5, mean, var, 0.1)
F.batch_norm(y, expected_mean, expected_var, training=True, momentum=0.1)
close((mean, var), (expected_mean, expected_var))
close(reciprocal, (y.var((0, 2, 3), correction=0, keepdim=True) + 1e-5).rsqrt())
shift = torch.randn(6).double()
scale, moved = ops.fold_batch_norms([mean], [var], [b.detach()], [None], [shift], [1e-5])
z = F.conv2d(x, w, shift, groups=2)
bare = F.conv2d(x, w, None, groups=2)
close(bare * scale.view(-1, 1, 1) + moved.view(-1, 1, 1),
      F.batch_norm(z, mean, var, b.detach(), eps=1e-5))
(copied,) = ops.copy_parameters([w.detach()], torch.float16, True)
assert copied.dtype == torch.float16 and copied.is_contiguous(memory_format=torch.channels_last)
""",
    "programs": """
program = torch.compile(
    lambda a, c: customconv.conv2d(a, c, groups=2).relu(), backend="aot_eager", fullgraph=True)
close(program(x, w), F.conv2d(x, w, groups=2).relu())
mapped = torch.vmap(lambda a: customconv.conv2d(a[None], w, groups=2)[0])(x)
close(mapped, F.conv2d(x, w, groups=2))
with torch.autocast("cpu", torch.bfloat16):
    assert customconv.conv2d(x.float(), w.float(), groups=2).dtype == torch.bfloat16
model = torch.nn.Sequential(torch.nn.Conv2d(8, 6, 3), torch.nn.ReLU()).double()
expected = model(x)
converted, _ = customconv.convert(model)
close(converted(x), expected)
exported = torch.export.export(converted, (x,)).module()
close(exported(x), expected)
with torch.utils.flop_counter.FlopCounterMode(display=False) as counter:
    customconv.conv2d(x, w, groups=2)
assert counter.get_total_flops() > 0
""",
    "switches": """
with customconv.enabled():
    close(F.conv2d(x, w, groups=2), customconv.conv2d(x, w, groups=2))
    assert customconv.is_enabled()
assert "has no operators for PyTorch 2.99.0" in str(customconv.stats())
assert not customconv.build_info()["with_cuda"]
explained = customconv.explain(x, w, groups=2)
assert explained.family == "aten" and "has no operators" in explained.fallback
with customconv.batch_invariant():
    try:
        customconv.conv2d(x, w, groups=2)
    except RuntimeError as error:
        assert "is batch invariant" in str(error) and "has no operators" in str(error)
    else:
        raise AssertionError
    nothing = x[:0], w
    assert customconv.conv2d(*nothing, groups=2).shape == F.conv2d(*nothing, groups=2).shape
""",
}


@pytest.mark.parametrize("case", CASES)
def test_pytorch_computes(tmp_path, case):
    check(CASES[case], tmp_path)


@pytest.mark.parametrize(
    ("call", "kind", "words"),
    [
        ("customconv.conv2d(x, w, groups=2, algorithm='tiled')", "RuntimeError", "'tiled' cannot"),
        ("customconv.conv2d(x, w, groups=2, algorithm='none')", "ValueError", "unknown algorithm"),
        ("customconv.conv2d(x, w, groups=3)", "RuntimeError", "to have 12 channels"),
        ("customconv.explain(x, w, groups=3)", "RuntimeError", "to have 12 channels"),
        ("customconv.conv3d(x[0], filters)", "RuntimeError", "to conv3d, but got input of size"),
        ("customconv.conv2d(volumes, filters)", "RuntimeError", "to conv2d, but got input of size"),
        ("customconv.explain(volumes, filters)", "RuntimeError", "to have 4 channels"),
    ],
)
def test_errors_are_raised_as_ever(tmp_path, call, kind, words):
    done = run(call, tmp_path)
    assert done.returncode == 1
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith(f"{kind}: ")
    assert words in last


def test_info_says_it(tmp_path):
    said = check("print(customconv.info.report())", tmp_path)
    assert re.search(r"CUDA +off: customconv .* has no operators for PyTorch 2.99.0", said)


# The build that the warning names.


def test_the_shipped_sources_are_all_that_is_compiled():
    csrc = _load.sources()
    shipped = {path for pattern in build.SHIPPED for path in csrc.glob(pattern)}
    for with_cuda in (False, True):
        assert set(build.sources(csrc, with_cuda)) <= shipped
    for path in shipped:
        for name in re.findall(r'^#include "(.+)"$', path.read_text(), re.MULTILINE):
            if name != "customconv_build.h":  # which the build writes
                assert csrc / name in shipped, f"{path.name} includes {name}"


def test_a_build_that_fails_says_why(tmp_path):
    code = (
        "import sys; from customconv.__main__ import main; import os; "
        "os.environ['CXX'] = 'no-such-compiler'; sys.exit(main(['build']))"
    )
    done = run(code, tmp_path)
    assert done.returncode == 1
    assert "the C++ compiler 'no-such-compiler' does not run" in done.stderr
    assert not list(tmp_path.rglob("*.so"))


def test_missing_headers_of_cuda_are_named(monkeypatch, tmp_path):
    monkeypatch.setattr(build, "cuda_wheels", lambda major: [])
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "SYSTEM_TOOLKIT", tmp_path)
    monkeypatch.setattr(build.importlib.util, "find_spec", lambda name: None)
    (tmp_path / "include/crt").mkdir(parents=True)
    names = "cuda_runtime_api.h", "crt/host_defines.h", "cublas_v2.h", "cusparse.h"
    for name in names:
        with pytest.raises(build.BuildError, match=f"header {name} is missing"):
            build.headers_of_cuda("13.0")
        (tmp_path / "include" / name).touch()
    assert build.headers_of_cuda("13.0") == (tmp_path / "include",)


@pytest.mark.skipif(torch.version.cuda is None, reason="this PyTorch has no CUDA")
def test_pytorchs_wheels_bring_all_headers(monkeypatch):
    """Without a toolkit, and without the wheels of the compiler, which PyTorch does not ask for."""
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(build, "SYSTEM_TOOLKIT", Path("/nonexistent"))
    found = build.headers_of_cuda(torch.version.cuda)
    assert any("triton" in folder.parts for folder in found)


@pytest.mark.slow
def test_a_build_is_loaded_by_the_next_import(tmp_path):
    """Of the installed PyTorch, whose own library is hidden."""
    hide = "import pathlib; is_there = pathlib.Path.exists; pathlib.Path.exists = lambda p: "
    hide += "'customconv/lib/torch_' not in str(p) and is_there(p)\n"
    first = f"import torch, warnings; warnings.simplefilter('ignore', UserWarning)\n{hide}"
    if shutil.which("ccache"):
        first += "import os; os.environ.setdefault('CXX', 'ccache c++')\n"
    code = "import sys; from customconv.__main__ import main; sys.exit(main(['build']))"
    done = run(code, tmp_path, first)
    assert done.returncode == 0, done.stderr
    (library,) = tmp_path.rglob("torch_*.so")
    assert str(library) in done.stdout
    code = "close(customconv.conv2d(x, w, b, groups=2), F.conv2d(x, w, b, groups=2))\n"
    code += "print(customconv.build_info()['operators'])"
    done = run(code, tmp_path, f"import torch\n{hide}")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(library)
    assert customconv.build_info()["operators"] != str(library)
