"""Numbers in words."""

import math

import pytest

from unisono.system.words import counted, spell_bytes, spell_count, spell_seconds, wrapped


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0 s"), (1.25e-5, "12.5 µs"), (0.004, "4 ms"), (7.25, "7.25 s"), (59.6, "59.6 s"), (59.97, "1 min"),
     (119, "1 min 59 s"), (180, "3 min"), (3599.7, "1 h"), (7300, "2 h 2 min"), (86399, "1 d"), (129600, "1 d 12 h"),
     (86400 * 40, "40 d"), (86400 * 4268, "4,268 d"), (math.inf, "never")],
)  # fmt: skip
def test_times(seconds, text):
    """From microseconds to years of days."""
    assert spell_seconds(seconds) == text


def test_bytes_and_counts():
    """To terabytes; counts in about four digits."""
    assert spell_bytes(64 << 10) == "64 KB"
    assert spell_bytes(1.5 * 2**40) == "1.5 TB"
    assert [spell_count(x) for x in (0.0, 1234.0, 0.51234, 12345.6, 65536)] == [
        "0",
        "1,234",
        "0.5123",
        "12,346",
        "65,536",
    ]


def test_numbers_with_their_nouns():
    """One is singular, all else plural, in the noun's own way."""
    assert [counted(number, "worker") for number in (0, 1, 2)] == ["0 workers", "1 worker", "2 workers"]
    assert counted(2, "process", "processes") == "2 processes"


def test_lines_end_between_entries_or_words():
    """What fits stays as it is; an entry goes to the next line whole; no word is broken, however long."""
    line = "epoch 10/20  train_loss 0.0773  test_loss 0.0517  test_accuracy 0.9917  826 ms"
    assert wrapped(line, 80) == line
    assert wrapped(line, 40).split("\n") == [
        "epoch 10/20  train_loss 0.0773", "test_loss 0.0517  test_accuracy 0.9917", "826 ms"
    ]  # fmt: skip
    assert wrapped("6,186 parameters on cpu, 8 replicas on 2 workers\nb  c", 40).split("\n") == [
        "6,186 parameters on cpu, 8 replicas on 2", "workers", "b  c"
    ]  # fmt: skip
    assert wrapped("kept in  " + "x" * 50, 40).split("\n") == ["kept in", "x" * 50]
