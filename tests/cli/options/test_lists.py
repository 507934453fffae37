"""Lists with commas: what is read, and what is refused with what was expected."""

import pytest

from unisono.cli.options.lists import (
    parse_counts,
    parse_loaders,
    parse_names,
    parse_ranks,
    parse_sizes,
    parse_workers,
)
from unisono.errors import ConfigError


def test_workers_are_a_list_of_numbers():
    """In the given order, each as often as it was given."""
    assert parse_workers("4, 1,2,1") == [4, 1, 2, 1]
    assert parse_workers("1024") == [1024]
    for wrong in ("", "1,", "0", "-1", "two", "1.5", "1025", "\u0663"):
        with pytest.raises(ConfigError, match="--workers as numbers"):
            parse_workers(wrong)


def test_ranks_are_lists_and_powers_of_two():
    """Ascending, each once; both ends of a range are kept."""
    assert parse_counts("8,1,1") == [1, 8]
    assert parse_counts("3..20") == [3, 4, 8, 16, 20]
    with pytest.raises(ConfigError):
        parse_counts("1..100000")


def test_sizes():
    """Sizes are in powers of 1024, in any case, sorted, each once."""
    assert parse_sizes("1MB,4KB, 4kb ,7,1g") == [7, 4096, 1 << 20, 1 << 30]
    assert parse_sizes("64B,2K") == [64, 2048]
    for wrong in ("", "4KB,", "KB", "-4KB", "4.5KB", "1e3", "2GB", "0", "4TB", "4 parsecs", "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(ConfigError, match="expected --sizes such as 4KB"):
            parse_sizes(wrong)


def test_numbers_of_ranks():
    """In the given order, each once; a collective needs two."""
    assert parse_ranks("4,2, 4") == [4, 2]
    for wrong in ("1", "2,", "two", "-2", "65", "2.0", "\N{SUPERSCRIPT TWO}"):
        with pytest.raises(ConfigError, match="expected --workers such as 2,4"):
            parse_ranks(wrong)


def test_names():
    """Each once; a slip is answered with what was meant."""
    known = ["barrier", "all_reduce"]
    assert parse_names("--collectives", "barrier, all_reduce,barrier", known) == known
    with pytest.raises(ConfigError, match=r"got 'all_redcue'\. Hint: did you mean 'all_reduce'"):
        parse_names("--collectives", "all_redcue", known)


def test_loaders():
    """Each once, none is a number too."""
    assert parse_loaders("0,2,0") == [0, 2]
    with pytest.raises(ConfigError, match="--loaders as numbers such as 0,1,2"):
        parse_loaders("0,65")
