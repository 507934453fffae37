"""``unisono checkpoint``: list, verify, rehearse, export and prune what a run has saved."""

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import click

from unisono.cli.options.settings import PATH, number, to_json
from unisono.cli.outcome import FAILED, nothing_kept, perform
from unisono.launchers.scratch import scratch_directory
from unisono.options.quantities import KEPT, STEPS

_DIRECTORY = click.argument("directory", type=PATH, metavar="DIR")
_JSON = click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, on standard output.")
_STEP = click.option(
    "--step", type=number(STEPS), metavar="N", help="The checkpoint of step N.  [default: the newest valid one]"
)


@click.group(short_help="Look after what a run has saved.")
def checkpoint() -> None:
    """Look after the checkpoints of a run; DIR is its run directory, or the checkpoints/ in it.

    Exit code: 0 when all is well; 1 when a checkpoint is damaged or a step is another; 2 for wrong usage.
    """


@checkpoint.command("list", short_help="Show what is there.")
@_DIRECTORY
@_JSON
def list_(directory: str, as_json: bool) -> None:
    """List the checkpoints of a run, newest first, from their manifests; files are not read (see verify).

    Exit code: 0; 2 when DIR holds no checkpoints.
    """
    sys.exit(perform("checkpoint list", lambda: _list(directory, as_json)))


@checkpoint.command(short_help="Compare every byte with its hash.")
@_DIRECTORY
@_JSON
def verify(directory: str, as_json: bool) -> None:
    """Read every file of every checkpoint and compare it with its manifest; the ledger beside them with its chain.

    Exit code: 0 when all of them are whole; 1 when one is not; 2 when DIR holds no checkpoints.
    """
    sys.exit(perform("checkpoint verify", lambda: _verify(directory, as_json)))


@checkpoint.command(short_help="Load one, run its next step, compare with the ledger.")
@_DIRECTORY
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@click.option(
    "--step", type=number(STEPS), metavar="N", help="Start after step N.  [default: the newest that has a next step]"
)
@click.option("--script", type=PATH, metavar="FILE", help="The program, for runs that are no recipe's.")
@click.option("-n", "--workers", default="1", show_default=True, metavar="N", help="Number of processes.")
@click.option("--data", type=PATH, metavar="PATH", help="Recipes: where the data is.")
@click.option("--allow-drift", is_flag=True, help="Recipes: although software or CPU differ from the run's.")
@_JSON
def rehearse(directory: str, args: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Prove that a checkpoint can be gone on from: load it, run one step, compare with what the ledger says of it.

    Works on a copy; DIR is not touched. A script's own ARGS stand after ``--``.

    Exit code: 0 when the step is the same to the last bit; 1 when it is not; 2 for wrong settings; else that of a
    failed worker.
    """
    done = nothing_kept("the copy")
    sys.exit(perform("checkpoint rehearse", lambda: _rehearse(directory, args, as_json, given), done))


@checkpoint.command(short_help="Write the model's weights to one file.")
@_DIRECTORY
@click.argument("file", type=PATH, metavar="FILE")
@_STEP
def export(directory: str, file: str, step: int | None) -> None:
    """Write the model of a checkpoint as a plain state_dict to FILE: .pt, .pth, .bin or .safetensors.

    Exit code: 0; 1 when no checkpoint can be trusted or FILE cannot be written; 2 for wrong settings.
    """
    sys.exit(perform("checkpoint export", lambda: _export(directory, file, step)))


@checkpoint.command(short_help="Remove old ones.")
@_DIRECTORY
@click.option(
    "--keep", type=number(KEPT), default=2, show_default=True, metavar="K", help="Newest valid ones to leave."
)
@click.option("--best", metavar="METRIC", help="Leave the one with the best METRIC too.")
@click.option("--best-mode", default="max", show_default=True, metavar="max|min", help="Which METRIC is best.")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@_JSON
def prune(directory: str, as_json: bool, **given: Any) -> None:
    """Remove all but the newest valid checkpoints of a run; those that stay are verified first.

    Do not call it while the run is going on: it keeps its own house.

    Exit code: 0; 1 when no checkpoint can be trusted (nothing is removed then); 2 for wrong settings.
    """
    sys.exit(perform("checkpoint prune", lambda: _prune(directory, as_json, given)))


def _find(directory: str) -> Path:
    """Return the directory with the checkpoints."""
    from unisono.checkpoint.store import list_steps
    from unisono.errors import ConfigError

    given = Path(directory)
    for path in (given / "checkpoints", given):
        if list_steps(path):
            return path
    raise ConfigError(f"expected a run directory with checkpoints, got {directory}. Hint: the DIR of --out.")


def _rows(found: Path, *, is_thorough: bool) -> list[dict[str, Any]]:
    from unisono.checkpoint.manifest import read_manifest
    from unisono.checkpoint.store import list_steps, verify
    from unisono.errors import CheckpointError

    rows: list[dict[str, Any]] = []
    for step, path in list_steps(found):
        row: dict[str, Any] = {"step": step, "name": path.name}
        try:
            manifest = verify(path) if is_thorough else read_manifest(path)
            facts = manifest.facts
            row |= {
                "epoch": facts.epoch,
                "bytes": sum(entry.bytes for entry in manifest.files.values()),
                "files": len(manifest.files),
                "metrics": facts.metrics,
                "parent_step": facts.parent_step,
                "fencing_token": facts.fencing_token,
                "run": facts.run,
                "ledger_head": facts.ledger_head,
                "problem": None,
            }
        except CheckpointError as error:
            row["problem"] = str(error)
        rows.append(row)
    return rows


def _list(directory: str, as_json: bool) -> None:
    rows = _rows(_find(directory), is_thorough=False)
    if as_json:
        click.echo(to_json(rows))
        return
    from unisono.checkpoint.values import printable

    click.echo(f"{'step':>10}  {'epoch':>5}  {'MB':>8}  {'files':>5}  metrics")
    for row in rows:
        if row["problem"] is not None:
            click.echo(f"{row['step']:>10}  {printable(row['problem'])}")
            continue
        metrics = printable("  ".join(f"{name} {value:.4g}" for name, value in row["metrics"].items()))
        click.echo(f"{row['step']:>10}  {row['epoch']:>5}  {row['bytes'] / 1e6:>8.1f}  {row['files']:>5}  {metrics}")


def _verify(directory: str, as_json: bool) -> int:
    found = _find(directory)
    rows = _rows(found, is_thorough=True)
    damaged = sum(row["problem"] is not None for row in rows)
    ledger = _ledger_problem(found.parent / "ledger.jsonl", rows)
    if as_json:
        click.echo(to_json({"valid": not damaged and ledger is None, "checkpoints": rows, "ledger": ledger}))
    else:
        for row in rows:
            click.echo(f"{row['name']}  {row['problem'] or 'whole'}")
        if ledger is not None:
            click.echo(f"ledger.jsonl  {ledger}")
        click.echo(f"{len(rows) - damaged} of {len(rows)} checkpoints are whole")
    return FAILED if damaged or ledger is not None else 0


def _ledger_problem(ledger: Path, rows: list[dict[str, Any]]) -> str | None:
    """Return what is wrong with the ledger beside the checkpoints; None: nothing, or there is none."""
    from unisono.observe.ledger import changed_line, damaged_from

    if not ledger.exists():
        return None
    if (number := damaged_from(ledger)) is not None:
        return f"line {number} is no entry"
    return changed_line(ledger, {row["step"]: row["ledger_head"] for row in rows if row["problem"] is None})


def _choose(found: Path, step: int | None) -> Path:
    from unisono.checkpoint.store import list_steps, newest_valid, verify
    from unisono.errors import ConfigError

    if step is None:
        newest, complaints = newest_valid(found)
        for complaint in complaints:
            click.echo(f"checkpoint passed over: {complaint}", err=True)
        assert newest is not None  # `_find` has seen one, and none that is valid is an error
        return newest
    there = [path for other, path in list_steps(found) if other == step]
    if not there:
        known = ", ".join(str(other) for other, _ in list_steps(found))
        raise ConfigError(f"expected one of the steps {known}, got --step {step}.")
    verify(there[0])
    return there[0]


def _export(directory: str, file: str, step: int | None) -> None:
    from unisono.checkpoint.interchange import export_weights
    from unisono.checkpoint.store import read

    chosen = _choose(_find(directory), step)
    manifest, state = read(chosen)
    for name in export_weights(state, Path(file)):
        click.echo(f"left out: {name} is no tensor", err=True)
    click.echo(f"step {manifest.step}: {len(state.tensors['model'])} tensors in {file}")


def _prune(directory: str, as_json: bool, given: dict[str, Any]) -> None:
    from unisono.checkpoint.policy import CheckpointPolicy
    from unisono.checkpoint.store import choose_removed, remove, verify
    from unisono.system.directory import Directory

    policy = CheckpointPolicy(keep=given["keep"], best=given["best"], best_mode=given["best_mode"])
    newest = _choose(_find(directory), None)
    with Directory.open(newest.parent) as home:
        removed = choose_removed(home, newest.name, verify(newest), policy)
        if not given["dry_run"]:
            for name in removed:
                remove(home, name)
    if as_json:
        click.echo(to_json({"removed": removed, "dry_run": given["dry_run"]}))
    else:
        for name in removed:
            click.echo(f"{'would remove' if given['dry_run'] else 'removed'} {name}")
        click.echo(f"newest: {newest.name}")


def _rehearse(directory: str, args: tuple[str, ...], as_json: bool, given: dict[str, Any]) -> int:
    from unisono.errors import ConfigError
    from unisono.observe.ledger import read_lines
    from unisono.system.directory import Directory

    found = _find(directory)
    home = found.parent
    lines = {line["step"]: line for line in read_lines(home / "ledger.jsonl")}
    chosen = _choose(found, given["step"]) if given["step"] is not None else _newest_with_next(found, lines)
    step = int(chosen.name.split("-")[1].split(".")[0])
    if step + 1 not in lines:
        raise ConfigError(f"the ledger says nothing of step {step + 1}: there is nothing to compare with.")
    with scratch_directory("rehearse") as scratch:
        out = Path(scratch) / "run"
        shutil.copytree(chosen, out / "checkpoints" / chosen.name, symlinks=True)
        with Directory.open(home) as there:  # a stranger's links are not followed
            for name in ("run.json", "score.json", "environment.json", "ledger.jsonl"):
                if (data := there.read(name)) is not None:
                    (out / name).write_bytes(data)
        if not as_json:
            click.echo(f"running step {step + 1} from {chosen.name} ...", err=True)
        _run_step(home, out, lines[step + 1], args, given)
        replayed = {line["step"]: line for line in read_lines(out / "ledger.jsonl")}.get(step + 1, {})
    differing = [name for name, value in lines[step + 1].items() if replayed.get(name) != value]
    if as_json:
        click.echo(to_json({"equal": not differing, "checkpoint": chosen.name, "differing": differing}))
    elif differing:
        click.echo(f"step {step + 1} is another than in the ledger: {', '.join(differing)}")
    else:
        click.echo(f"step {step + 1} is the same as in the ledger, to the last bit")
    return FAILED if differing else 0


def _newest_with_next(found: Path, lines: dict[int, Any]) -> Path:
    from unisono.checkpoint.store import list_steps, verify
    from unisono.errors import ConfigError

    for step, path in list_steps(found):
        if step + 1 in lines:
            verify(path)
            return path
    raise ConfigError(
        f"no step after a checkpoint in {found} is in the ledger: there is nothing to compare with. "
        "Hint: rehearse while the run goes on, or keep more than the last checkpoint."
    )


def _run_step(home: Path, out: Path, line: dict[str, Any], args: tuple[str, ...], given: dict[str, Any]) -> None:
    """Run one step in the run directory `out`, in processes of its own."""
    from dataclasses import replace

    from unisono.errors import ConfigError
    from unisono.launchers.local import run_local
    from unisono.launchers.spec import LaunchSpec, ScriptTarget, check_target, resolve_workers

    score = json.loads((home / "score.json").read_text())
    env = {"UNISONO_RUN_DIR": str(out), "UNISONO_LAST_STEP": str(line["step"])}
    recipe = score.get("settings", {}).get("recipe")
    if given["script"] is not None:
        target = ScriptTarget(path=given["script"], args=args)
        check_target(target)
        count = resolve_workers(given["workers"], score["replicas"])
        run_local(LaunchSpec(target=target, workers=count, threads=score["threads"], env=env, output="quiet"))
        return
    if recipe is None or args:
        raise ConfigError(
            f"{home} is not the run of a recipe. Hint: --script FILE, with its own arguments after --."
            if recipe is None else f"the recipe {recipe!r} takes no arguments, got {' '.join(args)}."
        )  # fmt: skip
    from unisono.experiments.job import plan
    from unisono.launchers.api import describe_function
    from unisono.recipes.execute import execute as execute_recipe

    result = json.loads((home / "result.json").read_text()) if (home / "result.json").exists() else {}
    options = {name: score[name] for name in ("seed", "replicas", "batch_size", "threads")}
    options |= {name: value for name, value in score["settings"].items() if name in ("model", "limit")}
    options |= {"out": str(out), "data": given["data"], "allow_drift": given["allow_drift"] or None}
    options["epochs"] = max(line["epoch"] + 1, result.get("epochs", 1))
    job = plan(recipe, given["workers"], options)
    target_function = describe_function(execute_recipe, (replace(job.options, checkpoint_every=line["step"]),))
    run_local(
        LaunchSpec(target=target_function, workers=job.workers, threads=score["threads"], env=env, output="quiet")
    )
