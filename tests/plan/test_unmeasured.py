"""What the planner takes on GPUs for which it has no prices."""

from __future__ import annotations

import random
from typing import Any

import pytest
from random_problems import PASSES, problem, random_arguments

from customconv import _bind

NOBODY = "nobody has measured this GPU"


def device(
    capability: tuple[int, int], sm_count: int, clock_ghz: float, bandwidth_gb_s: float, kib: int
) -> _bind.DeviceProperties:
    return _bind.DeviceProperties(
        capability=capability, sm_count=sm_count, clock_ghz=clock_ghz,
        bandwidth_gb_s=bandwidth_gb_s, shared_bytes_block=kib << 10,
    )  # fmt: skip


UNMEASURED = {
    "A100": device((8, 0), 108, 1.41, 1555, 163),
    "RTX 3090": device((8, 6), 82, 1.7, 936, 99),
    "L4": device((8, 9), 58, 2.04, 300, 99),
    "B200": device((10, 0), 148, 1.96, 8000, 227),
    "RTX 5090": device((12, 0), 170, 2.4, 1792, 99),
}
DENSE = {"input": (8, 64, 56, 56), "weight": (64, 64, 3, 3), "padding": (1, 1)}
DEPTHWISE = DENSE | {"weight": (64, 1, 3, 3), "groups": 64}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", UNMEASURED)
def test_depthwise_planes_leave_no_doubt(name, op, dtype):
    """Also in a fused call, and where TF32 is allowed."""
    for extra in ({}, {"tf32": True}, {"epilogue_passes": 2, "residual": True}):
        p = problem(**DEPTHWISE | extra, op=op, dtype=dtype)
        assert _bind.plan(p, UNMEASURED[name]).family == "depthwise"


@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(DENSE, id="dense"),
        pytest.param(DENSE | {"weight": (64, 4, 3, 3), "groups": 16}, id="thin groups"),
        pytest.param(DEPTHWISE | {"weight": (128, 1, 3, 3)}, id="two outputs a channel"),
        pytest.param(DEPTHWISE | {"channels_last": True}, id="channels-last"),
        pytest.param(DEPTHWISE | {"weight": (64, 1, 31, 31), "padding": (15, 15)}, id="31 x 31"),
        pytest.param(DEPTHWISE | {"dtype": "float64"}, id="float64"),
        pytest.param(DEPTHWISE | {"input": (8, 64, 3, 3), "padding": (0, 0)}, id="a pixel"),
    ],
)
@pytest.mark.parametrize("op", PASSES)
@pytest.mark.parametrize("name", UNMEASURED)
def test_everything_else_is_pytorchs(name, op, arguments):
    p = problem(**{"dtype": "float16"} | arguments, op=op)
    assert _bind.plan(p, UNMEASURED[name]).family == "aten"
    found = {c.family: c for c in _bind.candidates(p, UNMEASURED[name])}
    assert found["aten"].reason == ""
    for family, candidate in found.items():
        if candidate.plan is not None and family != "aten":
            assert candidate.reason == NOBODY
    assert found["direct"].plan is not None


@pytest.mark.parametrize("name", UNMEASURED)
def test_the_margin_is_between_products_and_bytes(name):
    """A filter that fits the margin is taken, and any with more taps than fit it is not."""
    gpu = UNMEASURED[name]
    taken = []
    for taps in range(1, 32, 2):
        p = problem(
            input=(8, 64, 112, 112), weight=(64, 1, taps, taps), groups=64, dtype="float16",
            padding=(taps // 2, taps // 2),
        )  # fmt: skip
        bytes_s = p.least_bytes / (gpu_bandwidth(name) * 1e9)
        within = bytes_s >= 2 * 2 * p.macs / gpu.vector_flops("float16")
        assert (_bind.plan(p, gpu).family == "depthwise") == within, taps
        taken.append(within)
    assert taken == sorted(taken, reverse=True)
    assert taken[1]
    assert not taken[-1]


def gpu_bandwidth(name: str) -> float:
    return {"A100": 1555, "RTX 3090": 936, "L4": 300, "B200": 8000, "RTX 5090": 1792}[name]


@pytest.mark.parametrize("name", UNMEASURED)
def test_a_named_family_is_not_affected(name):
    p = problem(**DENSE, dtype="float16")
    for family in ("direct", "im2col", "tiled", "implicit_gemm"):
        assert _bind.plan(p, UNMEASURED[name], family).family == family


@pytest.mark.parametrize("name", UNMEASURED)
def test_batch_invariant_plans_are_ours_on_any_device(name):
    """PyTorch has none to offer."""
    rng = random.Random(5)
    for _ in range(50):
        arguments: dict[str, Any] = random_arguments(rng)
        shape = (2, *arguments["input"][1:])
        p = problem(**arguments | {"input": shape, "batch_invariant": True})
        if p.needs_wide_index:
            continue
        assert _bind.plan(p, UNMEASURED[name]).family != "aten", p


def test_the_h100_is_measured():
    reasons = [c.reason for c in _bind.candidates(problem(**DENSE, dtype="float16"))]
    assert NOBODY not in reasons
    assert _bind.plan(problem(**DENSE, dtype="float16")).family == "implicit_gemm"
