"""Tuning: what is chosen by the times, what is kept and saved, and what a file is refused for.

Times are made up here, and so are the GPUs that files are read for; the tests at the end need one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import customconv
from customconv import _bind, plans_file
from customconv import tuning as tuning_function
from customconv.measure import Measured, Operands
from customconv.tuning import choice, contenders, tune_problem, tune_recorded

pytestmark = pytest.mark.usefixtures("nothing_tuned")

tuning = sys.modules[tuning_function.__module__]

DEVICE = 41  # an index that no machine has
HOST = plans_file.Host("Test GPU", (9, 0), "13.0", "1.0", "sources x, PyTorch y")
HERE = {DEVICE: HOST}
PROPERTIES = {DEVICE: _bind.DeviceProperties()}


def problem(channels: int = 64, **others: Any) -> _bind.ConvProblem:
    return _bind.ConvProblem(
        input=(8, channels, 56, 56), weight=(64, channels, 3, 3), padding=(1, 1), dtype="float16",
        **others,
    )  # fmt: skip


def deep_problem(channels: int = 64, **others: Any) -> _bind.ConvProblem:
    return _bind.ConvProblem(
        input=(2, channels, 9, 34, 34), weight=(64, channels, 3, 3, 3), padding=(1, 1, 1),
        dtype="float16", **others,
    )  # fmt: skip


def times(*ms: float | None, pytorch: float | None = None, fits: bool = True) -> Measured:
    return Measured(ms, pytorch, fits)


# What is chosen.


@pytest.mark.parametrize(
    ("measured", "chosen"),
    [
        (times(1.0, 0.8, 0.9), 1),
        (times(1.0, 0.995), 0),  # as fast as the planner's choice
        (times(1.0, 0.98), 1),
        (times(0.5, 0.5, pytorch=0.5), 0),
        (times(1.0, 0.8, pytorch=0.79), 1),  # within the noise
        (times(1.0, 0.8, pytorch=0.7), "aten"),
        (times(1.0, 0.8, pytorch=0.1, fits=False), 1),
        (times(None, 0.8, 0.9), 1),  # the planner's choice was wrong
        (times(None, None, pytorch=3.0), "aten"),
        (times(None, None, pytorch=3.0, fits=False), None),
        (times(None), None),
    ],
)
def test_the_fastest_right_one_is_chosen(measured, chosen):
    assert choice(measured) == chosen


def test_plans_near_the_best_are_timed_one_of_each_kind():
    plans = _bind.tunable(problem())[1]
    found = contenders(plans, 1.6, 5)
    assert str(found[0]) == str(_bind.plan(problem()))
    assert len(found) == 5
    kinds = [(p.kind, p.splits) for p in found]
    assert len(set(kinds)) == 5
    assert all(p.predicted_ms <= 1.6 * plans[0].predicted_ms for p in found)
    assert len(contenders(plans, 1.0, 99)) < len(contenders(plans, 3.0, 99))


class Meter:
    """Gives made-up times, and keeps what it was asked for."""

    def __init__(self, fastest: int = 1, pytorch: float | None = None, fits: bool = True) -> None:
        self.fastest, self.pytorch, self.fits = fastest, pytorch, fits
        self.plans: list[Sequence[_bind.ConvPlan]] = []

    def __call__(
        self, device_index: int, problem: _bind.ConvProblem, settled: _bind.ConvProblem,
        plans: Sequence[_bind.ConvPlan],
    ) -> Measured:  # fmt: skip
        assert device_index == DEVICE
        self.plans.append(plans)
        ms = [1.0] * len(plans)
        ms[min(self.fastest, len(plans) - 1)] = 0.5
        return Measured(tuple(ms), self.pytorch, self.fits)


def test_the_choice_is_used_from_then_on():
    meter = Meter(fastest=2, pytorch=0.6)
    layer = tune_problem(DEVICE, problem(), PROPERTIES[DEVICE], meter)
    assert isinstance(layer, customconv.TunedLayer)
    chosen = _bind.decide(DEVICE, problem()).plan
    assert chosen.tuned
    assert str(chosen) == f"tuned {meter.plans[0][2]}"
    assert (layer.ms, layer.planned_ms, layer.pytorch_ms) == (0.5, 1.0, 0.6)
    assert layer.plan == str(meter.plans[0][2])
    assert layer.family == chosen.family


def test_the_choice_for_volumes_is_used_and_saved(tmp_path):
    path = tmp_path / "plans.json"
    layer = tune_problem(DEVICE, deep_problem(), PROPERTIES[DEVICE], Meter(pytorch=0.6))
    assert isinstance(layer, customconv.TunedLayer)
    assert "(2, 64, 9, 34, 34)" in layer.problem
    before = _bind.decide(DEVICE, deep_problem()).plan
    assert before.tuned
    plans_file.save(path, HERE, _bind.tuned_plans())
    (entry,) = json.loads(path.read_text())["plans"]
    assert [entry["problem"][name] for name in "DTO"] == [9, 3, 9]
    _bind.clear_tuned_plans()
    assert not _bind.decide(DEVICE, deep_problem()).plan.tuned
    assert plans_file.load(path, HERE) == 1
    assert str(_bind.decide(DEVICE, deep_problem()).plan) == str(before)


def test_pytorchs_own_can_be_chosen():
    layer = tune_problem(DEVICE, problem(), PROPERTIES[DEVICE], Meter(pytorch=0.1))
    assert isinstance(layer, customconv.TunedLayer)
    assert (layer.family, layer.ms) == ("aten", 0.1)
    assert _bind.decide(DEVICE, problem()).plan.family == "aten"


def test_nothing_is_kept_where_no_result_is_right():
    found = tune_problem(DEVICE, problem(), PROPERTIES[DEVICE], lambda *a: times(*[None] * 12))
    assert found == "no result agrees with PyTorch's"
    assert _bind.tuned_plans() == []


def test_a_fused_problem_is_tuned_among_plans_that_fuse():
    meter = Meter(pytorch=0.01, fits=False)
    fused = problem(bias=True, epilogue_passes=1)
    layer = tune_problem(DEVICE, fused, PROPERTIES[DEVICE], meter)
    assert all(plan.fuses for plan in meter.plans[0])
    assert isinstance(layer, customconv.TunedLayer)
    assert _bind.decide(DEVICE, fused).plan.fuses


def test_a_problem_that_fails_is_left_to_the_planner_and_the_others_are_tuned():
    meter = Meter()

    def measure(index: int, p: _bind.ConvProblem, *rest: Any) -> Measured:
        if p.fields["C"] == 32:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 3 GiB\nmore")
        return meter(index, p, *rest)

    report = customconv.TuningReport()
    recorded = [(DEVICE, problem(c)) for c in (64, 32, 16)]
    with pytest.warns(UserWarning, match="is not tuned: CUDA out of memory") as caught:
        tune_recorded(recorded, PROPERTIES, measure, report)
    assert len(caught) == 1
    assert len(report.layers) == 2
    ((text, reason),) = report.skipped
    assert text == str(problem(32))
    assert reason == "CUDA out of memory. Tried to allocate 3 GiB"
    assert not _bind.decide(DEVICE, problem(32)).plan.tuned


def recording_of(*problems: _bind.ConvProblem) -> None:
    for each in problems:
        _bind.decide(DEVICE, each)


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Meter:
    """A GPU that is not there, and times for it."""
    meter = Meter()
    monkeypatch.setattr(plans_file, "hosts", lambda: HERE)
    monkeypatch.setattr(_bind, "device_properties", lambda index: PROPERTIES[index], raising=False)
    monkeypatch.setattr(tuning, "measure_on_gpu", meter)
    return meter


def test_what_runs_in_the_context_is_tuned_at_its_end(machine, tmp_path):
    path = tmp_path / "plans.json"
    recording_of(problem(8))
    with customconv.tuning(save=path) as report:
        assert customconv.is_enabled()
        recording_of(problem(), problem(16), problem())
        assert machine.plans == []
    assert not customconv.is_enabled()
    assert [layer.problem for layer in report.layers] == [str(problem()), str(problem(16))]
    assert report.path == str(path)
    assert len(json.loads(path.read_text())["plans"]) == 2
    recording_of(problem(32))
    assert _bind.end_recording() == []


def test_an_exception_passes_and_nothing_is_tuned(machine, tmp_path):
    with pytest.raises(ZeroDivisionError), customconv.tuning(save=tmp_path / "p") as report:
        recording_of(problem())
        raise ZeroDivisionError
    assert not report.layers
    assert machine.plans == []
    assert not (tmp_path / "p").exists()
    with customconv.tuning():  # it can begin again
        pass


def test_contexts_do_not_nest():
    with customconv.tuning(), pytest.raises(RuntimeError, match="do not nest"):
        with customconv.tuning():
            pass
    with customconv.tuning():
        pass


def test_an_interruption_keeps_and_saves_what_was_found(machine, monkeypatch, tmp_path):
    def measure(index: int, p: _bind.ConvProblem, *rest: Any) -> Measured:
        if p.fields["C"] == 16:
            raise KeyboardInterrupt
        return machine(index, p, *rest)

    monkeypatch.setattr(tuning, "measure_on_gpu", measure)
    with pytest.raises(KeyboardInterrupt), customconv.tuning(save=tmp_path / "p") as report:
        recording_of(problem(), problem(16), problem(32))
    assert len(report.layers) == 1
    assert len(json.loads((tmp_path / "p").read_text())["plans"]) == 1
    assert _bind.decide(DEVICE, problem()).plan.tuned


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"near": 0.5}, ValueError, "near >= 1"),
        ({"near": float("nan")}, ValueError, "near >= 1"),
        ({"most": 0}, ValueError, "most >= 1"),
        ({"save": "no/such/folder/plans.json"}, FileNotFoundError, "there is no folder"),
        ({"save": __file__}, ValueError, "holds no tuned plans"),
    ],
)
def test_wrong_arguments_raise_before_anything_runs(arguments, error, words):
    with pytest.raises(error, match=words), customconv.tuning(**arguments):
        raise AssertionError("it ran")


def test_nothing_is_tuned_while_a_graph_is_captured(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(RuntimeError, match="CUDA graph is being captured"), customconv.tuning():
        raise AssertionError("it ran")


class Network(nn.Module):
    """Has a buffer that training changes, draws random numbers, and gives several outputs."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.passes: list[str] = []

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = torch.dropout(self.norm(self.conv(x)), 0.5, train=True)
        y.register_hook(lambda grad: self.passes.append(f"backward of {grad.sum().item():.0f}"))
        self.passes.append("forward")
        return {"y": y, "index": y.argmax(), "more": [y.sum()]}


def test_tune_runs_both_passes_and_leaves_no_trace():
    model, x = Network(), torch.randn(2, 3, 8, 8)
    model.conv.weight.grad = torch.ones_like(model.conv.weight)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    state = torch.random.get_rng_state()
    report = customconv.tune(model, x)
    # The sum of all outputs: each element of y is in two of them.
    assert model.passes == ["forward", f"backward of {2 * 2 * 4 * 6 * 6}"]
    assert torch.equal(torch.random.get_rng_state(), state)
    assert torch.equal(model.conv.weight.grad, torch.ones_like(model.conv.weight))
    assert model.conv.bias.grad is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
    assert not report.layers


def test_tune_without_grad_mode_runs_the_forward_pass_alone():
    passes = []

    def model(x: torch.Tensor) -> torch.Tensor:
        passes.append(torch.is_grad_enabled())
        return x * 2

    with torch.no_grad():
        customconv.tune(model, torch.ones(3, requires_grad=True))
    assert passes == [False]


@pytest.mark.parametrize("wrong", [torch.ones(1), "model", None])
def test_what_is_no_model_is_refused(wrong):
    with pytest.raises(TypeError, match=r"^tune\(\) takes a model or function, not"):
        customconv.tune(wrong, torch.ones(1))


def test_a_model_without_its_inputs():
    with pytest.raises(TypeError, match=r"was given no inputs for it: tune\(model, x\)"):
        customconv.tune(nn.Conv2d(1, 1, 1))
    with pytest.raises(TypeError, match="takes 2 positional arguments but 3 were given"):
        customconv.tune(nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2), torch.ones(1))
    assert not customconv.is_enabled()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_the_report_says_that_there_is_no_gpu():
    assert "There is no GPU" in str(customconv.tune(nn.Conv2d(1, 1, 1), torch.ones(1, 1, 2, 2)))


def test_the_report_is_a_table():
    layer = customconv.TunedLayer("fprop a", 0, "aten", "aten", 0.5, 1.0, 0.5)
    other = customconv.TunedLayer("fprop b", 0, "tiled", "tiled 8", 1.5, 3.0, None)
    report = customconv.TuningReport([layer, other], [("wgrad c", "no memory")], 2.0, "p.json")
    lines = str(report).splitlines()
    assert lines[0] == "customconv: 2 convolutions tuned in 2.0 s"
    assert lines[2].split() == ["0.5000", "1.0000", "0.5000", "aten", "fprop", "a"]
    assert lines[3].split() == ["1.5000", "3.0000", "tiled", "fprop", "b"]
    assert report.gain == 2.0
    assert lines[4:] == [
        "All of them take 0.50 of the time that the planner's choices take.",
        "PyTorch's own is the fastest in 1 of them.",
        "left to the planner: wgrad c: no memory",
        "The plans are in p.json",
    ]


@pytest.mark.parametrize("terminal", [False, True])
def test_progress_is_shown_on_a_terminal_alone(terminal, monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: terminal, raising=False)
    recorded = [(DEVICE, problem(c)) for c in (64, 16)]
    tune_recorded(recorded, PROPERTIES, Meter(), customconv.TuningReport())
    said = capsys.readouterr().err
    assert ("1/2" in said and said.endswith("\r\x1b[K")) if terminal else said == ""


# Files.


def tuned_pair() -> list[tuple[int, _bind.ConvProblem, _bind.TunedPlan]]:
    for each, meter in ((problem(), Meter()), (problem(16), Meter(pytorch=0.1))):
        tune_problem(DEVICE, each, PROPERTIES[DEVICE], meter)
    return _bind.tuned_plans()


def decisions() -> list[str]:
    return [str(_bind.decide(DEVICE, each).plan) for each in (problem(), problem(16))]


def test_a_file_gives_back_what_was_tuned(tmp_path):
    path = tmp_path / "plans.json"
    assert plans_file.save(path, HERE, tuned_pair()) == 2
    before = decisions()
    _bind.clear_tuned_plans()
    assert decisions() != before
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert plans_file.load(path, {DEVICE: HOST, DEVICE + 1: HOST}) == 2
    assert decisions() == before
    assert _bind.decide(DEVICE + 1, problem()).plan.tuned  # each GPU of that name
    times = {(plan.ms, plan.pytorch_ms) for _, _, plan in _bind.tuned_plans()}
    assert times == {(0.5, 0.0), (0.1, 0.1)}


def test_the_file_says_what_it_holds_for(tmp_path):
    path = tmp_path / "plans.json"
    plans_file.save(path, HERE, tuned_pair())
    content = json.loads(path.read_text())
    assert content["format"] == 1
    for entry in content["plans"]:
        assert (entry["gpu"], entry["capability"]) == ("Test GPU", [9, 0])
        assert (entry["version"], entry["build"]) == (HOST.version, HOST.build)
        assert entry["driver"] == "13.0"
    assert "aten" in [entry["plan"] for entry in content["plans"]]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gpu": "Another"}, "1 of 2 .*1 for another GPU"),
        ({"capability": [8, 0]}, "1 for another GPU"),
        ({"version": "0.9"}, "1 for another version of customconv or build"),
        ({"build": "older"}, "1 for another version of customconv or build"),
        # What such an entry says may mean nothing here.
        ({"build": "older", "problem": {"new": 1}}, "1 for another version"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused_with_one_warning(change, words, tmp_path):
    path = tmp_path / "plans.json"
    plans_file.save(path, HERE, tuned_pair())
    content = json.loads(path.read_text())
    content["plans"][0].update(change)
    path.write_text(json.dumps(content))
    _bind.clear_tuned_plans()
    with pytest.warns(UserWarning, match=words) as caught:
        assert plans_file.load(path, HERE) == 1
    assert len(caught) == 1
    assert len(_bind.tuned_plans()) == 1


def test_without_a_gpu_everything_is_refused(tmp_path):
    path = tmp_path / "plans.json"
    plans_file.save(path, HERE, tuned_pair())
    _bind.clear_tuned_plans()
    with pytest.warns(UserWarning, match="2 of 2 .*2 for another GPU: .*none here"):
        assert plans_file.load(path, {}) == 0
    assert _bind.tuned_plans() == []


MALFORMED: dict[str, tuple[str, str]] = {
    "no JSON": ("{", "it is not JSON"),
    "deep": ("[" * 100_000, "it is not JSON"),
    "bytes": ("\x00\xff", "it is not JSON"),
    "a list": ("[]", "it states no format"),
    "another format": ('{"format": 2, "plans": []}', "it has format 2, and this version reads 1"),
    "no plans": ('{"format": 1}', "it has no list of plans"),
    "a number": ('{"format": 1, "plans": [3]}', "plan 0 is not an object"),
    "no GPU": ('{"format": 1, "plans": [{}]}', "plan 0 has no gpu"),
}


@pytest.mark.parametrize("name", MALFORMED)
def test_malformed_files_raise(name, tmp_path):
    text, words = MALFORMED[name]
    path = tmp_path / "plans.json"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=words):
        plans_file.load(path, HERE)
    with pytest.raises(ValueError, match=words):
        plans_file.save(path, HERE, [])
    assert path.read_text(encoding="latin-1") == text
    assert os.listdir(tmp_path) == ["plans.json"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"plan": "magic"}, "there is no family 'magic'"),
        ({"plan": "direct order=sideways"}, "order is never sideways"),
        ({"plan": {"family": "tiled"}}, "a plan is named by its text, not by {'family'"),
        ({"plan": 3}, "plan 0: "),
        ({"ms": "fast"}, "plan 0: "),
        ({"ms": float("nan")}, "not finite"),
        ({"pytorch_ms": -1}, "negative"),
        ({"problem": {}}, "it has no op"),
    ],
    ids=str,
)
def test_a_malformed_plan_raises_and_none_is_taken(change, words, tmp_path):
    path = tmp_path / "plans.json"
    plans_file.save(path, HERE, tuned_pair())
    content = json.loads(path.read_text())
    content["plans"][0].update(change)
    content["plans"].reverse()
    path.write_text(json.dumps(content).replace("plan 0", "plan 1"))
    _bind.clear_tuned_plans()
    with pytest.raises(ValueError, match=words.replace("plan 0", "plan 1")):
        plans_file.load(path, HERE)
    assert _bind.tuned_plans() == []


def test_a_plan_that_is_not_listed_falls_back_to_the_planner(tmp_path):
    path = tmp_path / "plans.json"
    plans_file.save(path, HERE, tuned_pair())
    content = json.loads(path.read_text())
    for entry in content["plans"]:
        if entry["plan"] != "aten":
            entry["plan"] += " splits=1073741824"
    path.write_text(json.dumps(content))
    _bind.clear_tuned_plans()
    assert plans_file.load(path, HERE) == 2
    assert _bind.decide(DEVICE, problem()).dropped  # dropped
    assert str(_bind.decide(DEVICE, problem()).plan) == str(_bind.plan(problem()))


def test_a_file_of_the_version_before_is_refused_with_one_warning(tmp_path):
    """It has the fields of plans in place of their names. Saving drops them."""
    path = tmp_path / "plans.json"
    path.write_bytes((Path(__file__).parent / "data" / "plans_by_fields.json").read_bytes())
    with pytest.warns(UserWarning, match="2 of 2 .*2 for another version of customconv") as caught:
        assert plans_file.load(path, HERE) == 0
    assert len(caught) == 1
    assert _bind.tuned_plans() == []
    assert plans_file.save(path, HERE, tuned_pair()[:1]) == 1
    assert len(json.loads(path.read_text())["plans"]) == 1


def test_saving_keeps_other_gpus_and_drops_what_nothing_can_use(tmp_path):
    path = tmp_path / "plans.json"
    plans = tuned_pair()
    other = plans_file.Host("Other GPU", (8, 0), "13.0", "0.9", "older")
    stale = plans_file.Host("Test GPU", (9, 0), "13.0", "0.9", "older")
    plans_file.save(path, {DEVICE: other}, plans)
    plans_file.save(path, {DEVICE: stale}, plans)
    plans_file.save(path, HERE, plans[:1])
    plans_file.save(path, HERE, plans[1:])
    entries = json.loads(path.read_text())["plans"]
    kinds = sorted((entry["gpu"], entry["version"]) for entry in entries)
    assert kinds == [("Other GPU", "0.9")] * 2 + [("Test GPU", "1.0")] * 2
    assert os.listdir(tmp_path) == ["plans.json"]


def test_a_save_that_fails_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "plans.json"
    plans_file.save(path, HERE, tuned_pair())
    before = path.read_text()

    def fail(*_: Any, **__: Any) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(json, "dump", fail)
    with pytest.raises(OSError, match="no space"):
        plans_file.save(path, HERE, tuned_pair())
    assert path.read_text() == before
    assert os.listdir(tmp_path) == ["plans.json"]


def test_plans_in_memory_can_be_saved_loaded_and_forgotten(tmp_path, monkeypatch):
    monkeypatch.setattr(plans_file, "hosts", lambda: HERE)
    tuned_pair()
    assert customconv.save_plans(tmp_path / "p") == 2
    customconv.clear_plans()
    assert _bind.tuned_plans() == []
    assert customconv.load_plans(tmp_path / "p") == 2
    with pytest.raises(FileNotFoundError):
        customconv.load_plans(tmp_path / "none")


def imported(plans: str) -> subprocess.CompletedProcess[str]:
    code = "import customconv, torch; print(torch.cuda.is_initialized())"
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True,
        env={**os.environ, "CUSTOMCONV_PLANS": plans},
    )  # fmt: skip


def test_a_named_file_that_is_missing_is_told_once_at_the_import():
    done = imported(f"{os.pathsep}/no/such/file{os.pathsep}/nor/this")
    assert done.stderr.count("UserWarning") == 1
    assert "CUSTOMCONV_PLANS: there is no /no/such/file, /nor/this" in done.stderr
    assert done.stdout == "False\n"


def test_a_named_file_is_not_read_before_cuda_starts(tmp_path):
    path = tmp_path / "plans.json"
    path.write_text("this is no file of plans")
    done = imported(str(path))
    assert (done.stdout, done.stderr) == ("False\n", "")


def test_named_files_are_read_when_cuda_starts(tmp_path, monkeypatch):
    good, bad = tmp_path / "good.json", tmp_path / "bad.json"
    plans_file.save(good, HERE, tuned_pair())
    bad.write_text("{}")
    customconv.clear_plans()
    monkeypatch.setattr(plans_file, "hosts", lambda: HERE)
    monkeypatch.setenv("CUSTOMCONV_PLANS", f"{bad}{os.pathsep}{good}")
    queued = []
    monkeypatch.setattr(torch.cuda, "_lazy_call", queued.append)
    tuning.load_named_plans()
    assert _bind.tuned_plans() == []
    with pytest.warns(UserWarning, match="bad.json holds no tuned plans: it states no format"):
        queued[0]()
    assert len(_bind.tuned_plans()) == 2


# What PyTorch computes for comparison.


SHAPES = {
    "images": ((2, 4, 7, 8), (6, 2, 3, 3)),
    "volumes": ((2, 4, 5, 7, 8), (6, 2, 3, 2, 3)),
    "one slice": ((2, 4, 1, 7, 8), (6, 2, 3, 3, 3)),
    "flat filters": ((2, 4, 5, 7, 8), (6, 2, 1, 3, 3)),
}


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", SHAPES)
def test_pytorchs_pass_is_that_of_the_problem(name, op):
    x, w = (torch.randn(shape, requires_grad=True) for shape in SHAPES[name])
    bias = torch.randn(6) if op == "fprop" else None
    convolve = nn.functional.conv2d if x.ndim == 4 else nn.functional.conv3d
    stride, padding = [2, 2, 1][: x.ndim - 2], [1, 1, 0][: x.ndim - 2]
    y = convolve(x, w, bias, stride, padding, 1, 2)
    grad = torch.randn_like(y)
    p = _bind.ConvProblem(
        op=op, input=x.shape, weight=w.shape, stride=stride, padding=padding, groups=2,
        bias=bias is not None,
    )  # fmt: skip
    gradients = torch.autograd.grad(y, [x, w], grad)
    expected = {"fprop": y, "dgrad": gradients[0], "wgrad": gradients[1]}[op]
    operands = x.detach(), w.detach(), y.detach() if op == "fprop" else grad
    actual = torch.ops.customconv._aten_pass(p.text, *operands, bias)
    torch.testing.assert_close(actual, expected)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize("name", SHAPES)
def test_operands_lie_as_the_problem_says(name, op, channels_last):
    """And PyTorch takes them for what they are, a filter of one slice too."""
    input, weight = SHAPES[name]
    p = _bind.ConvProblem(
        op=op, input=input, weight=weight, padding=[1] * (len(input) - 2), groups=2,
        channels_last=channels_last,
    )  # fmt: skip
    operands = Operands(p, torch.device("cpu"))
    last = torch.channels_last if len(input) == 4 else torch.channels_last_3d
    shapes = input, weight, p.output
    for tensor, shape in zip((operands.x, operands.w, operands.y), shapes, strict=True):
        assert tensor.shape == shape
        dense = torch.empty(shape)
        if channels_last:
            dense = dense.to(memory_format=last)
        assert tensor.stride() == dense.stride()
    result = operands.by_pytorch(p)
    assert result.shape == operands.result.shape
    wanted = {"fprop": operands.y, "dgrad": operands.x, "wgrad": operands.w}[op]
    assert operands.result is wanted
    size = result.square().mean().sqrt()
    assert 0.2 < size < 3  # of order one


def test_deterministic_algorithms_are_the_users_choice_again_afterwards():
    """Also where threads overlap, of which the first may end before the last begins."""
    p = _bind.ConvProblem(input=(8, 4, 32, 32), weight=(8, 4, 3, 3), padding=(1, 1))
    x, w, y = torch.randn(8, 4, 32, 32), torch.randn(8, 4, 3, 3), torch.empty(8, 8, 32, 32)
    seen = set()

    def compute(_: int) -> None:
        torch.ops.customconv._aten_pass(p.text, x, w, y, None)
        seen.add(torch._C._get_cudnn_deterministic())

    for before in (False, True):
        with torch.backends.cudnn.flags(enabled=True, deterministic=before, allow_tf32=False):
            with ThreadPoolExecutor(8) as threads:
                list(threads.map(compute, range(200)))
            assert torch._C._get_cudnn_deterministic() == before
    assert True in seen


# On a GPU.


def small_network(device: str = "cuda", dimensions: int = 2) -> tuple[nn.Module, torch.Tensor]:
    torch.manual_seed(3)
    if dimensions == 3:
        deep = nn.Sequential(
            nn.Conv3d(16, 32, 3, padding=1), nn.Tanh(), nn.Conv3d(32, 32, 3, groups=32), nn.Tanh(),
            nn.ConvTranspose3d(32, 8, 2, stride=2), nn.Conv3d(8, 4, (1, 5, 5), stride=2),
        ).to(device)  # fmt: skip
        return deep, torch.randn(2, 16, 5, 12, 14, device=device)
    # Smooth activations: the gradient of a rectifier jumps where a sum near zero is rounded.
    model = nn.Sequential(
        nn.Conv2d(16, 32, 3, padding=1), nn.Tanh(), nn.Conv2d(32, 32, 3, groups=32), nn.Tanh(),
        nn.ConvTranspose2d(32, 8, 2, stride=2), nn.Conv2d(8, 4, 5, stride=2),
    ).to(device)  # fmt: skip
    return model, torch.randn(4, 16, 30, 28, device=device)


def all_passes(model: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    x = x.detach().requires_grad_()
    with customconv.enabled():
        y = model(x)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, *model.parameters()])]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
@pytest.mark.parametrize("tf32", [False, True])
@pytest.mark.parametrize("dimensions", [2, 3])
def test_a_tuned_network_is_right_and_repeats_bit_for_bit(dimensions, dtype, tf32, tmp_path):
    model, x = small_network(dimensions=dimensions)
    model, x = model.to(dtype), x.to(dtype)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=tf32):
        untuned = all_passes(model, x)
        report = customconv.tune(
            lambda t: model(t).square(), x.clone().requires_grad_(), save=tmp_path / "p"
        )
        assert len(report.layers) + len(report.skipped) >= 12, report
        assert not report.skipped, report
        assert all(each.ms > 0 for each in report.layers)
        first = all_passes(model, x)
        for _ in range(5):
            for again, before in zip(all_passes(model, x), first, strict=True):
                assert torch.equal(again, before)
        for ours, theirs in zip(first, untuned, strict=True):
            close = {torch.float32: 1e-2 if tf32 else 1e-4}.get(dtype, 5e-2)
            scale = theirs.float().square().mean().sqrt().item()
            torch.testing.assert_close(ours, theirs, rtol=close, atol=close * scale)
        customconv.clear_plans()
        assert customconv.load_plans(tmp_path / "p") == len(report.layers)
        for loaded, before in zip(all_passes(model, x), first, strict=True):
            assert torch.equal(loaded, before)


@pytest.mark.gpu
def test_explain_says_what_was_tuned(tmp_path):
    x, w = torch.randn(8, 32, 40, 40, device="cuda"), torch.randn(32, 32, 3, 3, device="cuda")
    assert customconv.explain(x, w).tuned is None
    report = customconv.tune(lambda: customconv.conv2d(x, w), save=tmp_path / "p")
    (layer,) = report.layers
    customconv.clear_plans()
    assert customconv.explain(x, w).tuned is None
    assert customconv.load_plans(tmp_path / "p") == 1
    explanation = customconv.explain(x, w)
    assert explanation.family == layer.family
    assert explanation.tuned is not None
    assert explanation.tuned.ms == layer.ms
    assert f"{layer.ms:.3g} ms, PyTorch {layer.pytorch_ms:.3g} ms" in str(explanation)
    taken = [c.family for c in explanation.candidates if not c.reason]
    assert taken == [layer.family]


def choose(problem: _bind.ConvProblem, family: str) -> None:
    _bind.set_tuned_plan(0, problem, _bind.TunedPlan(family))


def recorded_from(call: Any) -> list[_bind.ConvProblem]:
    assert _bind.begin_recording()
    try:
        call()
    finally:
        recorded = _bind.end_recording()
    return [problem for _, problem in recorded]


@pytest.mark.gpu
@pytest.mark.parametrize("routed", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("by_aten", [{"fprop"}, {"dgrad"}, {"wgrad"}, {"fprop", "dgrad", "wgrad"}])
def test_choices_of_pytorch_mix_with_ours(by_aten, transposed, routed):
    """Each gradient is computed once, by what was chosen for it, and deterministically."""
    shape = (16, 8, 3, 3) if not transposed else (8, 16, 3, 3)
    x = torch.randn(2, 8, 20, 20, device="cuda", requires_grad=True)
    w = torch.randn(shape, device="cuda", requires_grad=True)
    bias = torch.randn(16, device="cuda", requires_grad=True)
    ours = customconv.conv_transpose2d if transposed else customconv.conv2d
    theirs = nn.functional.conv_transpose2d if transposed else nn.functional.conv2d
    call = theirs if routed else ours

    def passes() -> list[torch.Tensor]:
        with customconv.enabled():
            y = call(x, w, bias, padding=1)
            grads = torch.autograd.grad(y, [x, w, bias], torch.ones_like(y).cos())
            return [y.detach(), *grads]

    expected = theirs(x.double(), w.double(), bias.double(), padding=1)
    grads = torch.autograd.grad(expected, [x, w, bias], torch.ones_like(expected).cos())
    roles = {"fprop": "dgrad", "dgrad": "fprop"} if transposed else {}
    kernels = {roles.get(op, op) for op in by_aten}
    for problem in recorded_from(passes):
        if problem.fields["op"] in kernels:
            choose(problem, "aten")
    customconv.stats(reset=True)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False, deterministic=False):
        first, second = passes(), passes()
        assert not torch.backends.cudnn.deterministic
    stats = customconv.stats(reset=True)
    reason = "PyTorch's own was faster when it was tuned"
    calls = ("fprop" in by_aten) + bool(by_aten & {"dgrad", "wgrad"})
    assert stats.fallbacks == {reason: 2 * calls}
    assert {op for op, _ in stats.calls} == {"fprop", "dgrad", "wgrad"} - by_aten
    for actual, again, exact in zip(first, second, [expected, *grads], strict=True):
        assert torch.equal(actual, again)
        torch.testing.assert_close(actual, exact.to(actual.dtype), rtol=1e-4, atol=1e-3)


@pytest.mark.gpu
def test_a_choice_of_pytorch_runs_with_deterministic_algorithms(monkeypatch):
    """A traced module passes its own switch, and a thread finds the user's again."""
    x, w = torch.randn(2, 8, 20, 20, device="cuda"), torch.randn(16, 8, 3, 3, device="cuda")
    (problem,) = recorded_from(lambda: customconv.conv2d(x, w))
    choose(problem, "aten")
    with torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False):
        expected = nn.functional.conv2d(x, w)
    with torch.backends.cudnn.flags(enabled=True, allow_tf32=False), customconv.enabled():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            traced = torch.jit.trace(lambda t: nn.functional.conv2d(t, w), x)
        for call in (lambda: nn.functional.conv2d(x, w), lambda: traced(x)):
            assert torch.equal(call(), expected)
        assert not torch.backends.cudnn.deterministic


@pytest.mark.gpu
def test_a_plan_that_is_not_listed_is_dropped_with_a_warning():
    x, w = torch.randn(2, 8, 20, 20, device="cuda"), torch.randn(16, 8, 3, 3, device="cuda")
    expected = customconv.conv2d(x, w)
    (problem,) = recorded_from(lambda: customconv.conv2d(x, w))
    _bind.set_tuned_plan(0, problem, _bind.TunedPlan("direct order=pixels splits=77"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # once in a process, perhaps before
        assert torch.equal(customconv.conv2d(x, w), expected)
    assert _bind.tuned_plans() == []


@pytest.mark.gpu
def test_tuning_adds_no_rounding():
    """Float32 with TF32 allowed: what the planner does not round is not rounded after tuning."""
    x, w = torch.randn(4, 2, 20, 20, device="cuda"), torch.randn(2, 2, 3, 3, device="cuda")
    last = x.to(memory_format=torch.channels_last)
    exact = nn.functional.conv2d(x.double(), w.double())

    def rounds(t: torch.Tensor) -> bool:
        error = (customconv.conv2d(t, w) - exact).square().mean().sqrt()
        return bool(error / exact.square().mean().sqrt() > 5e-5)

    with torch.backends.cudnn.flags(enabled=True, allow_tf32=True):
        assert not (rounds(x) or rounds(last))
        customconv.tune(lambda: [customconv.conv2d(t, w) for t in (x, last)])
        assert not (rounds(x) or rounds(last))


@pytest.mark.gpu
@pytest.mark.parametrize(
    "name", ["conv2d_fused", "conv3d_fused", "conv_transpose2d_fused", "conv_transpose3d_fused"]
)
def test_fused_calls_are_tuned(name: str):
    dimensions = int(name.removesuffix("_fused")[-2])
    sizes = [20, 20, 6][:dimensions]
    x = torch.randn(4, 64, *sizes, device="cuda", dtype=torch.float16)
    w = torch.randn(64, 64, *[3] * dimensions, device="cuda", dtype=torch.float16)
    change = 2 if "transpose" in name else -2
    outputs = [size + change for size in sizes]
    bias, residual = x.new_ones(64), torch.randn(4, 64, *outputs, device="cuda").half()

    def call() -> torch.Tensor:
        convolve = getattr(customconv, name)
        y: torch.Tensor = convolve(x, w, bias, residual=residual, activation="silu")
        return y

    expected = call()
    report = customconv.tune(call)
    assert report.layers or report.skipped
    assert not report.by_pytorch
    torch.testing.assert_close(call(), expected, rtol=1e-2, atol=1e-1)


@pytest.mark.gpu
def test_tuning_leaves_random_numbers_and_switches():
    model, x = small_network()
    state = torch.cuda.get_rng_state()
    switches = (torch.backends.cudnn.deterministic, torch._C._get_cudnn_allow_tf32())
    precision = torch.backends.cudnn.conv.fp32_precision
    with torch.no_grad():
        report = customconv.tune(model, x)
    assert {layer.problem.split()[0] for layer in report.layers} <= {"fprop", "dgrad"}
    assert torch.equal(torch.cuda.get_rng_state(), state)
    assert (
        torch.backends.cudnn.deterministic, torch._C._get_cudnn_allow_tf32()
    ) == switches  # fmt: skip
    assert torch.backends.cudnn.conv.fp32_precision == precision


@pytest.mark.gpu
def test_tuning_in_a_graph_capture_raises():
    model, x = small_network()
    with torch.no_grad():
        model(x)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            y = x * 2
            with pytest.raises(RuntimeError, match="CUDA graph is being captured"):
                customconv.tune(model, x)
    graph.replay()
    assert torch.equal(y, x * 2)
