"""Scores that nobody measures are found before the first step."""

import pytest

import unisono
from train.callbacks.small import fit
from unisono.callbacks import Callback, EarlyStopping, Plateau
from unisono.errors import ConfigError
from unisono.train.callbacks.monitored import check_monitors


class Begun(Callback):
    """Fails the test as soon as a step begins."""

    def on_step_start(self, loop):
        raise AssertionError("a step has begun")


class Scores(Callback):
    """Puts a score of its own beside the others, and records it."""

    def on_evaluation_end(self, loop):
        loop.scores["own"] = loop.scores["test_loss"]
        loop.run.record({"own": loop.scores["own"]})


@pytest.mark.parametrize("kind", [EarlyStopping, Plateau])
def test_a_callback_that_could_never_act(kind):
    """Without a test set, or with a misspelt score, it is refused before the first step, with the nearest name."""
    with pytest.raises(ConfigError, match=f"{kind.__name__} looks at .*'test_loss', but .*has no test_set.*Hint: fit"):
        fit([kind("test_loss"), Begun()], test=False)
    with pytest.raises(
        ConfigError, match=r"'test_los', expected one of test_accuracy, test_loss\. Hint: .*'test_loss'"
    ):
        fit([kind("test_los"), Begun()])
    assert fit([kind("test_loss")])[0]["steps"] == 10


def test_a_best_checkpoint_that_nobody_measures(tmp_path):
    """The same for the metric by which a checkpoint is kept."""

    def play(best, *more, **settings):
        return fit(more, run={"checkpoints": unisono.CheckpointPolicy(best=best)}, **settings)[0]["steps"]

    with pytest.raises(ConfigError, match=r"CheckpointPolicy\(best='test_loss'\) looks at a score, but nothing is"):
        play("test_loss", test=False)
    with pytest.raises(ConfigError, match=r"best='accuracy'\) expected one of the scores .*Hint: .*'test_accuracy'"):
        play("accuracy")
    assert play("test_accuracy") == play("own", Scores()) == 10


def test_scores_of_ones_own_are_no_mistake():
    """A callback before it may add scores; behind it, the name is looked up when there are some."""
    assert fit([Scores(), EarlyStopping("own", patience=9)])[0]["steps"] == 10
    with pytest.raises(ConfigError, match="'own', expected one of"):
        fit([EarlyStopping("own"), Scores(), Begun()])


def test_parts_of_a_metric():
    """A metric with several values gives its scores by part; another metric's part is none of them."""
    check_monitors([EarlyStopping("test_f1/3")], ["test_loss", "test_f1"])
    with pytest.raises(ConfigError, match=r"'test_f2/3', expected one of test_f1, test_loss\."):
        check_monitors([EarlyStopping("test_f2/3")], ["test_loss", "test_f1"])
