"""Options of islands: in the score when set, whole islands on ranks, and what does not fit is refused at once."""

import pytest

import unisono
from unisono.errors import ConfigError
from unisono.strategies.options import ExactOptions


def test_only_in_the_score_where_there_are_islands():
    """Old scores stay as they are; defaults are told, so that a later version may have others."""
    assert ExactOptions().score() == {"name": "exact"}
    assert ExactOptions().work == "exact:Exact"
    assert ExactOptions(island_steps=8).score() == {
        "name": "exact", "island_steps": 8, "islands": None, "outer_lr": 0.7, "outer_momentum": 0.9,
    }  # fmt: skip
    assert ExactOptions(island_steps=8, islands=2, outer_lr=1, outer_momentum=0).score()["outer_momentum"] == 0
    assert not ExactOptions(island_steps=8).shares_gradients


def test_ranks_get_whole_islands():
    """As evenly as possible, or by shares; no more processes by default than islands."""
    options = ExactOptions(island_steps=2, islands=4)
    assert options.place(8, 1) == [range(8)]
    assert options.place(8, 3) == [range(4), range(4, 6), range(6, 8)]
    assert ExactOptions(island_steps=2, islands=4, shares=(1, 3)).place(8, 2) == [range(2), range(2, 8)]
    assert ExactOptions(island_steps=2).place(8, 8)[7] == range(7, 8)
    assert options.usual_workers(16) == 4


@pytest.mark.parametrize(("given", "message"), [
    ({"island_steps": 0}, "expected island_steps as a whole number of steps from 1 to .*, got 0"),
    ({"islands": 2}, r"islands says something of islands.*Hint: island_steps \(--island-steps K\) too"),
    ({"outer_lr": 0.5}, "outer_lr says something of islands"),
    ({"island_steps": 2, "outer_momentum": 1}, "outer_momentum as a number from 0, below 1"),
    ({"island_steps": 2, "overlap": "on"}, "got overlap on and island_steps. Hint: leave one"),
    ({"island_steps": 2, "compress": "int8"}, "got compress int8 and island_steps. Hint: leave one"),
])  # fmt: skip
def test_what_does_not_fit_is_refused(given, message):
    """Before a run is there, in one line."""
    with pytest.raises(ConfigError, match=message) as refused:
        unisono.strategy("exact", **given)
    assert "\n" not in str(refused.value)


def test_more_processes_than_islands_are_refused():
    """With the number that fits."""
    with pytest.raises(ConfigError, match=r"each of 2 islands is computed by one, got 3. Hint: --workers 2, or"):
        ExactOptions(island_steps=2, islands=2).place(8, 3)
    with pytest.raises(ConfigError, match="cut 8 replicas into equal parts, got 3"):
        ExactOptions(island_steps=2, islands=3).place(8, 2)
