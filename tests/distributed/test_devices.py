"""Two GPUs in one process: each call runs where its tensors are, whatever the current device is."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F
from ranks import WITHOUT_RANKS
from torch import Tensor, nn

import customconv

pytestmark = WITHOUT_RANKS

DEVICES = ["cuda:0", "cuda:1"]


class Problem(NamedTuple):
    """A convolution with a padding of one, whose sums of small integers are exact in its type."""

    image: tuple[int, ...]
    weight: tuple[int, ...]
    dtype: torch.dtype
    groups: int = 1


PROBLEMS = {
    "tensor cores": Problem((4, 64, 14, 14), (64, 64, 3, 3), torch.float16),
    "strict float32": Problem((2, 16, 12, 12), (32, 16, 3, 3), torch.float32),
    "depthwise": Problem((4, 32, 14, 14), (32, 1, 3, 3), torch.float32, groups=32),
}

Tensors = tuple[Tensor, Tensor, Tensor]
Convolve = Callable[[Tensor, Tensor, int], Tensor]


def integers(*sizes: int, seed: int = 0) -> Tensor:
    return torch.randint(-1, 2, sizes, generator=torch.Generator().manual_seed(seed)).double()


def operands(problem: Problem, seed: int = 0) -> Tensors:
    """The image, the weight and the output's gradient, in double precision on the CPU."""
    images, _, *size = problem.image
    return (
        integers(*problem.image, seed=seed),
        integers(*problem.weight, seed=seed + 1),
        integers(images, problem.weight[0], *size, seed=seed + 2),
    )


def placed(problem: Problem, device: str, seed: int = 0) -> Tensors:
    x, w, gradient = (each.to(device, problem.dtype) for each in operands(problem, seed))
    return x, w, gradient


def passes(convolve: Convolve, tensors: Tensors, groups: int) -> Tensors:
    """The output and the gradients of the image and the weight."""
    x, w = (each.detach().requires_grad_() for each in tensors[:2])
    y = convolve(x, w, groups)
    y.backward(tensors[2])
    return y.detach(), x.grad, w.grad


def by_pytorch(x: Tensor, w: Tensor, groups: int) -> Tensor:
    return F.conv2d(x, w, padding=1, groups=groups)


def by_operator(x: Tensor, w: Tensor, groups: int) -> Tensor:
    return torch.ops.customconv.conv2d(x, w, padding=1, groups=groups)


def by_module(x: Tensor, w: Tensor, groups: int) -> Tensor:
    filters, channels, *size = w.shape
    module = customconv.Conv2d(
        channels * groups, filters, size, padding=1, groups=groups, bias=False, device="meta"
    )
    return torch.func.functional_call(module, {"weight": w}, (x,))


OURS = [by_operator, by_module]


def on_cpu(problem: Problem, seed: int = 0) -> Tensors:
    return passes(by_pytorch, operands(problem, seed), problem.groups)


def assert_exact(found: Tensors, expected: Tensors, device: str) -> None:
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.device == torch.device(device)
        assert torch.equal(mine.cpu().double(), theirs)


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("current", [0, 1])
def test_the_current_device_does_not_matter(name, current):
    problem = PROBLEMS[name]
    expected = on_cpu(problem)
    for device in DEVICES:
        for convolve in (*OURS, by_pytorch):
            customconv.stats(reset=True)
            with torch.cuda.device(current), customconv.enabled():
                found = passes(convolve, placed(problem, device), problem.groups)
                assert torch.cuda.current_device() == current
            assert customconv.stats().calls
            assert_exact(found, expected, device)


def test_both_devices_give_the_same_bits():
    if torch.cuda.get_device_name(0) != torch.cuda.get_device_name(1):
        pytest.skip("needs two GPUs of one kind")
    for problem in PROBLEMS.values():
        tensors = [torch.randn_like(each).to(problem.dtype) for each in operands(problem)]
        first, second = (
            passes(by_operator, tuple(each.to(device) for each in tensors), problem.groups)
            for device in DEVICES
        )
        for mine, theirs in zip(first, second, strict=True):
            assert torch.equal(mine.cpu(), theirs.cpu())


@pytest.mark.parametrize("convolve", [*OURS, by_pytorch])
@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_tensors_on_two_devices_are_pytorchs_error(convolve, problem):
    here, there = (placed(problem, device) for device in DEVICES)
    for x, w in ((here[0], there[1]), (there[0], here[1])):
        with customconv.enabled(), pytest.raises(RuntimeError, match="same device"):
            convolve(x, w, problem.groups)
    y = convolve(*here[:2], problem.groups)  # nothing is left behind
    assert torch.equal(y.cpu().double(), on_cpu(problem)[0])


def test_threads_on_both_devices_at_once():
    work = [(name, device, seed) for name in PROBLEMS for device in DEVICES for seed in (0, 10)]
    expected = {(name, seed): on_cpu(PROBLEMS[name], seed) for name, _, seed in work}
    tensors = {each: placed(PROBLEMS[each[0]], *each[1:]) for each in work}
    for device in DEVICES:
        torch.cuda.synchronize(device)

    def use(thread: int) -> list[Tensors]:
        """The threads begin at different problems; each second one has streams of its own."""
        streams = [torch.cuda.Stream(device) for device in DEVICES] if thread % 2 else []
        current = thread // 2 % 2
        found = []
        with torch.cuda.device(current):
            for name, device, seed in work[thread:] + work[:thread]:
                here = streams[DEVICES.index(device)] if streams else None
                with torch.cuda.stream(here):
                    convolve = OURS[thread % 2]
                    groups = PROBLEMS[name].groups
                    found.append(passes(convolve, tensors[name, device, seed], groups))
                assert torch.cuda.current_device() == current
            for stream in streams:
                stream.synchronize()
        return found

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(use, range(8)))
    for device in DEVICES:
        torch.cuda.synchronize(device)
    for thread, results in enumerate(found):
        order = work[thread:] + work[:thread]
        for (name, device, seed), result in zip(order, results, strict=True):
            assert_exact(result, expected[name, seed], device)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_a_graph_of_either_device_while_the_first_is_current(problem):
    for device in DEVICES:
        x, w, _ = placed(problem, device)
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.cuda.stream(stream):
            by_operator(x, w, problem.groups)  # what a first call does must not be captured
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream), torch.cuda.device(0):
            y = by_operator(x, w, problem.groups)
        assert torch.cuda.current_device() == 0
        for seed in (10, 20):
            other = operands(problem, seed)[0]
            x.copy_(other)
            graph.replay()
            torch.cuda.synchronize(device)
            expected = F.conv2d(other, w.cpu().double(), padding=1, groups=problem.groups)
            assert torch.equal(y.cpu().double(), expected)


@pytest.mark.parametrize("problem", PROBLEMS.values(), ids=PROBLEMS)
def test_a_copy_from_the_other_device_is_waited_for(problem):
    for source, target in (DEVICES, DEVICES[::-1]):
        _, w, _ = placed(problem, target)
        for seed in (10, 20, 30):
            x = torch.zeros(problem.image, device=source, dtype=problem.dtype)
            values = operands(problem, seed)[0].to(source, problem.dtype)
            with torch.cuda.device(source):
                torch.cuda._sleep(20_000_000)  # some 10 ms, after which the image is there
                x.copy_(values)
            y = by_operator(x.to(target, non_blocking=True), w, problem.groups)
            expected = F.conv2d(
                values.cpu().double(), w.cpu().double(), padding=1, groups=problem.groups
            )
            assert torch.equal(y.cpu().double(), expected)


class Halves(nn.Module):
    """A network whose second half is on another device, where ``devices`` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, groups=16)
        )
        self.second = nn.Sequential(nn.ReLU(), nn.ConvTranspose2d(16, 4, 2, stride=2))
        self.devices = ["cpu", "cpu"]

    def moved(self, devices: list[str]) -> Halves:
        self.devices = devices
        self.first.to(devices[0])
        self.second.to(devices[1])
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.to(self.devices[0])).to(self.devices[1]))


@pytest.mark.parametrize("devices", [DEVICES, DEVICES[::-1]])
@pytest.mark.parametrize("way", ["routed", "converted"])
def test_gradients_pass_from_device_to_device(way, devices):
    plain = Halves()
    with torch.no_grad():
        for parameter in plain.parameters():
            parameter.copy_(integers(*parameter.shape))
    model = copy.deepcopy(plain).moved(devices)
    if way == "converted":
        customconv.convert(model)
    x, other = (integers(2, 3, 8, 8).float().requires_grad_() for _ in range(2))
    expected = plain(x)
    gradient = integers(*expected.shape).float()
    expected.backward(gradient)
    customconv.stats(reset=True)
    with customconv.enabled() if way == "routed" else contextlib.nullcontext():
        found = model(other)
        found.backward(gradient.to(devices[1]))
    assert customconv.stats().calls
    assert torch.equal(found.cpu(), expected)
    assert torch.equal(other.grad, x.grad)
    for (name, mine), theirs in zip(model.named_parameters(), plain.parameters(), strict=True):
        assert mine.grad.device == mine.device
        assert torch.equal(mine.grad.cpu(), theirs.grad), name
