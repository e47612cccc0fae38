"""Networks whose convolutions are ours, and the check before they are timed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import customconv
from bench import models, networks

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    """A network of every kind of convolution, small enough to train here."""

    def build():
        return nn.Sequential(
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, padding_mode="reflect"), nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 1), nn.Flatten(),
        )  # fmt: skip

    monkeypatch.setitem(networks.NETWORKS, "small", build)
    return "small"


@pytest.mark.parametrize("name", list(networks.NETWORKS))
def test_every_convolution_becomes_ours_with_the_same_weights(name):
    network = networks.build(name)
    ours = networks.with_our_convolutions(network)
    converted, total = networks.convolutions(ours)
    assert converted == total > 10
    assert networks.convolutions(network) == (0, total)
    for (key, a), (other, b) in zip(
        network.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(a, b)
        assert a.numel() == 0 or a.data_ptr() != b.data_ptr()


def test_the_unet_keeps_the_images_size():
    x = torch.randn(2, 3, 32, 48)
    assert networks.UNet((4, 8, 16))(x).shape == (2, 1, 32, 48)


@pytest.mark.parametrize("mode", models.MODES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
def test_a_network_is_checked_and_timed(small, mode, layout):
    outcome = models.compare(small, mode, "fp32", layout, 2, 16, CPU, budget_s=0.05)
    assert outcome.error == ""
    assert outcome.ours_err < 1e-5
    assert outcome.ratio_lo <= outcome.ratio <= outcome.ratio_hi
    assert min(outcome.ours_ms, outcome.pytorch_ms) > 0


@pytest.mark.parametrize("mode", models.MODES)
def test_a_wrong_convolution_is_caught(small, mode, monkeypatch):
    right = customconv.Conv2d._conv_forward
    monkeypatch.setattr(
        customconv.Conv2d, "_conv_forward", lambda self, x, w, b: right(self, x, 1.2 * w, b)
    )
    outcome = models.compare(small, mode, "fp32", "nchw", 2, 16, CPU, budget_s=0.05)
    assert outcome.error.startswith("off by ")
    assert outcome.ratio == 0


def test_the_evidence_of_a_step_leaves_the_network_as_it_was(small):
    runner = models.Runner(networks.build(small), torch.randn(2, 3, 16, 16), "step", None)
    before = {key: value.clone() for key, value in runner.network.state_dict().items()}
    runner.evidence("step")
    for key, value in runner.network.state_dict().items():
        assert torch.equal(value, before[key]), key
