"""Which library of kernels a GPU is served by, and what is said where there is none."""

import pytest

from customconv import _bind

RELEASE = ["sm80", "sm86", "sm89", "sm90a", "sm100", "sm120_ptx"]


@pytest.mark.parametrize(
    ("capability", "library"),
    [
        ((7, 5), ""),
        ((8, 0), "sm80"),
        ((8, 6), "sm86"),
        ((8, 7), "sm86"),
        ((8, 9), "sm89"),
        ((9, 0), "sm90a"),
        ((10, 0), "sm100"),
        ((10, 3), "sm100"),
        ((11, 0), ""),
        ((12, 0), "sm120_ptx"),
        ((12, 1), "sm120_ptx"),
        ((13, 0), "sm120_ptx"),  # compiled by the driver
    ],
)
def test_a_gpu_gets_the_code_that_it_runs_best(capability, library):
    for names in (RELEASE, RELEASE[::-1]):
        assert _bind.library_for(*capability, names) == library


@pytest.mark.parametrize(
    ("names", "capability", "library"),
    [
        (["sm80"], (8, 9), "sm80"),
        (["sm89"], (8, 6), ""),
        (["sm90a"], (9, 1), ""),
        (["sm90", "sm90a"], (9, 0), "sm90a"),
        (["sm90"], (9, 0), "sm90"),
        (["sm80_ptx", "sm86"], (9, 0), "sm80_ptx"),
        (["sm80_ptx", "sm86"], (8, 9), "sm86"),
        (["sm80_ptx", "sm90_ptx"], (10, 0), "sm90_ptx"),
        ([], (9, 0), ""),
    ],
)
def test_other_selections(names, capability, library):
    assert _bind.library_for(*capability, names) == library


@pytest.mark.parametrize("index", [-1, 64, 100_000])
def test_a_device_that_does_not_exist(index):
    with pytest.raises(ValueError, match=f"CUDA has no device {index}"):
        _bind.device_properties(index)


def test_without_cublas_its_family_is_no_candidate():
    problem = _bind.ConvProblem(input=(4, 64, 20, 20), weight=(128, 64, 1, 1))
    for has_blas in (True, False):
        device = _bind.DeviceProperties(has_blas=has_blas)
        found = {c.family: c for c in _bind.candidates(problem, device)}
        assert (found["im2col"].plan is not None) == has_blas
        assert ("PyTorch has loaded no cuBLAS" in found["im2col"].reason) != has_blas
        assert _bind.plan(problem, device).family != "aten"
        assert all(plan.family != "im2col" for plan in _bind.plans(problem, device)) != has_blas
