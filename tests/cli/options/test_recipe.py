"""Options of recipes for the verbs that run one several times."""

import click
from click.testing import CliRunner
from unisono.cli.options.recipe import recipe_options


def test_options_of_recipes():
    """In the given order; the help says for whom they are; what was not given is None."""
    seen = {}

    @click.command()
    @recipe_options("limit", "batch_size", scripts_too=True)
    @recipe_options("data")
    def command(**given):
        seen.update(given)

    shown = CliRunner().invoke(command, ["--help"]).output
    assert "--limit K       Recipes: use at most K samples." in shown
    assert "--data PATH     Where the data is." in shown
    assert shown.index("--limit") < shown.index("--batch-size") < shown.index("--data")
    assert CliRunner().invoke(command, ["--batch-size", "3"]).exit_code == 0
    assert seen == {"limit": None, "batch_size": 3, "data": None}
