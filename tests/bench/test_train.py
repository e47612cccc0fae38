"""Loss curves: how alike they must be, and a training by both convolutions."""

from __future__ import annotations

import json
import math

import pytest
import torch
from torch import nn

import customconv
from bench import __main__ as command
from bench import network_rows, networks, train

CPU = torch.device("cpu")
FALLING = [2.0 * 0.99**step for step in range(100)]


@pytest.fixture
def small(monkeypatch):
    def build():
        return nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
            nn.Conv2d(16, 16, 3, stride=2, padding=1), nn.ReLU(),
            nn.Flatten(), nn.Linear(256, 100),
        )  # fmt: skip

    monkeypatch.setitem(networks.NETWORKS, "small", build)
    monkeypatch.setattr(train, "CLASSIFIERS", [*train.CLASSIFIERS, "small"])
    monkeypatch.setattr(train, "LEARNING_RATE", 0.1 / 16)
    return "small"


def shifted(by):
    return [loss + by for loss in FALLING]


@pytest.mark.parametrize(("off", "right"), [(0, True), (0.02, True), (0.026, False), (-0.1, False)])
def test_how_far_ours_may_be(off, right):
    """One and a half times as far as PyTorch's are from each other, from the nearest of them."""
    pytorch = [FALLING, shifted(0.004), shifted(0.01)]
    distance, spread, error = train.judged(shifted(off), pytorch)
    assert distance == pytest.approx(max(0, off - 0.01) if off > 0 else -off)
    assert spread == pytest.approx(0.01)
    assert (error == "") is right


def test_one_step_that_is_off_counts_for_its_window():
    peak = [loss + (step == 50) for step, loss in enumerate(FALLING)]
    steps = len(FALLING) - train.WINDOW + 1
    expected = math.sqrt(train.WINDOW / steps) / train.WINDOW
    assert train.distance(peak, FALLING) == pytest.approx(expected)


def test_what_diverges_or_learns_nothing_is_an_error():
    pytorch = [FALLING, shifted(0.01)]
    assert "off by nan" in train.judged([*FALLING[:-1], math.nan], pytorch)[2]
    assert "learned nothing" in train.judged([1.0] * 100, [[1.0] * 100, [1.01] * 100])[2]


def test_every_pupil_sees_the_same(small):
    pupils = [
        train.Pupil(networks.build(small), 4, 16, "fp32", layout) for layout in ("nchw", "nhwc")
    ]
    for number in (1, 2):
        images = [pupil.look(number) for pupil in pupils]
        assert torch.equal(*images)
        assert torch.equal(*(pupil.kinds for pupil in pupils))
        assert images[1].is_contiguous(memory_format=torch.channels_last)
    assert not torch.equal(pupils[0].look(1), images[0])


def test_weights_are_rounded_once():
    network = nn.Conv2d(4, 4, 3)
    other = train.rounded(network, 2**-11, seed=1)
    for a, b in zip(network.parameters(), other.parameters(), strict=True):
        off = ((a - b) / a).abs()
        assert 2**-13 < off.max() <= 2**-11 * 1.001
    assert all(
        torch.equal(a, b)
        for a, b in zip(
            network.parameters(), train.rounded(network, 0, 0).parameters(), strict=True
        )
    )


@pytest.mark.parametrize("by", networks.WAYS)
def test_a_network_learns_alike(small, by):
    outcome = train.compare(small, "fp32", "nchw", 16, 16, CPU, steps=60, runs=3, by=by)
    assert outcome.error == ""
    assert (len(outcome.pytorch), len(outcome.ours)) == (3, 60)
    assert outcome.ours[-1] < 0.5 * outcome.ours[0]
    assert outcome.distance == 0  # the CPU's convolution is PyTorch's own
    assert outcome.spread > 0


def test_a_wrong_gradient_is_caught(small, monkeypatch):
    right = customconv.Conv2d._conv_forward

    def of_half_the_gradient(self, x, w, b):
        return right(self, x, (w + w.detach()) / 2, b)

    monkeypatch.setattr(customconv.Conv2d, "_conv_forward", of_half_the_gradient)
    outcome = train.compare(small, "fp32", "nchw", 16, 16, CPU, steps=60, runs=3, by="converted")
    assert outcome.error.startswith("off by ")
    assert outcome.ours[0] == outcome.pytorch[0][0]


def test_the_command_prints_and_keeps_the_curves(small, tmp_path, capsys):
    path = tmp_path / "curves.json"
    words = "train --networks small --precisions fp32 --layouts nhwc --batch 16 --image 16".split()
    words += ["--steps", "30", "--runs", "2", "--device", "cpu", "--json", str(path)]
    assert command.main(words) == 0
    assert "alike" in capsys.readouterr().out
    (kept,) = json.loads(path.read_text())["outcomes"]
    assert len(kept["ours"]) == len(kept["pytorch"][1]) == 30


def test_every_precision_has_a_rounding():
    assert train.ROUNDING.keys() == network_rows.PRECISIONS.keys()
