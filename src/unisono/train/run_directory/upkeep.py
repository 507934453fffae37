"""Look after the checkpoints of a run that nobody trains now: find, choose, describe and prune them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from unisono.checkpoint.manifest import read_manifest
from unisono.checkpoint.policy import CheckpointPolicy
from unisono.checkpoint.store import choose_removed, list_steps, newest_valid, remove, verify
from unisono.errors import CheckpointError, ConfigError
from unisono.observe.damage import changed_line, damaged_from, last_step_in
from unisono.observe.run_place import no_run
from unisono.system.directory import Directory

Tell = Callable[[str], None]
_FACTS = ("metrics", "parent_step", "fencing_token", "run", "ledger_head")


def find_checkpoints(directory: str) -> Path:
    """Return the directory with the checkpoints of a run."""
    given = Path(directory)
    for path in (given / "checkpoints", given):
        if list_steps(path):
            return path
    raise no_run(given, "checkpoints")


def choose_checkpoint(found: Path, step: int | None, tell: Tell = lambda _: None) -> Path:
    """Return the checkpoint of a step, or the newest valid one, verified.

    Raises:
        ConfigError: There is none of that step.
        CheckpointError: It is damaged, or all are.
    """
    if step is None:
        newest, complaints = newest_valid(found)
        for complaint in complaints:
            tell(f"checkpoint skipped: {complaint}")
        assert newest is not None  # there are some, and none that is valid is an error
        return newest
    steps = list_steps(found)
    chosen = next((path for other, path in steps if other == step), None)
    if chosen is None:
        raise ConfigError(
            f"expected one of the steps {', '.join(str(other) for other, _ in steps)}, got --step {step}."
        )
    verify(chosen)
    return chosen


def describe_checkpoints(found: Path, *, is_thorough: bool) -> list[dict[str, Any]]:
    """Return what the manifests of checkpoints say, newest first; ``problem`` is what is wrong with one, or None."""
    rows: list[dict[str, Any]] = []
    for step, path in list_steps(found):
        row: dict[str, Any] = {"step": step, "name": path.name}
        try:
            manifest = verify(path) if is_thorough else read_manifest(path)
            size, more = sum(entry.bytes for entry in manifest.files.values()), asdict(manifest.facts)
            row |= {"epoch": manifest.facts.epoch, "bytes": size, "files": len(manifest.files)}
            row |= {**{name: more[name] for name in _FACTS}, "sha256": manifest.hashes, "problem": None}
        except CheckpointError as error:
            row["problem"] = str(error)
        rows.append(row)
    return rows


def ledger_problem(ledger: Path, rows: Sequence[Mapping[str, Any]]) -> str | None:
    """Return what is wrong with the ledger beside described checkpoints; None: nothing, or there is none."""
    if not ledger.exists():
        return None
    if (number := damaged_from(ledger)) is not None:
        return f"line {number} is no entry"
    heads = {row["step"]: row["ledger_head"] for row in rows if row["problem"] is None and row["ledger_head"]}
    if (last := last_step_in(ledger)) < (newest := max(heads, default=0)):
        return f"ends at step {last}; the newest checkpoint is of step {newest}, whose line is lost"
    return changed_line(ledger, heads)


def prune_checkpoints(
    directory: str, *, dry_run: bool = False, tell: Tell = lambda _: None, **policy: Any
) -> tuple[list[str], str]:
    """Remove all but the newest valid checkpoints of a run, and return the names of those, and of the newest.

    Raises:
        ConfigError: There are no checkpoints, or a wrong policy.
        CheckpointError: None can be trusted; nothing is removed then.
    """
    chosen = CheckpointPolicy(**policy)
    newest = choose_checkpoint(find_checkpoints(directory), None, tell)
    with Directory.open(newest.parent) as home:
        removed = choose_removed(home, newest.name, verify(newest), chosen)
        for name in [] if dry_run else removed:
            remove(home, name)
    return list(removed), newest.name
