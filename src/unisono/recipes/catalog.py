"""The list of recipes and the options they share; imports no torch, so the launcher can check everything first."""

from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.options.quantities import (
    BATCH,
    BATCHES,
    COUNT,
    EPOCHS,
    LEARNING_RATE,
    LOADERS,
    REPLICAS,
    SAMPLES,
    SEED,
    STEPS,
    THREADS,
    TOKENS,
    Quantity,
)
from unisono.strategies.options import ExactOptions, StrategyOptions
from unisono.strategies.parts.clipping import Clipping
from unisono.system.hints import nearest


@dataclass(frozen=True, kw_only=True, slots=True)
class Preset:
    """A recipe's hyper-parameters under a name; the numbers are in the recipe's file.

    Attributes:
        name: For ``--preset``.
        epochs: Default.
        batch_size: Default: samples per optimizer step over all workers.
    """

    name: str
    epochs: int
    batch_size: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One ready-made job.

    Attributes:
        name: As typed after ``unisono train``.
        summary: One line for ``--help``.
        models: Names for ``--model``; the first is the default.
        presets: The first is the default.
        replicas: Default.
        check_data: Finds, downloads, verifies and caches the options' data before any worker starts.
        takes: Options beyond those of every recipe.
    """

    name: str
    summary: str
    models: tuple[str, ...]
    presets: tuple[Preset, ...]
    replicas: int
    check_data: Callable[["Options"], object]
    takes: tuple[str, ...] = ()

    def preset(self, name: str | None) -> Preset:
        """Return a preset by name; the default for None.

        Raises:
            ConfigError: There is none.
        """
        names = [preset.name for preset in self.presets]
        if name is not None and name not in names:
            raise ConfigError(f"recipe {self.name!r} has no preset {name!r}; it has {', '.join(names)}.")
        return self.presets[names.index(name) if name else 0]


TEXT = ("max_length", "length_pool", "min_freq")
OWN = ("test_data", "skip_broken")
OWN_TEXT = (*TEXT, *OWN, "text_column", "label_column", "encoding")
IMAGE = ("augment",)
OWN_IMAGE = (*IMAGE, *OWN, "image_size")
SPEED = ("lr", "bf16", "compile")
CLIP = ("clip_norm", "clip_value")
SCORED = ("preset", *CLIP, *SPEED, *IMAGE, "image_size", *TEXT, *OWN, "text_column", "label_column", "encoding")
"""Options that change bits; those that are given stand in the score."""

NUMBERS: dict[str, Quantity] = {
    "epochs": EPOCHS, "batch_size": BATCH, "replicas": REPLICAS, "seed": SEED, "threads": THREADS, "limit": SAMPLES,
    "num_workers": LOADERS, "checkpoint_every": STEPS, "lr": LEARNING_RATE, "max_length": TOKENS,
    "length_pool": BATCHES, "min_freq": COUNT,
}  # fmt: skip
"""What the options that are numbers may be."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a recipe is run with; see ``unisono train --help``.

    Attributes:
        limit: Use at most so many training and so many test samples, spread evenly over the data.
        data: Directory or file with the data; None downloads it.
        cache: Directory for downloads and prepared data; the user's cache directory where None.
        preset: Named hyper-parameters; the recipe's first where None.
        lr: Learning rate in place of the preset's.
        clip_norm: Largest global gradient norm in place of the preset's.
        clip_value: Largest magnitude of a gradient's element, in place of the preset's norm.
        bf16: Whether the model runs under bfloat16 autocast.
        compile: Whether the model goes through `torch.compile`.
        offline: Use no network.
    """

    recipe: str
    model: str
    epochs: int
    batch_size: int
    replicas: int
    seed: int = 0
    threads: int = 1
    limit: int | None = None
    num_workers: int = 0
    data: str | None = None
    cache: str | None = None
    out: str | None = None
    checkpoint_every: int | None = None
    allow_drift: bool = False
    detail: bool = False
    strategy: StrategyOptions = ExactOptions()  # noqa: RUF009 - frozen
    preset: str | None = None
    lr: float | None = None
    clip_norm: float | None = None
    clip_value: float | None = None
    bf16: bool = False
    compile: bool = False
    offline: bool = False
    augment: str | None = None
    image_size: str | None = None
    max_length: int | None = None
    length_pool: int | None = None
    min_freq: int | None = None
    test_data: str | None = None
    text_column: str | None = None
    label_column: str | None = None
    encoding: str | None = None
    skip_broken: bool = False

    def __post_init__(self) -> None:
        for name, quantity in NUMBERS.items():
            if getattr(self, name) is not None:
                object.__setattr__(self, name, quantity.take(_flag(name), getattr(self, name)))
        Clipping(norm=self.clip_norm, value=self.clip_value)
        recipe = find(self.recipe)
        if self.model not in recipe.models:
            raise ConfigError(f"recipe {self.recipe!r} has no model {self.model!r}; it has {', '.join(recipe.models)}.")
        recipe.preset(self.preset)
        for name in (*OWN_TEXT, *OWN_IMAGE, *SPEED):
            if name not in recipe.takes and self.given(name) is not None:
                raise ConfigError(f"recipe {self.recipe!r} has no use for {_flag(name)}. Hint: leave it out.")

    def given(self, name: str) -> Any:
        """Return an option's value, None where it was left at its default."""
        value = getattr(self, name)
        return None if value is False else value

    @property
    def data_path(self) -> Path | None:
        """Where the user's data is, None for a download."""
        return None if self.data is None else Path(self.data)

    @property
    def test_path(self) -> Path | None:
        """Where the user's data for evaluation is, None for a part of the other."""
        return None if self.test_data is None else Path(self.test_data)

    @property
    def cache_path(self) -> Path | None:
        """Where downloads and prepared data are kept."""
        return None if self.cache is None else Path(self.cache)

    @property
    def preset_name(self) -> str:
        """The preset that is run."""
        return find(self.recipe).preset(self.preset).name

    @property
    def score(self) -> dict[str, Any]:
        """The part of the run's score that these options decide, as in ``score.json``."""
        names = ("seed", "replicas", "batch_size", "threads")
        settings = {"recipe": self.recipe, "model": self.model, "limit": self.limit}
        settings |= {name: self.given(name) for name in SCORED if self.given(name) is not None}
        return {
            **{name: getattr(self, name) for name in names},
            "strategy": self.strategy.score(),
            "settings": settings,
        }

    def run_settings(self, *, clip_norm: float | None = None) -> dict[str, Any]:
        """Return the keyword arguments of `unisono.Run`.

        Args:
            clip_norm: The preset's; None does not clip. What the options say of clipping takes its place.
        """
        shared = ("seed", "replicas", "out", "threads", "checkpoint_every", "allow_drift", "detail")
        chosen = {name: value for name, value in asdict(self).items() if name in shared}
        clipping = {name: getattr(self, name) for name in CLIP if getattr(self, name) is not None}
        chosen |= clipping or ({} if clip_norm is None else {"clip_norm": clip_norm})
        return {**chosen, "strategy": self.strategy, "settings": self.score["settings"]}


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def find(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        ConfigError: There is none; names the nearest.
    """
    if name not in RECIPES:
        raise ConfigError(f"expected one of the recipes {', '.join(RECIPES)}, got {name!r}.{nearest(name, RECIPES)}")
    return RECIPES[name]


def _check_digits(options: Options) -> object:
    from unisono.data.sets.digits import load_digits

    if options.data is not None:
        raise ConfigError(f"recipe 'digits' brings its own data, got --data {options.data}. Hint: leave --data out.")
    return load_digits()


def _check_mnist(options: Options) -> object:
    from unisono.recipes.sources import mnist_data

    return mnist_data(options)


def _check_imdb(options: Options) -> object:
    from unisono.recipes.sources import imdb_data

    return imdb_data(options)


def _check_text(options: Options) -> object:
    from unisono.recipes.sources import own_texts, tell_skipped

    return tell_skipped(options, own_texts(options))


def _check_images(options: Options) -> object:
    from unisono.recipes.sources import own_images, tell_skipped

    return tell_skipped(options, own_images(options))


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits", summary="handwritten digits, 8x8, bundled with scikit-learn: seconds",
            models=("cnn",), presets=(Preset(name="default", epochs=20, batch_size=64),), replicas=8,
            check_data=_check_digits,
        ),
        Recipe(
            name="mnist", summary="handwritten digits, 28x28: the tutorials' SimpleCNN",
            models=("cnn",), replicas=8, check_data=_check_mnist, takes=(*SPEED, *IMAGE),
            presets=(
                Preset(name="best", epochs=8, batch_size=128),
                Preset(name="fast", epochs=1, batch_size=64),
                Preset(name="tutorial", epochs=10, batch_size=128),
            ),
        ),
        Recipe(
            name="imdb", summary="sentiment of film reviews: gated CNN, or a bag of words",
            models=("gcnn", "bag"), replicas=8, check_data=_check_imdb, takes=(*SPEED, *TEXT),
            presets=(
                Preset(name="best", epochs=4, batch_size=128),
                Preset(name="fast", epochs=1, batch_size=256),
                Preset(name="article", epochs=1, batch_size=128),
            ),
        ),
        Recipe(
            name="text", summary="your own labelled texts: CSV, TSV, JSON lines or a folder per class",
            models=("gcnn", "bag"), replicas=8, check_data=_check_text, takes=(*SPEED, *OWN_TEXT),
            presets=(Preset(name="default", epochs=5, batch_size=64),),
        ),
        Recipe(
            name="images", summary="your own labelled images: a folder per class, or NumPy arrays",
            models=("cnn",), replicas=8, check_data=_check_images, takes=(*SPEED, *OWN_IMAGE),
            presets=(Preset(name="default", epochs=10, batch_size=64),),
        ),
    )
}  # fmt: skip
