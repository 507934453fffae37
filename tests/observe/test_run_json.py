"""The JSON files of a run directory: lost ones, damaged ones."""

from pathlib import Path

import pytest

from unisono.errors import ConfigError
from unisono.observe.run_json import object_in


@pytest.mark.parametrize("data", [None, b"", b"\0\0\0", b"\r\n \0"])
def test_what_a_loss_of_power_leaves_is_no_file(data):
    """A launch writes it again, as where it is missing."""
    assert object_in(Path("score.json"), lambda: data) is None


@pytest.mark.parametrize("data", [b"{", b"[1]", b"\0{}", b"null"])
def test_what_is_damaged_is_refused(data):
    """With the hint."""
    with pytest.raises(ConfigError, match=r"score.json is not the JSON that a run writes: .*\. Hint: do this"):
        object_in(Path("score.json"), lambda: data, " Hint: do this.")
