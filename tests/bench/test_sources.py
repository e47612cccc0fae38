"""The hash of the sources, and which rows are older than a change of them."""

from __future__ import annotations

import shutil
import subprocess

import pytest

from bench import sources
from bench.sources import Ages

FILES = {
    "csrc/plan/plan.h": "struct Plan {};\n",
    "csrc/torch/module.cpp": "int a;\nint b;\n",
    "python/customconv/__init__.py": "import torch\n",
    "python/customconv/py.typed": "",
}


def write(root, files):
    for path, content in files.items():
        file = root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode())
    return root


def tree_hash(root):
    return sources.hash_tree(sources.hash_sources(root))


@pytest.fixture
def tree(tmp_path):
    return write(tmp_path / "tree", FILES)


def test_hash_does_not_depend_on_where_or_in_which_order(tree, tmp_path):
    other = write(tmp_path / "other", dict(reversed(FILES.items())))
    assert sources.hash_sources(tree) == sources.hash_sources(other)
    assert list(sources.hash_sources(other)) == sorted(FILES)
    assert tree_hash(tree) == tree_hash(other)


def test_hash_is_the_same_for_ever(tree):
    """Another way to hash would make every record a stranger to its tree."""
    assert tree_hash(tree) == "f582dd60bd7e7bc7"


def test_hash_does_not_depend_on_line_endings(tree, tmp_path):
    crlf = {path: content.replace("\n", "\r\n") for path, content in FILES.items()}
    assert tree_hash(write(tmp_path / "crlf", crlf)) == tree_hash(tree)


@pytest.mark.parametrize(
    "built",
    [
        "python/customconv/_bind.cpython-312-x86_64-linux-gnu.so",
        "python/customconv/_build.json",
        "python/customconv/__pycache__/ops.cpython-312.pyc",
        "python/customconv.egg-info/PKG-INFO",
        "csrc/.cache/clangd",
        "csrc/plan/.plan.h.swp",
        "docs/index.md",
    ],
)
def test_only_sources_count(tree, built):
    before = tree_hash(tree)
    write(tree, {built: "anything"})
    assert tree_hash(tree) == before


@pytest.mark.parametrize(
    "change",
    [
        {"csrc/plan/plan.h": "struct Plan { };\n"},
        {"csrc/plan/new.h": ""},
        {"python/customconv/data.json": "{}"},
    ],
)
def test_every_change_counts(tree, change):
    before = tree_hash(tree)
    write(tree, change)
    assert tree_hash(tree) != before


def test_a_renamed_file_counts(tree):
    before = tree_hash(tree)
    (tree / "csrc/plan/plan.h").rename(tree / "csrc/plan/plans.h")
    assert tree_hash(tree) != before


def test_sources_are_what_git_tracks():
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--"]
    if not shutil.which("git") or not (sources.ROOT / ".git").exists():
        pytest.skip("not a clone")
    listed = subprocess.run(
        [*command, *sources.FOLDERS], cwd=sources.ROOT, capture_output=True, text=True
    )
    assert listed.returncode == 0, listed.stderr
    tracked = {path for path in listed.stdout.split("\n") if (sources.ROOT / path).is_file()}
    assert set(sources.hash_sources()) == tracked


HISTORY = {
    "csrc/kernels/tiled/tiled.cu": "int tiled;\n",
    "csrc/kernels/grouped/grouped.cu": "int grouped;\n",
    "csrc/kernels/common/scalar.cuh": "int scalar;\n",
    "csrc/kernels/ptx/mma.cuh": "int mma;\n",
    "csrc/kernels/launch.h": "int launch;\n",
    "csrc/plan/planner.cpp": "int plan;\n",
    "csrc/torch/module.cpp": "int module;\n",
    "python/customconv/__init__.py": "",
    "python/customconv/compiler/rewrite.py": "",
    "README.md": "",
}


class Clone:
    """A small repository."""

    def __init__(self, root):
        self.root = write(root, HISTORY)
        self.git("init", "--quiet")
        self.first = self.commit({})

    def git(self, *arguments):
        named = ["-c", "user.name=A", "-c", "user.email=a@b.c", "-c", "commit.gpgsign=false"]
        done = subprocess.run(
            ["git", *named, *arguments], cwd=self.root, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    def commit(self, files):
        write(self.root, files)
        self.git("add", "--all")
        self.git("commit", "--quiet", "--allow-empty", "--message", "change")
        return self.git("rev-parse", "HEAD")

    def is_old(self, commit, family="tiled", **more):
        return Ages(self.root).is_old({"commit": commit, "family": family, **more})


@pytest.fixture
def clone(tmp_path):
    if not shutil.which("git"):
        pytest.skip("no git")
    return Clone(tmp_path / "clone")


@pytest.mark.parametrize(
    ("path", "old"),
    [
        ("csrc/kernels/tiled/tiled.cu", {"tiled"}),
        ("csrc/kernels/tiled/new.cuh", {"tiled"}),
        ("csrc/kernels/grouped/grouped.cu", {"grouped"}),
        ("csrc/kernels/common/scalar.cuh", {"tiled", "grouped", "aten"}),
        ("csrc/kernels/ptx/mma.cuh", {"tiled", "grouped", "aten"}),
        ("csrc/kernels/launch.h", {"tiled", "grouped", "aten"}),
        ("csrc/plan/planner.cpp", {"tiled", "grouped", "aten"}),
        ("csrc/torch/module.cpp", set()),
        ("python/customconv/__init__.py", set()),
        ("README.md", set()),
    ],
)
def test_rows_are_old_once_their_familys_sources_change(clone, path, old):
    families = ("tiled", "grouped", "aten")
    assert not any(clone.is_old(clone.first, family) for family in families)
    second = clone.commit({path: "changed"})
    assert {family for family in families if clone.is_old(clone.first, family)} == old
    assert not any(clone.is_old(second, family) for family in families)
    clone.commit({"README.md": "more"})
    assert not any(clone.is_old(second, family) for family in families)


def test_a_row_without_a_family_is_old_once_any_familys_sources_change(clone):
    assert not clone.is_old(clone.first, "")
    clone.commit({"csrc/kernels/grouped/grouped.cu": "changed"})
    assert clone.is_old(clone.first, "")


@pytest.mark.parametrize(
    ("path", "old"),
    [
        ("csrc/kernels/grouped/grouped.cu", True),
        ("csrc/plan/planner.cpp", True),
        ("python/customconv/compiler/rewrite.py", True),
        ("python/customconv/__init__.py", False),
    ],
)
def test_a_networks_row_is_old_once_any_kernel_or_the_compiler_changes(clone, path, old):
    row = {"network": "resnet50", "commit": clone.first}
    assert not Ages(clone.root).is_old(row)
    clone.commit({path: "changed"})
    assert Ages(clone.root).is_old(row) == old


def test_a_short_name_of_a_commit_is_known(clone):
    assert not clone.is_old(clone.first[:8])
    clone.commit({"csrc/plan/planner.cpp": "changed"})
    assert clone.is_old(clone.first[:8])


@pytest.mark.parametrize("commit", [None, "", "0123456", "HEAD+dirty", "--no-index"])
def test_a_row_of_an_unknown_commit_is_old(clone, commit):
    assert clone.is_old(commit)


def test_an_uncommitted_change_makes_rows_old(clone):
    write(clone.root, {"csrc/kernels/tiled/tiled.cu": "changed"})
    assert clone.is_old(clone.first)
    assert not clone.is_old(clone.first, "grouped")


def test_a_row_of_the_present_sources_is_current_whatever_its_commit(clone):
    before = tree_hash(clone.root)
    assert not clone.is_old(None, sources=before)
    clone.commit({"csrc/kernels/grouped/grouped.cu": "changed"})
    assert clone.is_old(None, sources=before)
    assert not clone.is_old(clone.first, sources=before)  # of another family


def test_without_git_only_rows_of_the_present_sources_are_current(clone):
    shutil.rmtree(clone.root / ".git")
    assert not Ages(clone.root).has_git
    assert clone.is_old(clone.first)
    assert not clone.is_old(clone.first, sources=tree_hash(clone.root))


def test_a_clone_around_the_sources_is_not_theirs(clone):
    inner = write(clone.root / "unpacked", HISTORY)
    assert not Ages(inner).has_git
