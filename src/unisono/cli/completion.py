"""``unisono completion``: what bash, zsh and fish need to complete verbs, options, recipes and strategies."""

from typing import TYPE_CHECKING, final

import click

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
    """A word; where it is missing, it is said what there is.

    Args:
        also: What else may stand there.
    """

    def __init__(self, also: str = "") -> None:
        self._also = also

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return the recipes, a line each."""
        from unisono.recipes.catalog import RECIPES

        width = max(map(len, RECIPES))
        lines = [f"  {name:<{width}}  {recipe.summary}" for name, recipe in RECIPES.items()]
        return "\n".join([f"Expected {self._also}one of the recipes:", *lines])


def complete_recipe(_: click.Context, __: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Return the recipes that begin so."""
    from click.shell_completion import CompletionItem

    from unisono.recipes.catalog import RECIPES

    return [
        CompletionItem(name, help=recipe.summary) for name, recipe in RECIPES.items() if name.startswith(incomplete)
    ]


def complete_target(context: click.Context, parameter: click.Parameter, incomplete: str) -> "list[CompletionItem]":
    """Return the recipes that begin so; where none does, let the shell look for a script."""
    from click.shell_completion import CompletionItem

    return complete_recipe(context, parameter, incomplete) or [CompletionItem(incomplete, type="file")]
