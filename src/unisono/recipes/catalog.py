"""The list of recipes and the options they share; imports no torch, so the launcher can check everything first."""

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from unisono.errors import ConfigError
from unisono.seeding import check_seed
from unisono.strategies.options import ExactOptions, StrategyOptions


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """One ready-made job.

    Attributes:
        name: As typed after ``unisono train``.
        summary: One line for ``--help``.
        models: Names for ``--model``; the first is the default.
        epochs: Default.
        batch_size: Default: samples per optimizer step over all workers.
        replicas: Default.
        check_data: Takes the options' data and cache directories; finds, downloads, verifies and caches the data
            before any worker starts.
    """

    name: str
    summary: str
    models: tuple[str, ...]
    epochs: int
    batch_size: int
    replicas: int
    check_data: Callable[[Path | None, Path | None], object]


@dataclass(frozen=True, kw_only=True, slots=True)
class Options:
    """What a recipe is played with; see ``unisono train --help``.

    Attributes:
        limit: Use at most so many training and so many test samples, spread evenly over the data.
        data: Directory or file with the data; None downloads it.
        cache: Directory for downloads and prepared data; the user's cache directory where None.
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

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "replicas", "threads", "limit", "checkpoint_every"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"expected --{name.replace('_', '-')} >= 1, got {value}.")
        check_seed(self.seed)
        if self.num_workers < 0:
            raise ConfigError(f"expected --num-workers >= 0, got {self.num_workers}.")
        models = find(self.recipe).models
        if self.model not in models:
            raise ConfigError(f"recipe {self.recipe!r} has no model {self.model!r}; it has {', '.join(models)}.")

    @property
    def data_path(self) -> Path | None:
        """Where the user's data is, None for a download."""
        return None if self.data is None else Path(self.data)

    @property
    def cache_path(self) -> Path | None:
        """Where downloads and prepared data are kept."""
        return None if self.cache is None else Path(self.cache)

    @property
    def score(self) -> dict[str, Any]:
        """The part of the run's score that these options decide, as in ``score.json``."""
        names = ("seed", "replicas", "batch_size", "threads")
        settings = {"recipe": self.recipe, "model": self.model, "limit": self.limit}
        return {
            **{name: getattr(self, name) for name in names},
            "strategy": self.strategy.score(),
            "settings": settings,
        }

    def run_settings(self, **more: Any) -> dict[str, Any]:
        """Return the keyword arguments of `unisono.Run`; `more` joins them."""
        shared = ("seed", "replicas", "out", "threads", "checkpoint_every", "allow_drift", "detail")
        chosen = {name: value for name, value in asdict(self).items() if name in shared}
        return {**chosen, "strategy": self.strategy, "settings": self.score["settings"], **more}


def find(name: str) -> Recipe:
    """Return a recipe by name.

    Raises:
        ConfigError: There is none; names the nearest.
    """
    if name not in RECIPES:
        near = difflib.get_close_matches(name, RECIPES, n=1, cutoff=0.4)
        hint = f" Hint: did you mean {near[0]!r}?" if near else ""
        raise ConfigError(f"expected one of the recipes {', '.join(RECIPES)}, got {name!r}.{hint}")
    return RECIPES[name]


def _check_digits(data: Path | None, cache: Path | None) -> object:
    from unisono.data.digits import load_digits

    if data is not None:
        raise ConfigError(f"recipe 'digits' brings its own data, got --data {data}. Hint: leave --data out.")
    return load_digits()


def _check_mnist(data: Path | None, cache: Path | None) -> object:
    from unisono.data.mnist import load_mnist

    return load_mnist(data, cache=cache)


def _check_imdb(data: Path | None, cache: Path | None) -> object:
    from unisono.data.imdb import load_imdb

    return load_imdb(data, cache=cache)


RECIPES = {
    recipe.name: recipe
    for recipe in (
        Recipe(
            name="digits", summary="handwritten digits, 8x8, bundled with scikit-learn: seconds",
            models=("cnn",), epochs=20, batch_size=64, replicas=8, check_data=_check_digits,
        ),
        Recipe(
            name="mnist", summary="handwritten digits, 28x28: SimpleCNN, SGD with momentum",
            models=("cnn",), epochs=10, batch_size=128, replicas=8, check_data=_check_mnist,
        ),
        Recipe(
            name="imdb", summary="sentiment of film reviews: gated CNN, or a bag of words",
            models=("gcnn", "bag"), epochs=1, batch_size=128, replicas=8, check_data=_check_imdb,
        ),
    )
}  # fmt: skip
