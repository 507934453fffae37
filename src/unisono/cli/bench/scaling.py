"""``unisono bench scaling``: the same job on 1..N workers, where its time goes, and why it flattens."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import target_arguments
from unisono.cli.options import fields
from unisono.cli.options.job import PLACES, places_of
from unisono.cli.options.lists import parse_workers
from unisono.cli.output.outcome import FAILED, command_line, complain, nothing_kept, tell, verb
from unisono.cli.output.tables import section_lines, table
from unisono.options.quantities import LOADERS, REPLICAS, THREADS

if TYPE_CHECKING:
    from unisono.scaling.study import Study


@click.command(cls=fields.ExplainedCommand, short_help="Time a recipe or script on several numbers of workers.")
@target_arguments
@fields.counts_option()
@fields.repeat_option(3, "Runs of each.")
@click.option("--weak", is_flag=True, help="Batch and replicas grow with the workers: B and V are those of one worker.")
@fields.steps_option(100)
@fields.warmup_option(10)
@fields.single("replicas", "Logical workers; at least the most workers.", of=REPLICAS, word="V", basic=True)
@fields.recipe_options("epochs", "batch_size", "model", "limit", "data", scripts_too=True)
@fields.single("threads", "Threads per worker.", of=THREADS, default=1, word="T", basic=True)
@fields.single("num_workers", "Recipes: loader processes of each worker.", of=LOADERS, word="N", basic=True)
@fields.strategy_options
@PLACES
@fields.out_option("For scaling.json, scaling.svg, report.html.", word="DIR", usual="scaling-NAME")
@fields.result_options
@verb("bench scaling", nothing_kept("the measurement"))
def scaling(target: str, args: tuple[str, ...], workers: str, out: str | None, as_json: bool, **given: Any) -> int:
    """Train RECIPE or SCRIPT on each number of workers, and show where a step's time goes and what more workers give.

    Every run is new. A step lasts as long as on its slowest rank; start-up, checkpoints and evaluation are counted
    apart; the first steps are dropped. Repetitions take turns, so that a busy machine slows all alike. Fingerprints are
    compared along the way. A script trains through unisono.Run or unisono.Trainer; its own ARGS stand after ``--``;
    with --weak it must let its batch grow with the world size.

    Exit code: 0 when everything was measured and equal; 1 when fingerprints differ that must not; 2 for wrong settings;
    the code of the worker that failed first, and then nothing is written.
    """
    from unisono.experiments.scaling import FILES, measure_scaling

    place = out or f"scaling-{Path(target).stem}"
    counts, made_by, launch = parse_workers(workers), command_line(), places_of(given)
    study = measure_scaling(target, args, workers=counts, out=place, command=made_by, launch=launch, tell=tell, **given)
    if as_json:
        click.echo((Path(place) / FILES[0]).read_text(), nl=False)
    else:
        click.echo("\n".join(study_lines(study)))
        tell(f"kept in {place}: {', '.join(FILES)}")
    if study.agrees is False:
        complain("DIFFERENT fingerprints: see unisono verify.")
        return FAILED
    return 0


def study_lines(study: "Study") -> list[str]:
    """Return a study as its section of a report tells it, and where a step goes."""
    from unisono.report.scaling_section import scaling_sections
    from unisono.scaling.study import summarise
    from unisono.system.words import spell_seconds

    rows = summarise(study)
    cells = [(row.workers, *map(spell_seconds, row.parts_s.values()), spell_seconds(row.step_s)) for row in rows]
    phases = ["What a step is made of:", *table(("workers", *rows[0].parts_s, "step"), cells), ""]
    return [*phases, *section_lines(scaling_sections([study])[0])]
