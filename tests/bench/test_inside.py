"""The convolutions that a network calls: how they are counted and named."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench import inside

CPU = torch.device("cpu")


@pytest.fixture
def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2, padding=1),
        nn.Sequential(*(nn.Conv2d(8, 8, 3, padding=1, groups=4) for _ in range(2))),
        nn.ConvTranspose2d(8, 4, 2, 2, bias=False),
    )  # fmt: skip


def found(network, run, layout="nchw"):
    return {
        (call.op, call.layer.name, inside.shape_of(call.layer)): times
        for call, times in inside.recorded(network, run, "tf32", layout).items()
    }


def test_a_forward_pass(network):
    x = torch.randn(2, 3, 8, 8)
    assert found(network, lambda: network(x)) == {
        ("fprop", "0", "2x3x8x8 -> 8, 3x3, stride 2, padding 1"): 1,
        ("fprop", "1.0", "2x8x4x4 -> 8, 3x3, padding 1, groups 4"): 2,
        ("fprop", "2", "2x8x4x4 -> 4, 2x2, stride 2, transposed"): 1,
    }


def test_a_step_has_the_gradients_that_are_asked_for(network):
    counts = found(network, lambda: network(torch.randn(2, 3, 8, 8)).sum().backward())
    first, second, third = "0", "1.0", "2"
    by_name = {(op, name): times for (op, name, _), times in counts.items()}
    assert by_name == {
        ("fprop", first): 1, ("wgrad", first): 1,
        ("fprop", second): 2, ("dgrad", second): 2, ("wgrad", second): 2,
        ("fprop", third): 1, ("dgrad", third): 1, ("wgrad", third): 1,
    }  # fmt: skip


def test_a_1d_convolution_has_a_height_of_one():
    network = nn.Sequential(nn.Conv1d(2, 4, 3, stride=2, dilation=2))
    (call,) = inside.recorded(network, lambda: network(torch.randn(1, 2, 9)), "fp32", "nchw")
    assert (call.layer.input, call.layer.weight) == ((1, 2, 1, 9), (4, 2, 1, 3))
    assert (call.layer.Q, call.layer.stride, call.layer.dil) == (3, (1, 2), (1, 2))


def test_a_3d_convolution_is_of_volumes():
    network = nn.Sequential(
        nn.Conv3d(2, 4, (3, 1, 2), stride=(1, 2, 1), padding=(1, 0, 0)),
        nn.ConvTranspose3d(4, 3, 2, 2, output_padding=(1, 0, 0)),
    )
    x = torch.randn(1, 2, 3, 5, 4).contiguous(memory_format=torch.channels_last_3d)
    assert found(network, lambda: network(x)) == {
        ("fprop", "0", "1x2x3x5x4 -> 4, 3x1x2, stride (1, 2, 1), padding (1, 0, 0)"): 1,
        ("fprop", "1", "1x4x3x3x3 -> 3, 2x2x2, stride 2, transposed"): 1,
    }
    first, second = inside.recorded(network, lambda: network(x), "fp32", "nchw")
    assert first.layout == "nhwc"
    assert first.layer.output == (1, 4, 3, 3, 3)
    assert second.layer.output == tuple(network(x).shape)


def test_layout_and_precision_are_the_tensors():
    network = nn.Conv2d(4, 4, 1)
    last = torch.randn(2, 4, 3, 3).contiguous(memory_format=torch.channels_last)
    small = torch.randn(2, 4, 1, 1)  # of both layouts

    def run():
        network(last)
        network(small)
        with torch.autocast("cpu", torch.bfloat16):
            network(last.contiguous())

    calls = inside.recorded(network, run, "tf32", "nhwc")
    assert [(call.precision, call.layout) for call in calls] == [
        ("tf32", "nhwc"), ("tf32", "nhwc"), ("bf16", "nchw")
    ]  # fmt: skip


@pytest.mark.gpu
def test_a_backward_pass_is_seen_from_autograds_threads(network):
    network.cuda()
    calls = found(network, lambda: network(torch.randn(2, 3, 8, 8).cuda()).sum().backward())
    assert {op for op, *_ in calls} == {"fprop", "dgrad", "wgrad"}


def test_hooks_are_gone_afterwards(network):
    inside.recorded(network, lambda: network(torch.randn(1, 3, 8, 8)), "fp32", "nchw")
    for module in network.modules():
        assert not module._forward_hooks
        assert not module._forward_pre_hooks


def test_costs_are_in_the_order_of_lost_time(network, monkeypatch):
    times = {"fprop": ("im2col", 2.0, 1.0), "dgrad": ("direct", 1.0, 3.0), "wgrad": None}
    monkeypatch.setattr(inside, "timed", lambda call, *_: times[call.op])
    run = lambda: network(torch.randn(1, 3, 8, 8)).sum().backward()  # noqa: E731
    costs = inside.costs(inside.recorded(network, run, "fp32", "nchw"), CPU, budget_s=10)
    assert [(cost.op, cost.name, cost.lost_ms) for cost in costs] == [
        ("fprop", "1.0", 2.0), ("fprop", "0", 1.0), ("fprop", "2", 1.0),
        ("dgrad", "2", -2.0), ("dgrad", "1.0", -4.0),
    ]  # fmt: skip


def test_each_call_is_timed(network):
    run = lambda: network(torch.randn(1, 3, 8, 8)).sum().backward()  # noqa: E731
    calls = inside.recorded(network, run, "fp32", "nchw")
    costs = inside.costs(calls, CPU, budget_s=10, call_s=0.001)
    assert len(costs) == len(calls) == 8
    assert all(min(cost.ours_ms, cost.pytorch_ms) > 0 and cost.family for cost in costs)
