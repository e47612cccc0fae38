"""Networks by our convolutions: how ours is run, the check before they are timed, the file."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn

import customconv
from bench import __main__ as command
from bench import chains, models, network_rows, networks
from bench.architectures import Stack
from bench.run import Budget

CPU = torch.device("cpu")


@pytest.fixture
def small(monkeypatch):
    """A network of every kind of convolution, small enough to train here."""

    def build():
        return Stack(  # Dynamo does not see the forward of nn.Sequential itself
            nn.Conv2d(3, 8, 3, stride=2, padding=1), nn.ReLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, padding_mode="reflect"), nn.BatchNorm2d(8),
            nn.Conv2d(8, 4, 1), nn.Flatten(),
        )  # fmt: skip

    monkeypatch.setitem(networks.NETWORKS, "small", build)
    return "small"


@pytest.fixture
def wrong(monkeypatch):
    """Our modules, wrong."""
    right = customconv.Conv2d._conv_forward
    monkeypatch.setattr(
        customconv.Conv2d, "_conv_forward", lambda self, x, w, b: right(self, x, 1.2 * w, b)
    )


def row_of(name, mode, layout, by, **more):
    pair = models.Pair(name, 16, CPU, by, **more)
    return pair, pair.compare(mode, "fp32", layout, 2, 0.05)


def arguments(path, *more, networks="small"):
    words = f"models --networks {networks} --precisions fp32 --layouts nhwc --batch 1,2".split()
    words += "--image 16 --row-s 0.02 --device cpu --json".split()
    return [*words, str(path), *more]


def test_filters_of_images_and_volumes_are_laid_out():
    network = nn.ModuleList([nn.Conv1d(3, 4, 3), nn.Conv2d(3, 4, 3), nn.Conv3d(3, 4, 3)])
    for layout, last in (("nhwc", True), ("nchw", False)):
        networks.lay_out(network, layout)
        for conv, memory in zip(
            network[1:], (torch.channels_last, torch.channels_last_3d), strict=True
        ):
            assert conv.weight.is_contiguous(memory_format=memory) is last
            assert conv.weight.is_contiguous() is not last


def test_a_network_of_volumes_is_measured(monkeypatch):
    monkeypatch.setitem(networks.NETWORKS, "small", lambda: networks.UNet3d((4, 8), 2, 2))
    for layout, mode in (("nchw", "step"), ("nhwc", "forward")):
        _, row = row_of("small", mode, layout, "converted")
        assert row.error == ""
        assert 0 <= row.ours_err < 1e-5
        assert row.fallbacks > 0


def test_a_converted_network_is_a_copy_of_the_same_weights(small):
    network = networks.build(small)
    ours = networks.ours(network, "converted")
    kinds = [type(module) for module in ours.modules() if isinstance(module, nn.Conv2d)]
    assert kinds == [customconv.Conv2d] * 3
    assert not any(isinstance(module, customconv.Conv2d) for module in network.modules())
    for (key, a), (other, b) in zip(
        network.state_dict().items(), ours.state_dict().items(), strict=True
    ):
        assert key == other
        assert torch.equal(a, b)
        assert a.data_ptr() != b.data_ptr()


def test_a_routed_network_is_the_same_with_routing_on(small):
    network = networks.build(small)
    assert networks.ours(network, "routed") is network
    seen = []
    models.within("routed", lambda: seen.append(customconv.is_enabled()))()
    models.within("converted", lambda: seen.append(customconv.is_enabled()))()
    assert seen == [True, False]
    assert not customconv.is_enabled()


def test_routing_is_on_in_our_turns_alone(small, monkeypatch):
    """In a step, the backward pass included."""

    class Watched(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            seen.append(("forward", customconv.is_enabled()))
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            seen.append(("backward", customconv.is_enabled()))
            return grad

    seen = []
    pair = models.Pair(small, 16, CPU, "routed")
    pair.network.register_forward_hook(lambda module, args, y: Watched.apply(y))
    calls = {}
    monkeypatch.setattr(models.timing, "interleaved", lambda found, *_, **__: calls.update(found))
    with pytest.raises(AttributeError):  # of the times that were not taken
        pair.compare("step", "fp32", "nchw", 2, 0.05)
    for who, on in (("ours", True), ("pytorch", False)):
        seen.clear()
        calls[who][0]()
        assert seen == [("forward", on), ("backward", on)]


def test_the_unet_keeps_the_images_size():
    x = torch.randn(2, 3, 32, 48)
    assert networks.UNet((4, 8, 16))(x).shape == (2, 1, 32, 48)


def test_the_decoder_makes_images_of_latents():
    x = torch.randn(2, 4, 3, 5)
    assert networks.VaeDecoder((64, 32), depth=1)(x).shape == (2, 3, 6, 10)


def test_inputs_are_images_or_what_becomes_images():
    decoder, unet = networks.VaeDecoder((64, 32), depth=1), networks.UNet((4, 8, 16))
    assert networks.input_shape(decoder, 2, 64) == (2, 4, 8, 8)
    assert networks.input_shape(unet, 2, 64) == (2, 3, 64, 64)
    assert networks.input_shape(networks.build("unet3d"), 2, 64) == (2, 4, 64, 64, 64)
    assert networks.input_shape(networks.build("r3d_18"), 2, 112) == (2, 3, 16, 112, 112)


def test_the_decoder_has_the_parameters_of_the_published_one():
    with torch.device("meta"):
        network = networks.VaeDecoder()
    # 49,490,179 of the decoder, and the convolution of 4 by 4 channels in front of it.
    assert sum(p.numel() for p in network.parameters()) == 49490179 + 20


@pytest.mark.parametrize("mode", models.MODES)
@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("by", networks.WAYS)
def test_a_network_is_checked_and_timed(small, mode, layout, by):
    pair, outcome = row_of(small, mode, layout, by)
    assert outcome.error == ""
    assert outcome.ours_err < 1e-5
    assert outcome.ratio_lo <= outcome.ratio <= outcome.ratio_hi
    assert min(outcome.ours_ms, outcome.pytorch_ms) > 0
    for network in (pair.network, pair.ours):
        for key, value in network.state_dict().items():
            assert torch.equal(value, pair.began[key]), key


@pytest.mark.gpu
@pytest.mark.parametrize("by", networks.WAYS)
@pytest.mark.parametrize("precision", ["tf32", "amp-fp16"])
def test_kernels_of_ours_are_timed_on_a_gpu(small, precision, by):
    pair = models.Pair(small, 32, torch.device("cuda"), by)
    outcome = pair.compare("step", precision, "nhwc", 2, 0.05)
    assert outcome.error == ""
    assert outcome.routed > 0
    assert outcome.ours_mb > 0


@pytest.mark.gpu
def test_gradients_that_stay_are_not_counted_as_memory_of_the_first_step():
    weight = torch.nn.Parameter(torch.ones(1 << 22, device="cuda"))

    def step() -> None:
        weight.grad = None
        weight.sum().backward()

    first, second = (models._peak_mb(step, weight.device) for _ in range(2))
    assert first == second


@pytest.mark.parametrize("mode", models.MODES)
def test_a_wrong_convolution_is_caught(small, mode, wrong):
    _, outcome = row_of(small, mode, "nchw", "converted")
    assert outcome.error.startswith("off by ")
    assert outcome.ratio == 0


def test_a_run_adds_to_the_file_and_resumes(small, tmp_path, capsys):
    path = tmp_path / "models.json"
    assert command.main(arguments(path, "--modes", "forward")) == 0
    first = json.loads(path.read_text())["rows"]
    assert command.main(arguments(path, "--resume")) == 0
    rows = json.loads(path.read_text())["rows"]
    assert rows[:2] == first
    assert [(row["mode"], row["batch"]) for row in rows] == [
        ("forward", 1), ("forward", 2), ("step", 1), ("step", 2)
    ]  # fmt: skip
    assert all(row["by"] == "routed" and row["ratio"] > 0 for row in rows)
    assert all({"pytorch_err", "ours_err", "ratio_lo", "commit"} <= row.keys() for row in rows)
    printed = capsys.readouterr().out
    assert "geometric means" in printed
    assert "N 2" in printed


def test_a_budget_ends_a_run_after_a_row(small, tmp_path, capsys, monkeypatch):
    spend = Budget.spend
    monkeypatch.setattr(Budget, "spend", lambda self, seconds: spend(self, 2000.0))
    path = tmp_path / "models.json"
    assert command.main(arguments(path, "--minutes", "20")) == 0
    assert "stopped for the budget" in capsys.readouterr().out
    assert len(json.loads(path.read_text())["rows"]) == 1


def test_a_row_that_fails_is_an_error_and_the_others_go_on(small, tmp_path, monkeypatch):
    def build():
        raise ValueError("no such thing")

    monkeypatch.setitem(networks.NETWORKS, "broken", build)
    path = tmp_path / "models.json"
    assert command.main(arguments(path, "--modes", "forward", networks="broken,small")) == 1
    errors = [row["error"] for row in json.loads(path.read_text())["rows"]]
    assert errors == ["ValueError: no such thing"] * 2 + [""] * 2


def test_layers_are_timed_where_ours_is_slower(small, tmp_path, monkeypatch, capsys):
    path = tmp_path / "models.json"
    right = models.timing.interleaved

    def slower(calls, *args, **kwargs):
        found = right(calls, *args, **kwargs)
        found.ratios["pytorch"] = models.timing.Ratio(0.9, 0.8, 1.0)
        return found

    monkeypatch.setattr(models.timing, "interleaved", slower)
    assert command.main(arguments(path, "--modes", "step", "--layers")) == 0
    for row in json.loads(path.read_text())["rows"]:
        assert row["layers"]["timed"] == "8 of 8"  # three convolutions, the first without dgrad
        assert row["layers"]["ours_ms"] > 0
    assert "convolutions alone" in capsys.readouterr().out


def test_means_are_of_the_rows_without_an_error():
    base = {"mode": "step", "precision": "tf32", "layout": "nchw", "error": ""}
    rows = [
        base | {"batch": 1, "ratio": 2.0}, base | {"batch": 1, "ratio": 0.5},
        base | {"batch": 64, "ratio": 1.5}, base | {"batch": 64, "ratio": 0, "error": "off"},
    ]  # fmt: skip
    table = network_rows.means(rows)
    assert [list(column.cells) for column in table.columns] == [
        ["step"], ["tf32"], ["nchw"], ["1.000 (2)"], ["1.500 (1)"]
    ]  # fmt: skip


@pytest.mark.parametrize("text", ["", "1,a", "0", "8,,1"])
def test_batches_are_numbers(text, tmp_path):
    with pytest.raises(SystemExit):
        command.main(["models", "--batch", text])


@pytest.mark.parametrize("name", chains.CHAINS)
def test_chains_compute_and_have_a_gradient(name):
    chain = networks.build(name)
    assert networks.input_shape(chain, 4, 224) == (4, chain.channels, chain.size, chain.size)
    x = torch.randn(2, chain.channels, 12, 12)
    y = chain(x)
    assert y.isfinite().all() and y.shape[0] == 2
    y.sum().backward()
    assert chain.convolution.weight.grad.count_nonzero() > 0
