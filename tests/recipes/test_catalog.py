"""Recipes are found by name, with their options checked before anything starts."""

import subprocess
import sys
from pathlib import Path

import pytest

from unisono.errors import ConfigError, DataError
from unisono.recipes.catalog import RECIPES, Options, find
from unisono.strategies.options import ExactOptions

GOOD = {"recipe": "digits", "model": "cnn", "epochs": 1, "batch_size": 8, "replicas": 2}


def test_the_catalog_is_pinned():
    """These recipes, models and defaults are a promise: changing one changes what users get."""
    assert {
        name: (recipe.models, recipe.epochs, recipe.batch_size, recipe.replicas) for name, recipe in RECIPES.items()
    } == {
        "digits": (("cnn",), 20, 64, 8),
        "mnist": (("cnn",), 10, 128, 8),
        "imdb": (("gcnn", "bag"), 1, 128, 8),
    }
    assert all(recipe.summary for recipe in RECIPES.values())


@pytest.mark.parametrize(("typed", "meant"), [("mnits", "mnist"), ("digit", "digits"), ("imbd", "imdb")])
def test_an_unknown_recipe_names_the_nearest(typed, meant):
    """A slip of the keyboard is answered with what was meant."""
    with pytest.raises(ConfigError, match=f"got '{typed}'. Hint: did you mean '{meant}'"):
        find(typed)


def test_a_recipe_like_no_other_lists_them():
    """Without a near match the message lists what there is and guesses nothing."""
    with pytest.raises(ConfigError, match=r"digits, mnist, imdb, got 'zzz'\.$"):
        find("zzz")
    assert find("mnist").name == "mnist"


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, 0) for name in ("epochs", "batch_size", "replicas", "threads", "limit", "checkpoint_every")),
        ("batch_size", -4),
        ("num_workers", -1),
    ],
)
def test_numbers_out_of_range_are_named_as_typed(name, value):
    """The message names the option of the command line and the value."""
    assert Options(**GOOD)
    with pytest.raises(ConfigError, match=rf"--{name.replace('_', '-')} >= \d, got {value}"):
        Options(**GOOD | {name: value})


@pytest.mark.parametrize("seed", [2**63, -(2**63) - 1, 10**30])
def test_a_seed_that_does_not_fit_is_refused_early(seed):
    """A seed beyond 64 bits is a wrong setting, said before any worker starts."""
    with pytest.raises(ConfigError, match="seed"):
        Options(**GOOD | {"seed": seed})


def test_an_unknown_model_lists_the_recipe_s():
    """The message says which models the recipe has."""
    with pytest.raises(ConfigError, match="'imdb' has no model 'cnn'; it has gcnn, bag"):
        Options(**GOOD | {"recipe": "imdb"})


def test_run_settings_are_what_a_run_takes():
    """Options become the keyword arguments of a run; what belongs to the score is in its settings."""
    options = Options(**GOOD, seed=3, limit=50, out="runs/x", checkpoint_every=4)
    assert options.run_settings(clip_norm=0.1) == {
        "seed": 3,
        "replicas": 2,
        "out": "runs/x",
        "threads": 1,
        "checkpoint_every": 4,
        "allow_drift": False,
        "detail": False,
        "clip_norm": 0.1,
        "strategy": ExactOptions(),
        "settings": {"recipe": "digits", "model": "cnn", "limit": 50},
    }
    assert options.data_path is None
    assert Options(**GOOD, data="x").data_path == Path("x")


def test_data_is_checked_without_workers(tmp_path):
    """Missing data is found by the launcher: the digits bring their own, the others name what is not there."""
    RECIPES["digits"].check_data(None, None)
    with pytest.raises(ConfigError, match="brings its own data"):
        RECIPES["digits"].check_data(tmp_path, tmp_path)
    for name in ("mnist", "imdb"):
        with pytest.raises(DataError, match=str(tmp_path)):
            RECIPES[name].check_data(tmp_path, tmp_path)


def test_the_catalog_imports_no_torch():
    """The launcher can check everything without paying for torch."""
    code = (
        "import sys, unisono.recipes.catalog as c; c.RECIPES['digits'].check_data(None, None); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
