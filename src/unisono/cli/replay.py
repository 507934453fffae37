"""``unisono replay``: compute a past step of a run again, and compare it with the ledger."""

from typing import Any

import click

from unisono.cli.options.fields import json_option, single
from unisono.cli.options.settings import PATH
from unisono.cli.outcome import FAILED, nothing_kept, tell, verb
from unisono.cli.tables import answer
from unisono.options.quantities import STEPS


def computing_again(function: Any) -> Any:
    """Add the options of what computes steps of a run again: by which program, where, from which data."""
    for option in (
        json_option,
        click.option("--allow-drift", is_flag=True, help="Although software or CPU, or files of a script, differ."),
        single("data", "Recipes: where the data is now.", is_path=True),
        single("workers", "Number of processes.", default="1", short="-n", word="N"),
        single("script", "The program, in place of the recorded one.", word="FILE", is_path=True),
    ):
        function = option(function)
    return function


@click.command(short_help="Compute a past step of a run again, and compare.")
@click.argument("directory", type=PATH, metavar="RUN")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@single("step", "Which one; counted from 1.", of=STEPS, word="N", usual="the last one")
@computing_again
@verb("replay", nothing_kept("the copy"))
def replay(directory: str, args: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Compute a past step of a run again, from the nearest checkpoint before it or from the beginning, on a copy.

    Every step on the way is compared with the ledger. Program and arguments are found in RUN; ARGS after ``--`` take
    the place of the recorded ones.

    Exit code: 0 when all steps are the same to the last bit; 1 when one is not; 2 for wrong settings, or a program or
    data that have changed; else that of a failed worker.
    """
    from unisono.experiments import replay as experiment

    found = experiment.replay(directory, args, tell=(lambda _: None) if as_json else tell, **given)
    first, last = found.start + 1, found.step
    steps = f"step {last} is" if first == last else f"steps {first} to {last} are"
    line = f"{steps} the same as in the ledger, to the last bit"
    if found.first_other is not None:
        line = f"step {found.first_other} is another than in the ledger: {', '.join(found.differing)}"
    plain: dict[str, Any] = {"equal": found.first_other is None, "from": found.start, "step": last}
    plain |= {"first_other": found.first_other, "differing": found.differing}
    answer(plain, as_json, lambda: [line])
    return FAILED if found.differing else 0
