"""The timings that prices are fitted to: which cells, which plans, and the file."""

from __future__ import annotations

import collections
import dataclasses
import json
import lzma
from types import SimpleNamespace

from bench import corpus, drawn, drawn3d, timings


def plan(ms, kind="a", splits=1, tile=1):
    name = f"{kind} tile={tile} splits={splits}"
    return SimpleNamespace(name=name, kind=kind, splits=splits, predicted_ms=ms)


def test_every_cell_is_there_once_in_the_same_order_always():
    cells = timings.cells()
    assert cells == timings.cells()
    assert len(set(cells)) == len(cells)
    assert len({timings._key(cell.identity()) for cell in cells}) == len(cells)


def test_more_than_half_of_the_cells_are_of_layers_outside_shapes_json():
    known = {layer.suite for layer in corpus.known_layers()}
    outside = [cell for cell in timings.cells() if cell.layer.suite not in known]
    assert len(outside) > len(timings.cells()) / 2


def test_the_beginning_is_a_sample_of_all_passes_precisions_and_layouts():
    kinds = collections.Counter((c.op, c.precision, c.layout) for c in timings.cells()[:300])
    assert len(kinds) == 3 * 4 * 2


def test_layers_that_are_drawn_for_timings_come_last_and_are_in_no_benchmark():
    cells = timings.cells()
    suites = [drawn.TIMED_SUITE] * 300 + [drawn.LARGE_SUITE] * 120
    suites += [drawn.TIMED_SMALL_SUITE] * 200
    suites += [drawn.TIMED_MORE_SUITE] * len(drawn.more_layers())
    drawn_cells, others = cells[-len(suites) :], cells[: -len(suites)]
    assert [cell.layer.suite for cell in drawn_cells] == suites
    assert not set(suites) & {cell.layer.suite for cell in others}
    assert not set(suites) & set(corpus.suites())
    first = collections.Counter((c.op, c.precision, c.layout) for c in drawn_cells[:200])
    assert len(first) == 3 * 4 * 2
    groups = [layer.groups > 1 for layer in drawn.timed_layers()]
    assert sum(groups) == 150


def test_volumes_have_cells_of_their_own():
    cells = timings.volume_cells()
    assert cells == timings.volume_cells()
    assert all(cell.layer.D is not None for cell in cells)
    assert all(cell.layer.D is None for cell in timings.cells())
    assert len({timings._key(cell.identity()) for cell in cells}) == len(cells) > 500
    suites = [cell.layer.suite for cell in cells]
    count = len(drawn3d.timed_layers())
    assert set(suites[:count]) == {drawn3d.TIMED_SUITE}
    assert set(suites[count:]) == set(corpus.VOLUME_SUITES)
    kinds = collections.Counter((c.op, c.precision, c.layout) for c in cells[:200])
    assert len(kinds) == 3 * 4 * 2


def test_networks_of_volumes_are_held_out_as_a_whole():
    held_out = collections.defaultdict(set)
    for layer in corpus.load([corpus.VOLUMES]):
        network = layer.name.partition(": ")[0]
        held_out[layer.suite, network].add(timings.is_held_out(layer.suite, layer.name))
    assert all(len(found) == 1 for found in held_out.values())
    assert 0.1 < sum(found == {True} for found in held_out.values()) / len(held_out) < 0.4


def test_networks_are_held_out_as_a_whole():
    held_out = collections.defaultdict(set)
    for cell in timings.cells():
        held_out[cell.layer.suite].add(timings.is_held_out(cell.layer.suite, cell.layer.name))
    apart = {drawn.SUITE, *timings.TIMED}
    networks = [found for suite, found in held_out.items() if suite not in apart]
    assert all(len(found) == 1 for found in networks)
    assert all(held_out[suite] == {False, True} for suite in apart)
    assert 0.15 < sum(found == {True} for found in networks) / len(networks) < 0.4


def test_the_fastest_plans_are_timed_and_then_the_fastest_of_each_other_kind():
    same = [plan(1 + i / 100, tile=i) for i in range(timings.FIRST + 5)]
    others = [plan(3.0, "b"), plan(2.0, "b", tile=2), plan(2.5, splits=2)]
    far = plan(timings.FAR + 0.1, "c")
    chosen = timings.considered([*same, *others, far])
    assert [each.predicted_ms for each in chosen] == [
        *(each.predicted_ms for each in same[: timings.FIRST]), 2.0, 2.5
    ]  # fmt: skip


def test_no_more_plans_are_timed_than_the_most():
    plans = [plan(1 + i / 1000, f"kind {i}") for i in range(2 * timings.MOST)]
    assert len(timings.considered(plans)) == timings.MOST


def test_a_file_is_read_as_it_was_written(tmp_path):
    cell = timings.cells()[0]
    outcome = SimpleNamespace(plans=[SimpleNamespace(name="direct wide", ms=0.123456)])
    path = tmp_path / "timings.jsonl.xz"
    with lzma.open(path, "wt") as file:
        file.write(json.dumps({"device": "GPU"}) + "\n" + timings._line(cell, outcome) + "\n")
    facts, found = timings.read(path)
    assert facts == {"device": "GPU"}
    assert found == [timings.Timings(cell, {"direct wide": 0.1235})]
    assert dataclasses.is_dataclass(found[0])


def test_the_file_in_the_repository_names_its_gpu_its_sources_and_its_columns():
    facts, found = timings.read()
    assert facts["device"].startswith("NVIDIA H100")
    assert len(facts["sources"]) == 16
    assert tuple(facts["plan"]) == timings.COLUMNS
    assert len(found) > 1000
    assert facts["suites"].keys() <= {timed.cell.layer.suite for timed in found}
    assert all(len(own["sources"]) == 16 for own in facts["suites"].values())
