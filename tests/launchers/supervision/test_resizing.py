"""The words of ``--elastic``, and what is refused."""

import pytest

from unisono.launchers.supervision.resizing import parse_sizes, ranks_of, shares, why_refused


def test_bounds():
    """``MIN:MAX``; without it any number of workers is right up to the replicas."""
    assert (parse_sizes("2:5"), parse_sizes("3:3"), parse_sizes(None)) == ((2, 5), (3, 3), (1, 0))


@pytest.mark.parametrize("text", ["5:3", "0:3", "3", ":", "a:b", "-1:2", "1:2:3", "²:3", ""])
def test_no_bounds(text):
    """Anything else is no range."""
    with pytest.raises(ValueError):
        parse_sizes(text)


def test_refusals():
    """Outside of the bounds, before the first step, no whole number."""
    assert (why_refused(2, 1, 3), why_refused(3, 3, 3)) == ("", "")
    assert all("expected 2 to 3 workers" in why_refused(workers, 2, 3) for workers in (1, 4, 2.0, "2", None, True))
    assert "have not begun" in why_refused(2, 1, 0)
    assert (ranks_of([3]), ranks_of([2, 3])) == ("rank 3 is", "ranks 2, 3 are")


@pytest.mark.parametrize(
    ("wanted", "nodes", "hosts", "found"),
    [
        (2, [0, 0, 1, 1], (0, 1), {0: 2, 1: 0}),
        (5, [0, 0], (0, 1), {0: 3, 1: 2}),
        (4, [0, 1, 2], (0, 1, 2), {0: 2, 1: 1, 2: 1}),
        (4, [2, 1, 1], (1, 2), {1: 2, 2: 2}),
        (3, [0, 1, 0], (0, 1), {0: 2, 1: 1}),
    ],
)
def test_shares(wanted, nodes, hosts, found):
    """Members that came last leave; more begin on the host with the fewest, the lowest-numbered of equal ones."""
    assert shares(wanted, nodes, hosts) == found
