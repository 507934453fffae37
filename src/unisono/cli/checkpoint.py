"""``unisono checkpoint``: list, verify, rehearse, export and prune what a run has saved."""

import sys
from pathlib import Path
from typing import Any

import click

from unisono.cli.options.fields import json_option
from unisono.cli.options.settings import PATH, number
from unisono.cli.outcome import FAILED, nothing_kept, perform, tell
from unisono.cli.tables import answer, table
from unisono.options.quantities import KEPT, STEPS

_DIRECTORY = click.argument("directory", type=PATH, metavar="DIR")
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
@json_option
def list_(directory: str, as_json: bool) -> None:
    """List the checkpoints of a run, newest first, from their manifests; files are not read (see verify).

    Exit code: 0; 2 when DIR holds no checkpoints.
    """
    sys.exit(perform("checkpoint list", lambda: _list(directory, as_json)))


@checkpoint.command(short_help="Compare every byte with its hash.")
@_DIRECTORY
@json_option
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
@json_option
def rehearse(directory: str, args: tuple[str, ...], as_json: bool, **given: Any) -> None:
    """Prove that a checkpoint can be gone on from: load it, run one step, compare with what the ledger says of it.

    Works on a copy; DIR is not touched. A script's own ARGS stand after ``--``.

    Exit code: 0 when the step is the same to the last bit; 1 when it is not; 2 for wrong settings; else that of a
    failed worker.
    """

    def act() -> int:
        from unisono.experiments import rehearse as experiment

        found = experiment.rehearse(directory, args, tell=(lambda _: None) if as_json else tell, **given)
        step, differing = found.step, found.differing
        plain = {"equal": not differing, "checkpoint": found.checkpoint, "differing": differing}
        same = f"step {step} is the same as in the ledger, to the last bit"
        other = f"step {step} is another than in the ledger: {', '.join(differing)}"
        answer(plain, as_json, lambda: [other if differing else same])
        return FAILED if differing else 0

    sys.exit(perform("checkpoint rehearse", act, nothing_kept("the copy")))


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
@json_option
def prune(directory: str, as_json: bool, **given: Any) -> None:
    """Remove all but the newest valid checkpoints of a run; those that stay are verified first.

    Do not call it while the run is going on: it keeps its own house.

    Exit code: 0; 1 when no checkpoint can be trusted (nothing is removed then); 2 for wrong settings.
    """
    sys.exit(perform("checkpoint prune", lambda: _prune(directory, as_json, given)))


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
    from unisono.checkpoint.values import printable
    from unisono.experiments.rehearse import find_checkpoints

    rows = _rows(find_checkpoints(directory), is_thorough=False)
    cells: list[tuple[object, ...]] = []
    for row in rows:
        if row["problem"] is not None:
            cells.append((row["step"], None, None, None, printable(row["problem"])))
            continue
        metrics = printable("  ".join(f"{name} {value:.4g}" for name, value in row["metrics"].items()))
        cells.append((row["step"], row["epoch"], f"{row['bytes'] / 1e6:.1f}", row["files"], metrics))
    answer(rows, as_json, lambda: table(("step", "epoch", "MB", "files", "metrics"), cells, left=["metrics"]))


def _verify(directory: str, as_json: bool) -> int:
    from unisono.experiments.rehearse import find_checkpoints

    found = find_checkpoints(directory)
    rows = _rows(found, is_thorough=True)
    damaged = sum(row["problem"] is not None for row in rows)
    ledger = _ledger_problem(found.parent / "ledger.jsonl", rows)
    is_valid = not damaged and ledger is None
    lines = [f"{row['name']}  {row['problem'] or 'whole'}" for row in rows]
    lines += [] if ledger is None else [f"ledger.jsonl  {ledger}"]
    lines += [f"{len(rows) - damaged} of {len(rows)} checkpoints are whole"]
    answer({"valid": is_valid, "checkpoints": rows, "ledger": ledger}, as_json, lambda: lines)
    return 0 if is_valid else FAILED


def _ledger_problem(ledger: Path, rows: list[dict[str, Any]]) -> str | None:
    """Return what is wrong with the ledger beside the checkpoints; None: nothing, or there is none."""
    from unisono.observe.ledger import changed_line, damaged_from

    if not ledger.exists():
        return None
    if (number := damaged_from(ledger)) is not None:
        return f"line {number} is no entry"
    return changed_line(ledger, {row["step"]: row["ledger_head"] for row in rows if row["problem"] is None})


def _export(directory: str, file: str, step: int | None) -> None:
    from unisono.checkpoint.interchange import export_weights
    from unisono.checkpoint.store import read
    from unisono.experiments.rehearse import choose_checkpoint, find_checkpoints

    chosen = choose_checkpoint(find_checkpoints(directory), step, tell)
    manifest, state = read(chosen)
    for name in export_weights(state, Path(file)):
        tell(f"left out: {name} is no tensor")
    click.echo(f"step {manifest.step}: {len(state.tensors['model'])} tensors in {file}")


def _prune(directory: str, as_json: bool, given: dict[str, Any]) -> None:
    from unisono.checkpoint.policy import CheckpointPolicy
    from unisono.checkpoint.store import choose_removed, remove, verify
    from unisono.experiments.rehearse import choose_checkpoint, find_checkpoints
    from unisono.system.directory import Directory

    policy = CheckpointPolicy(keep=given["keep"], best=given["best"], best_mode=given["best_mode"])
    newest = choose_checkpoint(find_checkpoints(directory), None, tell)
    with Directory.open(newest.parent) as home:
        removed = choose_removed(home, newest.name, verify(newest), policy)
        if not given["dry_run"]:
            for name in removed:
                remove(home, name)
    done = "would remove" if given["dry_run"] else "removed"
    lines = [*(f"{done} {name}" for name in removed), f"newest: {newest.name}"]
    answer({"removed": removed, "dry_run": given["dry_run"]}, as_json, lambda: lines)
