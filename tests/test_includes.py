"""What sources do not include, so that an edit compiles few of them again."""

from __future__ import annotations

import closure
import pytest

# Files of nothing but kernels, which take the most time to compile.
KERNELS = (
    "csrc/kernels/**/kernels_*.cu",
    "csrc/kernels/bias/*.cu",
    "csrc/kernels/im2col/gemm.cu",
    "csrc/kernels/parameters/*.cu",
    "csrc/kernels/statistics/*.cu",
)
# What the planner and the launchers share.
GEOMETRY = (
    "csrc/kernels/**/geometry.h",
    "csrc/kernels/**/tile.h",
    "csrc/kernels/**/packed.h",
    "csrc/kernels/direct/order.h",
    "csrc/kernels/im2col/columns.h",
)


@pytest.mark.parametrize("pattern", KERNELS + GEOMETRY)
def test_kernels_and_geometry_do_not_depend_on_plans(pattern):
    tree = closure.Tree()
    paths = tree.glob(pattern)
    assert paths, f"no file matches {pattern}"
    assert [p for p in paths if "csrc/plan/plan.h" in tree.closure([p])] == []
