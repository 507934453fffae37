"""``unisono checkpoint``: list, verify, rehearse, export and prune what a run has saved."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, final

import click

from unisono.cli.options.fields import result_options, single
from unisono.cli.options.settings import PATH, RUN
from unisono.cli.output.outcome import FAILED, nothing_kept, tell, verb
from unisono.cli.output.tables import answer, table
from unisono.cli.past.replay import computing_again
from unisono.options.quantities import KEPT, STEPS

if TYPE_CHECKING:
    from unisono.recipes.trained.load import TrainedModel

_DIRECTORY = click.argument("directory", type=RUN, metavar="DIR")


@final
class _Verbs(click.Group):
    """Its commands come before the directory: says so where a directory comes first."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in self.commands and not args[0].startswith("-"):
            from unisono.system.hints import nearest

            what = f" Hint: unisono checkpoint list {args[0]}." if "/" in args[0] else nearest(args[0], self.commands)
            ctx.fail(f"No such command {args[0]!r}.{what or ' Commands: ' + ', '.join(sorted(self.commands)) + '.'}")
        return super().resolve_command(ctx, args)


@click.group(cls=_Verbs, short_help="Look after what a run has saved.")
def checkpoint() -> None:
    """Look after the checkpoints of a run; DIR is its run directory, or the checkpoints/ in it.

    Exit code: 0 when all is well; 1 when a checkpoint is damaged or a step is another; 2 for wrong usage.
    """


@checkpoint.command("list", short_help="Show what is there.")
@_DIRECTORY
@result_options
@verb("checkpoint list")
def list_(directory: str, as_json: bool) -> None:
    """List the checkpoints of a run, newest first, from their manifests; files are not read (see verify).

    Exit code: 0; 2 when DIR holds no checkpoints.
    """
    from unisono.checkpoint.values import printable
    from unisono.system.words import spell_bytes
    from unisono.train.run_directory.upkeep import describe_checkpoints, find_checkpoints

    rows = describe_checkpoints(find_checkpoints(directory), is_thorough=False)
    cells: list[tuple[object, ...]] = []
    for row in rows:
        if row["problem"] is not None:
            cells.append((row["step"], None, None, row["name"], printable(row["problem"])))
            continue
        metrics = printable("  ".join(f"{name} {value:.4g}" for name, value in row["metrics"].items()))
        cells.append((row["step"], row["epoch"], spell_bytes(row["bytes"]), row["name"], metrics))
    names = ("step", "epoch", "size", "directory", "metrics")
    answer(rows, as_json, lambda: table(names, cells, left=["directory", "metrics"]))


@checkpoint.command(short_help="Compare every byte with its hash.")
@_DIRECTORY
@result_options
@verb("checkpoint verify")
def verify(directory: str, as_json: bool) -> int:
    """Read every file of every checkpoint and compare it with its manifest; the ledger beside them with its chain.

    Exit code: 0 when all of them are whole; 1 when one is not; 2 when DIR holds no checkpoints.
    """
    from unisono.train.run_directory.upkeep import describe_checkpoints, find_checkpoints, ledger_problem

    found = find_checkpoints(directory)
    rows = describe_checkpoints(found, is_thorough=True)
    damaged = sum(row["problem"] is not None for row in rows)
    ledger = ledger_problem(found.parent / "ledger.jsonl", rows)
    is_valid = not damaged and ledger is None
    lines = [f"{row['name']}  {row['problem'] or _whole(row['sha256'])}" for row in rows]
    lines += [] if ledger is None else [f"ledger.jsonl  {ledger}"]
    lines += [f"{len(rows) - damaged} of {len(rows)} checkpoints are whole"]
    answer({"valid": is_valid, "checkpoints": rows, "ledger": ledger}, as_json, lambda: lines)
    return 0 if is_valid else FAILED


def _whole(sha256: dict[str, str]) -> str:
    """Return what is said of a checkpoint that is whole: the beginnings of the hashes of its parts."""
    return "  ".join(["whole", *(f"{name} {digits[:8]}" for name, digits in sorted(sha256.items()))])


@checkpoint.command(short_help="Load one, run its next step, compare with the ledger.")
@_DIRECTORY
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS...]")
@single("step", "Start after step N.", of=STEPS, word="N", usual="the newest that has a next step")
@computing_again
@verb("checkpoint rehearse", nothing_kept("the copy"))
def rehearse(directory: str, args: tuple[str, ...], as_json: bool, **given: Any) -> int:
    """Prove that a checkpoint can be gone on from: load it, run one step, compare with what the ledger says of it.

    Works on a copy; DIR is not touched. A script's own ARGS stand after ``--``. What ``unisono replay`` does for any
    step, for the one after a checkpoint.

    Exit code: 0 when the step is the same to the last bit; 1 when it is not; 2 for wrong settings; else that of a
    failed worker.
    """
    from unisono.experiments.past import replay as experiment

    found = experiment.rehearse(directory, args, tell=tell, **given)
    step, differing = found.step, found.differing
    plain = {"equal": not differing, "checkpoint": found.checkpoint, "differing": differing}
    same = f"step {step} is the same as in the ledger, to the last bit"
    other = f"step {step} is another than in the ledger: {', '.join(differing)}"
    answer(plain, as_json, lambda: [other if differing else same])
    return FAILED if differing else 0


@checkpoint.command(short_help="Write the model for other programs.")
@_DIRECTORY
@click.argument("file", type=PATH, metavar="FILE|FOLDER")
@single("step", "The checkpoint of step N.", of=STEPS, word="N", usual="the newest valid one")
@single("average", "An average of the weights that was kept: EMA, SWA.", word="NAME", usual="the trained weights")
@result_options
@verb("checkpoint export")
def export(directory: str, file: str, step: int | None, average: str | None, as_json: bool) -> None:
    """Write the model of a checkpoint as a plain state_dict to FILE: .pt, .pth, .bin or .safetensors.

    Of a recipe's run: .onnx for a model of images; for a language model a FOLDER (a name without an ending) that
    transformers opens as a Llama, with its tokeniser.

    Exit code: 0; 1 when no checkpoint can be trusted or FILE cannot be written; 2 for wrong settings.
    """
    path = Path(file)
    if path.suffix == ".onnx" or not path.suffix or path.is_dir():
        model = _export_model(directory, path, step, average)
        plain = {"step": model.step, "recipe": model.recipe, "file": file}
        answer(plain, as_json, lambda: [f"step {model.step}: recipe {model.recipe} in {file}"])
        return
    from unisono.checkpoint.interchange import export_weights
    from unisono.checkpoint.store import read
    from unisono.train.run_directory.upkeep import choose_checkpoint, find_checkpoints

    manifest, state = read(choose_checkpoint(find_checkpoints(directory), step, tell))
    for name in export_weights(state, path, average):
        tell(f"left out: {name} is no tensor")
    count = len(state.tensors["model"])
    plain = {"step": manifest.step, "tensors": count, "file": file}
    answer(plain, as_json, lambda: [f"step {manifest.step}: {count} tensors in {file}"])


def _export_model(directory: str, path: Path, step: int | None, average: str | None) -> "TrainedModel":
    from unisono.errors import ConfigError
    from unisono.recipes.trained import export
    from unisono.recipes.trained.load import open_model

    if average is not None:
        raise ConfigError(f"--average is for .pt and .safetensors; recipes keep no average, got {str(path)!r}.")
    model = open_model(Path(directory), "last" if step is None else step, "cpu", tell)
    (export.export_onnx if path.suffix == ".onnx" else export.export_folder)(model, path)
    return model


@checkpoint.command(short_help="Remove old ones.")
@_DIRECTORY
@single("keep", "Newest valid ones to leave.", of=KEPT, default=2)
@single("keep_sparse", "Leave those of a run's --keep-sparse too.", word="N|doubling")
@single("best", "Leave the one with the best METRIC too.", word="METRIC")
@single("best_mode", "Which METRIC is best; else as its name says.", word="max|min")
@click.option("--dry-run", is_flag=True, help="Only say what would be removed.")
@result_options
@verb("checkpoint prune")
def prune(directory: str, as_json: bool, dry_run: bool, **given: Any) -> None:
    """Remove all but the newest valid checkpoints of a run; those that stay are verified first.

    Do not call it while the run is going on: it removes old ones itself.

    Exit code: 0; 1 when no checkpoint can be trusted (nothing is removed then); 2 for wrong settings.
    """
    from unisono.train.run_directory.upkeep import prune_checkpoints

    removed, newest = prune_checkpoints(directory, dry_run=dry_run, tell=tell, **given)
    done = "would remove" if dry_run else "removed"
    lines = [*(f"{done} {name}" for name in removed), f"newest: {newest}"]
    answer({"removed": removed, "dry_run": dry_run}, as_json, lambda: lines)
