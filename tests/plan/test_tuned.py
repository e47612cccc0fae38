"""Plans that were tuned: which are listed, how they are found again, and when they are used."""

from __future__ import annotations

import random
import threading

import pytest
from random_problems import DEVICES, fields, problem, random_arguments

from customconv import _bind

pytestmark = pytest.mark.usefixtures("nothing_tuned")

DEVICE = 40  # an index that no machine has, so that nothing else is disturbed
DENSE = {"input": (8, 64, 56, 56), "weight": (64, 64, 3, 3), "padding": (1, 1), "dtype": "float16"}
ROUND_TO_TF32 = {"im2col", "implicit_gemm", "grouped", "col2im"}


def named(plan: _bind.ConvPlan, ms: float = 1.0, pytorch_ms: float = 0.0) -> _bind.TunedPlan:
    return _bind.TunedPlan(plan.name, ms, pytorch_ms)


def decide(p: _bind.ConvProblem, device: _bind.DeviceProperties | None = None) -> _bind.ConvPlan:
    decision = _bind.decide(DEVICE, p, device or _bind.DeviceProperties())
    assert not decision.dropped
    return decision.plan


def another_plan(p: _bind.ConvProblem) -> _bind.ConvPlan:
    plans = _bind.tunable(p)[1]
    return next(plan for plan in plans if plan.kind != plans[0].kind)


@pytest.mark.parametrize("name", DEVICES)
def test_the_planners_choice_comes_first_and_the_precision_is_kept(name):
    rng = random.Random(7)
    rounded = []
    for _ in range(150):
        p = problem(**random_arguments(rng))
        settled, plans = _bind.tunable(p, DEVICES[name])
        if name == "H100":
            assert fields(plans[0]) == fields(_bind.plan(p, DEVICES[name])), p
        else:  # PyTorch's own is the choice where nobody has measured
            assert _bind.plan(p, DEVICES[name]).family in ("aten", "depthwise"), p
        times = [plan.predicted_ms for plan in plans[1:]]
        assert times == sorted(times), p
        assert settled.fields["tf32"] == _bind.computes_in_tf32(p, DEVICES[name]), p
        if p.fields["tf32"] and p.fields["dtype"] == "float32":
            rounded.append(settled.fields["tf32"])
            used = {plan.family for plan in plans}
            exact = {"im2col", "implicit_gemm"}  # which have plans of either kind
            others = ROUND_TO_TF32 - exact if not rounded[-1] else used - ROUND_TO_TF32
            assert not used & others, p
    assert {True, False} <= set(rounded)


def test_every_plan_is_found_again_by_its_name():
    rng = random.Random(8)
    for _ in range(60):
        p = problem(**random_arguments(rng))
        plans = _bind.tunable(p)[1]
        for plan in plans[:: max(1, len(plans) // 3)]:
            _bind.set_tuned_plan(DEVICE, p, named(plan))
            found = decide(p)
            assert fields(found) == fields(plan), p
            assert found.tuned


def test_a_tuned_plan_is_used_at_once_and_until_it_is_cleared():
    p = problem(**DENSE)
    planned = decide(p)
    assert not planned.tuned
    other = another_plan(p)
    _bind.set_tuned_plan(DEVICE, p, named(other))
    assert fields(decide(p)) == fields(other)
    assert "tuned" in str(decide(p))
    assert not _bind.decide(DEVICE + 1, p).plan.tuned  # another device's
    _bind.set_tuned_plan(DEVICE, p, named(planned))
    assert fields(decide(p)) == fields(planned)
    _bind.clear_tuned_plans()
    assert not decide(p).tuned


def test_pytorchs_own_can_be_the_choice():
    p = problem(**DENSE)
    _bind.set_tuned_plan(DEVICE, p, _bind.TunedPlan("aten", ms=0.5))
    assert decide(p).family == "aten"
    assert decide(p).tuned


def test_pytorchs_own_is_refused_where_it_might_round_and_the_planner_does_not():
    rng = random.Random(9)
    seen = set()
    while seen != {True, False}:
        p = problem(**random_arguments(rng) | {"dtype": "float32", "tf32": True})
        rounds = _bind.computes_in_tf32(p)
        seen.add(rounds)
        _bind.set_tuned_plan(DEVICE, p, _bind.TunedPlan("aten"))
        decision = _bind.decide(DEVICE, p)
        assert (decision.plan.family == "aten") == rounds, p
        assert decision.dropped != rounds, p


@pytest.mark.parametrize(
    "name",
    [
        "direct order=pixels splits=77",
        "implicit_gemm mma_sync fetch=odd-taps kernel=128-pixels-x-64 shape=run stages=4x8",
        "{} splits=12345",
    ],
)
def test_a_plan_that_the_planner_does_not_list_is_dropped(name):
    """Once: then the planner decides, and says nothing."""
    p = problem(**DENSE)
    plan = _bind.plan(p)
    _bind.set_tuned_plan(DEVICE, p, _bind.TunedPlan(name.format(plan.name)))
    assert _bind.decide(DEVICE, p).dropped
    assert fields(decide(p)) == fields(plan)
    assert _bind.tuned_plans() == []


def test_what_is_tuned_is_listed():
    p, plan = problem(**DENSE), _bind.plan(problem(**DENSE))
    _bind.set_tuned_plan(DEVICE, p, named(plan, ms=0.5, pytorch_ms=0.75))
    ((index, listed, name),) = _bind.tuned_plans()
    assert (index, listed.fields, name.family) == (DEVICE, p.fields, plan.family)
    assert (name.ms, name.pytorch_ms, name.name) == (0.5, 0.75, plan.name)


def test_the_candidates_say_what_tuning_chose():
    p = problem(**DENSE)
    _bind.set_tuned_plan(DEVICE, p, _bind.TunedPlan("aten"))
    reasons = {c.family: c.reason for c in _bind.candidates(p, device_index=DEVICE)}
    assert reasons["aten"] == ""
    assert reasons["implicit_gemm"] == "aten was the fastest when it was tuned"
    assert "tuned" not in reasons["depthwise"]  # it is not possible at all
    assert all(c.reason != "" or c.family != "aten" for c in _bind.candidates(p))


def test_problems_are_recorded_once_while_a_recording_is_on():
    first, second = problem(**DENSE), problem(**DENSE | {"bias": True})
    decide(first)
    assert _bind.begin_recording()
    assert not _bind.begin_recording()
    for each in (first, second, first):  # the first is cached already
        decide(each)
    _bind.decide(DEVICE + 1, first)
    recorded = [(index, p.fields) for index, p in _bind.end_recording()]
    assert recorded == [
        (DEVICE, first.fields), (DEVICE, second.fields), (DEVICE + 1, first.fields),
    ]  # fmt: skip
    decide(first)
    assert _bind.end_recording() == []


def test_what_is_allowed_is_recorded_and_not_what_was_settled_on():
    rng = random.Random(11)
    while True:
        p = problem(**random_arguments(rng) | {"dtype": "float32", "tf32": True})
        if not _bind.computes_in_tf32(p):
            break
    _bind.begin_recording()
    decide(p)
    ((_, recorded),) = _bind.end_recording()
    assert recorded.fields["tf32"]


def test_threads_decide_while_plans_come_and_go():
    """Each gets the tuned plan or the planner's, and the last word counts in the end."""
    p = problem(**DENSE)
    planned, other = _bind.plan(p), another_plan(p)
    expected, wrong, stop = {fields(planned), fields(other)}, [], threading.Event()

    def work() -> None:
        while not stop.is_set():
            found = decide(p)
            if fields(found) not in expected:
                wrong.append(str(found))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(300):
        _bind.set_tuned_plan(DEVICE, p, named(other))
        assert fields(decide(p)) == fields(other)
        _bind.clear_tuned_plans()
        assert fields(decide(p)) == fields(planned)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_problem_survives_as_plain_fields():
    rng = random.Random(12)
    for _ in range(300):
        p = problem(**random_arguments(rng))
        again = _bind.ConvProblem.from_fields(p.fields)
        assert again.fields == p.fields
        assert str(again) == str(p)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"op": "sideways"}, "unknown op"), ({"dtype": "int8"}, "unknown dtype"),
        ({"N": 0}, "N is out of range: 0"), ({"N": "8"}, "N has another type"),
        ({"N": 2**70}, "N has another type"), ({"pad_h": -1}, "pad_h is out of range"),
        ({"x_strides": [1, 2]}, "x_strides has another type"),
        ({"w_strides": [1, 1, 1, -1]}, "w_strides is out of range"),
        ({"groups": 3}, "groups must divide"), ({"epilogue_passes": 99}, "epilogue_passes is out"),
        ({"more": 1}, "unknown"), ({"tf32": None}, "tf32 has another type"),
    ],
)  # fmt: skip
def test_fields_that_are_no_problem_are_refused(change, words):
    with pytest.raises(ValueError, match=words):
        _bind.ConvProblem.from_fields({**problem(**DENSE).fields, **change})


def test_a_field_that_is_missing_is_named():
    incomplete = problem(**DENSE).fields
    del incomplete["y_strides"]
    with pytest.raises(ValueError, match="it has no y_strides"):
        _bind.ConvProblem.from_fields(incomplete)


def test_what_cannot_be_tuned_is_refused():
    with pytest.raises(ValueError, match="there is no family 'winograd'"):
        _bind.TunedPlan("winograd")
    with pytest.raises(ValueError, match="not negative"):
        _bind.set_tuned_plan(-1, problem(**DENSE), _bind.TunedPlan("aten"))
