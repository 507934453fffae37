"""``unisono train``: run a recipe on the workers of this machine, or of several."""

import contextlib
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from unisono.cli.completion import recipe_argument
from unisono.cli.options.fields import ExplainedCommand, field_options, result_options
from unisono.cli.options.job import LIVE, config_option, launch_of, run_options, usual_live
from unisono.cli.options.run_file import RUN_FILE
from unisono.cli.options.settings import is_quiet
from unisono.cli.output.outcome import INTERRUPTED, command_line, complain, fitted, verb
from unisono.environment import COMMAND
from unisono.errors import ConfigError
from unisono.launchers.spec import LaunchSpec
from unisono.nodes.plan import NodesOptions
from unisono.observe.run_json import read_object
from unisono.observe.speed import speed_in
from unisono.options.fields import taken
from unisono.system.disk import hint_of
from unisono.system.files import to_json
from unisono.system.words import counted, spell_seconds

if TYPE_CHECKING:
    from unisono.experiments.job import TrainJob

COMMITMENT = "commitment.json"
_COUNTED = {"steps": "step", "epochs": "epoch", "world_size": "worker", "replicas": "replica"}


def _kept(given: dict[str, Any]) -> str:
    """Return what to say after Ctrl-C where the run could not stop between two steps."""
    out = given["out"]
    if out is None:
        return f"Nothing is kept; --out DIR keeps runs. Again: {command_line()}"
    saved = max(Path(out).glob("checkpoints/step-[0-9]*.????????"), default=None)  # names of equal length
    if saved is None:
        return f"{out} holds no checkpoint yet. Again, from the beginning: {command_line()}"
    step = int(saved.name[5:].partition(".")[0])
    try:
        result = read_object(Path(out) / "result.json")
    except ConfigError:  # it is damaged: the same command says so
        result = {}
    if result.get("finished") and result.get("steps") == step:
        return f"{out} holds the complete run of {counted(step, 'step')}."
    return f"{out} holds the checkpoint of step {step}. Go on with: {command_line()}"


_NOT_KEPT = "nothing is kept\nto watch it, report or predict: the same command with --out DIR"


def _first_lines(job: "TrainJob", kept: str | None) -> str:
    """Return what is known of a training before anything heavy begins."""
    options, hosts = job.options, job.nodes.max_nodes if job.nodes else 1
    where = f", {counted(job.workers, 'worker')} on each of {hosts} hosts" * (hosts > 1)
    told = f"in {kept}\nfollow it: {shlex.join(['unisono', 'watch', kept])}" if kept else _NOT_KEPT
    return (
        f"{options.recipe} ({options.model}): {counted(options.epochs, 'epoch')}, batch {options.batch_size}{where}; "
        f"{told}"
    )


@click.command(cls=ExplainedCommand, short_help="Train a ready-made recipe.")
@recipe_argument
@config_option()
@field_options(LaunchSpec, "workers")
@run_options(live=LIVE)
@field_options(NodesOptions)
@result_options
@verb("train", _kept, keeps_runs=True)
def train(recipe: str, as_json: bool, **given: Any) -> None:
    """Train RECIPE: digits, mnist, imdb, lm, or text and images of your own.

    The same options with the same --out continue an interrupted run, on any number of workers. The fingerprint
    printed at the end is the same for any -n. When a worker is killed, the others finish the step without it, and
    another one joins them; where that cannot be, all start again from the last checkpoint (--live). Ctrl-C and SIGTERM
    stop after the step in progress and save; a second Ctrl-C stops at once. With strategies other than exact, fsdp and
    pipeline the number of workers is part of the result: to go on with another one, say --allow-drift.

    Exit code: 0 when the training is done; 75 when it was asked to stop and has saved in --out; 2 for wrong settings
    or data; the code of the worker that failed first (128 + n for signal n); 130 after Ctrl-C.
    """
    output = "quiet" if is_quiet() else "stderr" if as_json else "leader"
    _train(recipe, as_json, output, given)


def _train(recipe: str, as_json: bool, output: str, given: dict[str, Any]) -> None:
    from unisono.errors import ConfigError, RunStopped
    from unisono.experiments.job import describe_run_file, plan, run_job
    from unisono.launchers.scratch import scratch_directory
    from unisono.observe.run_json import read_object
    from unisono.recipes.catalog import OWN_CLASSES
    from unisono.recipes.trained.model_file import FILE_NAME, ModelFile
    from unisono.system.owners import adopt
    from unisono.train.run_directory.lock import check_free

    settings = launch_of(given)
    workers, nodes = given.pop("workers"), NodesOptions(**taken(NodesOptions, given)).plan()
    settings |= usual_live(settings, nodes.max_nodes if nodes else 1)
    job = plan(recipe, workers, given, settings["devices"], nodes)
    kept = job.options.out
    with contextlib.nullcontext(kept) if kept else scratch_directory("train") as place:
        out = Path(place) if kept else Path(place) / "run"
        job = replace(job, options=replace(job.options, out=str(out)))
        try:
            with adopt(out, alone=True) as home:
                if nodes is None:  # other hosts of a run may be at work there already
                    check_free(home)
                home.replace(RUN_FILE, describe_run_file(job.options).encode("utf-8", "surrogateescape"))
        except OSError as error:
            raise ConfigError(
                f"expected a directory that can be written, got {out} from --out: {error.strerror}.{hint_of(error)}"
            ) from error
        if output != "quiet":
            complain(_first_lines(replace(job, options=replace(job.options, out=kept)), kept))
        before: dict[str, Any] = {}
        with contextlib.suppress(ConfigError):  # a damaged one is the run's to judge
            before = read_object(out / "result.json")
        try:
            scratch = None if kept else place
            result = run_job(job, output=output, scratch=scratch, env={COMMAND: command_line()}, **settings)
        except RunStopped as stopped:
            if kept:
                raise
            click.echo(f"unisono train: step {stopped.step} is not kept. Hint: --out DIR keeps runs.", err=True)
            raise SystemExit(INTERRUPTED) from None
        tells = recipe in OWN_CLASSES and (out / FILE_NAME).is_file()  # of several hosts, the leader's has it
        file = ModelFile.read(out) if tells else None
        if as_json:
            click.echo(to_json(result | ({"classes": file.classes} if file else {})))
            return
        lines = {"fingerprint": result["fingerprint"]}
        lines |= {name: f"{float(value):.4f}" for name, value in result["metrics"].items()}
        committed = read_object(out / COMMITMENT).get("sha256") if kept else None
        lines |= {"commitment": f"{committed} (what unisono audit compares with)"} if committed else {}
        lines |= ({"classes": file.listed_classes()} if file else {}) | ({"kept in": str(out)} if kept else {})
        width = max(map(len, lines))
        for name, line in lines.items():
            click.echo(fitted(f"{name:<{width}}  {line}"))
        total = result.get("totals", {})
        speed = speed_in(result)
        how_fast = f", mean {speed.spell()}" if speed else ""
        held_up = f"; {speed.spell_outside()}" if speed and speed.is_held_up else ""
        is_old = all(name in before and before[name] == result.get(name) for name in ("steps", "wall_s", "totals"))
        launches = total.get("launches", 1)
        more = f"; {spell_seconds(total['train_s'])} in {launches} launches" if launches > 1 else ""
        told = "the run was complete before, this launch has computed nothing. It took: " if is_old else ""
        told += ", ".join(counted(result[key], noun) for key, noun in _COUNTED.items())
        told += f", {spell_seconds(result['train_s'])} of training ({spell_seconds(result['wall_s'])} in all)"
        click.echo(fitted(f"{told}{how_fast}{held_up}{more}"))
