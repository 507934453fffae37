"""``unisono fork``: a new run that shares its first steps with another."""

from dataclasses import MISSING, asdict
from pathlib import Path
from typing import Any

import click

from unisono.cli.options.fields import single
from unisono.cli.output.outcome import tell, verb
from unisono.cli.output.tables import answer
from unisono.cli.past.replay import computing_again, run_and_args
from unisono.options.quantities import STEPS


@click.command(short_help="Begin a run after a step of another, with other settings.")
@run_and_args
@single("step", "The last step to share.", of=STEPS, word="N", default=MISSING)
@single("out", "Run directory of the fork.", short="-o", word="DIR", is_path=True, default=MISSING)
@click.option("--set", "changes", multiple=True, metavar="OPTION=VALUE", help="Recipes: what to change; repeatable.")
@computing_again
@verb("fork")
def fork(directory: str, args: tuple[str, ...], as_json: bool, out: str, **given: Any) -> None:
    """Train a run that shares its steps up to N with RUN, and differs from then on in what is said.

    Model, optimizer and order of data are those of RUN after step N; --set changes options of a recipe, --script or
    ARGS the program. Where RUN keeps no state of step N, the steps before it are computed again.

    Exit code: 0; 2 for wrong settings, or a state that does not fit them; else that of a failed worker.
    """
    from unisono.experiments.past import fork as experiment
    from unisono.report.comparison.run_diff import compare_runs

    found = experiment.fork(directory, out, args, tell=tell, **given)
    parted = compare_runs(Path(directory), Path(out))
    plain = asdict(found) | {"parted": parted.step, "first": parted.first, "equal": parted.equal}
    said = "it is equal to its parent" if parted.equal else f"it differs from step {parted.step} on: {parted.first}"
    if parted.step is None and not parted.equal:
        said = "its steps are its parent's"
    answer(plain, as_json, lambda: [f"{out} shares {found.step} steps with {directory}; {said}"])
