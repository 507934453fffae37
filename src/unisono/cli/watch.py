"""``unisono watch``: follow runs in the terminal, or as a page."""

import contextlib
import itertools
import os
import secrets
import select
import sys
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from unisono.cli.options.fields import result_options, single
from unisono.cli.options.settings import RUN, number
from unisono.cli.output.outcome import complain, tell, verb
from unisono.errors import ConfigError
from unisono.observe.run_place import runs_in
from unisono.options.quantities import INTERVAL, PORT
from unisono.system.files import to_json

if TYPE_CHECKING:
    from unisono.report.watch.state import WatchedRun

_ANY_PORT = 0
_LOOK_S, _SHOWN = 0.2, 3
_EARLY = {"run.toml", "program.json"}


class _Watch(click.Command):
    """``--web RUN`` has no port: what follows it is a run."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Give ``--web`` its value where no number follows."""
        pairs = itertools.pairwise([*args, ""])
        given = [f"--web={_ANY_PORT}" if arg == "--web" and not after.isdigit() else arg for arg, after in pairs]
        return super().parse_args(ctx, given)


@click.command(cls=_Watch, short_help="Follow runs while they train.")
@click.argument("runs", metavar="RUN...", nargs=-1, required=True, type=RUN)
@click.option("--once", is_flag=True, help="Show what there is now, and end; usual where no terminal is.")
@single("every", "Seconds between two looks.", of=INTERVAL, default=1.0, word="S")
@click.option("--web", type=number(replace(PORT, low=_ANY_PORT)), is_flag=False, flag_value=_ANY_PORT, metavar="[PORT]",
              help="Serve a page on this machine, with the report below; default: any free port.")  # fmt: skip
@result_options
@verb("watch")
def watch(runs: tuple[str, ...], once: bool, every: float, web: int | None, as_json: bool) -> None:
    """Show how far each RUN is, its loss, speed, where each rank's time goes, who is slow, deaths and launches.

    A folder of runs stands for all runs that lie in it.

    It reads the run directory only, so it may run anywhere the directory can be read, over ssh too, and disturbs
    nothing. Runs that have ended are shown as well; one that has not begun is waited for, on a terminal and with --web.
    q and Ctrl-C end the view, not the run.

    Exit code: 0; 2 where RUN is no run directory or the port is taken.
    """
    from unisono.report.run_view import each_run
    from unisono.report.sources import MOST_SOURCES

    if not (once or as_json) and (web is not None or sys.stdout.isatty()):
        _wait_for([Path(run) for run in runs])
    given = [Path(run) for run in runs]
    paths, told = each_run(given, MOST_SOURCES if web is not None else None)
    for line in told:
        tell(line)
    found = _readable(paths, given)
    if as_json and web is None:
        click.echo(to_json([run.facts() for run in found]))
    elif web is not None:
        _serve([run.path for run in found], web, every, as_json)
    elif once or not sys.stdout.isatty():
        from rich.console import Console

        from unisono.report.watch.screen import draw

        console = Console(highlight=False)
        console.print(draw(found, console.width))
    else:
        _follow(found, every)


def _readable(paths: list[Path], given: list[Path]) -> "list[WatchedRun]":
    """Return the runs; of those that were found in a folder one that is damaged is told, where there is another.

    Raises:
        ConfigError: One of those that were `given` cannot be read, or none can.
    """
    from unisono.report.watch.state import WatchedRun

    found: list[WatchedRun] = []
    for path in paths:
        try:
            found.append(WatchedRun(path))
        except ConfigError as error:
            if path in given or (path == paths[-1] and not found):
                raise
            complain(f"{path} is not shown: {error}")
    return found


def _wait_for(runs: list[Path]) -> None:
    """Return when each run has begun: people type this while it starts."""
    for run in runs:
        if _is_to_come(run):
            others = ", ".join(str(other) for other in runs_in(run.parent)[:_SHOWN])
            complain(
                f"waiting for {run}, which has not begun yet; Ctrl-C ends it"
                + (f". In {run.parent} there is one of its runs: {others}" if others else "")
            )
            while _is_to_come(run):
                time.sleep(_LOOK_S)


def _is_to_come(run: Path) -> bool:
    """Whether nothing is there, or no more than what is written before torch is loaded."""
    try:
        return {each.name for each in run.iterdir() if not each.name.startswith(".")} <= _EARLY
    except FileNotFoundError:
        return True
    except NotADirectoryError:
        return False


def _follow(found: "list[WatchedRun]", every: float) -> None:
    from rich.console import Console
    from rich.live import Live

    from unisono.report.watch.screen import draw

    def are_over() -> bool:
        return all(run.state in {"finished", "stopped", "ended"} for run in found)

    console = Console(highlight=False)
    if not are_over():
        # A screen of its own is drawn over, not erased: it does not flicker, and may change its size.
        with (
            contextlib.suppress(KeyboardInterrupt),
            _keys() as keys,
            Live(console=console, auto_refresh=False, screen=True) as live,
        ):
            told = "q ends this view, the run goes on" if keys is not None else ""
            while not are_over():
                live.update(draw(found, console.width, console.height, told), refresh=True)
                if _wait(keys, every):
                    break
                for run in found:
                    run.poll()
    console.print(draw(found, console.width, console.height - 1))  # the prompt takes a line


@contextlib.contextmanager
def _keys() -> Iterator[int | None]:
    """Hear keys as they are pressed, and give the terminal back; the descriptor to read, or None: nobody types here."""
    if sys.stdin is None or not sys.stdin.isatty() or _is_in_background(terminal := sys.stdin.fileno()):
        yield None
        return
    before = termios.tcgetattr(terminal)
    try:
        tty.setcbreak(terminal)
        yield terminal
    finally:
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def _is_in_background(terminal: int) -> bool:
    """Whether the shell has given the terminal to somebody else, and would stop us where we change it."""
    try:
        return os.tcgetpgrp(terminal) != os.getpgrp()
    except OSError:  # it is not the terminal of our shell
        return False


def _wait(keys: int | None, seconds: float) -> bool:
    """Wait for the next look; say whether q was pressed."""
    if keys is None:
        time.sleep(seconds)
        return False
    until = time.monotonic() + seconds
    while (left := until - time.monotonic()) > 0 and select.select([keys], [], [], left)[0]:
        typed = os.read(keys, 64)
        if b"q" in typed or not typed:
            return True
    return False


def _serve(paths: list[Path], port: int, every: float, as_json: bool) -> None:
    from unisono.report.watch.server import WatchServer

    with WatchServer(paths, port, secrets.token_urlsafe(16), every) as server:
        try:
            there = f"{server.server_address[1]}:127.0.0.1:{server.server_address[1]}"
            if as_json:
                click.echo(to_json({"url": server.url}))
            else:  # the token is known from here alone, so it is told with --quiet, too
                complain(f"{server.url} shows it until Ctrl-C")
                complain(f"from another machine, first: ssh -L {there} HOST")
            server.serve_forever()
        except KeyboardInterrupt:
            server.ending.set()
