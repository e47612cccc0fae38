"""Architectures of all families: that they build here, and what the check of one finds."""

from __future__ import annotations

import json
import os
import sys

import pytest
import torch
from torch import nn

import customconv
from bench import __main__ as command
from bench import architectures, evidence, networks, zoo
from bench.architectures import ARCHITECTURES, Architecture

CPU = torch.device("cpu")
NAMED = {architecture.name: architecture for architecture in ARCHITECTURES}
# Of each kind of network that is defined or wrapped here, and small ones of the packages.
SMALL = [
    "autoencoder", "dcgan", "espcn", "fasterrcnn_mobilenet_v3_large_fpn", "mnasnet_small", "unet",
    "r3d_18", "ssdlite320_mobilenet_v3_large", "unet3d", "wavenet",
]  # fmt: skip
TINY = ["regnetx_002", "lcnet_050", "unet3d", "wavenet"]


def check(path, *more):
    words = ["zoo", "--precisions", "fp32", "--device", "cpu", "--json", str(path), *more]
    return command.main(words)


def test_there_are_enough_of_all_families():
    assert len(NAMED) == len(ARCHITECTURES) > 80
    families = {architecture.family for architecture in ARCHITECTURES}
    assert families >= {
        "resnet", "resnext", "regnet", "convnext", "efficientnet", "mobilenet", "densenet",
        "inception", "hrnet", "unet", "vgg", "large kernels", "detection", "segmentation",
    }  # fmt: skip


@pytest.mark.parametrize("updating", [False, True])
@pytest.mark.parametrize("name", SMALL)
def test_a_network_gives_the_same_twice(name, updating):
    architecture = NAMED[name]
    x = architecture.input(CPU)
    first, second = (
        zoo.taken(
            evidence.settled(evidence.awakened(architecture.network()), x),
            x,
            None,
            updating=updating,
        )
        for _ in range(2)
    )
    assert first.keys() == second.keys() >= {"outputs", "gradients"}
    for a, b in zip(first.values(), second.values(), strict=True):
        assert a.keys() == b.keys()
        assert all(torch.equal(a[key], b[key]) for key in a)
        assert all(value.isfinite().all() for value in a.values())


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in NAMED if name not in SMALL])
def test_every_network_runs_in_training_and_evaluation(name):
    if name == "wan_vae":
        pytest.importorskip("diffusers")
    architecture = NAMED[name]
    x = architecture.input(CPU)
    network = evidence.settled(evidence.awakened(architecture.network()), x)
    outputs = evidence.outputs(network, x)
    assert outputs
    assert all(y.isfinite().all() and y.norm() > 0 for y in outputs.values())


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("image", [(4, 6), (4, 6, 5), (4, 3, 6, 5)])
def test_layouts_keep_the_numbers(layout, image):
    x = torch.randn(2, *image)
    there = networks.laid_out(x, layout)
    assert torch.equal(there, x)
    assert there.is_contiguous() is (layout == "nchw")
    if layout == "nhwc":
        assert there.movedim(1, -1).is_contiguous()


def test_tiny_networks_are_right_in_every_way(tmp_path, capsys):
    path = tmp_path / "zoo.json"
    assert check(path, "--networks", ",".join(TINY)) == 0
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == len(TINY) * 2 * 2
    for row in rows:
        assert row["error"] == ""
        assert 0 <= row["ours_output_err"] <= 1e-5
        assert 0 <= row["ours_gradient_err"] <= 1e-4
    converted = [row for row in rows if row["by"] == "converted"]
    assert all(row["fallbacks"] > 0 for row in converted)  # our operators, on the CPU
    printed = capsys.readouterr().out
    assert "regnetx_002" in printed
    assert "4 networks of 4 families, 16 rows, 0 wrong" in printed


@pytest.mark.gpu
@pytest.mark.parametrize("name", TINY)
def test_kernels_of_ours_are_checked_on_a_gpu(name, tmp_path):
    path = tmp_path / "zoo.json"
    assert command.main(["zoo", "--networks", name, "--json", str(path)]) == 0
    rows = json.loads(path.read_text())["rows"]
    assert len(rows) == 8
    assert all(row["routed"] > 0 for row in rows)


def test_a_run_resumes_and_stops_for_its_budget(tmp_path, capsys):
    path = tmp_path / "zoo.json"
    assert check(path, "--networks", "wavenet", "--by", "routed") == 0
    before = json.loads(path.read_text())["rows"]
    assert check(path, "--networks", "wavenet", "--resume") == 0
    rows = json.loads(path.read_text())["rows"]
    assert [row["by"] for row in rows] == ["routed", "routed", "converted", "converted"]
    assert rows[:2] == before
    assert check(path, "--networks", "wavenet,espcn", "--minutes", "0.000001") == 0
    assert "stopped for the budget" in capsys.readouterr().out


def die(*_):
    os._exit(3)


def test_a_worker_that_dies_is_an_error_of_its_network(tmp_path, monkeypatch):
    monkeypatch.setattr(zoo, "_checks", die)
    path = tmp_path / "zoo.json"
    words = "--layouts", "nchw", "--by", "converted", "--workers", "2"
    assert check(path, "--networks", "wavenet", *words) == 1
    (row,) = json.loads(path.read_text())["rows"]
    assert "ended early" in row["error"]


def test_several_workers_find_the_same(tmp_path):
    found = []
    for workers in ("1", "2"):
        path = tmp_path / f"{workers}.json"
        words = "--layouts", "nchw", "--by", "converted", "--workers", workers
        assert check(path, "--networks", "wavenet,espcn", *words) == 0
        rows = json.loads(path.read_text())["rows"]
        found.append({row["network"]: row["ours_output_err"] for row in rows})
    assert found[0].keys() == {"wavenet", "espcn"}
    assert found[0] == pytest.approx(found[1])


@pytest.fixture
def small(monkeypatch):
    """A network of one convolution in place of all others."""
    network = Architecture("small", "tests", lambda: nn.Conv2d(3, 4, 3), (3, 8, 8))
    monkeypatch.setattr(zoo, "ARCHITECTURES", [network])
    return network


def test_a_wrong_convolution_is_an_error(small, tmp_path, monkeypatch, capsys):
    right = customconv.Conv2d._conv_forward
    monkeypatch.setattr(
        customconv.Conv2d, "_conv_forward", lambda self, x, w, b: right(self, x, 1.001 * w, b)
    )
    path = tmp_path / "zoo.json"
    assert check(path, "--networks", "small") == 1
    errors = {row["by"]: row["error"] for row in json.loads(path.read_text())["rows"]}
    assert errors["routed"] == ""
    assert errors["converted"].startswith("outputs off by 0.00")
    assert "2 of 4" in capsys.readouterr().out


def test_a_wrong_gradient_is_an_error_that_names_it():
    ours = {
        "outputs": {"output 0": 1e-6},
        "gradients": {"input": 1e-6, "weight": 0.5, "bias": 1e-6},
    }
    pytorch = {what: dict.fromkeys(errors, 1e-6) for what, errors in ours.items()}
    error = zoo.judged(ours, pytorch, "tf32")
    assert error.startswith("gradients off by 0.289, PyTorch by 1e-06 (weight 0.5 for 1e-06")


def test_wrong_running_statistics_of_a_compiled_network_are_an_error(tmp_path, monkeypatch):
    class Off(nn.BatchNorm2d):
        def forward(self, x):
            y = super().forward(x)
            if self.training:
                self.running_mean.data += 0.1  # which autograd does not see
            return y

    def ours(network, by):
        other = nn.Sequential(nn.Conv2d(3, 4, 3), Off(4))
        other.load_state_dict(network.state_dict())
        return other

    def build():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))

    monkeypatch.setattr(zoo, "ARCHITECTURES", [Architecture("small", "tests", build, (3, 8, 8))])
    monkeypatch.setattr(networks, "ours", ours)
    path = tmp_path / "zoo.json"
    assert check(path, "--networks", "small", "--by", "routed", "--layouts", "nchw") == 0
    assert check(path, "--networks", "small", "--by", "compiled", "--layouts", "nchw") == 1
    error = json.loads(path.read_text())["rows"][-1]["error"]
    assert error.startswith("running statistics off by ")
    assert "1.running_mean" in error


def test_a_crash_of_ours_is_an_error(small, tmp_path, monkeypatch):
    def fail(network, by):
        raise RuntimeError("no way")

    monkeypatch.setattr(networks, "ours", fail)
    path = tmp_path / "zoo.json"
    assert check(path, "--networks", "small", "--by", "converted") == 1
    assert json.loads(path.read_text())["rows"][0]["error"] == "RuntimeError: no way"


def test_a_network_that_a_package_lacks_is_left_out(tmp_path, monkeypatch, capsys):
    (missing,) = architectures._timm("tests", "no_such_network")
    monkeypatch.setattr(zoo, "ARCHITECTURES", [missing])
    assert check(tmp_path / "zoo.json", "--networks", "no_such_network") == 0
    printed = capsys.readouterr().out
    assert "left out: RuntimeError: Unknown model" in printed
    assert "0 networks of 0 families" in printed


def test_a_network_of_a_package_that_is_not_there_is_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "diffusers", None)
    assert check(tmp_path / "zoo.json", "--networks", "wan_vae") == 0
    assert "left out: ModuleNotFoundError" in capsys.readouterr().out


def test_unknown_names_are_refused():
    with pytest.raises(SystemExit):
        command.main(["zoo", "--networks", "resnet5000"])
