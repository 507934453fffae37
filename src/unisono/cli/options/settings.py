"""Settings that several verbs take in the same form."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from unisono.errors import ConfigError
from unisono.options.quantities import Count, Quantity, shown

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
_QUIET = "unisono.quiet"
_LONGEST_PATH, _LONGEST_NAME = 4095, 255
"""Bytes, of Linux."""


def number(quantity: Quantity) -> "click.ParamType[Any]":
    """Return the type of an option that takes such a number."""
    return _Whole(quantity) if isinstance(quantity, Count) else _Decimal(quantity)


def bounds(quantity: Quantity) -> str:
    """Return the bounds as ``--help`` shows them; nothing where they are those of the machine's numbers."""
    return "" if quantity.high > 1e15 else quantity.bounds.removeprefix("from ")


class _Number:
    """See `number`; joined with a range of click's, so that ``--help`` shows the bounds."""

    def __init__(self, quantity: Quantity) -> None:
        super().__init__(quantity.low, quantity.high)  # type: ignore[call-arg]  # the range's
        self.quantity = quantity

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        name = next((flag for flag in param.opts if flag.startswith("--")), param.opts[0]) if param else "a number"
        try:
            return self.quantity.read(name, value) if isinstance(value, str) else self.quantity.take(name, value)
        except ConfigError as error:
            raise click.UsageError(str(error), ctx) from None

    def _describe_range(self) -> str:
        return bounds(self.quantity)


@final
class _Whole(_Number, click.IntRange):
    """See `number`."""


@final
class _Decimal(_Number, click.FloatRange):
    """See `number`."""


class _Path(click.ParamType[str]):
    """A path that some file system could have; whether it exists is for those to say who open it."""

    name = "path"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        text = str(value)
        if not text:
            hint = "Hint: is a variable of the shell empty? The working directory is written '.'."
            self.fail(f"expected a path, got an empty text. {hint}", param, ctx)
        raw = os.fsencode(text)
        if b"\0" in raw or len(raw) > _LONGEST_PATH or max(map(len, raw.split(b"/"))) > _LONGEST_NAME:
            self.fail(f"expected a path that a file system can have, got {shown(text)}.", param, ctx)
        return text

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        return click.Path().shell_complete(ctx, param, incomplete)


@final
class _Run(_Path):
    """A run directory; the shell is told which there are."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> "list[CompletionItem]":
        from click.shell_completion import CompletionItem

        begun = incomplete.rpartition("/")[0] or "/" * incomplete.startswith("/")
        found = [
            f"{place.rstrip('/')}/{item.name}" if place else item.name
            for place in dict.fromkeys([begun, *([] if begun else ["runs"])])
            for item in _directories(place)
            if (Path(place) / item.name / "score.json").is_file()
        ]
        fitting = sorted(name for name in found if name.startswith(incomplete))
        return [CompletionItem(name) for name in fitting] or [CompletionItem(incomplete, type="dir")]


def _directories(place: str) -> list["os.DirEntry[str]"]:
    try:
        with os.scandir(place or ".") as items:
            return [item for item in items if item.is_dir()]
    except OSError:  # of what is typed, nothing is there yet
        return []


PATH, RUN = _Path(), _Run()
"""The types of options and arguments that name files and directories, and run directories."""


def note_quiet(context: click.Context, _: click.Parameter, value: bool) -> None:
    """Note whether ``--quiet`` was given; `is_quiet` tells."""
    context.meta[_QUIET] = value


def is_quiet() -> bool:
    """Whether the command that is running was asked to say nothing beside its result."""
    context = click.get_current_context(silent=True)
    return context is not None and bool(context.meta.get(_QUIET))


def stack(*options: Decorator) -> Decorator:
    """Return one decorator that adds options, the first of them first in ``--help``."""

    def add(command: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            command = option(command)
        return command

    return add
