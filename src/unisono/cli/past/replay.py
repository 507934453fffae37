"""``unisono replay``: compute a past step of a run again, compare it with the ledger, and look into it."""

import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.options.fields import result_options, single
from unisono.cli.options.settings import RUN, stack
from unisono.cli.output.outcome import FAILED, nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.errors import ConfigError
from unisono.options.quantities import PLACE, STEPS

if TYPE_CHECKING:
    from unisono.experiments.past.replay import Replay

_BARS = " ▁▂▃▄▅▆▇█"
_LONGEST_NAME = 40


run_and_args = stack(
    click.argument("directory", type=RUN, metavar="RUN"),
    click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]"),
)
"""A run that is over, and its program's own arguments, as `directory` and `args`."""
computing_again = stack(
    single("script", "The program, in place of the recorded one.", word="FILE", is_path=True),
    single("workers", "Number of processes.", default="1", short="-n", word="N"),
    single("data", "Recipes: where the data is now.", is_path=True),
    click.option("--allow-drift", is_flag=True, help="Although software or CPU, or files of a script, differ."),
    result_options,
)
"""How steps of a run are computed again: by which program, where, from which data."""


@click.command(short_help="Compute a past step of a run again, and compare.")
@run_and_args
@single("step", "Which one; counted from 1.", of=STEPS, word="N", usual="the last one")
@click.option("--detail", is_flag=True, help="Tell losses and gradients of single samples, ranges, histograms.")
@click.option("--pdb", is_flag=True, help="Stop in the loss function at that step, in Python's debugger.")
@single("replica", "With --pdb: in which replica's loss function.", of=PLACE, default=0, word="K")
@computing_again
@verb("replay", nothing_kept("the copy"))
def replay(
    directory: str, args: tuple[str, ...], as_json: bool, detail: bool, pdb: bool, replica: int, **given: Any
) -> int:
    """Compute a past step of a run again, from the nearest checkpoint before it or from the beginning, on a copy.

    Every step on the way is compared with the ledger. Program and arguments are found in RUN; ARGS after ``--`` take
    the place of the recorded ones. --detail says afterwards what the step was made of; nothing of it is computed
    before the step is done.

    Exit code: 0 when all steps are the same to the last bit; 1 when one is not, or the debugger was left; 2 for wrong
    settings, or a program or data that have changed; else that of a failed worker.
    """
    from unisono.experiments.past import examine
    from unisono.experiments.past import replay as experiment

    given["tell"] = tell
    if pdb:
        return _debug(directory, args, replica, given, is_alone=not (as_json or detail))
    if not detail:
        found = experiment.replay(directory, args, **given)
        answer(described(found), as_json, lambda: [compared(found)])
        return FAILED if found.differing else 0
    looked = examine.examine(directory, args, **given)
    told = looked.steps[-1] if looked.steps else None
    plain = described(looked.replay) | {"detail": told}
    answer(plain, as_json, lambda: [compared(looked.replay), *(detail_lines(told) if told else [])])
    return FAILED if looked.replay.differing else 0


def _debug(directory: str, args: tuple[str, ...], replica: int, given: dict[str, Any], *, is_alone: bool) -> int:
    from unisono.experiments.past.examine import debug

    if not is_alone:
        raise ConfigError("--pdb goes with neither --detail nor --json.")
    if not sys.stdin.isatty() or not sys.stdout.isatty():
        raise ConfigError("--pdb needs a terminal to type in. Hint: --detail works without one.")
    found = debug(directory, args, replica=replica, **given)
    tell("the debugger was left: nothing was compared" if found is None else compared(found))
    return FAILED if found is None or found.differing else 0


def compared(found: "Replay") -> str:
    """Return what is said of steps beside the ledger."""
    first, last = found.start + 1, found.step
    steps = f"step {last} is" if first == last else f"steps {first} to {last} are"
    if found.first_other is not None:
        return f"step {found.first_other} is another than in the ledger: {', '.join(found.differing)}"
    return f"{steps} the same as in the ledger, to the last bit"


def described(found: "Replay") -> dict[str, Any]:
    """Return the same for programs."""
    plain: dict[str, Any] = {"equal": found.first_other is None, "from": found.start, "step": found.step}
    return plain | {"first_other": found.first_other, "differing": found.differing}


def number(value: float | None) -> str:
    """Return a number with four digits; a dash for one that is not finite."""
    return "-" if value is None else f"{value:.4g}"


def detail_lines(told: dict[str, Any]) -> Iterator[str]:
    """Yield what is said of a step in detail."""
    yield f"step {told['step']}: loss {number(told['loss'])}, length of the gradient {number(told['gradient_norm'])}"
    yield ""
    rows: list[tuple[object, ...]] = [
        (one["replica"], one["index"], number(one["loss"]), number(one["gradient_norm"])) for one in told["samples"]
    ]
    yield from table(("replica", "sample", "loss", "gradient"), rows)
    if told["activations"]:
        yield ""
        rows = [
            (_short(name), *(number(one[what]) for what in ("least", "largest", "rms")), one["not_finite"] or None)
            for name, one in told["activations"].items()
        ]
        yield from table(("activations", "least", "largest", "rms", "not finite"), rows, left=["activations"])
    if told["gradients"]:
        yield ""
        rows = [
            (_short(name), number(one["norm"]), one["zeros"], _bars(one["counts"]), one["not_finite"] or None)
            for name, one in told["gradients"].items()
        ]
        head = ("gradients", "length", "zeros", "<9876543210>", "not finite")
        yield from table(head, rows, left=["gradients", head[3]])
        yield "bars: elements by magnitude; k: from 1e-k on, <: below 1e-9, >: from 10 on"


def _bars(counts: list[int]) -> str:
    most = max(counts) or 1
    return "".join(_BARS[-(-count * (len(_BARS) - 1) // most)] for count in counts)


def _short(name: str) -> str:
    half = _LONGEST_NAME // 2 - 1
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}..{name[-half:]}"
