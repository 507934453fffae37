"""Recipes are found by name, with their options checked before anything starts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from unisono.checkpoint.policy import CheckpointPolicy
from unisono.errors import ConfigError, DataError
from unisono.recipes.catalog import RECIPES, Options, find
from unisono.recipes.sources import check_data
from unisono.strategies.catalog import find as find_strategy
from unisono.strategies.options import ExactOptions

GOOD = {"recipe": "digits", "model": "cnn", "epochs": 1, "batch_size": 8, "replicas": 2}


def test_the_catalog_is_pinned():
    """These recipes, models and defaults are a promise: changing one changes what users get."""
    assert {
        name: (recipe.models, recipe.replicas, *((each.name, each.epochs, each.batch_size) for each in recipe.presets))
        for name, recipe in RECIPES.items()
    } == {
        "digits": (("cnn",), 8, ("default", 20, 64)),
        "mnist": (("cnn",), 8, ("best", 8, 128), ("fast", 1, 64), ("tutorial", 10, 128)),
        "imdb": (("gcnn", "bag"), 8, ("best", 4, 128), ("fast", 1, 256), ("article", 1, 128)),
        "text": (("gcnn", "bag"), 8, ("default", 5, 64)),
        "images": (("cnn",), 8, ("default", 10, 64)),
        "lm": (("gpt",), 8, ("small", 1, 64), ("10m", 3, 64), ("50m", 3, 64)),
    }
    assert all(recipe.summary for recipe in RECIPES.values())


@pytest.mark.parametrize(("typed", "meant"), [("mnits", "mnist"), ("digit", "digits"), ("imbd", "imdb")])
def test_an_unknown_recipe_names_the_nearest(typed, meant):
    """A slip of the keyboard is answered with what was meant."""
    with pytest.raises(ConfigError, match=f"got '{typed}'. Hint: did you mean '{meant}'"):
        find(typed)


def test_a_recipe_like_no_other_lists_them():
    """Without a near match the message lists what there is and guesses nothing."""
    with pytest.raises(
        ConfigError, match=r"digits, mnist, imdb, text, images, lm, got 'zzz'\. Hint: `unisono run SCRIPT`"
    ):
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
    with pytest.raises(
        ConfigError, match=rf"--{name.replace('_', '-')} as a whole number of .* from \d to [0-9,]+, got {value}"
    ):
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
    options = Options(**GOOD, seed=3, limit=50, out="runs/x", checkpoint_every=4, keep_sparse="9")
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
        "precision": "fp32",
        "settings": {"recipe": "digits", "model": "cnn", "limit": 50},
        "checkpoints": CheckpointPolicy(best="test_accuracy", keep_sparse=9),
    }
    assert options.data_path is None
    assert Options(**GOOD, data="x").data_path == Path("x")


def test_clipping_in_place_of_the_preset_s():
    """A norm or a value that is given takes the place of what the recipe has, and stands in the score."""
    assert "clip_norm" not in Options(**GOOD).run_settings()
    assert Options(**GOOD, clip_norm=2.0).run_settings(clip_norm=0.1)["clip_norm"] == 2.0
    given = Options(**GOOD, clip_value=0.5)
    assert "clip_norm" not in given.run_settings(clip_norm=0.1)
    assert given.run_settings(clip_norm=0.1)["clip_value"] == given.score["settings"]["clip_value"] == 0.5
    with pytest.raises(ConfigError, match="got both"):
        Options(**GOOD, clip_value=0.5, clip_norm=0.1)


def test_data_is_checked_without_workers(tmp_path):
    """Missing data is found by the launcher: the digits bring their own, the others name what is not there."""
    check_data(Options(**GOOD))
    with pytest.raises(ConfigError, match="brings its own data"):
        check_data(Options(**GOOD, data=str(tmp_path)))
    for name in ("mnist", "imdb", "text", "images"):
        model = RECIPES[name].models[0]
        with pytest.raises(DataError, match=str(tmp_path)):
            check_data(
                Options(**GOOD | {"recipe": name, "model": model}, data=str(tmp_path), cache=str(tmp_path / "cache"))
            )


@pytest.mark.parametrize("name", ["text", "images"])
def test_own_data_must_be_named(name):
    """There is nothing to download for a recipe on the user's own data."""
    model = RECIPES[name].models[0]
    with pytest.raises(ConfigError, match="your own"):
        check_data(Options(**GOOD | {"recipe": name, "model": model}))


def test_offline_says_which_file_to_put_where(tmp_path):
    """Without network and without an earlier download the message names file, place and checksum."""
    options = Options(**GOOD | {"recipe": "mnist"}, cache=str(tmp_path), offline=True)
    with pytest.raises(DataError, match=r"mnist/train-images-idx3-ubyte\.gz: expected 9,912,422 bytes.*put it at"):
        check_data(options)


def test_options_of_other_recipes_are_refused():
    """An option that would do nothing is a mistake of the user's, and named."""
    with pytest.raises(ConfigError, match="'digits' has no use for --text-column"):
        Options(**GOOD, text_column="x")
    with pytest.raises(ConfigError, match="'mnist' has no preset 'b'; it has best, fast, tutorial"):
        Options(**GOOD | {"recipe": "mnist"}, preset="b")
    with pytest.raises(ConfigError, match="'digits' has no use for --bf16"):
        Options(**GOOD, bf16=True)


def test_options_that_change_bits_are_in_the_score():
    """Every such option appears when given and not otherwise; the others never do."""
    plain = {**GOOD, "recipe": "imdb", "model": "gcnn"}
    given = {"lr": 0.1, "compile": True, "max_length": 9, "length_pool": 0, "preset": "fast"}
    assert Options(**plain).score["settings"] == {"recipe": "imdb", "model": "gcnn", "limit": None}
    assert Options(**plain, **given).score["settings"] == {**Options(**plain).score["settings"], **given}
    assert Options(**plain, offline=True, num_workers=2, data="x").score == Options(**plain).score


def test_the_precision_has_several_names_and_one_score():
    """`--bf16` and a strategy's `amp` say what `--precision` says; not two things at once."""
    plain = {**GOOD, "recipe": "imdb", "model": "gcnn"}
    first = Options(**plain, precision="bf16")
    assert first.score == {**Options(**plain).score, "precision": "bf16"}
    assert Options(**plain, bf16=True).score == Options(**plain, bf16=True, precision="bf16").score == first.score
    both = [
        Options(**plain, strategy=find_strategy("ddp", {"amp": "bf16"})),
        Options(**plain, strategy=find_strategy("ddp"), precision="bf16"),
    ]
    assert both[0].score == both[1].score
    assert both[0].run_settings()["precision"] == "bf16"
    with pytest.raises(ConfigError, match="--precision fp16 and --bf16 say two things"):
        Options(**plain, bf16=True, precision="fp16")


def test_the_catalog_imports_no_torch():
    """The launcher can check everything without paying for torch."""
    code = (
        "import sys, unisono.recipes.catalog as c, unisono.recipes.sources as s; "
        "s.check_data(c.Options(recipe='digits', model='cnn', epochs=1, batch_size=1, replicas=1)); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"


LAUNCHER = """
import json, sys
import unisono.cli.train
from unisono.errors import DataError
from unisono.experiments.job import plan
from unisono.launchers.api import describe_function
from unisono.recipes.execute import execute
describe_function(execute)

def heavy():
    return [name for name in ("torch", "numpy", "rich.console", "pooch", "PIL", "requests") if name in sys.modules]

try:
    plan("mnist", "1", {"data": sys.argv[1]})
except DataError as error:
    print(json.dumps([str(error), heavy()]))
plan("digits", "1", {})
print(json.dumps(heavy()))
"""


def test_the_launcher_of_mnist_loads_no_numpy(tmp_path):
    """It finds and verifies the files, and refuses what is not there; the workers alone read them."""
    command = [sys.executable, "-c", LAUNCHER, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    (error, loaded), control = map(json.loads, done.stdout.splitlines())
    assert "expected a file train-images-idx3-ubyte.gz, found an empty directory" in error
    assert loaded == []
    assert control == ["numpy"]  # of a recipe whose data the launcher reads
