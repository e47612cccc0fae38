"""The picture of known networks and layers: what it shows, and that it is drawn from the rows."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from bench import figures, known, publish, results
from bench.results import BadResults, Results, Row
from bench.sources import Ages

PUBLISHED = Path(results.__file__).with_name("results")
META = {"device": "GPU", "torch": "2.11.0+cu130", "cudnn": 91900, "date": "2026-01-02"}
KINDS = list(known.KINDS)


def inference(network: str, inductor: float, eager: float, kind: int = 0, **more: object) -> Row:
    precision, layout = KINDS[kind]
    row: Row = {
        "network": network, "mode": "forward", "precision": precision, "layout": layout,
        "batch": 64, "error": "", "ratios": {"inductor": inductor, "eager": eager},
    }  # fmt: skip
    return row | more


def step(network: str, ratio: float, **more: object) -> Row:
    precision, layout = KINDS[0]
    row: Row = {
        "network": network, "mode": "step", "precision": precision, "layout": layout, "batch": 64,
        "error": "", "by": "routed", "tuned": False, "ratio": ratio,
    }  # fmt: skip
    return row | more


def layer(ratio: float, **more: object) -> Row:
    suite, name, precision, layout = next(iter(known.LAYERS))
    row: Row = {
        "suite": suite, "name": name, "precision": precision, "layout": layout, "op": "fprop",
        "peer": "cudnn", "forced": None, "ratio": ratio,
    }  # fmt: skip
    return row | more


def of(*rows: Row, **meta: object) -> Results:
    return Results(meta={**META, **meta}, rows=list(rows))


def test_speeds_are_over_eager_pytorchs():
    compiled = of(inference("resnet50", 1.5, 3.0), inference("unet", 0.5, 2.0, kind=1))
    found = known.known(of(layer(0.8)), [compiled, of(step("resnet50", 1.2))])
    assert list(found.panels.values()) == [
        {"ours": {"resnet50": 3.0}, "inductor": {"resnet50": 2.0}},
        {"ours": {"unet": 2.0}, "inductor": {"unet": 4.0}},
        {"ours": {"resnet50": 1.2}},
    ]
    assert list(found.layers.values()) == [0.8]


@pytest.mark.parametrize(
    "row",
    [
        inference("resnet50", 1.5, 3.0, batch=1),
        inference("resnet50", 1.5, 3.0, mode="step"),
        inference("resnet50", 1.5, 3.0, error="wrong"),
        inference("vgg16", 1.5, 3.0),
        step("resnet50", 1.2, by="converted"),
        step("resnet50", 1.2, tuned=True),
        step("resnet50", 1.2, mode="forward"),
    ],
)
def test_rows_of_other_kinds_are_not_shown(row):
    assert not known.known(of(), [of(row)])


@pytest.mark.parametrize("other", [{"op": "dgrad"}, {"peer": "inductor"}, {"forced": "tiled"}])
def test_only_chosen_forward_passes_beside_cudnn_are_shown(other):
    assert known.known(of(layer(2.0)), [])
    assert not known.known(of(layer(2.0, **other)), [])


def test_files_of_different_devices_are_refused():
    with pytest.raises(BadResults, match="of one of GPU, Other"):
        known.known(of(layer(2.0)), [of(device="Other")])


def test_the_caption_has_gpu_versions_and_the_day_of_each_part():
    files = [of(inference("resnet50", 1.5, 3.0)), of(step("resnet50", 1.2), date="2026-11-25")]
    found = known.known(of(layer(2.0)), files)
    assert known.caption(found, META) == (
        "GPU, PyTorch 2.11.0, cuDNN 9.19 tuned "
        "(inference, layers: 2 January 2026; training: 25 November 2026)"
    )


def test_every_number_is_a_dot_and_ours_is_written():
    compiled = of(inference("resnet50", 1.5, 3.0), inference("unet", 2.0, 2.5))
    found = known.known(of(layer(0.8)), [compiled, of(step("resnet50", 1.25))])
    figure = known.draw(found, META, figures.LIGHT)
    axes = [ax for part in figure.subfigs for ax in part.axes]
    dots = [sorted(x for each in ax.collections for x, _ in each.get_offsets()) for ax in axes]
    assert dots == [[1.25, 2.0, 2.5, 3.0], [1.25], [0.8]]
    assert [text.get_text() for ax in axes for text in ax.texts] == [
        "3.00x", "2.50x", "1.25x", "0.80x",
    ]  # fmt: skip
    names = [label.get_text() for label in axes[0].get_yticklabels()]
    assert names == ["ResNet-50", "U-Net"]
    assert "above 1 is faster" in figure.get_supxlabel()


def test_the_published_files_have_every_known_network_and_layer():
    networks = [results.read(PUBLISHED / f"{kind}-h100.json") for kind in publish.NETWORKS]
    found = known.known(results.load(PUBLISHED / "h100.json"), networks)
    compiled = [speeds for (what, _), speeds in found.panels.items() if "inference" in what]
    assert [set(speeds["ours"]) for speeds in compiled] == [set(known.NETWORKS)] * 2
    assert len(found.layers) == len(known.LAYERS)


def test_the_report_draws_it_from_the_files_beside_the_layers(tmp_path, capsys):
    results.save(tmp_path / "gpu.json", of(layer(2.0, **whole())))
    results.save(tmp_path / "compile-gpu.json", of(inference("resnet50", 1.5, 3.0)))
    arguments = publish_arguments(tmp_path)
    assert publish.main(arguments) == 0
    assert "1 of 1 rows of networks are older than the last change" in capsys.readouterr().out
    with_networks = (tmp_path / "pictures/known.png").read_bytes()
    (tmp_path / "compile-gpu.json").unlink()
    assert publish.main(arguments) == 0
    assert (tmp_path / "pictures/known.png").read_bytes() != with_networks


def whole() -> Row:
    """What else a row of layers has."""
    sizes = dict.fromkeys("NCHWKRSPQ", 8)
    steps = {"stride": [1, 1], "pad": [1, 1], "dil": [1, 1], "groups": 1}
    return {
        "problem": {**sizes, **steps}, "bias": False, "marks": [], "family": "tiled",
        "sources": Ages().present,
    }  # fmt: skip


def publish_arguments(folder: Path) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    publish.add_arguments(parser)
    return parser.parse_args(
        [str(folder / "gpu.json"), "--out", str(folder / "report"), "--pictures",
         str(folder / "pictures")]
    )  # fmt: skip
