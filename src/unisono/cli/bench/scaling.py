"""``unisono bench scaling``: the same job on 1..N workers, where its time goes, and why it flattens."""

import json
import os
import shlex
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import complete_target
from unisono.cli.options.recipe import recipe_options
from unisono.cli.options.settings import PATH, number
from unisono.cli.options.strategy import strategy_options
from unisono.cli.outcome import FAILED, nothing_kept, perform
from unisono.experiments.trials import (
    Start,
    is_script,
    parse_workers,
    read_fresh_result,
    refuse_arguments,
    refuse_recipe_options,
    script_starter,
)
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import LOADERS, REPLICAS, RUNS, STEPS, THREADS
from unisono.strategies.catalog import CATALOG

if TYPE_CHECKING:
    from unisono.scaling.study import Study, Trial

FILES = ("scaling.json", "scaling.svg", "report.html")


@click.command(short_help="Time a recipe or script on several numbers of workers.")
@click.argument("target", metavar="RECIPE|SCRIPT", shell_complete=complete_target)
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@click.option("-w", "--workers", default="1,2", show_default=True, metavar="N,N,...", help="Numbers of workers.")
@click.option("-r", "--repeat", type=number(RUNS), default=3, show_default=True, metavar="R", help="Runs of each.")
@click.option("--weak", is_flag=True, help="Batch and replicas grow with the workers: B and V are those of one worker.")
@click.option(
    "--steps",
    type=number(replace(STEPS, low=2)),
    default=100,
    show_default=True,
    metavar="K",
    help="Steps of each run.",
)
@click.option("--warmup", type=number(replace(STEPS, low=0)), default=10, show_default=True, metavar="K",
              help="First steps of each run that do not count.")  # fmt: skip
@click.option("--replicas", type=number(REPLICAS), metavar="V", help="Logical workers; at least the most workers.")
@recipe_options("epochs", "batch_size", "model", "limit", "data", scripts_too=True)
@click.option("--threads", type=number(THREADS), default=1, show_default=True, metavar="T", help="Threads per worker.")
@click.option("--num-workers", type=number(LOADERS), metavar="N", help="Recipes: loader processes of each worker.")
@strategy_options
@click.option("-o", "--out", type=PATH, metavar="DIR",
              help=f"For {', '.join(FILES)}.  [default: scaling-NAME]")  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print scaling.json, and nothing else, on standard output.")
def scaling(
    target: str, args: tuple[str, ...], workers: str, repeat: int, weak: bool, steps: int, warmup: int,
    out: str | None, as_json: bool, **given: Any,
) -> None:  # fmt: skip
    """Train RECIPE or SCRIPT on each number of workers, and show where a step's time goes and what more workers give.

    Every run starts anew. A step lasts as long as on its slowest rank; start-up, checkpoints and evaluation are counted
    apart; the first steps are dropped. Repetitions take turns, so that a busy machine slows all alike. Fingerprints are
    compared along the way. A script trains through unisono.Run or unisono.Trainer; its own ARGS stand after ``--``;
    with --weak it must let its batch grow with the world size.

    Exit code: 0 when everything was measured and equal; 1 when fingerprints differ that must not; 2 for wrong settings;
    the code of the worker that failed first, and then nothing is written.
    """
    setting = StudyPlan(
        target=target, args=args, workers=workers, repeat=repeat, weak=weak, steps=steps, warmup=warmup, given=given
    )
    sys.exit(perform("bench scaling", lambda: _scaling(setting, out, as_json), nothing_kept("the measurement")))


@dataclass(frozen=True, kw_only=True, slots=True)
class StudyPlan:
    """What to measure, as it was asked for."""

    target: str
    args: tuple[str, ...]
    workers: str
    repeat: int
    weak: bool
    steps: int
    warmup: int
    given: dict[str, Any]


def _scaling(setting: StudyPlan, out: str | None, as_json: bool) -> int:
    from unisono.errors import ConfigError
    from unisono.report.picture import MARK, draw_section
    from unisono.scaling.study import KIND, save
    from unisono.system.files import check_place

    counts = sorted(set(parse_workers(setting.workers)))
    if setting.steps - setting.warmup < 2:
        raise ConfigError(f"expected --steps of --warmup + 2 at least, got {setting.steps} and {setting.warmup}.")
    place = Path(out or f"scaling-{Path(setting.target).stem}")
    start = _starter(setting, counts)
    is_new = not place.exists()
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"expected --out to name a directory, got {str(place)!r}: {error.strerror}.") from error
    try:
        for name, ours in zip(FILES, (KIND, MARK, "unisono"), strict=True):
            check_place(place / name, (ours,))
        study = measure(setting, counts, start)
    except BaseException:
        if is_new and not any(place.iterdir()):
            place.rmdir()
        raise
    from unisono.report.page import write_page
    from unisono.report.scaling_section import scaling_sections

    save(study, place / FILES[0])
    draw_section(scaling_sections([study])[0], place / FILES[1], most=4)
    write_page([place / FILES[0]], place / FILES[2])
    if as_json:
        click.echo((place / FILES[0]).read_text(), nl=False)
    else:
        for line in table(study):
            click.echo(line)
        click.echo(f"kept in {place}: {', '.join(FILES)}", err=True)
    if study.agrees is False:
        click.echo("DIFFERENT fingerprints: see unisono verify.", err=True)
        return FAILED
    return 0


def measure(setting: StudyPlan, counts: list[int], start: Start) -> "Study":
    """Run all trials and return the study.

    Raises:
        WorkerFailed: A worker failed; a crash is never a fast run.
        ConfigError: A run was not what was asked for.
    """
    from datetime import UTC, datetime

    from unisono.launchers.spec import usable_cores
    from unisono.scaling.study import Study

    cores = usable_cores()
    trials: list[Trial] = []
    environment: dict[str, Any] = {}
    score: dict[str, Any] = {}
    with scratch_directory("scaling") as scratch:
        for repeat in range(setting.repeat):
            ordered = counts if repeat % 2 == 0 else counts[::-1]
            for count in ordered:
                out = Path(scratch) / f"{repeat}-{count}"
                busy = f" on {cores} cores, which must take turns" if count * setting.given["threads"] > cores else ""
                click.echo(
                    f"[{len(trials) + 1}/{setting.repeat * len(counts)}] {setting.target} on {count} "
                    f"worker{'s' * (count > 1)}{busy} ...", err=True,
                )  # fmt: skip
                trials.append(try_once(start, count, repeat, setting.warmup, out))
                environment = json.loads((out / "environment.json").read_text())
                score = json.loads((out / "score.json").read_text())
    _check_batches(setting, trials)
    strategy = score["strategy"]["name"]
    device = "cpu" if environment.get("device") in (None, "cpu") else "cuda"
    return Study(
        target=setting.target, weak=setting.weak, strategy=strategy, is_exact=CATALOG[strategy].is_exact,
        warmup=setting.warmup, cores=cores, threads=score["threads"], device=device, environment=environment,
        command=shlex.join(["unisono", *sys.argv[1:]]), date=datetime.now(UTC).isoformat(timespec="seconds"),
        trials=trials,
    )  # fmt: skip


def try_once(start: Start, count: int, repeat: int, warmup: int, out: Path) -> "Trial":
    """Run one trial in a new directory and return what its step phases say.

    Raises:
        WorkerFailed: A worker failed.
        ConfigError: The run was not what was asked for.
    """
    from unisono.observe.phases import read_phases
    from unisono.scaling.study import trial_of

    load, launched_ns, began = os.getloadavg()[0], time.time_ns(), time.monotonic()
    start(count, out)
    total_s = time.monotonic() - began
    result, score = read_fresh_result(out, count), json.loads((out / "score.json").read_text())
    return trial_of(
        read_phases(out), workers=count, repeat=repeat, warmup=warmup, launched_ns=launched_ns, total_s=total_s,
        batch_size=score["batch_size"], fingerprint=result["fingerprint"], load=load,
    )  # fmt: skip


def _starter(setting: StudyPlan, counts: list[int]) -> Start:
    """Return what runs one trial, with everything checked that can be before the first."""
    from unisono.experiments.job import TrainJob, plan, run_job

    limit = {"UNISONO_LAST_STEP": str(setting.steps)}
    if is_script(setting.target):
        return _script_starter(setting, counts, limit)
    refuse_arguments(setting.target, setting.args)
    jobs: dict[int, TrainJob] = {}
    for count in counts:
        chosen = dict(setting.given)
        if setting.weak:
            base = plan(setting.target, "1", setting.given).options
            chosen |= {"batch_size": base.batch_size * count, "replicas": base.replicas * count}
        jobs[count] = plan(setting.target, str(count), chosen)

    def start(count: int, out: Path) -> None:
        job = jobs[count]
        run_job(replace(job, options=replace(job.options, out=str(out))), output="quiet", env=limit)

    return start


def _script_starter(setting: StudyPlan, counts: list[int], env: dict[str, str]) -> Start:
    from unisono.errors import ConfigError

    is_default = setting.given["strategy"] == "exact"
    refuse_recipe_options(setting.target, setting.given, "replicas", "threads", *["strategy"] * is_default)
    asked = setting.given["replicas"]
    if asked is not None and not setting.weak and asked < max(counts):
        raise ConfigError(f"expected --workers of at most --replicas {asked}, got {max(counts)}.")
    return script_starter(
        setting.target, setting.args, threads=setting.given["threads"], env=env,
        replicas_of=lambda count: (asked or 1) * count if setting.weak else asked or max(counts),
    )  # fmt: skip


def _check_batches(setting: StudyPlan, trials: "list[Trial]") -> None:
    from unisono.errors import ConfigError

    sizes = {trial.workers: trial.batch_size for trial in trials}
    first = min(sizes)
    expected = {count: sizes[first] * (count // first if setting.weak else 1) for count in sizes}
    if setting.weak and any(count * sizes[first] != size * first for count, size in sizes.items()):
        raise ConfigError(
            f"--weak: expected a batch that grows with the workers, got {sizes}. "
            "Hint: batch_size=64 * run.world.world_size in the script."
        )
    if not setting.weak and sizes != expected:
        raise ConfigError(
            f"expected one batch size for all numbers of workers, got {sizes}. Hint: --weak is for batches that grow."
        )


def table(study: "Study") -> list[str]:
    """Return a study as lines of at most 100 columns."""
    from unisono.report.scaling_section import describe_machine, doubts, why_it_flattens
    from unisono.scaling.study import STEP_PHASES, summarise
    from unisono.system.words import spell_seconds

    rows = summarise(study)
    names = "".join(f" {name:>8}" for name in STEP_PHASES)
    lines = [
        describe_machine(study),
        f"{'workers':>7} {'step':>8} {'spread':>15} {'samples/s':>9} {'speed-up':>8} {'effic.':>6} {'start-up':>8} "
        f"{'saving':>7}",
    ]
    for row in rows:
        spread = f"{spell_seconds(row.low_s)}-{spell_seconds(row.high_s)}".replace(" ", "")
        mark = " *" if row.is_oversubscribed else ""
        lines.append(
            f"{row.workers:>7} {spell_seconds(row.step_s):>8} {spread:>15} {row.samples_per_s:>9,.0f} "
            f"{row.speedup:>8.2f} {row.efficiency:>6.0%} {spell_seconds(row.startup_s):>8} "
            f"{spell_seconds(row.checkpoint_s):>7}{mark}"
        )
    lines += ["", f"{'workers':>7}{names}   (a step of the median rank)"]
    lines += [
        f"{row.workers:>7}" + "".join(f" {spell_seconds(row.phases_s[name]):>8}" for name in STEP_PHASES)
        for row in rows
    ]  # fmt: skip
    lines += ["", *why_it_flattens(study)]
    lines += [f"* {text}" for text in doubts(study)]
    if study.agrees is not None:
        lines.append(f"fingerprints: {'equal' if study.agrees else 'DIFFERENT'} on {study.workers} workers")
    return lines
