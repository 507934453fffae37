"""The options of all strategies on the command line, made from the catalog."""

from collections.abc import Callable
from typing import Any

import click

from unisono.cli.options.settings import number
from unisono.strategies.catalog import CATALOG, all_options


def strategy_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--strategy`` and one option for each option of any strategy."""
    for name, (owners, item) in reversed(list(all_options().items())):
        flag, text = f"--{name.replace('_', '-')}", f"({', '.join(owners)}) {item.metadata['help']}"
        if isinstance(item.default, bool):
            made = click.option(f"{flag}/--no-{flag[2:]}", name, default=None, help=text)
        elif item.metadata["choices"]:
            made = click.option(flag, name, type=click.Choice(item.metadata["choices"]), help=text)
        else:
            is_list, is_whole = "tuple" in str(item.type), "int" in str(item.type)
            kind = click.STRING if is_list or item.metadata["of"] is None else number(item.metadata["of"])
            metavar = "A,B,..." if is_list else "K" if is_whole else "X"
            made = click.option(flag, name, type=kind, metavar=metavar, help=text)
        command = made(command)
    return click.option(
        "--strategy", "strategy", default="exact", show_default=True, metavar="NAME",
        help=f"How gradients or parameters move: {', '.join(CATALOG)}. Part of the result.",
    )(command)  # fmt: skip


def catalog_text() -> str:
    """Return the catalog, one line a strategy, for the foot of ``--help``."""
    width = max(map(len, CATALOG))
    return "\b\nStrategies:\n" + "\n".join(f"  {name:<{width}}  {kind.summary}" for name, kind in CATALOG.items())
