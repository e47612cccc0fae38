"""The same bits each time, whatever the memory held and wherever in a batch an image is."""

from __future__ import annotations

import contextlib

import pytest
import torch
from op_support import FLOATS, conv, conv_transpose, families, leaves
from reference import (
    EVERY_PROBLEM,
    FAMILIES,
    LAYOUTS,
    PROBLEMS,
    VOLUMES,
    Problem,
    TransposedProblem,
    assert_equal,
)

# Large enough that sums over pixels are cut into parts.
LARGE = Problem((16, 8, 96, 96), (8, 8, 3, 3), padding=(1, 1))
VOLUME = Problem((2, 8, 12, 48, 48), (8, 8, 3, 3, 3), padding=(1, 1, 1))
STRIDED = Problem((16, 8, 96, 96), (8, 8, 4, 4), (2, 2), (1, 1))
ALGORITHMS = ("auto", *FAMILIES)


def algorithms(tensors, problem):
    """All that can compute it, but PyTorch, whose results may differ from call to call."""
    auto = ["auto"] if problem.dims == 2 or not tensors[0].is_cuda else []
    return [*auto, *families(*tensors, *problem.geometry)]


def forward_and_backward(tensors, problem, algorithm):
    t = leaves(*tensors)
    convolve = conv_transpose if isinstance(problem, TransposedProblem) else conv
    output = convolve(*t, *problem.geometry, algorithm=algorithm)
    wanted = [one for one in t if one is not None]
    return [output.detach(), *torch.autograd.grad(output.sin().sum(), wanted)]


@contextlib.contextmanager
def deterministic():
    torch.use_deterministic_algorithms(True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(False)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(("problem", "algorithm"), [
    *[(LARGE, algorithm) for algorithm in ALGORITHMS],
    (STRIDED, "auto"), (TransposedProblem.of(STRIDED), "auto"), (VOLUME, "direct"),
])  # fmt: skip
def test_twenty_runs(problem, algorithm, dtype, layout):
    """Whatever PyTorch's switch says, also while other work takes turns with them on the GPU."""
    tensors = problem.tensors("cuda", dtype, layout)
    expected = forward_and_backward(tensors, problem, algorithm)
    other, stream = torch.randn(1024, 1024, device="cuda"), torch.cuda.Stream()
    torch.cuda.synchronize()
    for run in range(20):
        if run % 2:
            with torch.cuda.stream(stream):
                other @ other
        with deterministic():
            results = forward_and_backward(tensors, problem, algorithm)
        for actual, value in zip(results, expected, strict=True):
            assert_equal(actual, value, what=f"run {run}")
    torch.cuda.synchronize()


def test_deterministic_algorithms(device):
    """PyTorch's switch changes nothing, and raises nothing."""
    for problem in EVERY_PROBLEM.values():
        tensors = problem.tensors(device, torch.float32)
        for algorithm in algorithms(tensors, problem):
            expected = forward_and_backward(tensors, problem, algorithm)
            with deterministic():
                results = forward_and_backward(tensors, problem, algorithm)
            for actual, value in zip(results, expected, strict=True):
                assert_equal(actual, value)


@pytest.mark.gpu
@pytest.mark.parametrize("layout", LAYOUTS, ids=["nchw", "nhwc"])
@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("algorithm", ["direct", "tiled"])
def test_position_in_the_batch(algorithm, dtype, layout):
    """An image has the same output and gradient at each place of a batch."""
    problem = Problem((7, 12, 19, 23), (10, 12, 3, 3), (1, 1), (1, 1))
    x, w, bias = problem.tensors("cuda", dtype, layout)
    if algorithm not in families(x, w, bias, *problem.geometry):
        assert (algorithm, dtype) == ("tiled", torch.float64)
        return
    order = torch.randperm(7)
    straight = forward_and_backward((x, w, bias), problem, algorithm)
    shuffled = forward_and_backward(
        (x[order].contiguous(memory_format=layout), w, bias), problem, algorithm
    )
    for actual, expected in zip(shuffled[:2], straight[:2], strict=True):  # output, grad of input
        assert_equal(actual, expected[order])


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", FLOATS)
def test_size_of_the_batch(dtype):
    """Direct convolution computes an image alone as it does among others."""
    x, w, bias = Problem((5, 12, 19, 23), (10, 12, 3, 3)).tensors("cuda", dtype)
    together = conv(x, w, bias, algorithm="direct")
    for index in range(5):
        alone = conv(x[index], w, bias, algorithm="direct")
        assert_equal(alone, together[index])


def fill_free_memory(byte):
    """Leaves PyTorch's allocator with free memory that holds nothing but this byte."""
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    mebibytes = [1] * 16 + [20] * 4 + [256]  # the allocator serves small requests from the small
    blocks = [torch.full((m * 2**20,), byte, dtype=torch.uint8, device="cuda") for m in mebibytes]
    del blocks


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16])
@pytest.mark.parametrize("problem", [*EVERY_PROBLEM, "large"])
def test_nothing_is_left_unwritten_or_read_unwritten(problem, dtype):
    """In memory full of NaN, results and workspaces are as in memory full of zeros."""
    problem = LARGE if problem == "large" else EVERY_PROBLEM[problem]
    tensors = problem.tensors("cuda", dtype)
    for algorithm in algorithms(tensors, problem):
        fill_free_memory(0)
        expected = forward_and_backward(tensors, problem, algorithm)
        assert all(result.isfinite().all() for result in expected)
        fill_free_memory(255)
        results = forward_and_backward(tensors, problem, algorithm)
        for actual, value in zip(results, expected, strict=True):
            assert_equal(actual, value, what=algorithm)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_results_are_their_own(algorithm):
    """A later call does not write into an earlier one's results."""
    first = LARGE.tensors("cuda", torch.float32)
    results = forward_and_backward(first, LARGE, algorithm)
    copies = [result.clone() for result in results]
    forward_and_backward(LARGE.tensors("cuda", torch.float32), LARGE, algorithm)
    for actual, value in zip(results, copies, strict=True):
        assert_equal(actual, value)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_operands_are_not_changed(algorithm):
    volumes = VOLUMES if algorithm in ("auto", "direct") else {}
    for problem in [*PROBLEMS.values(), *volumes.values()]:
        tensors = problem.tensors("cuda", torch.float32)
        copies = [None if t is None else t.clone() for t in tensors]
        forward_and_backward(tensors, problem, algorithm)
        for actual, value in zip(tensors, copies, strict=True):
            assert_equal(actual, value)
