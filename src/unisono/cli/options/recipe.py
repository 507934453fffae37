"""Options of recipes, for the verbs that run one several times."""

from collections.abc import Callable
from typing import Any

import click

from unisono.cli.options.settings import PATH, number
from unisono.experiments.trials import flag_of
from unisono.options.quantities import BATCH, EPOCHS, SAMPLES, SEED

_OPTIONS: dict[str, tuple[Any, str, str]] = {
    "epochs": (number(EPOCHS), "E", "passes over the data."),
    "batch_size": (number(BATCH), "B", "samples per optimizer step, over all workers."),
    "seed": (number(SEED), "S", "seed of everything random."),
    "model": (str, "NAME", "one of its models."),
    "limit": (number(SAMPLES), "K", "use at most K samples."),
    "data": (PATH, "PATH", "where the data is."),
}


def recipe_options(*names: str, scripts_too: bool = False) -> Callable[[Any], Any]:
    """Return a decorator that adds options of recipes to a command.

    Args:
        names: Which ones, in the order of ``--help``.
        scripts_too: The command takes scripts too, so the help says that these are for recipes.
    """

    def add(command: Any) -> Any:
        for name in reversed(names):
            kind, metavar, text = _OPTIONS[name]
            help_text = f"Recipes: {text}" if scripts_too else text[0].upper() + text[1:]
            command = click.option(flag_of(name), name, type=kind, metavar=metavar, help=help_text)(command)
        return command

    return add
