"""What was probably meant."""

import pytest

import unisono
from unisono.system.hints import ELSEWHERE, instead, nearest, nearest_options


def test_the_nearest_name_is_a_hint():
    """One name, the nearest; nothing where none is near, or there is none."""
    assert nearest("trian", {"train": 1, "run": 2}) == " Hint: did you mean 'train'?"
    assert nearest("zzz", ["train", "run"]) == nearest("train", []) == ""


def test_names_that_are_as_near_are_all_hints():
    """Dpp is ddp as well as dp; one of the same length comes first. What is less near is left out."""
    strategies = ["exact", "ddp", "allreduce", "ps", "dp", "balanced_dp", "fsdp"]
    assert nearest("dpp", strategies) == " Hint: did you mean 'ddp' or 'dp'?"
    assert nearest("all_redcue", ["all_reduce", "reduce", "all_gather"]) == " Hint: did you mean 'all_reduce'?"


def test_options_by_the_words_of_other_programs():
    """In either spelling; only options that there are; letters count where no word is known."""
    known = ["--lr", "--batch-size", "--epochs", "--seed", "-n", "--preset"]
    assert nearest_options("--learning_rate", known) == nearest_options("--learning-rate", known) == ["--lr"]
    assert nearest_options("--learning-rate", ["--seed"]) == []
    assert nearest_options("--num-train-epochs", known) == ["--epochs"]
    assert nearest_options("--epcohs", known) == ["--epochs"]
    assert nearest_options("--nonsense-all-through", known) == []


def test_names_of_other_libraries():
    """Each with what to write here; what is private has no hint, a misspelt name the nearest."""
    assert instead("Accelerator", ["Run"]) == " Hint: from unisono.compat.accelerate import Accelerator."
    assert instead("Rnu", ["Run", "Trainer"]) == " Hint: did you mean 'Run'?"
    assert instead("_Run", ["Run"]) == ""
    assert not ELSEWHERE.keys() & {*unisono.__all__}
    for name in ("Accelerator", "EarlyStopping"):
        with pytest.raises(AttributeError, match=f"'unisono' has no attribute '{name}'. Hint: .*{name}"):
            getattr(unisono, name)
    with pytest.raises(AttributeError, match=r"'unisono.callbacks' has no attribute 'ModelCheckpoint'. Hint: .*keep="):
        unisono.callbacks.ModelCheckpoint  # noqa: B018
    with pytest.raises(AttributeError, match="did you mean 'EarlyStopping'"):
        unisono.callbacks.EarlyStoping  # noqa: B018
