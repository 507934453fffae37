"""Which cases of a test are tried each time, and which in the slow suite only."""

from collections.abc import Iterable
from typing import Any

import pytest


def some_are_slow(cases: Iterable[Any], count: int) -> list[Any]:
    """Return all cases; as many as said, the first and others at even distances, are not marked as slow."""
    found = [*cases]
    usual = {-(-number * len(found) // count) for number in range(count)}
    return [case if place in usual else _slow(case) for place, case in enumerate(found)]


def _slow(case: Any) -> Any:
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.slow)
