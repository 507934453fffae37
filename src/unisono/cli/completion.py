"""``unisono completion``: what bash, zsh and fish need to complete verbs, options, recipes and strategies."""

from typing import TYPE_CHECKING, final

import click

from unisono.cli.options.settings import stack

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

SHELLS = ("bash", "zsh", "fish")


@click.command(short_help="Let the shell complete verbs, options and recipes.")
@click.argument("shell", type=click.Choice(SHELLS))
def completion(shell: str) -> None:
    """Print what SHELL needs to complete what is typed after unisono.

    In ~/.bashrc: eval "$(unisono completion bash)"

    In ~/.zshrc: eval "$(unisono completion zsh)"

    For fish, once: unisono completion fish > ~/.config/fish/completions/unisono.fish

    Exit code: 0 when it was printed; 2 for another shell.
    """
    from click.shell_completion import get_completion_class

    from unisono.cli.main import unisono

    maker = get_completion_class(shell)
    assert maker is not None  # click knows all of SHELLS
    click.echo(maker(unisono, {}, "unisono", "_UNISONO_COMPLETE").source())


@final
class RecipeName(click.types.StringParamType):
    """A word; where it is missing, it is said what there is."""

    def __init__(self, also: str = "") -> None:
        self._also = also

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return the recipes, a line each."""
        from unisono.recipes.catalog import RECIPES

        width = max(map(len, RECIPES))
        lines = [f"  {name:<{width}}  {recipe.summary}" for name, recipe in RECIPES.items()]
        return "\n".join([f"Expected {self._also}one of the recipes:", *lines])

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        """Return the recipes that begin so; where none does, let the shell look for a script."""
        from click.shell_completion import CompletionItem

        from unisono.recipes.catalog import RECIPES

        fits = {name: recipe.summary for name, recipe in RECIPES.items() if name.startswith(incomplete)}
        found = [CompletionItem(name, help=summary) for name, summary in fits.items()]
        return found or ([CompletionItem(incomplete, type="file")] if self._also else [])


recipe_argument = click.argument("recipe", metavar="RECIPE", type=RecipeName())
target_arguments = stack(
    click.argument("target", metavar="RECIPE|SCRIPT", type=RecipeName("a script, or ")),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]"),
)
"""A recipe, or a script and its arguments, as `target` and `args`."""
