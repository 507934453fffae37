"""The digits recipe: real data in seconds, without a download."""

import json

import pytest
import torch

from unisono.errors import ConfigError
from unisono.recipes.catalog import Options
from unisono.recipes.digits import DigitsCNN, train


def options(**changes) -> Options:
    return Options(**{"recipe": "digits", "model": "cnn", "epochs": 1, "batch_size": 50, "replicas": 2} | changes)


def test_the_network_takes_8_by_8_images():
    """Ten scores per image, and both buffers and dropout are in it, so that the promise is put to the test."""
    model = DigitsCNN()
    assert model(torch.zeros(3, 1, 8, 8)).shape == (3, 10)
    kinds = {type(module).__name__ for module in model.modules()}
    assert {"BatchNorm2d", "Dropout"} <= kinds


def test_the_recipe_learns():
    """Two passes over the bundled digits reach well above chance, each of the 1,437 samples used."""
    result = train(options(epochs=2, batch_size=64))
    assert result["steps"] == 2 * 23
    assert result["metrics"]["test_accuracy"] > 0.8


def test_the_same_options_give_the_same_bits_and_others_do_not():
    """A repeated run has the same fingerprint; another seed, number of replicas or limit has not."""
    first = train(options(limit=100))["fingerprint"]
    assert train(options(limit=100))["fingerprint"] == first
    others = [{"seed": 1}, {"replicas": 4}, {"limit": 101}, {"batch_size": 25}]
    prints = [train(options(**{"limit": 100} | change))["fingerprint"] for change in others]
    assert len({first, *prints}) == 5


def test_the_last_samples_of_an_epoch():
    """`last` reaches loader and score, and schedules ask it for their steps; runs without it have old scores."""
    joined = options(limit=101, last="join")
    assert train(joined)["steps"] == joined.steps(101) == 2
    assert (joined.score["settings"]["last"], options(epochs=3).steps(101)) == ("join", 9)
    assert "last" not in options().score["settings"]


def test_a_batch_size_that_grows():
    """The schedule reaches loader and score, and learning rates' schedules ask it for their steps."""
    growing = options(limit=100, batch_size=10, batch_schedule="4:30", epochs=2)
    assert train(growing)["steps"] == growing.steps(100) == 4 + 2 + 4
    assert growing.score["settings"]["batch_schedule"] == "4:30"
    assert "batch_schedule" not in options().score["settings"]


@pytest.mark.parametrize("given", ["", "4", "4:", "0:8", "4:8,4:9", "4:8,", "-4:8", "4:0", "4:8x", "9" * 5000 + ":8"])
def test_a_schedule_of_batch_sizes_that_is_none(given):
    """Refused before anything starts."""
    with pytest.raises(ConfigError, match=r"--batch-schedule as STEPS:B|batch_size as a whole number"):
        options(batch_schedule=given)


def test_intervals_are_those_of_the_options(tmp_path):
    """Lines, evaluations and checkpoints come when they are asked for, with the averaged loss; no bit changes."""
    chosen = {"epochs": 1, "batch_size": 10, "limit": 100}
    given = {"log_every": 2, "eval_every": 3, "checkpoint_every": 4, "loss_average": 0.9, "keep": 9}
    plain = train(options(**chosen))
    every = train(options(**chosen, **given, out=str(tmp_path / "run")))
    assert every["fingerprint"] == plain["fingerprint"]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [2, 3, 4, 6, 8, 9, 10]
    assert [line["step"] for line in lines if "test_accuracy" in line["values"]] == [3, 6, 9, 10]
    assert all("train/loss_ema" in line["values"] for line in lines)
    saved = (tmp_path / "run" / "checkpoints").glob("step-[0-9]*.????????")
    assert {int(path.name[5:].partition(".")[0]) for path in saved} >= {4, 8, 10}
    train(options(**chosen, log_every=2, out=str(tmp_path / "other")))
    lines = (tmp_path / "other" / "metrics.jsonl").read_text()
    assert "loss_ema" not in lines
