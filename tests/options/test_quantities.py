"""A number from outside is finite, within bounds and of the kind that is meant, or one message says what is."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unisono.errors import ConfigError
from unisono.options import quantities
from unisono.options.quantities import Amount, Count, Quantity, settle, shown

STEPS = Count(1, 1000, "steps")
RATE = Amount(0, 10, above=True)
DECLARED = {name: value for name, value in vars(quantities).items() if isinstance(value, Quantity)}


@pytest.mark.parametrize("value", [1, 1000, np.int64(7), np.uint8(7), np.int32(1000)])
def test_whole_numbers_of_python_and_numpy_become_plain_ones(value):
    """What is stored or compared later is an int."""
    assert STEPS.take("every", value) == value
    assert type(STEPS.take("every", value)) is int


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (0, "0"), (1001, "1001"), (True, "True (bool)"), (1.0, "1.0"), (1e3, "1000.0"), ("x7", "'x7' (str)"),
        (None, "None (NoneType)"), (float("nan"), "nan"), (float("inf"), "inf"), (np.float64(2), "np.float64(2.0)"),
        (np.bool_(True), "np.True_ (bool)"), ([1], "[1] (list)"), (10**5000, "a number of 5,001 digits"),
        (-(10**23), "-100000000000000000000000"), (np.uint64(2**64 - 1), "np.uint64(18446744073709551615) (uint64)"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)  # fmt: skip
def test_what_is_no_such_whole_number_is_refused(value, got):
    """Name, kind, unit and bounds, and what was got."""
    with pytest.raises(ConfigError) as caught:
        STEPS.take("every", value)
    told = str(caught.value).partition(" Hint: ")[0]
    assert told == f"expected every as a whole number of steps from 1 to 1,000, got {got}."


def test_a_number_in_quotes():
    """What is wrong is its kind, not its size."""
    with pytest.raises(ConfigError) as caught:
        STEPS.take("every", "7")
    assert str(caught.value) == "expected every as a whole number, got the text '7'. Hint: leave the quotes out."


@pytest.mark.parametrize(
    "text",
    ["", " ", "1.5", "1e2", "1_0", "0x1", "٣", "nan", "--1", "1 2", "\0", "9" * 5000, "1" * 100, "0", "-1", "1001"],
)
def test_what_only_python_reads_is_no_typed_number(text):
    """Digits, perhaps a sign, within the bounds; in one short line."""
    with pytest.raises(ConfigError, match="expected every as a whole number of steps from 1 to 1,000, got") as caught:
        STEPS.read("every", text)
    assert len(str(caught.value)) < 200
    assert str(caught.value).isprintable()


def test_typed_numbers():
    """With spaces around, a sign, zeros before; amounts also with decimals and a power of ten."""
    assert [STEPS.read("x", text) for text in ("7", " 7 ", "+7", "007")] == [7] * 4
    assert [RATE.read("x", text) for text in ("2", "2.0", "2.", "20e-1", ".2e1", "+2")] == [2.0] * 6
    for text in ("nan", "inf", "-inf", "1e400", "0", "-0.0", "10.5", "1_0", "1e", "e1", ".", "", "1,5"):
        with pytest.raises(ConfigError, match="expected x as a number above 0, at most 10, got"):
            RATE.read("x", text)


@given(st.floats() | st.integers() | st.booleans() | st.text(max_size=5) | st.none())
def test_an_amount_is_finite_and_within_its_bounds(value):
    """Whatever is passed: a plain number between the bounds, or the error."""
    try:
        found = RATE.take("x", value)
    except ConfigError:
        assert isinstance(value, bool | str) or value is None or not 0 < value <= 10
    else:
        assert type(found) in (int, float)
        assert found == value


def test_bounds_that_are_left_out():
    """0 of a rate and 1 of a decay are out; the message says so."""
    decay = Amount(0, 1, below=True)
    assert decay.take("decay", 0) == 0
    with pytest.raises(ConfigError, match=r"expected decay as a number from 0, below 1, got 1.0"):
        decay.take("decay", 1.0)
    assert decay.take("decay", np.float32(0.5)) == 0.5
    assert type(decay.take("decay", np.float32(0.5))) is float


def test_settle_makes_plain_numbers_of_attributes():
    """Of a frozen dataclass; None only where it is the default."""

    @dataclass(frozen=True, slots=True)
    class Part:
        steps: int = 1
        limit: int | None = None

        def __post_init__(self):
            settle(self, steps=STEPS, limit=STEPS)

    assert type(Part(steps=np.int64(3)).steps) is int
    assert Part().limit is None
    for wrong in ({"steps": None}, {"limit": 0}, {"steps": True}):
        with pytest.raises(ConfigError, match=f"expected {next(iter(wrong))} as a whole number"):
            Part(**wrong)


@pytest.mark.parametrize("name", DECLARED)
def test_every_declared_number_has_an_end(name):
    """NaN, infinities, truth values, texts and what is far too large are none of them."""
    quantity = DECLARED[name]
    assert -(2**63) <= quantity.low < quantity.high <= 1e30
    for value in (float("nan"), float("inf"), float("-inf"), 10**23 * 10**20, True, "1"):
        with pytest.raises(ConfigError):
            quantity.take(name, value)


def test_a_value_is_shown_on_one_short_line():
    """Line breaks and control characters are spelled; of a long one the beginning and the length."""
    assert shown("a\nb\x1b[31m\udcff") == "'a\\nb\\x1b[31m\\udcff'"
    assert shown("x" * 1000) == f"'{'x' * 39}... (1,002 characters)"
    assert shown(2**5000) == "a number of 1,506 digits"
