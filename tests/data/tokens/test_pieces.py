"""Best fit: every piece gets a row that has room, and few rows are needed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.data.tokens.pieces import best_fit


@given(st.integers(1, 50).flatmap(lambda n: st.tuples(st.just(n), st.lists(st.integers(1, n), max_size=60))))
def test_rows_are_not_overfull_and_few(case):
    """No row is empty or overfull, and no two rows would fit into one."""
    capacity, lengths = case
    rows, row_of = best_fit(np.array(sorted(lengths, reverse=True), dtype=np.int64), capacity)
    held = np.bincount(row_of, weights=sorted(lengths, reverse=True), minlength=rows)
    assert len(row_of) == len(lengths)
    assert (held <= capacity).all()
    assert (held > 0).all()
    # No two rows that would fit into one.
    assert rows < 2 or np.sort(held)[:2].sum() > capacity


@pytest.mark.parametrize(
    ("lengths", "expected"), [([], []), ([7, 5, 3, 2, 1], [0, 1, 0, 1, 1]), ([6, 4, 4, 3], [0, 0, 1, 1])]
)
def test_the_tightest_row_is_taken(lengths, expected):
    """By hand, for rows of 10."""
    assert best_fit(np.array(lengths, dtype=np.int64), 10)[1].tolist() == expected
