"""Which values of a score are better, as its name says."""

import pytest

import unisono
from unisono.errors import ConfigError
from unisono.options.directions import mode_of


@pytest.mark.parametrize(
    ("score", "found"),
    [
        ("test_accuracy", "max"), ("test_loss", "min"), ("val/f1", "max"), ("part_auroc", "max"), ("mse", "min"),
        ("accuracy_loss", "min"), ("Perplexity", "min"), ("test_f1/3", "max"), ("own", None), ("lossless", None),
    ],
)  # fmt: skip
def test_names_that_say_it(score, found):
    """The last word that says something; of another name the default is taken."""
    assert {mode_of(score, None, default=default) for default in ("min", "max")} == (
        {found} if found else {"min", "max"}
    )


def test_what_is_given_counts():
    assert mode_of("test_loss", "max", default="min") == "max"
    with pytest.raises(ConfigError, match="expected mode as one of max, min, got 'best'"):
        mode_of("test_loss", "best", default="min")


def test_who_asks():
    """A callback that stops, one that lowers the rate, and the policy that keeps the best."""
    assert unisono.callbacks.EarlyStopping("test_accuracy")._mode == "max"
    assert unisono.callbacks.Plateau("test_accuracy")._mode == "max"
    assert unisono.callbacks.EarlyStopping("own")._mode == unisono.callbacks.Plateau("own")._mode == "min"
    modes = [unisono.CheckpointPolicy(best=best).best_mode for best in ("test_loss", "test_accuracy", "own", None)]
    assert modes == ["min", "max", "max", "max"]
