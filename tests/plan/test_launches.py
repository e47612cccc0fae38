"""Launches take what their plans say, and plans of other problems are refused."""

from __future__ import annotations

import random

import pytest
from random_problems import DEVICES, arguments, problem

from customconv import _bind

COUNT = 300
WORDS = _bind.plan_words()
IMAGE = (4, 64, 28, 28)
OF_ANY_LAYOUT = ("direct ", "tiled ", "depthwise threads ")


def shape(plan: _bind.ConvPlan) -> tuple[int, int, int, int]:
    """What a plan says of its launch."""
    return plan.blocks, plan.threads, plan.shared_bytes, plan.workspace_bytes


def is_refused(p: _bind.ConvProblem, plan: _bind.ConvPlan) -> bool:
    """Whether a problem has no such plan; if it has, a launch takes what the plan says."""
    try:
        _bind.check_plan(p, plan)
    except ValueError as why:
        assert str(why) == f"customconv: '{plan.name}' is a plan of another problem than {p}"
        return True
    assert _bind.launch_shape(p, plan) == shape(plan), f"{p}: {plan}"
    return False


def test_a_launch_takes_what_its_plan_says():
    kinds = set()
    for device in ("H100", "A100"):
        for each in arguments(31, COUNT if device == "H100" else COUNT // 4):
            p = problem(**each)
            for plan in _bind.plans(p, DEVICES[device]):
                assert _bind.launch_shape(p, plan, DEVICES[device]) == shape(plan), f"{p}: {plan}"
                _bind.check_plan(p, plan, DEVICES[device])
                kinds.add((plan.family, plan.word))
    assert kinds == set(WORDS)


def test_plans_of_other_problems_are_refused():
    rng = random.Random(32)
    listed = [(p, _bind.plans(p)) for p in (problem(**each) for each in arguments(33, 30))]
    refused = set()
    for p, _ in rng.sample(listed, 40):
        for _, plans in rng.sample(listed, 40):
            for plan in rng.sample(plans, min(len(plans), 5)):
                if is_refused(p, plan):
                    refused.add((plan.family, plan.word))
    assert refused == set(WORDS)


@pytest.mark.parametrize("op", ["fprop", "dgrad", "wgrad"])
@pytest.mark.parametrize(("stride", "groups"), [(1, 1), (2, 1), (1, 8), (1, 64), (2, 64)])
def test_a_plan_of_the_other_layout_is_refused_unless_it_is_listed_there_too(op, stride, groups):
    both = [
        problem(
            op=op, dtype="float16", input=IMAGE, weight=(64, 64 // groups, 3, 3),
            stride=(stride, stride), padding=(1, 1), groups=groups, channels_last=channels_last,
        )
        for channels_last in (False, True)
    ]  # fmt: skip
    for p, other in (both, both[::-1]):
        names = {plan.name for plan in _bind.plans(other)}
        accepted = {plan.name for plan in _bind.plans(p) if not is_refused(other, plan)}
        assert {name for name in accepted if not name.startswith(OF_ANY_LAYOUT)} <= names


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [
        # Rows of the filter meet outputs in another order.
        (
            "depthwise threads order=planes walk=half",
            {"op": "dgrad", "weight": (64, 1, 5, 5), "stride": (2, 2), "groups": 64},
            {"weight": (64, 1, 5, 5), "groups": 64},
        ),
        # Its tile's pixels are in one row of the image.
        (
            "implicit_gemm main_loop loader=halo",
            {"weight": (64, 64, 3, 3), "padding": (1, 1), "channels_last": True},
            {"weight": (64, 64, 3, 3), "padding": (1, 1), "stride": (2, 2), "channels_last": True},
        ),
        # Weights do not stay where a tile is of other channels.
        (
            "implicit_gemm main_loop loader=im2col",
            {"weight": (64, 64, 1, 1), "channels_last": True},
            {"weight": (64, 64, 1, 1), "op": "wgrad", "channels_last": True},
        ),
    ],
)
def test_what_would_compute_other_numbers_is_refused(name, own, other):
    common = {"dtype": "float16", "input": IMAGE}
    plans = [p for p in _bind.plans(problem(**common, **own)) if p.name.startswith(name)]
    assert plans
    assert all(is_refused(problem(**common, **other), plan) for plan in plans)
