"""Runs end where they should: on all ranks at once, and at the same step after an interruption."""

import pytest

from ranks import run_threads
from train.callbacks.small import everywhere, fit
from unisono.callbacks import Callback, EarlyStopping, TimeLimit
from unisono.errors import ConfigError

NEVER_GOOD = {"min_delta": 10.0}


class Crash(Callback):
    def __init__(self, step):
        self.step = step

    def on_step_end(self, loop):
        if loop.step == self.step:
            raise ZeroDivisionError


def stopped(transport="auto", out=None, patience=2, more=(), **settings):
    """Fit for up to nine epochs with a score that never improves enough."""
    stopping = EarlyStopping("test_loss", patience=patience, **NEVER_GOOD)
    result, _ = fit([stopping, *more], transport=transport, epochs=9, out=out, **settings)
    return {key: result.get(key) for key in ("steps", "fingerprint", "stopped_by")}, stopping.num_bad


def test_all_ranks_stop_at_one_step():
    """The first evaluation is the best; two later ones are not better: the end of the third epoch, in any world."""
    result, num_bad = everywhere(stopped)
    assert result["steps"] == 15
    assert num_bad == 2
    assert result["stopped_by"].startswith("test_loss has not improved on ")
    assert result["fingerprint"] == fit(epochs=3)[0]["fingerprint"]


def test_an_interrupted_run_stops_at_the_same_step(tmp_path):
    """The counter travels with the checkpoint: killed between two evaluations, it goes on counting."""
    with pytest.raises(ZeroDivisionError):
        stopped(out=tmp_path, more=[Crash(12)])
    result, num_bad = stopped(out=tmp_path)
    assert result == stopped()[0]
    assert (result["steps"], num_bad) == (15, 2)


def test_a_stopped_run_stays_stopped(tmp_path):
    """Started again, it does no step more and tells the same result."""
    first, _ = stopped(out=tmp_path)
    again, _ = stopped(out=tmp_path)
    assert (again["steps"], again["fingerprint"]) == (first["steps"], first["fingerprint"])


def test_it_goes_on_while_it_improves():
    """Control: with any improvement counting, and a score that falls, nothing stops the run."""
    stopping = EarlyStopping("test_loss", patience=1)
    result, _ = fit([stopping], epochs=3, lr=0.01)
    assert result["steps"] == 15
    assert "stopped_by" not in result
    assert stopping.best == result["metrics"]["test_loss"]


def test_the_larger_is_better():
    """In mode max a falling score is a bad one."""
    result, _ = fit([EarlyStopping("test_loss", mode="max", patience=1)], epochs=9, lr=0.01)
    assert result["steps"] == 10


def test_unknown_scores_are_listed():
    """A score that is not measured is an error at the first evaluation, with those there are, if not found before."""

    class Adds(Callback):  # nobody knows which scores
        pass

    with pytest.raises(ConfigError, match="scores test_accuracy, test_loss, got 'loss'"):
        fit([Adds(), EarlyStopping("loss")])


def test_time_is_up_for_all():
    """One rank's clock is enough; the run ends at the next step that logs, and goes on later."""

    def program(transport):
        result, _ = fit([TimeLimit(1e-9 if transport.rank == 1 else 3600)], transport=transport, epochs=9)
        return result["steps"], result["stopped_by"]

    assert run_threads(program, 3) == [[2, "the time limit of 1e-09 s was reached"]] * 3
    assert fit([TimeLimit(3600)], epochs=1)[0]["steps"] == 5


@pytest.mark.parametrize(
    "make",
    [
        lambda: EarlyStopping("a", patience=0), lambda: EarlyStopping("a", mode="best"),
        lambda: EarlyStopping("a", min_delta=-1), lambda: TimeLimit(0),
    ],
)  # fmt: skip
def test_wrong_settings_are_refused(make):
    """At once."""
    with pytest.raises(ConfigError, match="expected"):
        make()
