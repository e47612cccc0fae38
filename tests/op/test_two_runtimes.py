"""Kernels are launched by a CUDA runtime of their own, beside PyTorch's in the same process."""

from __future__ import annotations

import subprocess
import sys
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import customconv
from customconv import _bind

pytestmark = pytest.mark.gpu

several = pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")


def operands(device: str = "cuda", seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """Small integers in float16, whose sums are exact: by the main loop, with the copy engine."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randint(-3, 4, (4, 64, 28, 28), generator=generator)
    w = torch.randint(-3, 4, (64, 64, 3, 3), generator=generator)
    expected = F.conv2d(x.double(), w.double(), padding=1)
    return x.half().to(device), w.half().to(device), expected.half().to(device)


def run_alone(code: str) -> str:
    """Runs code in a process of its own, where nothing of CUDA has been called yet."""
    start = "import torch, torch.nn.functional as F, customconv, threading\n"
    done = subprocess.run(
        [sys.executable, "-c", start + code], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


DATA = """
x = torch.randint(-3, 4, (4, 64, 28, 28)).half()
w = torch.randint(-3, 4, (64, 64, 3, 3)).half()
expected = F.conv2d(x.float(), w.float(), padding=1).half().cuda()
x, w = x.cuda(), w.cuda()
"""


def test_the_libraries_bring_a_runtime_that_the_driver_runs():
    assert _bind.why_no_kernels(0) == ""
    (library,) = _bind.loaded_kernel_libraries()
    assert "libcustomconv_sm" in library
    properties = torch.cuda.get_device_properties(0)
    device = _bind.device_properties(0)
    assert f"sm{properties.major}{properties.minor}" in library
    assert device.has_blas


def test_what_the_driver_tells_is_what_pytorch_tells():
    """Attributes are asked for by number, as structs of CUDA's have another layout in another."""
    properties, device = torch.cuda.get_device_properties(0), _bind.device_properties(0)
    assert device.capability == (properties.major, properties.minor)
    assert device.sm_count == properties.multi_processor_count
    assert device.l2_bytes == properties.L2_cache_size
    assert device.shared_bytes_block == properties.shared_memory_per_block_optin
    assert 0.5 < device.clock_ghz < 4
    assert 100 < device.bandwidth_gb_s < 20_000


def test_a_first_launch_inside_a_capture():
    said = run_alone(
        DATA
        + """
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    y = customconv.conv2d(x, w, padding=1)
for _ in range(3):
    y.zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected)
print(sum(customconv.stats().calls.values()))
"""
    )
    assert said == "1"


def test_a_first_launch_in_a_fresh_thread():
    said = run_alone(
        DATA
        + """
results = []
thread = threading.Thread(target=lambda: results.append(customconv.conv2d(x, w, padding=1)))
thread.start(); thread.join()
assert torch.equal(results[0], expected)
y = customconv.conv2d(x.requires_grad_(), w, padding=1)  # and then in autograd's
y.backward(torch.ones_like(y))
torch.cuda.synchronize()
print(x.grad is not None)
"""
    )
    assert said == "True"


def test_the_planner_may_be_asked_before_cuda_is_started():
    said = run_alone(
        """
device = customconv._bind.device_properties(0)
assert not torch.cuda.is_initialized()
print(customconv._bind.why_no_kernels(0) or "kernels")
"""
        + DATA
        + "assert torch.equal(customconv.conv2d(x, w, padding=1), expected)"
    )
    assert said == "kernels"


def test_asking_which_gpus_are_served_starts_no_context():
    """A context takes hundreds of megabytes on a GPU that another process may use."""
    said = run_alone(
        """
customconv.enable()
torch.cuda.init()
print(customconv._bind.why_no_kernels(0), [
    torch._C._cuda_hasPrimaryContext(index) for index in range(torch.cuda.device_count())
])
"""
    )
    assert said.split("[")[0].strip() == ""
    assert "True" not in said


def test_a_process_without_cublas():
    said = run_alone(
        """
import ctypes
core = ctypes.CDLL(str(customconv._load.PACKAGE / "lib/libcustomconv.so"))
core.customconv_use_blas(ctypes.c_bool(False))
"""
        + DATA
        + """
assert torch.equal(customconv.conv2d(x, w, padding=1), expected)
try:
    customconv.conv2d(x, w, padding=1, algorithm="im2col")
except RuntimeError as error:
    print(error)
assert "no cuBLAS" in customconv.explain(x, w, padding=1, algorithm="im2col").fallback
"""
    )
    assert "PyTorch has loaded no cuBLAS" in said


def test_kernels_run_on_the_current_stream_and_are_seen_by_events():
    x, w, expected = operands()
    stream, start, end = torch.cuda.Stream(), torch.cuda.Event(), torch.cuda.Event()
    customconv.conv2d(x, w, padding=1)  # the first call loads kernels
    torch.cuda.synchronize()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(200_000_000)
        start.record()
        y = customconv.conv2d(x, w, padding=1)
        end.record()
        assert not end.query()
    end.synchronize()
    assert start.query()
    assert torch.equal(y, expected)


def test_streams_wait_for_kernels():
    x, w, expected = operands()
    first, second = torch.cuda.Stream(), torch.cuda.Stream()
    torch.cuda.synchronize()
    with torch.cuda.stream(first):
        late = torch.empty_like(x)
        torch.cuda._sleep(100_000_000)
        late.copy_(x)
        y = customconv.conv2d(late, w, padding=1)
    second.wait_stream(first)
    with torch.cuda.stream(second):
        doubled = y * 2
    second.synchronize()
    assert torch.equal(doubled, expected * 2)


def test_a_capture_holds_kernels_of_both_runtimes():
    x, w, expected = operands()
    customconv.conv2d(x, w, padding=1)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = customconv.conv2d(x + 0, w, padding=1) * 2
    x.neg_()
    graph.replay()
    torch.cuda.synchronize()
    assert torch.equal(y, expected * -2)


def test_a_forbidden_call_in_a_capture_is_pytorchs_error():
    """It leaves nothing behind that kernels of ours would find.

    Alone: afterwards PyTorch's generator of random numbers takes the capture to be still on.
    """
    said = run_alone(
        DATA
        + """
graph, raised = torch.cuda.CUDAGraph(), False
try:
    with torch.cuda.graph(graph):
        customconv.conv2d(x, w, padding=1)
        torch.cuda.synchronize()
except RuntimeError:
    raised = True
torch.cuda.synchronize()
print(raised and torch.equal(customconv.conv2d(x, w, padding=1), expected))
"""
    )
    assert said == "True"


def test_the_profiler_sees_kernels():
    x, w, _ = operands()
    customconv.conv2d(x, w, padding=1)
    torch.cuda.synchronize()
    activities = [torch.profiler.ProfilerActivity.CUDA, torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=activities) as profile:
        customconv.conv2d(x, w, padding=1)
        torch.cuda.synchronize()
    kernels = [e for e in profile.events() if e.device_type == torch.autograd.DeviceType.CUDA]
    assert any("customconv" in kernel.name for kernel in kernels)


def test_many_fresh_threads():
    x, w, expected = operands()
    results: list[Tensor] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            results.append(customconv.conv2d(x, w, padding=1))
            torch.cuda.current_stream().synchronize()

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 16
    assert all(torch.equal(each, expected) for each in results)


@several
def test_a_second_device_that_is_not_current():
    for index in (1, 0, 1):
        x, w, expected = operands(f"cuda:{index}", seed=index)
        assert torch.equal(customconv.conv2d(x, w, padding=1), expected)
        assert torch.cuda.current_device() == 0


@several
def test_the_first_call_on_a_second_device_leaves_the_current_one():
    said = run_alone(
        "torch.zeros(1, device='cuda')\n"
        + DATA.replace(".cuda()", ".to('cuda:1')")
        + """
assert torch.equal(customconv.conv2d(x, w, padding=1), expected)
print(torch.cuda.current_device())
"""
    )
    assert said == "0"


@several
def test_a_first_launch_on_a_second_device():
    """By a thread that has no context, where the first device was never used."""
    said = run_alone(
        DATA.replace(".cuda()", ".to('cuda:1')")
        + """
results = []
thread = threading.Thread(target=lambda: results.append(customconv.conv2d(x, w, padding=1)))
thread.start(); thread.join()
assert torch.equal(results[0], expected)
y = customconv.conv2d(x.requires_grad_(), w, padding=1)
y.backward(torch.ones_like(y))
torch.cuda.synchronize(1)
print(torch.cuda.current_device())
"""
    )
    assert said == "0"


@several
def test_threads_on_two_devices():
    results: dict[int, list[bool]] = {0: [], 1: []}

    def work(index: int) -> None:
        for seed in range(20):
            x, w, expected = operands(f"cuda:{index}", seed)
            results[index].append(torch.equal(customconv.conv2d(x, w, padding=1), expected))

    threads = [threading.Thread(target=work, args=(i,)) for i in (0, 1, 0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [len(each) for each in results.values()] == [40, 40]
    assert all(map(all, results.values()))
