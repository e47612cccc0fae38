"""What a file depends on, as its text says."""

from __future__ import annotations

import closure
import pytest

FILES = {
    "csrc/kernels/a/a.cu": '#include <vector>\n#include "a.cuh"\n#include "plan/plan.h"\n',
    "csrc/kernels/a/a.cuh": '  #  include "kernels/common/b.h"\n// #include "plan/unused.h"\n',
    "csrc/kernels/common/b.h": "",
    "csrc/plan/plan.h": '#include "plan/list.def"\n#include "absent.h"\n',
    "csrc/plan/list.def": "",
    "csrc/plan/unused.h": "",
    "python/package/__init__.py": "from . import first\nfrom .second import Thing, other\n",
    "python/package/_bind.pyi": "",
    "python/package/first.py": "from . import _bind\nimport json\n",
    "python/package/second.py": "from .inner.deep import thing\nfrom ._private import hidden\n",
    "python/package/_private.py": "",
    "python/package/inner/__init__.py": "from .deep import thing\n",
    "python/package/inner/deep.py": "",
    "tests/conftest.py": "import torch\n",
    "tests/helper.py": "from package import _bind\n",
    "tests/kernels/conftest.py": "",
    "tests/kernels/json.py": "",
    "tests/kernels/support.py": "def f():\n    import helper\n",
}


@pytest.fixture
def tree(tmp_path):
    for path, content in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(content)
    return closure.Tree(tmp_path)


def needs(tree, text, path="tests/kernels/test_it.py"):
    (tree.root / path).write_text(text)
    return tree.closure([path]) - {path, "tests/conftest.py", "tests/kernels/conftest.py"}


def test_includes_are_found_beside_a_file_and_from_the_root_of_the_sources(tree):
    assert tree.closure(["csrc/kernels/a/a.cu"]) == {
        "csrc/kernels/a/a.cu", "csrc/kernels/a/a.cuh", "csrc/kernels/common/b.h",
        "csrc/plan/plan.h", "csrc/plan/list.def",
    }  # fmt: skip


def test_tests_need_the_conftests_above_them(tree):
    (tree.root / "tests/kernels/test_it.py").write_text("")
    found = tree.closure(["tests/kernels/test_it.py"])
    assert found == {"tests/kernels/test_it.py", "tests/conftest.py", "tests/kernels/conftest.py"}
    assert tree.closure(["tests/kernels/support.py"]) == {
        "tests/kernels/support.py", "tests/helper.py"
    }  # fmt: skip


SECOND = {
    "python/package/second.py",
    "python/package/inner/deep.py",
    "python/package/_private.py",
}
WHOLE = SECOND | {"python/package/__init__.py", "python/package/first.py"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("import support", {"tests/kernels/support.py", "tests/helper.py"}),
        ("import json", {"tests/kernels/json.py"}),  # before the standard library's, as Python does
        ("import sys, torch.nn", set()),
        ("import package", set()),
        ("import package\npackage.Thing()", SECOND),
        ("import package as p\ndef f():\n    return p.Thing", SECOND),
        ("import package\npackage.first.x = 1", {"python/package/first.py"}),
        ("import package\npackage._bind.plan()", set()),
        ("import package\npackage.__version__", WHOLE),
        ("import package\ngetattr(package, 'Thing')", WHOLE),
        ("import package.first", {"python/package/first.py"}),
        ("from package import Thing as T", SECOND),
        ("from package import _bind, first", {"python/package/first.py"}),
        ("from package.inner import thing", {"python/package/inner/deep.py"}),
        ("from package.second import anything", SECOND),
    ],
)
def test_imports(tree, text, expected):
    assert needs(tree, text) == expected


def test_hashes_are_those_of_the_text(tree):
    before = tree.hash("csrc/plan/plan.h")
    content = FILES["csrc/plan/plan.h"].replace("\n", "\r\n")
    (tree.root / "csrc/plan/plan.h").write_bytes(content.encode())
    assert closure.Tree(tree.root).hash("csrc/plan/plan.h") == before
    (tree.root / "csrc/plan/plan.h").write_text("int a;")
    assert closure.Tree(tree.root).hash("csrc/plan/plan.h") != before


def test_what_builds_leave_is_no_source(tree):
    for name in ("_bind.cpython-312-x86_64-linux-gnu.so", "_build.json", "first.cpython-312.pyc"):
        (tree.root / "python/package" / name).write_text("")
    assert {path for path in FILES if path.startswith("python/package/")} == {
        path for pattern in ("*", "**/*") for path in tree.glob(f"python/package/{pattern}")
    }
