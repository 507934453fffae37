"""``unisono audit``: check a finished run by its files and by computing some of its steps again."""

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.options.fields import out_option, single
from unisono.cli.output.outcome import FAILED, nothing_kept, tell, verb
from unisono.cli.output.tables import answer
from unisono.cli.past.replay import computing_again, run_and_args
from unisono.options.quantities import COUNT, SEED

if TYPE_CHECKING:
    from unisono.experiments.past.audit import Audit


@click.command(short_help="Check a finished run: its files, and steps drawn at random.")
@run_and_args
@single("segments", "How many segments between two checkpoints to compute again.", of=COUNT, default=3, word="K")
@single("seed", "Of the draw; choose it after the run has ended.", of=SEED, default=0, word="S")
@single("commitment", "The hash that was published when the run ended.", word="SHA256")
@out_option("The findings as a page, and as JSON beside it.", usual="none")
@computing_again
@verb("audit", nothing_kept("the copy"))
def audit(directory: str, args: tuple[str, ...], as_json: bool, out: str | None, **given: Any) -> int:
    """Check that a run's files agree with each other, and that steps drawn at random lead where the run says.

    Draws segments between two kept checkpoints, computes each on a copy, and compares every step with the ledger, and
    the state at the end with the checkpoint there. Program and arguments are found in RUN; ARGS after ``--`` take the
    place of the recorded ones.

    Exit code: 0 when nothing was found; 1 when something was; 2 for wrong settings; else that of a failed worker.
    """
    from unisono.experiments.past import audit as experiment

    found = experiment.audit(directory, args, tell=tell, **given)
    plain = asdict(found) | {"passed": found.is_passed, "steps_computed": found.steps_computed}
    if out is not None:
        from unisono.report.page import write_sections
        from unisono.report.past_sections import sections_of_audit
        from unisono.system.files import to_json, write_whole

        write_sections(f"Audit of {found.run}", sections_of_audit(plain), Path(out))
        write_whole(Path(out).with_suffix(".json"), f"{to_json(plain)}\n".encode())
    answer(plain, as_json, lambda: _lines(found))
    return 0 if found.is_passed else FAILED


def _lines(found: "Audit") -> list[str]:
    drawn = [one for one in found.segments if one.is_drawn]
    wrong = [*found.problems, *(f"steps {one.start + 1} to {one.last}: {one.problem}" for one in drawn if one.problem)]
    lines = [f"found: {line}" for line in wrong] or ["nothing was found"]
    lines += [f"the environment was allowed to change {line}" for line in found.drifts]
    lines.append(
        f"{found.steps_computed} of {found.steps} steps computed again, {len(drawn)} of {len(found.segments)} segments"
    )
    if drawn:
        one, half = len(drawn) / len(found.segments), found.chances["0.5"]
        lines.append(f"probability to find a forgery: {one:.1%} of one segment, {half:.1%} of every second one")
    if found.commitment is not None:
        lines.append(f"commitment {found.commitment}")
    return lines
