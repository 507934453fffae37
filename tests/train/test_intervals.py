"""How often: in steps or in epochs."""

import pytest

from unisono.data.plans.batch_schedule import BatchSchedule, Cuts, schedule_of
from unisono.errors import ConfigError
from unisono.train.intervals import check_every, due


@pytest.mark.parametrize(
    ("every", "steps"),
    [(1, 1), (50, 50), ("50 steps", 50), ("1 step", 1), ("epoch", 7), ("1 epoch", 7), ("2 epochs", 14), (None, 7),
     ("every 3 epochs", 21), (" 5 steps ", 5)],
)  # fmt: skip
def test_steps_and_epochs(every, steps):
    """A plain number counts steps, words say what they count, nothing means every epoch."""
    check_every(log_every=every)
    is_due = due(every, Cuts(20, schedule_of(3)))
    assert [step for step in range(1, 100) if is_due(step)] == [*range(steps, 100, steps)]


def test_epochs_of_unlike_length_and_of_none():
    """Where the batch grows, epochs end at their own steps; of a stream only steps are counted, 1000 of them unsaid."""
    growing = due("2 epochs", Cuts(20, BatchSchedule({0: 3, 7: 10})))
    assert [step for step in range(1, 14) if growing(step)] == [9, 13]
    of_a_stream = due(None, None)
    assert [step for step in range(1, 3000) if of_a_stream(step)] == [1000, 2000]
    assert due("5 steps", None)(10)
    with pytest.raises(ConfigError, match="in steps for a stream, which has no length, got 'epoch'"):
        due("epoch", None)


@pytest.mark.parametrize(
    ("every", "said"),
    [(0, "steps from 1 to .*, got 0"), ("0 epochs", "from 1 to .*, got 0"), (True, "whole"), (2.5, "whole"),
     ("2 hours", "'2 hours'"), ("-1 steps", "'-1 steps'"), ("1.5 epochs", "'1.5 epochs'"), ("", "''")],
)  # fmt: skip
def test_other_words_are_refused_with_the_name(every, said):
    """The setting and what it was given."""
    with pytest.raises(ConfigError, match=f"log_every.*{said}"):
        check_every(log_every=every)
