"""The benchmark's modules import each other one way."""

from __future__ import annotations

import graphlib

import pytest
from closure import Tree


def order(tree):
    """The modules, each after those that it imports anywhere in its text."""
    modules = tree.glob("bench/**/*.py")
    return list(graphlib.TopologicalSorter({m: tree.needs(m) for m in modules}).static_order())


def test_there_is_no_circle():
    found = order(Tree())
    assert len(found) > 40
    assert found.index("bench/network_rows.py") < found.index("bench/compiled.py")
    assert found.index("bench/compiled.py") < found.index("bench/models.py")


def test_a_circle_is_found(tmp_path):
    (tmp_path / "bench").mkdir()
    for name, text in {
        "__init__": "",
        "one": "from . import two",
        "two": "def main():\n    from .one import main",
    }.items():
        (tmp_path / f"bench/{name}.py").write_text(text)
    with pytest.raises(graphlib.CycleError, match=r"bench/one\.py"):
        order(Tree(tmp_path))
