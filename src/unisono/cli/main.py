"""``unisono``: finds the verb and loads only its file, so that ``--help`` answers at once."""

import difflib
import importlib
from typing import NoReturn, final

import click

VERBS = {
    "run": "Start a script on several processes, of one machine or more.",
    "train": "Train a ready-made recipe.",
    "verify": "Prove that the number of workers does not change a bit.",
    "diff": "Show where two runs part, and what differed first.",
    "chaos": "Kill a run's processes, and prove that its bits stay the same.",
    "checkpoint": "Look after what a run has saved.",
    "bench": "Measure scaling, collectives, strategies; propose settings.",
    "forecast": "Forecast training on more ranks than there are.",
    "doctor": "Find what would spoil a run: this machine, a script.",
    "report": "Put runs, scaling and forecasts on one page.",
}


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

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the verb, or name the nearest."""
        near = difflib.get_close_matches(args[0], VERBS, n=1)
        if args[0] not in VERBS and near:
            ctx.fail(f"No such verb {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)


@click.command(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="unisono")
def unisono() -> None:
    """Distributed PyTorch training whose result does not depend on who computes it."""


def main() -> NoReturn:
    """Run the command line; exits with the verb's code."""
    try:
        unisono(prog_name="unisono", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        raise SystemExit(error.exit_code) from None
    except (click.Abort, KeyboardInterrupt):
        raise SystemExit(130) from None
    raise SystemExit(0)
