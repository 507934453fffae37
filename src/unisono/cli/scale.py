"""``unisono scale``: a run that is at work shrinks or grows."""

from pathlib import Path
from typing import Any

import click

from unisono.cli.options.fields import result_options
from unisono.cli.options.settings import RUN, number
from unisono.cli.output.outcome import verb
from unisono.cli.output.tables import answer
from unisono.errors import ConfigError, LaunchError
from unisono.options.quantities import WORKERS
from unisono.system.words import counted


@click.command(short_help="Let a running run have more or fewer workers.")
@click.argument("run", metavar="RUN", type=RUN)
@click.argument("workers", metavar="N", type=number(WORKERS))
@result_options
@verb("scale")
def scale(run: str, workers: int, as_json: bool) -> None:
    """Let the run in RUN (unisono train, or --live auto) go on with N workers; of several hosts, ask on any.

    Those that are not needed end behind a step with code 0, those that came last first; those that are missing are
    started, and join behind a step. Weights and ledger stay those of an undisturbed run. It waits until there are N;
    Ctrl-C ends the waiting only.

    Exit code: 0 when there are N workers; 1 where they cannot be had, and why; 2 where nobody can change the run, it is
    another user's, or N is outside of --elastic or above the replicas.
    """  # noqa: DOC501 - they become exit codes
    found = _asked(Path(run), workers)
    if "refused" in found:
        raise ConfigError(f"{run}: {found['refused']}.")
    if "failed" in found:
        raise LaunchError(f"expected {counted(workers, 'worker')} in {run}: {found['failed']}.")
    moved = [f"rank {rank} has {what}" for what in ("left", "joined") for rank in found[what]]
    told = f"{counted(found['workers'], 'worker')}, {found['before']} before"
    answer(found, as_json, lambda: [f"{told}, after {found['seconds']:.1f} s: {', '.join(moved) or 'nothing to do'}"])


def _asked(run: Path, workers: int) -> dict[str, Any]:
    from unisono.launchers.control import ask
    from unisono.report.watch.state import WatchedRun

    state = WatchedRun(run).state
    try:
        return ask(run, workers)
    except (FileNotFoundError, ConnectionError) as error:
        if state in {"finished", "stopped"}:
            raise _refused(
                run, "has ended", "the command that started it goes on, with -n as many as you like"
            ) from None
        if isinstance(error, ConnectionError):
            hint = "it was killed, and left its socket behind; the command that started it goes on"
            raise _refused(run, "has no launcher any more on this host", hint) from None
        if state == "ended":
            raise _refused(run, "has no launcher any more", "the command that started it goes on") from None
        hint = "start it with --live auto, and ask on one of its hosts; its launcher says why not, or no step has begun"
        raise _refused(run, "cannot change its workers", hint) from None
    except OSError as error:
        raise _refused(run, f"cannot be reached: {error.strerror}", "ask on the host that it runs on") from None


def _refused(run: Path, why: str, hint: str) -> ConfigError:
    return ConfigError(f"expected a run whose workers come and go, got {run}, which {why}. Hint: {hint}.")
