"""Groups whose commands live in a file each, loaded when they are called, so that ``--help`` answers at once."""

import importlib
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, final

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem


@final
class _TellingContext(click.Context):
    """A context that stands in errors about its options: of some, click does not say whose they are."""

    def __exit__(
        self, exc_type: type[BaseException] | None, exc_value: BaseException | None, tb: TracebackType | None
    ) -> bool | None:
        """Leave the context."""
        if isinstance(exc_value, click.UsageError) and exc_value.ctx is None:
            exc_value.ctx = self
        return super().__exit__(exc_type, exc_value, tb)


@final
class LazyGroup(click.Group):
    """A group whose commands are loaded when they are called.

    Args:
        entries: What each command is for, by its name, in the order of ``--help``.
        module: Where one lives, under its own name: ``unisono.cli.{}``.
        rooms: Of those that live in a room of their own: ``unisono.cli.ROOM.{}``.
        noun: What such a command is called: ``verb``.
        meant: Returns a hint for a word that is none, or nothing.
        **settings: click's own.
    """

    def __init__(
        self, *, entries: Mapping[str, str], module: str, noun: str, meant: Callable[[str], str] | None = None,
        rooms: Mapping[str, str] | None = None, **settings: Any,
    ) -> None:  # fmt: skip
        super().__init__(**settings)
        self._entries, self._module, self._noun = entries, module, noun
        self._meant, self._rooms = meant or self._nearest, rooms or {}

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names."""
        return list(self._entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load a command."""
        if cmd_name not in self._entries:
            return None
        where = f"{self._rooms[cmd_name]}.{cmd_name}" if cmd_name in self._rooms else cmd_name
        command: click.Command = getattr(importlib.import_module(self._module.format(where)), cmd_name)
        command.context_class = _TellingContext
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands without loading them."""
        with formatter.section(f"{self._noun}s".capitalize()):
            formatter.write_dl(list(self._entries.items()))

    def shell_complete(self, ctx: click.Context, incomplete: str) -> "list[CompletionItem]":
        """Complete the names without loading the commands."""
        from click.shell_completion import CompletionItem

        if not incomplete or incomplete[0].isalnum():
            fits = {name: text for name, text in self._entries.items() if name.startswith(incomplete)}
            return [CompletionItem(name, help=text) for name, text in fits.items()]
        return super().shell_complete(ctx, incomplete)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say what was meant."""
        if args[0] not in self._entries and not args[0].startswith("-"):
            if args[0] == "help" and args[1:2] and args[1] in self._entries:
                ctx.fail(f"No such {self._noun} 'help'. Hint: {ctx.command_path} {args[1]} --help.")
            hint = self._meant(args[0]) or f" {self._noun.capitalize()}s: {', '.join(self._entries)}."
            ctx.fail(f"No such {self._noun} {args[0]!r}.{hint}")
        return super().resolve_command(ctx, args)

    def _nearest(self, word: str) -> str:
        from unisono.system.hints import nearest  # loads what a right word does not need

        return nearest(word, self._entries)
