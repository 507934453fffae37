"""``unisono``: finds the verb and loads only its file, so that ``--help`` answers at once."""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, final

import click

from unisono import __version__

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

VERBS = {
    "run": "Start a script on several processes, of one machine or more.",
    "launch": "Hand a script to Slurm, Open MPI, Ray or Kubernetes.",
    "join": "Be one rank of a world that srun or mpirun has started.",
    "train": "Train a ready-made recipe.",
    "verify": "Prove that the number of workers does not change a bit.",
    "diff": "Show where two runs part, and what differed first.",
    "chaos": "Kill a run's processes, and prove that its bits stay the same.",
    "checkpoint": "Look after what a run has saved.",
    "bench": "Measure scaling, collectives, strategies; propose settings.",
    "forecast": "Forecast training on more ranks than there are.",
    "doctor": "Find what would spoil a run: this machine, a script.",
    "report": "Put runs, scaling and forecasts on one page.",
    "completion": "Let the shell complete verbs, options and recipes.",
}

START = f"""\
unisono {__version__}: distributed PyTorch training whose result does not depend on who computes it.

Begin here:
  unisono doctor                        is this machine fit to train on?
  unisono train digits                  a ready-made recipe, in seconds
  unisono verify digits --workers 1,2   one process or two: the same bits
  unisono run -n 2 train.py             your own script, also one written for torchrun

All verbs: unisono --help. What a verb can do: unisono VERB --help.
Tab completes verbs, options and recipes: unisono completion --help.
"""


@final
class LazyGroup(click.Group):
    """A group whose verbs live in ``unisono.cli.<verb>``, under the same name."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the verbs."""
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a verb."""
        if cmd_name not in VERBS:
            return None
        command: click.Command = getattr(importlib.import_module(f"unisono.cli.{cmd_name}"), cmd_name)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the verbs without loading them."""
        with formatter.section("Verbs"):
            formatter.write_dl(list(VERBS.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the verbs without loading them."""
        from click.shell_completion import CompletionItem

        if not incomplete or incomplete[0].isalnum():
            return [CompletionItem(verb, help=text) for verb, text in VERBS.items() if verb.startswith(incomplete)]
        return super().shell_complete(ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or say what was meant."""
        if args[0] not in VERBS and not args[0].startswith("-"):
            hint = _meant(args[0]) or f" Verbs: {', '.join(VERBS)}."
            ctx.fail(f"No such verb {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)


def _meant(word: str) -> str:
    """Return a hint for a word that is no verb: a script, a recipe, a verb spelled otherwise."""
    from unisono.hints import nearest
    from unisono.recipes.catalog import RECIPES

    if word.endswith(".py") or Path(word).is_file():
        return f" Hint: unisono run {word}."
    if word in RECIPES:
        return f" Hint: unisono train {word}."
    return nearest(word, VERBS)


@click.group(cls=LazyGroup, invoke_without_command=True, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__)
@click.pass_context
def unisono(context: click.Context) -> None:
    """Distributed PyTorch training whose result does not depend on who computes it."""
    if context.invoked_subcommand is None:
        click.echo(START, nl=False)


def main() -> NoReturn:
    """Run the command line; exits with the verb's code."""
    try:
        unisono(prog_name="unisono", standalone_mode=False)
    except click.ClickException as error:
        if isinstance(error, click.NoSuchOption):  # click lists three, by the alphabet; the nearest comes first
            error = click.NoSuchOption(error.option_name, possibilities=(error.possibilities or [])[:1], ctx=error.ctx)
        error.show()
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    raise SystemExit(0)
