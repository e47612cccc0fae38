"""What tests share that tune plans."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from customconv import _C


@pytest.fixture
def nothing_tuned() -> Iterator[None]:
    """No plan is tuned before a test, and neither plans nor a recording are left behind it."""
    _C.clear_tuned_plans()
    yield
    _C.clear_tuned_plans()
    _C.end_recording()
