"""The choice between coded messages and plain ones: measured twice, then the same on all ranks."""

import pytest
import torch

from unisono.collectives.process_groups import link_trial
from unisono.collectives.process_groups.link_trial import LinkTrial, speeds

SUMS = [torch.randn(50_000, generator=torch.Generator().manual_seed(0)) * 1e-3]
SLOW, FAST = 1, 10**15  # bytes that a step has sent in microseconds


def measured(num_bytes):
    """Return the choice of a rank after two steps."""
    trial = LinkTrial("auto")
    for _ in range(2):
        assert not trial.start([trial.wish] * 2)
        trial.end(num_bytes, SUMS)
    return trial


def played(seconds, monkeypatch):
    """Return what of a run of steps is coded, on a link that was found slow, where steps take so long by that."""
    clock, coded, trial = [0.0], [], measured(SLOW)
    monkeypatch.setattr(link_trial.time, "perf_counter", lambda: clock[0])
    for _ in range(12):
        coded.append(trial.start([trial.wish] * 2))
        clock[0] += seconds(coded[-1], len(coded))
        trial.end(SLOW, SUMS)
    return coded


@pytest.mark.parametrize(("more", "stays"), [(0.1, False), (-0.1, True)])
def test_what_was_forecast_is_tried(more, stays, monkeypatch):
    """Eight steps coded and plain by turns; then what was faster stays, though one step of each took far longer."""
    coded = played(lambda is_coded, step: (9.0 if step in (1, 4) else 1.0) + is_coded * more, monkeypatch)
    assert coded == [True, False] * 4 + [stays] * 4


def test_one_rank_that_was_faster_without_decides():
    """All are plain then; while both are tried, wishes change nothing."""
    trial = measured(SLOW)
    assert [trial.start([1, 1]), trial.start([1, 0])] == [True, True]
    for _ in range(8):
        trial.start([1, 0])
        trial.end(SLOW, SUMS)
    assert not trial.start([1, 0])


def test_a_slow_link_is_coded_where_all_ranks_wish_it():
    """A fast one is not; nor where one rank has measured otherwise."""
    assert measured(SLOW).wish == 1
    assert measured(FAST).wish == 0
    assert measured(SLOW).start([1, 1])  # to try it
    assert not measured(SLOW).start([1, 0])
    assert not measured(FAST).start([0, 0])


def test_it_stays_so():
    """What steps take after that changes nothing."""
    trial = measured(SLOW)
    for _ in range(8):
        trial.start([1, 1])
        trial.end(FAST, SUMS)
    wish = trial.wish
    for _ in range(3):
        assert trial.start([1, 1])
        trial.end(FAST, SUMS)
    assert trial.wish == wish


def test_a_step_that_sends_nothing_tells_nothing():
    """It is not counted as one of the two."""
    trial = LinkTrial("auto")
    for num_bytes in (0, SLOW, 0):
        trial.start([0, 0])
        trial.end(num_bytes, SUMS)
        assert trial.wish == 0
    trial.end(SLOW, SUMS)
    assert trial.wish == 1


def test_what_is_told_is_not_measured():
    """``none`` and ``planes`` hold from the first step, whatever the ranks wish."""
    assert LinkTrial("planes").start([0, 0])
    assert not LinkTrial("none").start([1, 1])


def test_speeds():
    """Of random gradients: a sixth fewer bytes."""
    encoded, decoded, ratio = speeds(SUMS)
    assert 1.15 < ratio < 1.25
    assert min(encoded, decoded) > 0
