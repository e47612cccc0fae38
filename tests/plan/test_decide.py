"""What becomes of a call: precision, copies and plan follow from the problem as it comes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest
from random_problems import DEVICES, PASSES, fields, problem, random_arguments

from customconv import _bind

pytestmark = pytest.mark.usefixtures("nothing_tuned")

DEVICE = 42  # an index that no machine has, so that nothing else is disturbed
READ = {"fprop": "xw", "dgrad": "wy", "wgrad": "xy"}
ROUNDED = {"input": (8, 64, 28, 28), "weight": (64, 64, 3, 3), "padding": (1, 1), "tf32": True}
NEVER_ROUND = ("direct", "tiled", "depthwise")


def changed(p: _bind.ConvProblem, **change: Any) -> _bind.ConvProblem:
    return _bind.ConvProblem.from_fields({**p.fields, **change})


def sliced(p: _bind.ConvProblem, operands: str) -> _bind.ConvProblem:
    """Every other element of memory."""
    names = [f"{operand}_strides" for operand in operands]
    return changed(p, **{name: [2 * stride for stride in p.fields[name]] for name in names})


def unaligned(p: _bind.ConvProblem, operands: str) -> _bind.ConvProblem:
    return changed(p, **{f"{o}_aligned": False for o in operands})


def decide(p: _bind.ConvProblem, **asked: Any) -> _bind.Decision:
    before = _bind.lookups()
    decision = _bind.decide(DEVICE, p, **asked)
    assert _bind.lookups() == before + 1
    return decision


def float32_problems(seed: int, count: int) -> Iterator[tuple[_bind.ConvProblem, bool]]:
    """With TF32 allowed, each with whether it is channels-last."""
    rng = random.Random(seed)
    for _ in range(count):
        arguments = random_arguments(rng) | {"dtype": "float32", "tf32": True}
        yield problem(**arguments), arguments.get("channels_last", False)


def counts(p: _bind.ConvProblem) -> dict[str, int]:
    """The elements of each tensor."""
    f = p.fields
    return {
        "x": f["N"] * f["C"] * f["H"] * f["W"], "y": f["N"] * f["K"] * f["P"] * f["Q"],
        "w": f["K"] * f["C"] // f["groups"] * f["R"] * f["S"],
    }  # fmt: skip


@pytest.mark.parametrize("arrange", [sliced, unaligned])
def test_operands_that_are_rounded_are_copied(arrange):
    """Then the plan is that of the dense problem. Others stay as they are."""
    seen = set()
    for p, channels_last in float32_problems(1, 60):
        rounds = _bind.computes_in_tf32(p)
        operands = READ[p.fields["op"]]
        for each in (operands, operands[0], operands[1]):
            other = arrange(p, each)
            # A single element lies densely whatever its strides are.
            moved = "".join(o for o in each if arrange is unaligned or counts(p)[o] > 1)
            decision = decide(other, channels_last=channels_last)
            assert decision.copies == (moved if rounds else ""), other
            if each == moved:
                expected = changed(p if rounds else other, tf32=rounds)
                assert decision.problem.fields == expected.fields, other
                assert fields(decision.plan) == fields(_bind.plan(expected)), other
                seen.add(rounds)
    assert seen == {True, False}


@pytest.mark.parametrize("op", PASSES)
def test_what_a_pass_writes_is_never_copied(op):
    p = problem(**ROUNDED, op=op)
    (written,) = set("xwy") - set(READ[op])
    assert decide(sliced(p, written)).copies == ""
    assert decide(sliced(p, "xwy")).copies == READ[op]


@pytest.mark.parametrize("op", PASSES)
def test_nothing_is_copied_where_nothing_rounds(op):
    for dtype in ("float32", "float16", "float64"):
        p = sliced(problem(**ROUNDED | {"tf32": False}, op=op, dtype=dtype), READ[op])
        assert decide(p).copies == ""
        assert decide(p).problem.fields == p.fields


def test_copies_are_made_in_the_layout_that_is_asked_for():
    """Which sizes of one leave open, so that it is part of what was decided before."""
    p = problem(**ROUNDED)
    assert decide(p, channels_last=False).copies == ""
    last = decide(p, channels_last=True)
    assert last.copies == "xw"
    assert last.problem.fields["x_strides"] == problem(**ROUNDED, channels_last=True).fields[
        "x_strides"
    ]  # fmt: skip
    assert decide(p, channels_last=False).copies == ""


@pytest.mark.parametrize("family", ["direct", "im2col", "tiled", "implicit_gemm"])
def test_a_family_by_name_takes_operands_as_they_are_if_it_never_rounds(family):
    p = sliced(problem(**ROUNDED), "xw")
    decision = decide(p, algorithm=family)
    assert decision.plan.family == family
    assert decision.copies == ("" if family in NEVER_ROUND else "xw")
    assert decision.problem.fields["tf32"]


@pytest.mark.parametrize("op", PASSES)
def test_a_family_that_gives_way_leaves_the_planner_its_copies(op):
    p = sliced(problem(**ROUNDED, op=op), READ[op])
    with pytest.raises(RuntimeError, match="cannot compute"):
        decide(p, algorithm="depthwise")
    given, planned = decide(p, algorithm="depthwise", prefer=True), decide(p)
    assert given.copies == planned.copies == READ[op]
    assert fields(given.plan) == fields(planned.plan)
    assert given.problem.fields == planned.problem.fields


def recorded_from(p: _bind.ConvProblem, device: _bind.DeviceProperties) -> list[_bind.ConvProblem]:
    assert _bind.begin_recording()
    _bind.decide(DEVICE, p, device)
    return [each for _, each in _bind.end_recording()]


@pytest.mark.parametrize("name", ["H100", "A100"])
def test_the_problem_that_is_tuned_is_the_one_that_runs(name):
    """Also on a GPU that nobody has measured, where nothing is copied before it is tuned."""
    device = DEVICES[name]
    p = problem(**ROUNDED)
    assert _bind.computes_in_tf32(p, device)
    (recorded,) = recorded_from(sliced(p, "xw"), device)
    assert recorded.fields == p.fields
    plan = _bind.tunable(recorded, device)[1][-1]
    _bind.set_tuned_plan(DEVICE, recorded, _bind.TunedPlan(plan.name, ms=0.5))
    for each in (sliced(p, "xw"), unaligned(p, "x"), p):
        decision = _bind.decide(DEVICE, each, device)
        assert decision.plan.tuned
        assert fields(decision.plan) == fields(plan)
        assert decision.tuned is not None
        assert (decision.tuned.name, decision.tuned.ms) == (plan.name, 0.5)
        assert decision.problem.fields["x_strides"] == p.fields["x_strides"]
    assert recorded_from(sliced(p, "xw"), device)[0].fields == p.fields


def test_a_strided_problem_that_does_not_round_is_tuned_as_it_is():
    p = next(p for p, _ in float32_problems(3, 100) if not _bind.computes_in_tf32(p))
    other = sliced(p, READ[p.fields["op"]])
    (recorded,) = recorded_from(other, DEVICES["H100"])
    assert recorded.fields == other.fields
    plan = _bind.tunable(recorded)[1][-1]
    _bind.set_tuned_plan(DEVICE, recorded, _bind.TunedPlan(plan.name))
    assert fields(decide(other).plan) == fields(plan)
    assert not decide(p).plan.tuned


def test_problems_with_statistics_and_of_any_batch_are_not_recorded():
    _bind.begin_recording()
    for flag in ("statistics", "batch_invariant"):
        decide(problem(**ROUNDED, **{flag: True}))
    assert _bind.end_recording() == []


@pytest.mark.parametrize("arrange", [sliced, unaligned])
def test_candidates_are_told_of_the_problem_that_runs(arrange):
    """Each family has the plan that it would have by name."""
    p = arrange(problem(**ROUNDED), "xw")
    decision = decide(p)
    found = {c.family: c for c in _bind.candidates(p)}
    assert [c.family for c in found.values() if not c.reason] == [decision.plan.family]
    for family, candidate in found.items():
        if candidate.plan is not None:
            by_name = decide(p, algorithm=family)
            assert fields(candidate.plan) == fields(by_name.plan)
        elif family != "aten":
            with pytest.raises(RuntimeError) as error:
                decide(p, algorithm=family)
            assert candidate.reason in str(error.value)


def test_candidates_of_a_tuned_strided_problem():
    p = problem(**ROUNDED)
    _bind.set_tuned_plan(DEVICE, p, _bind.TunedPlan("aten"))
    found = {c.family: c.reason for c in _bind.candidates(sliced(p, "xw"), device_index=DEVICE)}
    assert found["aten"] == ""
    assert found["implicit_gemm"] == "aten was the fastest when it was tuned"
    assert found["direct"] == "it computes in IEEE float32, and TF32 is faster here"
