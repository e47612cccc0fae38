"""Tiles whose steps thread blocks share: each waits for what earlier blocks leave in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from cases import Tensors, case, make_integers, place_all
from compute import by_pytorch, compute, forced, poison
from reference import assert_equal
from torch import Tensor

from customconv import _bind
from customconv.explain import variants

# Fewer tiles than thread blocks, and some waves of them with a short last one.
PROBLEMS = {
    "few_tiles": case((2, 512, 24, 32), (136, 512, 3, 3), padding=(1, 1)),
    "waves": case((12, 512, 40, 40), (256, 512, 3, 3), padding=(1, 1)),
}
LAYOUTS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}
DTYPES = (torch.float16, torch.float32)

pytestmark = pytest.mark.gpu


def shared_plans(name: str, t: Tensors) -> list[_bind.ConvPlan]:
    """The plans of the main loop whose tiles are shared."""
    weighed = variants(t.x, t.w, t.bias, *PROBLEMS[name].geometry, "fprop")
    return [plan for plan in weighed if plan.fields.get("stream_k")]


def placed(name: str, layout: str, dtype: torch.dtype) -> tuple[Tensors, Tensor]:
    """Integers and their exact convolution."""
    problem = PROBLEMS[name]
    values = make_integers(problem)
    t = place_all(problem, values, "cuda", dtype, LAYOUTS[layout])
    exact = place_all(problem, values, "cuda", torch.float64, torch.contiguous_format)
    return t, by_pytorch("fprop", problem, exact).to(dtype)


def calls(name: str, t: Tensors, plan: _bind.ConvPlan, count: int) -> Iterator[Tensor]:
    for _ in range(count):
        with forced(plan):
            yield compute("fprop", "implicit_gemm", PROBLEMS[name], t)


@pytest.fixture(autouse=True)
def tf32() -> Iterator[None]:
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        yield


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_calls_in_a_row_give_the_same_bits(name, layout, dtype):
    """Whatever the workspace holds: also what an earlier call left there."""
    problem = PROBLEMS[name]
    t = place_all(problem, make_integers(problem), "cuda", dtype, LAYOUTS[layout])
    torch.manual_seed(0)
    t.x.normal_()
    t.w.normal_()
    plans = shared_plans(name, t)
    assert plans
    for plan in plans:
        results = calls(name, t, plan, 20)
        first = next(results)
        for result in results:
            assert torch.equal(result, first), plan
            poison(plan.workspace_bytes)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_calls_on_several_streams_do_not_wait_for_each_other(layout, dtype):
    """Thread blocks that wait hold multiprocessors which those of another stream ask for."""
    t, expected = placed("few_tiles", layout, dtype)
    plans = shared_plans("few_tiles", t)
    streams = [torch.cuda.Stream(priority=-(i % 2)) for i in range(4)]
    torch.cuda.synchronize()
    results = []
    for plan in plans[:6]:
        for stream in streams:
            with torch.cuda.stream(stream):
                results += calls("few_tiles", t, plan, 10)
    torch.cuda.synchronize()
    for result in results:
        assert_equal(result, expected, what="one of several streams")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_captured_call_waits_anew_at_every_replay(layout, dtype):
    """Launches are the same each time, and so is what blocks leave to say that they are done."""
    t, _ = placed("few_tiles", layout, dtype)
    inputs = [torch.randint_like(t.x, -2, 3) for _ in range(4)]
    for plan in shared_plans("few_tiles", t):
        expected = [next(calls("few_tiles", replace(t, x=x), plan, 1)) for x in inputs]
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            result = next(calls("few_tiles", t, plan, 1))
        for x, own in list(zip(inputs, expected, strict=True)) * 3:
            t.x.copy_(x)
            graph.replay()
            assert_equal(result, own, what=str(plan))
