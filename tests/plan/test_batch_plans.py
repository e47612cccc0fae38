"""Plans of batch-invariant problems: the same order of sums for every batch."""

from __future__ import annotations

import random
from math import prod
from typing import Any

import pytest
from random_problems import DEVICES, problem, random_arguments

from customconv import _bind
from customconv.distributed.images.rows import Window, count, shards

COUNT = 400
BATCHES = (1, 2, 3, 5, 8, 15, 16, 17, 32, 49, 64)
MOST_ELEMENTS = 2**30  # of a batch: offsets beyond may take other kernels
DENSE = {"input": (8, 64, 56, 56), "weight": (64, 64, 3, 3), "padding": (1, 1), "dtype": "float16"}
DEPTHWISE = {"weight": (64, 1, 3, 3), "groups": 64}
THIN = {"weight": (64, 4, 3, 3), "groups": 16}


def in_batch(arguments: dict[str, Any], images: int) -> _bind.ConvProblem:
    shape = (images, *arguments["input"][1:])
    return problem(**arguments | {"input": shape, "batch_invariant": True})


def problems(seed: int, count: int) -> list[dict[str, Any]]:
    """Outputs and input gradients whose largest batch is not enormous."""
    rng = random.Random(seed)
    found: list[dict[str, Any]] = []
    while len(found) < count:
        arguments = random_arguments(rng)
        largest = in_batch(arguments, max(BATCHES))
        sizes = prod(arguments["input"][1:]) * max(BATCHES), prod(largest.output)
        if arguments["op"] != "wgrad" and max(sizes) <= MOST_ELEMENTS:
            found.append(arguments)
    return found


def identity(p: _bind.ConvProblem, device: _bind.DeviceProperties) -> tuple[str, int, bool]:
    """What decides the bits of an image's result."""
    plan = _bind.plan(p, device)
    assert plan.splits == 1, f"{p}: {plan}"
    return plan.family, _bind.sum_order(p, plan), _bind.computes_in_tf32(p, device)


@pytest.mark.parametrize("name", DEVICES)
def test_every_batch_is_summed_in_the_same_order(name):
    for arguments in problems(seed=11, count=COUNT if name == "H100" else COUNT // 4):
        orders = {identity(in_batch(arguments, n), DEVICES[name]) for n in BATCHES}
        assert len(orders) == 1, f"{in_batch(arguments, 16)}: {orders}"


def test_parts_of_images_are_summed_in_the_order_of_the_image():
    """Halves of an image, without padding between them; few of them have no such plan."""
    found = refused = 0
    for arguments in problems(seed=13, count=COUNT):
        whole = in_batch(arguments, 2)
        _, channels, height, width = arguments["input"]
        transposed = arguments["op"] == "dgrad"
        taps, pad = arguments["weight"][2], arguments["padding"]
        window = Window(taps, arguments["stride"][0], pad[0], arguments["dilation"][0])
        rows = height if transposed else whole.output[2]
        order = identity(whole, DEVICES["H100"])
        for outputs in shards(rows, 2):
            if not count(outputs):
                continue
            part = window.transposed_part(outputs) if transposed else window.part(outputs)
            size = count(part.computed if transposed else part.read)
            sizes = {
                "input": (2, channels, size, width),
                "padding": (window.span if transposed else 0, pad[1]),
            }
            own = in_batch(arguments | sizes, 2)
            plan = _bind.plan(own, DEVICES["H100"], part_of=whole)
            found += 1
            if plan.family == "aten":
                refused += 1
            else:
                assert (plan.family, _bind.sum_order(own, plan)) == order[:2], f"{whole}: {own}"
    assert refused < 0.1 * found


def test_tiles_that_only_some_batches_have_room_for_decide_no_order():
    """`tiled` with taps so far apart that hardly a row fits."""
    arguments: dict[str, Any] = {
        "op": "fprop", "dtype": "float32", "input": (16, 49, 40, 1), "weight": (24, 49, 7, 5),
        "stride": (6, 1), "padding": (3, 10), "dilation": (1, 5),
    }  # fmt: skip
    for family in ("auto", "tiled"):
        plans = [_bind.plan(in_batch(arguments, n), algorithm=family) for n in range(1, 65)]
        orders = {
            (plan.family, _bind.sum_order(in_batch(arguments, n), plan))
            for n, plan in enumerate(plans, start=1)
        }
        assert len(orders) == 1


def test_direct_is_the_last_resort():
    """It computes only what no other family can, in the same precision."""
    direct = 0
    for arguments in problems(seed=12, count=COUNT):
        p = in_batch(arguments, 16)
        family, _, _ = identity(p, DEVICES["H100"])
        if family != "direct":
            continue
        direct += 1
        for candidate in _bind.candidates(p):
            if candidate.family not in ("direct", "aten"):
                assert candidate.plan is None, f"{p}: {candidate.family}"
    assert direct


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_usual_layers_are_planned_as_without(op, channels_last):
    """By the family that computes them best, for 16 images, whatever the batch."""
    for family, kind in {
        "implicit_gemm": {},
        "depthwise": DEPTHWISE,
        "grouped": THIN,
    }.items():
        arguments = DENSE | kind | {"op": op, "channels_last": channels_last}
        for images in BATCHES:
            assert _bind.plan(in_batch(arguments, images)).family == family


@pytest.mark.parametrize("op", ["fprop", "dgrad"])
def test_what_depends_on_the_batch_is_refused(op):
    p = in_batch(DENSE | {"op": op}, 4)
    with pytest.raises(RuntimeError, match="cuBLAS does not promise"):
        _bind.plan(p, algorithm="im2col")
    with pytest.raises(RuntimeError, match="not batch invariant"):
        _bind.plan(p, algorithm="aten")
    reasons = {c.family: c.reason for c in _bind.candidates(p)}
    assert "cuBLAS does not promise" in reasons["im2col"]
    assert reasons["direct"] == (
        "used where no other family can compute the problem for every batch"
    )


@pytest.mark.parametrize("family", ["direct", "tiled", "implicit_gemm"])
def test_a_named_family_is_planned_alike(family):
    orders = set()
    for images in BATCHES:
        p = in_batch(DENSE, images)
        plan = _bind.plan(p, algorithm=family)
        assert plan.family == family
        orders.add(_bind.sum_order(p, plan))
    assert len(orders) == 1


def test_weight_gradients_stay_as_they_are():
    for images in BATCHES:
        shape = {"input": (images, *DENSE["input"][1:]), "op": "wgrad"}
        plain = _bind.plan(problem(**DENSE | shape))
        marked = _bind.plan(problem(**DENSE | shape, batch_invariant=True))
        assert str(marked) == str(plain)


def test_a_problem_says_that_it_is_batch_invariant():
    assert str(in_batch(DENSE, 4)).endswith(" batch invariant")
    assert in_batch(DENSE, 4).batch_invariant
    assert not in_batch(DENSE | {"op": "wgrad"}, 4).batch_invariant
    assert not problem(**DENSE).batch_invariant
