"""Fixtures of the tests of the compiler."""

from __future__ import annotations

import pytest

from customconv.compiler import rewrite


@pytest.fixture
def fuses_on_the_cpu(monkeypatch):
    """Fuses on the CPU too, where operators are composed, so that all but kernels is tested."""
    monkeypatch.setattr(rewrite, "why_not_ours", lambda value: "")
