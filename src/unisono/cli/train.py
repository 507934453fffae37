"""``unisono train``: run a recipe on the workers of this machine, or of several."""

import contextlib
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from unisono.cli.completion import RecipeName, complete_recipe
from unisono.cli.options.nodes import nodes_options, plan_nodes
from unisono.cli.options.run_file import RUN_FILE, describe_run_file, take_config
from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.options.strategy import catalog_text, strategy_options
from unisono.cli.outcome import INTERRUPTED, command_line, perform
from unisono.cli.run import watch_settings
from unisono.experiments.job import plan, run_job
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import CLIP, RESTARTS, SECONDS
from unisono.recipes.catalog import NUMBERS
from unisono.system.owners import adopt

MAX_RESTARTS = 3
_KINDS = {name: number(quantity) for name, quantity in NUMBERS.items()}


@click.command(short_help="Train a ready-made recipe.", epilog=catalog_text())
@click.argument("recipe", metavar="RECIPE", type=RecipeName(), shell_complete=complete_recipe)
@click.option(
    "--config",
    type=PATH,
    metavar="FILE|RUN",
    is_eager=True,
    expose_value=False,
    callback=take_config,
    help="TOML file with these options (and recipe), or a run directory to repeat; what is typed here wins.",
)
@click.option(
    "-n",
    "--workers",
    default="auto",
    metavar="N|auto",
    show_default=True,
    help="Number of processes (on each host); at most the replicas. Does not change the result.",
)
@click.option(
    "--replicas",
    type=_KINDS["replicas"],
    metavar="V",
    help="Logical workers; part of the result.  [default: 8; of other strategies than exact, the workers]",
)
@click.option("--epochs", type=_KINDS["epochs"], metavar="E", help="Passes over the data.  [default: the recipe's]")
@click.option(
    "--batch-size",
    type=_KINDS["batch_size"],
    metavar="B",
    help="Samples per optimizer step, over all workers.  [default: the recipe's]",
)
@click.option(
    "--seed", type=_KINDS["seed"], default=0, metavar="S", show_default=True, help="Seed of everything random."
)
@click.option("--model", metavar="NAME", help="One of the recipe's models.  [default: its first]")
@click.option("--limit", type=_KINDS["limit"], metavar="K", help="Use at most K training and K test samples.")
@click.option(
    "--data", type=PATH, metavar="PATH", help="Directory or file with the data.  [default: a verified download]"
)
@click.option(
    "--out",
    type=PATH,
    metavar="DIR",
    help="Run directory; a run found there is resumed.  [default: nothing is kept]",
)
@click.option(
    "--checkpoint-every",
    type=_KINDS["checkpoint_every"],
    metavar="STEPS",
    help="Steps between checkpoints.  [default: an epoch]",
)
@click.option(
    "--threads",
    type=_KINDS["threads"],
    default=1,
    metavar="T",
    show_default=True,
    help="Threads per process; part of the result.",
)
@click.option(
    "--num-workers",
    type=_KINDS["num_workers"],
    default=0,
    metavar="N",
    show_default=True,
    help="Data loading processes per worker.",
)
@click.option(
    "--max-restarts",
    type=number(RESTARTS),
    default=MAX_RESTARTS,
    show_default=True,
    metavar="K",
    help="Start the processes again after one has died; K restarts in a row may pass without progress.",
)
@click.option(
    "--heartbeat",
    type=number(SECONDS),
    metavar="S",
    help="Seconds of silence after which a process counts as stuck; 0: for ever.  [default: 10]",
)
@click.option("--gpus", metavar="LIST|cpu", help="GPUs to use, such as 0,2; cpu: none.  [default: the visible ones]")
@click.option("--share-devices", is_flag=True, help="Let several processes compute on one GPU.")
@click.option(
    "--preset", metavar="NAME", help="The recipe's hyper-parameters by name, see docs/data.md.  [default: its first]"
)
@click.option("--lr", type=_KINDS["lr"], metavar="RATE", help="Learning rate in place of the preset's.")
@click.option(
    "--clip-norm", type=number(CLIP), metavar="NORM", help="Largest norm of the gradient, in place of the preset's."
)
@click.option(
    "--clip-value",
    type=number(CLIP),
    metavar="X",
    help="Largest magnitude of the gradient's elements, in place of a norm.",
)
@click.option("--bf16", is_flag=True, help="The model under bfloat16 autocast, with any strategy; other bits.")
@click.option("--compile", is_flag=True, help="Send the model through torch.compile; other bits.")
@click.option("--offline", is_flag=True, help="Use downloads that are there, and no network.")
@click.option("--augment", metavar="LIST", help="Image changes: flip,shift=2,rotate=10,crop=0.8 or none.")
@click.option("--image-size", metavar="HxW", help="Resize own images.  [default: all must have one size]")
@click.option(
    "--max-length",
    type=_KINDS["max_length"],
    metavar="TOKENS",
    help="Cut longer texts off; says how many.  [default: never]",
)
@click.option(
    "--length-pool", type=_KINDS["length_pool"], metavar="BATCHES", help="Sort so many batches by text length; 0: none."
)
@click.option(
    "--min-freq", type=_KINDS["min_freq"], metavar="COUNT", help="Least occurrences of a word that gets a number."
)
@click.option("--test-data", type=PATH, metavar="PATH", help="Own data to evaluate on.  [default: every tenth]")
@click.option("--text-column", metavar="NAME", help="Column of own texts.  [default: text]")
@click.option("--label-column", metavar="NAME", help="Column of their labels.  [default: label]")
@click.option("--encoding", metavar="NAME", help="Encoding of own texts.  [default: utf-8]")
@click.option("--skip-broken", is_flag=True, help="Leave out broken rows or images of own data, and count them.")
@click.option("--allow-drift", is_flag=True, help="Resume although software or CPU differ; recorded with the run.")
@click.option("--detail", is_flag=True, help="Record what each step is made of, for unisono diff.")
@strategy_options
@nodes_options
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON, and nothing else, on standard output.")
def train(
    recipe: str,
    workers: str,
    as_json: bool,
    max_restarts: int,
    heartbeat: float | None,
    nodes: dict[str, Any],
    gpus: str | None,
    share_devices: bool,
    **given: Any,
) -> None:
    """Train RECIPE: digits, mnist, imdb, or text and images of your own.

    The same options with the same --out continue an interrupted run, on any number of workers. The fingerprint
    printed at the end does not depend on -n. A worker that dies is replaced, and the run goes on from its last
    checkpoint. Ctrl-C and SIGTERM stop after the step in progress and save; a second Ctrl-C stops at once. (That the
    number of workers does not matter holds for --strategy exact; of the others it is part of the result, and
    --allow-drift is needed to go on with another.)

    Exit code: 0 when the training is done; 75 when it was asked to stop and has saved in --out; 2 for wrong settings
    or data; the code of the worker that failed first (128 + n for signal n); 130 after Ctrl-C.
    """
    settings = watch_settings(max_restarts, heartbeat) | {"share_devices": share_devices, "devices": gpus}

    def act() -> None:
        _train(recipe, workers, as_json, given, settings, nodes)

    sys.exit(perform("train", act, lambda: _kept(given["out"]), keeps_runs=True))


def _kept(out: str | None) -> str:
    """Return what to say after Ctrl-C where the run could not stop between two steps."""
    if out is None:
        return f"Nothing is kept; --out DIR keeps runs. Again: {command_line()}"
    saved = max(Path(out).glob("checkpoints/step-[0-9]*.????????"), default=None)  # names of equal length
    if saved is None:
        return f"{out} holds no checkpoint yet. Again, from the beginning: {command_line()}"
    return f"{out} holds the checkpoint of step {int(saved.name[5:].partition('.')[0])}. Go on with: {command_line()}"


def _train(
    recipe: str, workers: str, as_json: bool, given: dict[str, Any], settings: dict[str, Any], nodes: dict[str, Any]
) -> None:
    from unisono.errors import RunStopped
    from unisono.system.machine import resolve_devices

    settings = {**settings, "devices": resolve_devices(settings["devices"], os.environ, "--gpus")}
    job = plan(recipe, workers, given, settings["devices"], plan_nodes(nodes))
    kept = job.options.out
    with contextlib.nullcontext(kept) if kept else scratch_directory("train") as place:
        out = Path(place) if kept else Path(place) / "run"
        job = replace(job, options=replace(job.options, out=str(out)))
        # A directory that cannot be written is refused by the run, with reasons.
        with contextlib.suppress(OSError), adopt(out) as home:
            home.replace(RUN_FILE, describe_run_file(job.options).encode("utf-8", "surrogateescape"))
        try:
            scratch = None if kept else place
            result = run_job(job, output="stderr" if as_json else "leader", scratch=scratch, **settings)
        except RunStopped as stopped:
            if given["out"]:
                raise
            click.echo(f"unisono train: step {stopped.step} is not kept. Hint: --out DIR keeps runs.", err=True)
            raise SystemExit(INTERRUPTED) from None
        if as_json:
            click.echo(to_json(result))
            return
        lines = {"fingerprint": result["fingerprint"]}
        lines |= {name: f"{float(value):.4f}" for name, value in result["metrics"].items()}
        lines |= {"kept in": str(out)} if given["out"] else {}
        width = max(map(len, lines))
        for name, line in lines.items():
            click.echo(f"{name:<{width}}  {line}")
        total = result.get("totals", {})
        more = f"; {total['train_s']:.1f} s in {total['launches']} launches" if total.get("launches", 1) > 1 else ""
        click.echo(
            f"{result['steps']} steps, {result['epochs']} epochs, {result['world_size']} workers, "
            f"{result['replicas']} replicas, {result['train_s']:.1f} s of training ({result['wall_s']:.1f} s in all)"
            + more
        )
