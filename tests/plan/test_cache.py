"""The cache of plans: what it keeps, what it drops, and that threads can share it."""

from __future__ import annotations

import random
import threading

import pytest
from random_problems import problem

from customconv import _bind

SHAPES = [(1, 8, 8 + i, 8) for i in range(6)]


def sized(index: int) -> _bind.ConvProblem:
    return problem(input=SHAPES[index], weight=(8, 8, 3, 3))


def filled(capacity: int, count: int) -> _bind.PlanCache:
    cache = _bind.PlanCache(capacity)
    for index in range(count):
        cache.insert(0, sized(index), _bind.plan(sized(index)), cache.generation)
    return cache


def kept(cache: _bind.PlanCache) -> list[int]:
    return [index for index in range(len(SHAPES)) if cache.find(0, sized(index)) is not None]


def test_a_plan_comes_back_as_it_was():
    cache = filled(4, 1)
    assert str(cache.find(0, sized(0))) == str(_bind.plan(sized(0)))
    assert cache.find(0, sized(1)) is None


def test_the_one_that_was_not_used_for_the_longest_time_goes():
    cache = filled(3, 3)
    cache.find(0, sized(0))
    cache.insert(0, sized(3), _bind.plan(sized(3)), cache.generation)
    assert kept(cache) == [0, 2, 3]
    assert len(cache) == 3


def test_it_stays_within_its_capacity():
    assert len(filled(2, len(SHAPES))) == 2
    assert kept(filled(2, len(SHAPES))) == [4, 5]


BASE = {
    "op": "fprop", "dtype": "float32", "input": (2, 8, 9, 10), "weight": (8, 8, 3, 3),
    "padding": (1, 1),
}  # fmt: skip
OTHERS = [
    {"op": "dgrad"}, {"dtype": "float16"}, {"input": (3, 8, 9, 10)}, {"input": (2, 8, 10, 9)},
    {"weight": (16, 8, 3, 3)}, {"weight": (8, 8, 3, 5), "padding": (1, 2)},
    {"weight": (8, 4, 3, 3), "groups": 2}, {"stride": (2, 1)}, {"stride": (1, 2)},
    {"dilation": (2, 1), "padding": (2, 1)}, {"padding": (0, 1)}, {"channels_last": True},
    {"bias": True}, {"tf32": True}, {"epilogue_passes": 1},
    {"epilogue_passes": 1, "residual": True}, {"statistics": True}, {"batch_invariant": True},
]  # fmt: skip


@pytest.mark.parametrize("other", OTHERS, ids=str)
def test_problems_that_differ_are_told_apart(other):
    cache = _bind.PlanCache(4)
    first = problem(**BASE)
    cache.insert(0, first, _bind.plan(first), cache.generation)
    assert cache.find(0, problem(**{**BASE, **other})) is None
    assert cache.find(0, problem(**BASE)) is not None


def test_each_field_of_a_problem_is_part_of_the_key():
    """Strides and alignment too, which ``problem`` derives from the layout."""
    fields = problem(**BASE).fields
    cache = _bind.PlanCache(4)
    cache.insert(0, problem(**BASE), _bind.plan(problem(**BASE)), cache.generation)
    for name, value in fields.items():
        other = {
            "op": "wgrad", "dtype": "float64", "groups": 4,
        }.get(name, not value if isinstance(value, bool) else None)  # fmt: skip
        if other is None and isinstance(value, list):
            other = [*value[:-1], value[-1] + 1]
        elif other is None:
            other = value + 4  # a multiple of the groups for channels
        changed = _bind.ConvProblem.from_fields({**fields, name: other})
        assert cache.find(0, changed) is None, name


def test_devices_are_told_apart():
    cache = filled(4, 1)
    assert cache.find(1, sized(0)) is None


def test_a_plan_that_was_made_before_a_change_is_not_cached_after_it():
    cache = _bind.PlanCache(4)
    before = cache.generation
    cache.clear()
    cache.insert(0, sized(0), _bind.plan(sized(0)), before)
    assert kept(cache) == []
    cache.insert(0, sized(0), _bind.plan(sized(0)), cache.generation)
    assert kept(cache) == [0]


def test_it_can_be_emptied():
    cache = filled(4, 3)
    cache.clear()
    assert kept(cache) == []
    assert len(cache) == 0


def test_lookups_are_counted():
    cache = filled(4, 1)
    before = cache.lookups
    for index in (0, 1, 0):
        cache.find(0, sized(index))
    assert cache.lookups - before == 3


def test_threads_share_it():
    """None gets another problem's plan, while plans come, go and are taken back."""
    problems = [sized(index) for index in range(len(SHAPES))]
    plans = [_bind.plan(each) for each in problems]
    texts = [str(plan) for plan in plans]
    cache, wrong = _bind.PlanCache(3), []

    def work(seed: int) -> None:
        rng = random.Random(seed)
        for _ in range(3000):
            index = rng.randrange(len(problems))
            found = cache.find(0, problems[index])
            if found is not None and str(found) != texts[index]:
                wrong.append(index)
            if found is None:
                cache.insert(0, problems[index], plans[index], cache.generation)
            if rng.random() < 0.02:
                cache.clear()

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert len(cache) <= 3
