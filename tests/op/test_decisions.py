"""A call is decided once for each pass, and ``explain`` says what is run."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from op_support import conv2d, conv2d_backward, conv_transpose2d
from reference import float32_precision
from torch import Tensor

import customconv
from customconv import _bind

HERE = Path(__file__)
GEOMETRY = ((1, 1), (1, 1), (1, 1), 1)


def sliced(t: Tensor) -> Tensor:
    return torch.stack([t, t], -1)[..., 1]


def shifted(t: Tensor) -> Tensor:
    """Off alignment."""
    return t.new_empty(t.numel() + 1)[1:].view(t.shape).copy_(t)


ARRANGEMENTS: dict[str, Callable[[Tensor], Tensor]] = {
    "dense": torch.clone,
    "channels_last": lambda t: t.to(memory_format=torch.channels_last),
    "sliced": sliced,
    "shifted": shifted,
}


def lookups(call: Callable[[], Any]) -> int:
    before = _bind.lookups()
    call()
    return _bind.lookups() - before


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
@pytest.mark.parametrize("arrangement", ARRANGEMENTS)
def test_each_pass_is_looked_up_once(arrangement, precision):
    x, w = (ARRANGEMENTS[arrangement](torch.randn(s, device="cuda")) for s in
            ((4, 64, 20, 20), (64, 64, 3, 3)))  # fmt: skip
    bias, dy = torch.randn(64, device="cuda"), torch.randn(4, 64, 20, 20, device="cuda")
    dy = ARRANGEMENTS[arrangement](dy)

    def statistics() -> Any:
        op = torch.ops.customconv.conv2d_statistics
        return op(x, w, bias, *GEOMETRY, 1e-3, None, None, 0.1)

    with float32_precision(precision):
        assert lookups(lambda: conv2d(x, w, bias, *GEOMETRY)) == 1
        assert lookups(lambda: conv_transpose2d(x, w, bias, 1, 1)) == 1
        assert lookups(lambda: conv2d(x, w, bias, *GEOMETRY, algorithm="direct")) == 1
        assert lookups(statistics) == 1
        assert lookups(lambda: customconv.conv1d(x[:, :, 0], w[:, :, 0])) == 1
        for mask in ([True, True, True], [True, False, False], [False, True, False]):
            count = lookups(lambda mask=mask: conv2d_backward(dy, x, w, *GEOMETRY, mask))
            assert count == mask[0] + mask[1]
        with customconv.enabled():
            assert lookups(lambda: F.conv2d(x, w, bias, padding=1)) == 1


@pytest.mark.gpu
@pytest.mark.parametrize("arrangement", ["sliced", "shifted"])
def test_a_strided_fused_call_is_fused_where_it_is_rounded(arrangement):
    x, w = torch.randn(4, 64, 20, 20, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    bias, arrange = torch.randn(64, device="cuda"), ARRANGEMENTS[arrangement]

    def call(x: Tensor, w: Tensor) -> Tensor:
        return customconv.conv2d_fused(x, w, bias, padding=1, activation="relu")

    with float32_precision("tf32"):
        expected = call(x, w)
        assert lookups(lambda: call(x, w)) == 1  # it is fused: a convolution is not asked for
        assert lookups(lambda: call(arrange(x), arrange(w))) == 1
        assert torch.equal(call(arrange(x), arrange(w)), expected)


def copies_made(call: Callable[[], Any]) -> int:
    """Allocations of a call that ran before."""
    call()
    before = torch.cuda.memory_stats()["allocation.all.allocated"]
    call()
    return torch.cuda.memory_stats()["allocation.all.allocated"] - before


@pytest.mark.gpu
def test_an_input_gradient_copies_no_input():
    x, w = torch.randn(4, 64, 20, 20, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")
    dy = torch.randn(4, 64, 20, 20, device="cuda")

    def dgrad(x: Tensor, w: Tensor) -> int:
        mask = [True, False, False]
        return copies_made(lambda: conv2d_backward(dy, x, w, *GEOMETRY, mask))

    with float32_precision("tf32"):
        assert dgrad(sliced(x), w) == dgrad(x, w)
        assert dgrad(x, sliced(w)) > dgrad(x, w)


@pytest.mark.gpu
def test_a_family_that_never_rounds_takes_strided_tensors_as_they_are():
    x, w = torch.randn(4, 64, 20, 20, device="cuda"), torch.randn(64, 64, 3, 3, device="cuda")

    def forward(x: Tensor, algorithm: str) -> int:
        return copies_made(lambda: conv2d(x, w, None, *GEOMETRY, algorithm=algorithm))

    with float32_precision("tf32"):
        assert forward(sliced(x), "direct") == forward(x, "direct")
        assert forward(sliced(x), "implicit_gemm") > forward(x, "implicit_gemm")


# Prints what `explain` says of a call, then the call logs what it runs.
COMPARE = """
import sys
import torch
import customconv
from customconv import _bind

torch.backends.cudnn.allow_tf32 = sys.argv[1] == "tf32"
sys.path += sys.argv[2:]
from test_decisions import ARRANGEMENTS

def compare(call, *arguments, **given):
    plan = customconv.explain(*arguments, **given).plan
    assert plan is not None
    print(f"said of {call}: {plan}", file=sys.stderr, flush=True)

side = 16
for dtype in (torch.float32, torch.float16):
    for arrange in ARRANGEMENTS.values():
        side += 1  # a new problem each time, since a plan is logged once
        x = arrange(torch.randn(2, 64, side, side, device="cuda").to(dtype))
        w = arrange(torch.randn(64, 64, 3, 3, device="cuda").to(dtype))
        b = torch.randn(64, device="cuda").to(dtype)
        compare("conv2d", x, w, b, padding=1)
        y = customconv.conv2d(x, w, b, padding=1)
        dy = torch.randn_like(y)
        for i, op in enumerate(("dgrad", "wgrad")):
            compare(op, x, w, op=op, padding=1)
            mask = [i == 0, i == 1, False]
            torch.ops.customconv.conv2d_backward(dy, x, w, [1, 1], [1, 1], [1, 1], 1, mask)
        compare("transposed", x, w, b, transposed=True)
        customconv.conv_transpose2d(x, w, b)
        line, taps = x[:, :, 0], w[:, :, 0]
        compare("conv1d", line, taps)
        customconv.conv1d(line, taps)
        compare("named", x, w, algorithm="direct")
        customconv.conv2d(x, w, algorithm="direct")
        side += 1
        x = arrange(torch.randn(2, 64, side, side, device="cuda").to(dtype))
        assert _bind.begin_recording()
        customconv.conv2d(x, w, stride=2)
        ((index, p),) = _bind.end_recording()
        second = _bind.tunable(p, _bind.device_properties(0))[1][1]
        _bind.set_tuned_plan(index, p, _bind.TunedPlan(second.name))
        compare("tuned", x, w, stride=2)
        customconv.conv2d(x, w, stride=2)
"""


@pytest.mark.gpu
@pytest.mark.parametrize("precision", ["tf32", "ieee"])
def test_explain_says_what_is_run(precision):
    done = subprocess.run(
        [sys.executable, "-c", COMPARE, precision, *map(str, HERE.parents[:2])],
        capture_output=True, text=True, env={**os.environ, "CUSTOMCONV_LOG": "plan"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    lines = done.stderr.splitlines()
    said = [i for i, line in enumerate(lines) if line.startswith("said of ")]
    assert len(said) == 2 * len(ARRANGEMENTS) * 7
    for i in said:
        call, plan = lines[i].split(": ", 1)
        assert lines[i + 1].startswith("customconv: "), lines[i]
        assert lines[i + 1].endswith(f": {plan}"), f"{call}: {lines[i + 1]} was run, not {plan}"
        assert ("tuned " in plan) == (call == "said of tuned")
