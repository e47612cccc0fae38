"""CUDA graphs, streams, threads, devices and processes."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
import textwrap
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from op_support import conv, leaves, pytorchs, widened
from reference import (
    EVERY_PROBLEM,
    FAMILIES,
    PROBLEMS,
    Problem,
    assert_accurate,
    assert_equal,
    tolerances,
)

import customconv

ALGORITHMS = ("auto", *FAMILIES)
MEDIUM = Problem((4, 24, 40, 36), (32, 24, 3, 3), padding=(1, 1))
VOLUME = Problem((2, 24, 5, 20, 36), (32, 24, 3, 3, 3), padding=(1, 1, 1))
on_streams = pytest.mark.parametrize(
    ("problem", "algorithm"),
    [*((MEDIUM, name) for name in ALGORITHMS), (VOLUME, "direct")],
    ids=[*ALGORITHMS, "volume-direct"],
)


def forward_and_backward(tensors, grad, problem, algorithm):
    output = conv(*tensors, *problem.geometry, algorithm=algorithm)
    wanted = [t for t in tensors if t is not None]
    return [output.detach(), *torch.autograd.grad(output, wanted, grad)]


def prepare(problem, device, dtype=torch.float32):
    """Tensors to differentiate by, and a gradient of the output."""
    tensors = leaves(*problem.tensors(device, dtype))
    shape = pytorchs(*(None if t is None else t.to("meta") for t in tensors), *problem.geometry)
    return tensors, torch.randn(shape.shape, device=device).to(dtype)


def assert_right(results, tensors, grad, problem):
    """Against PyTorch's, in double precision on the same device."""
    with torch.no_grad():
        exact = [None if t is None else widened(t) for t in tensors]
    expected = forward_and_backward(leaves(*exact), grad.double(), problem, "aten")
    for actual, value in zip(results, expected, strict=True):
        rounded_once = actual.dtype.itemsize == 2
        at_most = (2 if rounded_once else 20) * torch.finfo(actual.dtype).eps
        assert_accurate(actual, value, at_most)


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize(
    ("problem", "algorithm"),
    [
        *itertools.product(["dense", "strided", "depthwise", "unbatched"], ALGORITHMS),
        *itertools.product(["volume_dense", "volume_slices"], ["direct"]),
    ],
)
def test_graph_capture_and_replay(problem, algorithm, dtype):
    problem = EVERY_PROBLEM[problem]
    tensors, grad = prepare(problem, "cuda", dtype)
    # Another problem warms up: the captured one is planned during the capture.
    warm, warm_grad = prepare(PROBLEMS["asymmetric"], "cuda", dtype)
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for name in (algorithm, "im2col"):  # PyTorch makes no cuBLAS handle during a capture
            forward_and_backward(warm, warm_grad, PROBLEMS["asymmetric"], name)
    torch.cuda.current_stream().wait_stream(side)

    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = forward_and_backward(tensors, grad, problem, algorithm)
    previous = None
    for _ in range(3):
        with torch.no_grad():
            for tensor in (*tensors, grad):
                tensor.copy_(torch.randn_like(tensor))
        graph.replay()
        for actual, eager in zip(
            results, forward_and_backward(tensors, grad, problem, algorithm), strict=True
        ):
            assert_equal(actual, eager)
        assert previous is None or not torch.equal(previous, results[0])
        previous = results[0].clone()
    assert_right(results, tensors, grad, problem)


@pytest.mark.gpu
def test_graphed_module():
    module = customconv.Conv2d(4, 6, 3, padding=1).cuda()
    plain = torch.nn.Conv2d(4, 6, 3, padding=1).cuda()
    plain.load_state_dict(module.state_dict())
    sample = torch.randn(2, 4, 9, 8, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(module, (sample,))
    for _ in range(2):
        x = torch.randn(2, 4, 9, 8, device="cuda")
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        graphed(ours).square().sum().backward()
        plain(theirs).square().sum().backward()
        assert_equal(ours.grad, theirs.grad, **tolerances(torch.float32, 1000))
        for p, q in zip(module.parameters(), plain.parameters(), strict=True):
            assert_equal(p.grad, q.grad, rtol=1e-5, atol=1e-3)
        module.zero_grad()
        plain.zero_grad()


def busy(milliseconds):
    """Keeps the current stream from going on for about so long."""
    torch.cuda._sleep(int(milliseconds * 1.5e6))


@pytest.mark.gpu
@on_streams
def test_side_stream(problem, algorithm):
    """All work is queued on the current stream, behind what makes its operands."""
    tensors, grad = prepare(problem, "cuda")
    expected = forward_and_backward(tensors, grad, problem, algorithm)
    sources = [t.detach().clone() for t in (*tensors, grad)]
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        forward_and_backward(tensors, grad, problem, algorithm)  # its memory stays cached
    torch.cuda.synchronize()
    with torch.no_grad():
        for tensor in (*tensors, grad):
            tensor.fill_(float("nan"))
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        busy(60)
        with torch.no_grad():
            for tensor, source in zip((*tensors, grad), sources, strict=True):
                tensor.copy_(source)
        results = forward_and_backward(tensors, grad, problem, algorithm)
        assert not stream.query(), "the stream was to be busy still"
    stream.synchronize()
    for actual, value in zip(results, expected, strict=True):
        assert_equal(actual, value)


@pytest.mark.gpu
@on_streams
def test_streams_at_the_same_time(problem, algorithm):
    """Each stream has a workspace to itself."""
    work = [prepare(problem, "cuda") for _ in range(4)]
    expected = [forward_and_backward(*w, problem, algorithm) for w in work]
    streams = [torch.cuda.Stream() for _ in work]
    torch.cuda.synchronize()
    results = []
    for _ in range(5):
        for stream, w in zip(streams, work, strict=True):
            with torch.cuda.stream(stream):
                results.append(forward_and_backward(*w, problem, algorithm))
    torch.cuda.synchronize()
    for index, actual in enumerate(results):
        for ours, value in zip(actual, expected[index % len(work)], strict=True):
            assert_equal(ours, value)


@pytest.mark.gpu
@on_streams
def test_no_hidden_synchronisation(problem, algorithm):
    tensors, grad = prepare(problem, "cuda")
    expected = forward_and_backward(tensors, grad, problem, algorithm)
    forward_and_backward(tensors, grad, problem, algorithm)  # its memory stays cached
    torch.cuda.synchronize()
    torch.cuda.set_sync_debug_mode("error")
    try:
        busy(100)
        results = forward_and_backward(tensors, grad, problem, algorithm)
        still_busy = not torch.cuda.current_stream().query()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert still_busy, "a call waited for the GPU"
    for actual, value in zip(results, expected, strict=True):
        assert_equal(actual, value)


def test_several_threads(device):
    """The same answers as one after the other, with new problems met by all at once."""
    names = [name for name, problem in EVERY_PROBLEM.items() if problem.bias]
    work = {name: prepare(EVERY_PROBLEM[name], device, torch.float64) for name in names}
    start = threading.Barrier(8)

    def compute(name):
        problem = EVERY_PROBLEM[name]  # of volumes PyTorch's results may differ from call to call
        algorithm = "direct" if device == "cuda" and problem.dims == 3 else "auto"
        return forward_and_backward(*work[name], problem, algorithm)

    def run(index):
        start.wait()
        stream = torch.cuda.Stream() if device == "cuda" and index % 2 else None
        with torch.cuda.stream(stream):
            if stream is not None:
                stream.wait_stream(torch.cuda.default_stream())
            results = [(name, compute(name)) for name in (names[index:] + names[:index]) * 3]
            if stream is not None:
                stream.synchronize()
        return results

    with ThreadPoolExecutor(8) as pool:
        found = [result for results in pool.map(run, range(8)) for result in results]
    for name in names:
        expected = compute(name)
        assert_right(expected, *work[name], EVERY_PROBLEM[name])
        for other, results in found:
            if other == name:
                for actual, value in zip(results, expected, strict=True):
                    assert_equal(actual, value, what=name)


@pytest.mark.gpu
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_second_device(algorithm):
    """Tensors on a device that is not the current one, whose state stays as it is."""
    if torch.cuda.device_count() < 2:
        pytest.skip("needs a second GPU")
    tensors, grad = prepare(MEDIUM, "cuda:1")
    results = forward_and_backward(tensors, grad, MEDIUM, algorithm)
    assert torch.cuda.current_device() == 0
    assert all(result.device == torch.device("cuda:1") for result in results)
    assert_right(results, tensors, grad, MEDIUM)
    with torch.cuda.device(1), torch.cuda.stream(torch.cuda.Stream(1)):
        again = forward_and_backward(tensors, grad, MEDIUM, algorithm)
    torch.cuda.synchronize(1)
    for actual, value in zip(again, results, strict=True):
        assert_equal(actual, value)


@pytest.mark.gpu
def test_first_call_of_a_thread_whose_memory_is_cached():
    """Nothing has bound the device to the thread when its kernels' tensors are described."""
    x = torch.randn(2, 64, 9, 8, device="cuda", dtype=torch.float16)
    x = x.to(memory_format=torch.channels_last)
    w = torch.randn(64, 64, 3, 3, device="cuda", dtype=torch.float16)
    results = []

    def use():
        results.append(torch.ops.customconv.conv2d(x, w, algorithm="implicit_gemm"))

    use()
    expected = results.pop().clone()
    thread = threading.Thread(target=use)
    thread.start()
    thread.join()
    (actual,) = results
    assert_equal(actual, expected)


def test_fork_before_first_use(device):
    """Importing touches no GPU: a child may use it first, from several threads at once."""
    program = """
        import os, sys, threading
        import torch
        import torch.nn.functional as F
        import customconv
        torch.backends.cudnn.allow_tf32 = False
        x, w = torch.randn(2, 4, 9, 8), torch.randn(6, 4, 3, 3)
        customconv.explain(x, w)
        assert not torch.cuda.is_initialized()
        child = os.fork()
        if child:
            sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        results = []
        def use():
            results.append(customconv.conv2d(x.to(DEVICE), w.to(DEVICE)).cpu())
        threads = [threading.Thread(target=use) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        expected = F.conv2d(x, w)
        errors = [(actual - expected).abs().max().item() for actual in results]
        os._exit(0 if len(errors) == 4 and max(errors) < 1e-4 else 1)
    """
    program = textwrap.dedent(program).replace("DEVICE", repr(device))
    done = subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
