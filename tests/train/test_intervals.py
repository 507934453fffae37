"""How often: in steps or in epochs."""

import pytest

from unisono.errors import ConfigError
from unisono.train.intervals import check_every, steps_between


@pytest.mark.parametrize(
    ("every", "steps"),
    [(1, 1), (50, 50), ("50 steps", 50), ("1 step", 1), ("epoch", 7), ("1 epoch", 7), ("2 epochs", 14), (None, 7),
     ("every 3 epochs", 21), (" 5 steps ", 5)],
)  # fmt: skip
def test_steps_and_epochs(every, steps):
    """A plain number counts steps, words say what they count, nothing means every epoch."""
    check_every(log_every=every)
    assert steps_between(every, 7) == steps


@pytest.mark.parametrize(
    ("every", "said"),
    [(0, "steps from 1 to .*, got 0"), ("0 epochs", "from 1 to .*, got 0"), (True, "whole"), (2.5, "whole"),
     ("2 hours", "'2 hours'"), ("-1 steps", "'-1 steps'"), ("1.5 epochs", "'1.5 epochs'"), ("", "''")],
)  # fmt: skip
def test_other_words_are_refused_with_the_name(every, said):
    """The setting and what it was given."""
    with pytest.raises(ConfigError, match=f"log_every.*{said}"):
        check_every(log_every=every)
