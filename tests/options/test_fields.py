"""An option is declared once, as a field; what is typed, written or passed is read and checked from there."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass

import numpy as np
import pytest

from unisono.errors import ConfigError
from unisono.options.fields import Option, check, option, options_of, taken
from unisono.options.quantities import Amount, Count


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """One of each kind."""

    steps: int = option(10, "Steps.", of=Count(1, 100, "steps"))
    rate: float | None = option(None, "Rate.", of=Amount(0, 1, above=True), usual="the preset's")
    shares: tuple[float, ...] | None = option(None, "Shares.", of=Amount(0, 9, above=True))
    names: tuple[str, ...] = option((), "Names.")
    order: str = option("up", "Order.", "up", "down")
    is_fast: bool = option(False, "Fast.", key="fast")
    env: Mapping[str, str] = option(text="Variables.", make=dict, word="NAME=VALUE")
    workers: int = option(1, "Workers.", of=Count(1, 8), also="auto")
    needed: int = option(text="Needed.", of=Count(1, 8))
    own: str = "no option"

    def __post_init__(self):
        check(self)


def test_a_field_says_what_its_option_is():
    """Kind, list, default and key come from the field itself; what is no option is none."""
    known = options_of(Job)
    assert list(known) == ["steps", "rate", "shares", "names", "order", "is_fast", "env", "workers", "needed"]
    assert [item.kind for item in known.values()] == [int, float, float, str, str, bool, dict, int, int]
    assert [name for name, item in known.items() if item.is_list] == ["shares", "names"]
    assert (known["is_fast"].flag, known["is_fast"].key, known["is_fast"].name) == ("--fast", "fast", "is_fast")
    assert (known["steps"].default, known["needed"].default, known["env"].default) == (10, MISSING, {})


@pytest.mark.parametrize(("name", "typed", "meant"), [
    ("steps", "+7", 7), ("rate", "5e-1", 0.5), ("shares", "1,2,2", (1.0, 2.0, 2.0)), ("shares", (1, 2), (1.0, 2.0)),
    ("names", "a,b", ("a", "b")), ("is_fast", "yes", True), ("is_fast", "False", False), ("workers", "auto", "auto"),
    ("env", ("A=1", "B=x=y"), {"A": "1", "B": "x=y"}), ("env", {"A": "1"}, {"A": "1"}), ("rate", None, None),
])  # fmt: skip
def test_what_is_typed_is_read_as_the_field_s_type(name, typed, meant):
    """Text and values of a program give the same."""
    assert options_of(Job)[name].read(typed) == meant


@pytest.mark.parametrize(("name", "typed", "told"), [
    ("steps", "1_0", "expected --steps as a whole number of steps from 1 to 100, got '1_0'"),
    ("shares", "1,x", "expected --shares as a number above 0, at most 9, got 'x'"),
    ("shares", 3, "expected --shares as numbers such as 1,2,2, got 3"),
    ("is_fast", "perhaps", "expected --fast as true or false, got 'perhaps'"),
    ("env", ("A",), "expected --env NAME=VALUE, got 'A'"),
])  # fmt: skip
def test_what_cannot_be_read_is_refused(name, typed, told):
    """With the flag, what was expected and what was got."""
    item = options_of(Job)[name]
    with pytest.raises(ConfigError, match=told):
        item.read(typed, item.flag)


@pytest.mark.parametrize(("given", "told"), [
    ({"steps": 0}, "steps as a whole number of steps from 1 to 100, got 0"),
    ({"steps": None}, "steps as a whole number"),
    ({"rate": float("nan")}, "rate as a number above 0"),
    ({"shares": (1, -1)}, "shares as a number above 0"),
    ({"order": "left"}, "expected order to be one of up, down, got 'left'"),
    ({"is_fast": 1}, "is_fast as true or false, got 1"),
    ({"needed": 9}, "needed as a whole number"),
])  # fmt: skip
def test_a_program_s_values_are_checked(given, told):
    """A number out of bounds, a word that is no choice, a number for a truth."""
    assert Job(needed=1).rate is None
    with pytest.raises(ConfigError, match=told):
        Job(**{"needed": 1, **given})


def test_numbers_become_plain():
    """NumPy's too, each of a list."""
    job = Job(needed=np.int64(3), shares=(np.float32(1), 2))
    assert (type(job.needed), type(job.shares[0])) == (int, float)


def test_what_was_given_is_taken_by_key():
    """What was not given stays away, so that the dataclass decides; what belongs to others is left."""
    given = {"steps": "3", "fast": True, "env": (), "rate": None, "other": 1, "needed": 2}
    assert taken(Job, given, "steps", "env") == {"steps": 3}
    assert taken(Job, given) == {"is_fast": True, "needed": 2}
    assert given == {"other": 1}


def test_flags_stand_in_messages_where_they_are_asked_for():
    """The name that was typed, not the field's."""
    job = Job(needed=1)
    object.__setattr__(job, "is_fast", 3)
    with pytest.raises(ConfigError, match="expected --fast as"):
        check(job, as_flags=True)
    assert isinstance(options_of(Job)["steps"], Option)
