"""A sweep of random problems. CUSTOMCONV_SWEEP says how many for each family.

CUSTOMCONV_DIMS=2 or 3 leaves images or volumes alone.
"""

from __future__ import annotations

import os
import random

import pytest
import sweep
import torch
from compute import by_mma_sync
from reference import ALL_FAMILIES

# By default about 500 in all.
COUNT = int(os.environ.get("CUSTOMCONV_SWEEP", 500 // len(ALL_FAMILIES)))
# The same for all workers of a run. It is part of the tests' names: those of a worker that dies are
# all that is left of it.
RUN = os.environ.get("PYTEST_XDIST_TESTRUNUID") or random.SystemRandom().random()
SEED = int(os.environ.get("CUSTOMCONV_SEED", random.Random(RUN).randrange(10**6)))
ONLY = os.environ.get("CUSTOMCONV_TRIAL")

BATCH = 100


def trial_at(index: int, family: str, *, small: bool = False, dims: int = 2) -> sweep.Trial:
    seed = f"{SEED} {family} {index}" + " of volumes" * (dims == 3)
    return sweep.draw(random.Random(seed), family, small=small, dims=dims)


def again(index: int, family: str, dims: int) -> str:
    return (
        f"again: CUSTOMCONV_SEED={SEED} CUSTOMCONV_TRIAL={index} CUSTOMCONV_DIMS={dims} "
        f"python -m pytest {os.path.relpath(__file__)} -k '{family}'"
    )


def failures(
    family: str, device: str, indices: range, *, small: bool = False, dims: int = 2
) -> list[str]:
    """What is wrong, trial by trial. Verdicts are waited for in batches."""
    found = []
    for first in range(indices.start, indices.stop, BATCH):
        batch = range(first, min(first + BATCH, indices.stop))
        trials = {index: trial_at(index, family, small=small, dims=dims) for index in batch}
        verdicts = {}
        for index, trial in trials.items():
            try:
                if sweep.is_taken(trial, family, device):
                    verdicts[index] = sweep.judge(trial, family, device)
            except Exception as error:
                raise AssertionError(
                    f"{family}: {trial}: {error}\n  {again(index, family, dims)}"
                ) from error
        assert 2 * len(verdicts) > len(batch), f"{family} takes {len(verdicts)} of {len(batch)}"
        found += [
            f"{sweep.explain(trials[index], family, device)}\n  {again(index, family, dims)}"
            for index, verdict in verdicts.items()
            if not verdict
        ]
    return found


def check(family: str, dims: int = 2) -> None:
    indices = range(COUNT) if ONLY is None else range(int(ONLY), int(ONLY) + 1)
    found = failures(family, "cuda", indices, dims=dims)
    head = f"{len(found)} of {len(indices)} problems with CUSTOMCONV_SEED={SEED} are wrong"
    assert not found, "\n".join([head, *found[:5]])


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("family", "dims"),
    [
        pytest.param(family, dims, id=f"{family}-{dims}d-seed{SEED}")
        for dims in sweep.DIMS
        for family in ALL_FAMILIES
        if sweep.passes_of(family, dims)
    ],
)
def test_random_problems(family, dims):
    check(family, dims)


@pytest.mark.gpu
@pytest.mark.skipif(2 not in sweep.DIMS, reason="those kernels compute no volumes")
@pytest.mark.parametrize("family", ["implicit_gemm"])  # so that what a failure prints selects it
def test_random_problems_by_mma_sync(family, monkeypatch):
    compute = sweep.compute

    def compute_by_mma_sync(op, family, case, t):
        with by_mma_sync(op, case, t):
            return compute(op, family, case, t)

    monkeypatch.setattr(sweep, "compute", compute_by_mma_sync)
    check(family)


@pytest.mark.parametrize("dims", [2, 3])
def test_the_sweep_finds_nothing_wrong_with_pytorch(dims):
    assert failures("aten", "cpu", range(60), small=True, dims=dims) == []


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("wrong", [float("nan"), 1e30])
def test_the_sweep_finds_one_wrong_element(monkeypatch, wrong, dims):
    compute = sweep.compute

    def with_one_wrong(*arguments):
        result = compute(*arguments).contiguous()
        result.view(-1)[-1] = wrong
        return result

    monkeypatch.setattr(sweep, "compute", with_one_wrong)
    found = failures("aten", "cpu", range(3), small=True, dims=dims)
    assert len(found) == 3
    for index, text in enumerate(found):
        assert "aten: Trial(" in text
        assert f": {wrong} instead of " in text
        assert f"CUSTOMCONV_SEED={SEED} CUSTOMCONV_TRIAL={index} CUSTOMCONV_DIMS={dims} " in text


@pytest.mark.parametrize("dims", [2, 3])
def test_trials_are_reproducible(dims):
    first, second = ([trial_at(i, "direct", dims=dims) for i in range(20)] for _ in range(2))
    assert first == second
    assert {trial.case.dims for trial in first} == {dims}
    trial = trial_at(0, "direct", small=True, dims=dims)
    a, b = sweep.make_tensors(trial, "cpu"), sweep.make_tensors(trial, "cpu")
    assert torch.equal(a.x, b.x)
    assert torch.equal(a.dy, b.dy)
