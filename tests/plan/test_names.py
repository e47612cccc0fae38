"""Names of plans: text that says all that tells a problem's plans apart, and can be read back."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from random_problems import DEVICES, arguments, fields, problem

from customconv import _bind

COUNT = 200
WORDS = _bind.plan_words()
TILED = "tiled kernel=3-taps-x8 warps=4x1 tile=1x14x2 chunk=8"


def plans(seed: int, device: str) -> Iterator[tuple[str, list[_bind.ConvPlan]]]:
    """Problems, and their plans."""
    for each in arguments(seed, COUNT if device == "H100" else COUNT // 4):
        p = problem(**each)
        yield str(p), _bind.plans(p, DEVICES[device])


@pytest.mark.parametrize("device", DEVICES)
def test_names_are_read_back(device):
    for _, listed in plans(21, device):
        for plan in listed:
            read = _bind.PlanName(plan.name)
            assert str(read) == plan.name
            assert (read.family, read.kind, read.splits) == (plan.family, plan.kind, plan.splits)
            assert read.fields == plan.fields, plan.name


@pytest.mark.parametrize("device", ["H100", "A100"])
def test_no_plan_is_listed_twice(device):
    for p, listed in plans(24, device):
        names = [plan.name for plan in listed]
        assert len(names) == len(set(names)), p


def test_a_name_is_that_of_one_plan_of_a_problem():
    kinds = set()
    for p, listed in plans(22, "H100"):
        kinds |= {(plan.family, plan.word) for plan in listed}
        names = {plan.name for plan in listed}
        assert len({fields(plan) for plan in listed}) == len(names), f"{p}: one name, two plans"
    assert kinds == set(WORDS)


@pytest.mark.parametrize("kind", WORDS)
def test_words_differ(kind):
    for field, own in WORDS[kind].items():
        assert len(own) == len(set(own)), field


def test_every_word_is_of_some_plan():
    found = set()
    for device in ("H100", "A100"):
        for _, listed in plans(23, device):
            found |= {((plan.family, plan.word), plan.kind) for plan in listed}
    seen: dict[tuple[str, str], dict[str, set[str]]] = {kind: {} for kind in WORDS}
    tiles = set()
    for kind, text in found:
        own = _bind.PlanName(text).fields
        for field in (field for field, words in WORDS[kind].items() if words):
            seen[kind].setdefault(field, set()).add(own[field])
        if kind == ("implicit_gemm", "main_loop"):
            tiles.add((own["loader"], own["tile"]))
    assert seen == {
        kind: {field: set(own) for field, own in fields.items() if own}
        for kind, fields in WORDS.items()
    }
    assert tiles == set(_bind.main_loop_tiles())


def test_labels_are_of_kernels():
    p = problem(
        op="dgrad", dtype="float16", input=(4, 128, 28, 28), weight=(128, 16, 3, 3), groups=8,
        channels_last=True,
    )  # fmt: skip
    found = {(plan.family, plan.word, plan.label) for plan in _bind.plans(p)}
    assert found >= {
        ("direct", "", "channels"), ("tiled", "", "3-taps-x8"),
        ("grouped", "boxes", "boxes boxes-of-64x8"),
    }  # fmt: skip
    few = problem(op="dgrad", dtype="float16", input=(4, 3, 64, 64), weight=(64, 3, 7, 7))
    assert ("col2im", "", "") in {(plan.family, plan.word, plan.label) for plan in _bind.plans(few)}


def test_kinds_have_no_sizes():
    name = _bind.PlanName(f"{TILED} splits=3")
    assert name.kind == "tiled kernel=3-taps-x8 warps=4x1"
    assert name.splits == 3
    assert name.fields == {
        "kernel": "3-taps-x8", "warps": (4, 1), "gathered": False, "tile": (1, 14, 2),
        "groups": 1, "rounds": 1, "chunk": 8,
    }  # fmt: skip


def test_the_name_of_pytorch_has_no_fields():
    plan = _bind.plan(problem(input=(1, 1, 4, 4), weight=(1, 1, 3, 3)), algorithm="aten")
    assert plan.name == plan.kind == str(_bind.PlanName("aten")) == "aten"
    assert plan.fields == {}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "there is no family ''"),
        ("nothing", "there is no family 'nothing'"),
        (" direct", "there is no family ''"),
        ("aten splits=2", "such plans have no field 'splits'"),
        ("direct", "it is written 'direct order=pixels'"),
        ("direct order", "'order' gives no field"),
        ("direct order=pixels ", "'' gives no field"),
        ("direct order=pixels  wide=yes", "'' gives no field"),
        ("direct order=rows", "order is never rows"),
        ("direct order=pixels wide=no", "wide is yes, or left out"),
        ("direct order=pixels order=pixels", "it is written 'direct order=pixels'"),
        ("direct wide=yes order=pixels", "it is written 'direct order=pixels wide=yes'"),
        ("direct order=pixels tile=4", "such plans have no field 'tile'"),
        ("direct order=pixels splits=1", "it is written 'direct order=pixels'"),
        ("direct order=pixels splits=-2", "'-2' is no number for splits"),
        ("direct order=pixels splits=", "'' is no number for splits"),
        ("direct order=pixels splits=2k", "'2k' is no number for splits"),
        ("direct order=pixels splits=9223372036854775808", "splits is at most 9223372036854775807"),
        ("direct order=pixels splits=99999999999999999999", "splits is at most"),
        (TILED.replace("=8", "=08"), f"it is written '{TILED}'"),
        (TILED.replace("1x14x2", "1x14"), "tile has 3 numbers"),
        (TILED.replace("1x14x2", "1x14x2x"), "'' is no number for tile"),
        (TILED.replace("=8", "=2147483648"), "chunk is at most 2147483647"),
        (f"{TILED} groups=1", f"it is written '{TILED}'"),
    ],
)
def test_what_is_no_name_is_refused(text, why):
    with pytest.raises(ValueError) as refused:
        _bind.PlanName(text)
    assert str(refused.value).startswith(f"'{text}' is not the name of a plan: {why}")
