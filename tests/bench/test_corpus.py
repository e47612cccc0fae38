"""The layers of the benchmark: known ones, drawn ones, and samples of their rows."""

from __future__ import annotations

import argparse
import collections
import hashlib
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest

from bench import corpus, drawn, drawn3d, extract, run, timings
from bench.measure import Cell

ROOT = Path(__file__).parents[2]
DIGESTS = ["f90839d02a7be00c", "c7c9c9b712b03350", "b767914d991e616c", "6542f91880b50309"]
VOLUMES = {"video_vae", "medical", "action", "patch_embed"}


def test_every_layer_has_a_source_and_an_output_and_a_name_of_its_own():
    found = corpus.all_layers() + corpus.volume_layers() + corpus.network_volumes()
    found += drawn3d.judged_layers()
    assert len(found) > 200
    assert len({(layer.suite, layer.name) for layer in found}) == len(found)
    for layer in found:
        assert layer.source, layer
        assert min(layer.output) >= 1, layer


@pytest.mark.parametrize(
    ("path", "known", "name"),
    [
        (corpus.NETWORK_LAYERS, extract.NETWORKS, "dcgan"),
        (corpus.NETWORK_LAYERS, extract.NETWORKS, "wavenet"),
        (corpus.NETWORK_VOLUMES, extract.VOLUMES, "unet3d"),
    ],
)
def test_the_layers_of_a_network_are_those_that_it_calls(path, known, name):
    assert json.loads(path.read_text())[name] == list(extract._layers(*known[name]))


def test_a_batch_replaces_every_layers():
    assert {layer.N for layer in corpus.load(["resnet50"], batch=7)} == {7}


def test_a_suite_may_have_a_batch_size_of_its_own():
    found = corpus.load(["vgg16", "resnet50:64"], batch=3)
    assert {(layer.suite, layer.N) for layer in found} == {("vgg16", 3), ("resnet50", 64)}


def test_all_stands_for_every_suite_but_small_layers_sweeps_volumes_and_what_judges():
    found = {layer.suite for layer in corpus.load(["all"])}
    beside = {"smoke", "scaling", "judged", "judged small", "smoke volumes", "judged volumes"}
    beside |= {layer.suite for layer in corpus.network_volumes()}
    assert found == set(corpus.suites()) - beside - VOLUMES
    assert {layer.N for layer in corpus.load(["all:3"])} == {3}
    assert all(layer.D is None for layer in corpus.all_layers())


def test_volumes_stand_for_the_suites_of_networks_that_see_them():
    found = corpus.load(["volumes"])
    assert {layer.suite for layer in found} == VOLUMES
    assert len(found) == 213
    assert all(layer.D is not None for layer in found)
    assert corpus.load(["volumes:7"])[0].N == 7


@pytest.mark.parametrize("text", ["resnet50:", "resnet50:0", "resnet50:x", "nonsense:4", ":4"])
def test_an_ill_formed_suite_is_refused(text, capsys):
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    with pytest.raises(SystemExit):
        parser.parse_args(["--suite", f"vgg16,{text}"])
    assert "expected some of" in capsys.readouterr().err


def test_an_unknown_suite_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="no suite nonsense: expected some of original,"):
        corpus.load(["nonsense"])


def test_as_many_layers_are_drawn_as_are_known_beside_the_odd_ones():
    known = [layer for layer in corpus.known_layers() if layer.suite != "odd"]
    assert len(drawn.layers()) >= len(known)


def test_no_drawn_layer_is_known_or_drawn_twice():
    known, chosen = (
        [json.dumps(layer.problem(), sort_keys=True) for layer in layers]
        for layers in (corpus.known_layers(), drawn.layers())
    )
    assert len(set(chosen)) == len(chosen)
    assert not set(known) & set(chosen)


@pytest.mark.parametrize(
    ("cells", "judging"),
    [(timings.cells, drawn.judged_layers), (timings.volume_cells, drawn3d.judged_layers)],
)
def test_no_plan_is_timed_for_a_layer_that_judges(cells, judging):
    timed, judged = (
        {json.dumps(layer.problem(), sort_keys=True) for layer in layers}
        for layers in ([cell.layer for cell in cells()], judging())
    )
    assert len(judged) > 400
    assert not timed & judged


def test_the_same_layers_are_drawn_in_every_process():
    code = (
        "from bench import drawn, drawn3d; layers = drawn.layers() + drawn.judged_layers(); "
        "print(hash(repr(layers + drawn3d.judged_layers() + drawn3d.timed_layers())))"
    )
    hashes = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True,
            env=os.environ | {"PYTHONHASHSEED": "0"},
        ).stdout
        for _ in range(2)
    }  # fmt: skip
    assert len(hashes) == 1


def test_drawn_layers_stay_as_they_were_first_drawn():
    """Results name them, and are compared with later ones."""
    digests = [
        hashlib.sha256(json.dumps([layer.problem() for layer in layers]).encode()).hexdigest()[:16]
        for layers in (
            drawn.layers(), drawn.judged_layers(), drawn3d.judged_layers(), drawn3d.timed_layers()
        )
    ]  # fmt: skip
    assert digests == DIGESTS


def test_drawn_layers_cover_what_known_ones_rarely_have():
    found = drawn.layers()
    sides = collections.Counter(layer.Q % 8 for layer in found if layer.H > 1)
    assert all(sides[residue] >= 10 for residue in range(8))
    assert sum(layer.H == 1 for layer in found) >= 30
    assert sum(max(layer.dil) > 1 for layer in found) >= 30
    assert sum(max(layer.stride) > 1 and layer.W % 2 == 1 for layer in found) >= 20
    assert sum(layer.R == layer.stride[0] > 1 for layer in found) >= 20
    assert sum(layer.C % 8 > 0 or layer.K % 8 > 0 for layer in found) >= 40
    assert sum(layer.N == 1 for layer in found) >= 30
    assert sum(layer.N >= 128 for layer in found) >= 30


def test_drawn_volumes_are_of_all_kinds():
    for found in (drawn3d.judged_layers(), drawn3d.timed_layers()):
        assert len({json.dumps(layer.problem()) for layer in found}) == len(found)
        sides = collections.Counter(layer.Q % 8 for layer in found)
        assert all(sides[residue] >= 10 for residue in range(8))
        assert sum(layer.N == 1 and max(layer.pad) == 0 and layer.T == 3 for layer in found) >= 50
        assert sum(layer.transposed for layer in found) >= 20
        assert sum(layer.groups == layer.C > 1 for layer in found) >= 20
        assert sum(layer.stride == layer.weight[2:] and layer.T > 1 for layer in found) >= 15
        assert sum(max(layer.dil) > 1 for layer in found) >= 15
        assert sum(layer.C % 8 > 0 or layer.K % 8 > 0 for layer in found) >= 40
        assert sum((layer.D or 0) >= 33 for layer in found) >= 25
        for layer in found:
            size = math.prod(layer.input) + math.prod(layer.output)
            assert size <= 2 * drawn3d.MOST_ELEMENTS, layer


def test_drawn_layers_fit_a_gpus_memory():
    for layer in drawn.layers():
        size = math.prod(layer.input) + math.prod(layer.output)
        assert size <= drawn.MOST_ELEMENTS or layer.N == 1
        assert size <= 2 * drawn.MOST_ELEMENTS


def cells(suites):
    return [
        Cell(layer, precision, layout, op, "cudnn")
        for layer in corpus.load(suites)
        for precision in ("tf32", "fp16")
        for layout in ("nchw", "nhwc")
        for op in ("fprop", "wgrad")
    ]


def group(cell):
    return cell.layer.suite, cell.precision, cell.layout, cell.op


def test_a_sample_is_spread_evenly():
    todo = cells(["original", "vgg16", "odd"])
    counts = collections.Counter(map(group, run.sampled(todo, 3 * 24, seed=1)))
    assert len(counts) == 24
    assert set(counts.values()) == {3}
    # Suite "original" has three layers, and the others more.
    counts = collections.Counter(map(group, run.sampled(todo, 5 * 24, seed=1)))
    assert {counts[group] for group in counts if group[0] == "original"} == {3}


def test_a_sample_that_ends_within_a_turn_is_spread_evenly_too():
    found = run.sampled(cells(["vgg16", "odd", "resnet50", "drawn"]), 80, seed=1)
    counts = collections.Counter(map(group, found))
    assert set(counts.values()) == {2, 3}
    for part in range(4):
        shares = collections.Counter(kind[part] for kind in map(group, found)).values()
        assert max(shares) - min(shares) <= 4, shares


def test_a_sample_has_each_row_once_and_depends_on_the_seed():
    todo = cells(["vgg16", "odd"])
    first, larger, other = (
        run.sampled(todo, count, seed) for count, seed in ((40, 1), (80, 1), (40, 2))
    )
    assert larger[:40] == first != other
    assert len(set(larger)) == 80
    assert run.sampled(todo, 10 * len(todo), seed=1) != todo
    assert len(run.sampled(todo, 10 * len(todo), seed=1)) == len(todo)


def test_options_select_layers():
    parser = argparse.ArgumentParser()
    run.add_arguments(parser)
    words = ["--suite", "original,resnext50_32x4d", "--dense", "--no-bias"]
    found = run.chosen_layers(parser.parse_args(words))
    assert found
    assert all(layer.groups == 1 and not layer.bias for layer in found)
    assert "5x9" in {layer.name for layer in found}
    assert any(layer.bias for layer in corpus.load(["original"]))
    assert [layer.name for layer in run.chosen_layers(parser.parse_args(
        ["--suite", "original", "--layer", "5x9"]))] == ["5x9"]  # fmt: skip
