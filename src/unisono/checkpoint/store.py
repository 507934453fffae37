"""Directories of checkpoints that survive a crash at any moment.

One write-once directory per step, ``step-00000042.<id>/``: safetensors files, ``state.json``, and last of all
``manifest.json`` with the size and SHA-256 of each. It is written under a temporary name; every file, then the
directory, is synced; then it is renamed, and the parent synced: that is the commit. It is read back and verified before
an older one goes. A reader scans newest to oldest and trusts nothing it has not verified; ``LATEST`` is a hint for
people.
"""

import contextlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from unisono.checkpoint.files import (
    FileSum,
    check_sum,
    read_checked,
    replace_synced,
    safetensors_chunks,
    sync_directory,
    write_synced,
)
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import DIRECTORY_NAME, FILE_NAME, STATE_FILE, Facts, Manifest, encode, read_manifest
from unisono.checkpoint.policy import Candidate, CheckpointPolicy, choose_kept, stem_of
from unisono.checkpoint.values import printable
from unisono.disk import room
from unisono.errors import CheckpointError

LATEST = "LATEST"
Guard = Callable[[], None]
"""Raises where this process may no longer commit: another launch has taken over the run directory."""


@dataclass(frozen=True, slots=True)
class Draft:
    """A checkpoint that is being written.

    Attributes:
        step: Steps done.
        path: Its directory, under a temporary name.
        final: Its directory once it is committed.
    """

    step: int
    path: Path
    final: Path

    def put(self, file: str, chunks: Iterable[bytes | memoryview]) -> FileSum:
        """Write one file and put it on the disk."""
        with self.explained(self.final.parent):
            return write_synced(self.path / file, chunks)

    @contextlib.contextmanager
    def explained(self, directory: Path, needed: int | None = None) -> Any:
        """Turn an `OSError` into one that names step, place and what is missing."""
        try:
            yield
        except CheckpointError:
            raise
        except OSError as error:
            raise _could_not_write(self.step, directory, error.strerror or str(error), needed) from error


def begin(directory: Path, step: int, needed_bytes: int) -> Draft:
    """Clear away what crashes have left and make a directory for a new checkpoint; one process calls this.

    Raises:
        CheckpointError: It cannot be made, or the disk has no room for `needed_bytes`.
    """  # noqa: DOC501 - a function makes the error
    name = f"step-{step:08d}.{uuid.uuid4().hex[:8]}"
    draft = Draft(step, directory / f".{name}.tmp", directory / name)
    with draft.explained(directory):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left_over in directory.glob(".*.tmp"):
            shutil.rmtree(left_over) if left_over.is_dir() else os.unlink(left_over)  # noqa: PTH108 - see `files`
        if needed_bytes > shutil.disk_usage(directory).free:
            raise _could_not_write(step, directory, "not enough room on the disk", needed_bytes)
        os.mkdir(draft.path, 0o700)  # noqa: PTH102 - see `files`
    return draft


def commit(draft: Draft, files: Mapping[str, FileSum], facts: Facts, guard: Guard | None = None) -> Path:
    """Make a draft the checkpoint of its step: after this it survives a crash; returns its directory.

    Raises:
        CheckpointError: Writing failed, or `guard` refused; there is no such checkpoint then.
    """
    directory = draft.final.parent
    with draft.explained(directory):
        write_synced(draft.path / FILE_NAME, [encode(draft.step, files, facts)])
        sync_directory(draft.path)
        if guard is not None:
            guard()
        os.rename(draft.path, draft.final)  # noqa: PTH104 - see `files`
        sync_directory(directory)
    return draft.final


def discard(draft: Draft) -> None:
    """Remove what a failed write has left, as far as that can be done."""
    shutil.rmtree(draft.path, ignore_errors=True)


def settle(path: Path, policy: CheckpointPolicy) -> None:
    """Read a new checkpoint back from the disk, then point ``LATEST`` to it and remove older ones by `policy`.

    Raises:
        CheckpointError: It does not verify (no older one has been removed then), or an old one cannot be removed.
    """
    manifest = verify(path, from_disk=True)
    directory = path.parent
    try:
        replace_synced(directory / LATEST, f"{path.name}\n".encode())
        for old in choose_removed(path, manifest, policy):
            remove(old)
        sync_directory(directory)
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {path} is safe, but tidying up after it failed: {error}. Hint: see to the directory."
        ) from error


def remove(path: Path) -> None:
    """Remove a checkpoint: at once for every reader, then from the disk."""
    gone = path.with_name(f".{path.name}.tmp")
    os.rename(path, gone)  # noqa: PTH104 - see `files`
    shutil.rmtree(gone)


def choose_removed(path: Path, manifest: Manifest, policy: CheckpointPolicy) -> list[Path]:
    """Return the directories that `policy` does not keep beside the checkpoint at `path`; another run's stay."""
    found: list[tuple[Path, Candidate]] = []
    kept_valid = 0
    for step, other in list_steps(path.parent):
        if other == path:
            continue
        theirs: Manifest | None = None
        with contextlib.suppress(CheckpointError):
            theirs = read_manifest(other)
            if theirs.facts.run != manifest.facts.run:
                continue
            if kept_valid < policy.keep - 1 or policy.best is not None:
                verify(other)  # a damaged one must not take the place of a good one
            kept_valid += 1
            found.append((other, Candidate(step=step, is_valid=True, metric=_metric(theirs, policy))))
            continue
        found.append((other, Candidate(step=step, is_valid=False)))
    new = Candidate(step=manifest.step, is_valid=True, metric=_metric(manifest, policy))
    stays = choose_kept([candidate for _, candidate in found], new, policy)
    return [other for (other, _), is_kept in zip(found, stays, strict=True) if not is_kept]


def write(
    directory: Path,
    step: int,
    state: State,
    *,
    facts: Facts | None = None,
    policy: CheckpointPolicy | None = None,
    guard: Guard | None = None,
) -> Path:
    """Write one checkpoint from one process, then remove old ones; returns its directory.

    Args:
        directory: ``checkpoints/`` of the run directory; created when missing.
        step: Steps done.
        state: What to save.
        facts: What it belongs to.
        policy: What to keep; two of them where None.
        guard: Asked just before the commit.

    Raises:
        CheckpointError: Writing failed or what was written does not verify; the older checkpoints are untouched.
    """
    needed = sum(tensor.nbytes for tensors in state.tensors.values() for tensor in tensors.values())
    draft = begin(directory, step, needed)
    try:
        files = {f"{stem}.safetensors": draft.put(f"{stem}.safetensors", safetensors_chunks(tensors))
                 for stem, tensors in state.tensors.items()}  # fmt: skip
        files[STATE_FILE] = draft.put(STATE_FILE, [encode_values(state.values)])
        path = commit(draft, files, facts or Facts(), guard)
    except BaseException:
        discard(draft)
        raise
    settle(path, policy or CheckpointPolicy())
    return path


def encode_values(values: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``state.json``."""
    return json.dumps(values, indent=1, allow_nan=False).encode()


def list_steps(directory: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a directory, newest step first, unverified; empty when there is none."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := DIRECTORY_NAME.fullmatch(path.name))]
    return sorted(found, key=lambda item: (item[0], item[1].name), reverse=True)


def newest_valid(directory: Path, run: str | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies, and one complaint for each newer one that does not.

    Args:
        directory: ``checkpoints/`` of the run directory.
        run: The run it must belong to; None: any.

    Raises:
        CheckpointError: There are checkpoints but none verifies.
    """
    complaints: list[str] = []
    candidates = list_steps(directory)
    for _, path in candidates:
        try:
            verify(path, run)
        except CheckpointError as error:
            complaints.append(str(error))
        else:
            return path, complaints
    if candidates:
        raise CheckpointError(
            f"none of the {len(candidates)} checkpoints in {directory} can be trusted:\n  "
            + "\n  ".join(complaints)
            + "\nHint: remove the directory to start again from step 0."
        )
    return None, complaints


def verify(path: Path, run: str | None = None, *, from_disk: bool = False) -> Manifest:
    """Return the manifest of one checkpoint after comparing every byte with it, and looking whether it can be loaded.

    Raises:
        CheckpointError: A file is missing, has another size or hash, or is not what its name says; or the manifest is
            not one of ours.
    """
    manifest = _manifest_of(path, run)
    tensors: dict[str, set[str]] = {}
    for name, expected in manifest.files.items():
        with _named(path / name):
            check_sum(path / name, expected, from_disk=from_disk)
            if name == STATE_FILE:
                _state_values(read_checked(path / name, expected))
            elif name.endswith(".safetensors"):
                with safe_open(path / name, "np") as file:  # torch's way raises a RuntimeError where it cannot open
                    _add_new(tensors.setdefault(stem_of(name), set()), file.keys(), path / name)
    _demand_state(manifest, path)
    return manifest


def read(path: Path, run: str | None = None) -> tuple[Manifest, State]:
    """Return manifest and state of one checkpoint; every byte is verified before it is looked into.

    Raises:
        CheckpointError: As `verify`; or a file is not what its name says.
    """
    manifest = _manifest_of(path, run)
    tensors: dict[str, dict[str, Any]] = {}
    names: dict[str, set[str]] = {}
    values: dict[str, Any] = {}
    for name, expected in manifest.files.items():
        with _named(path / name):
            data = read_checked(path / name, expected)
            if name == STATE_FILE:
                values = _state_values(data)
            elif name.endswith(".safetensors"):
                loaded, stem = load(data), stem_of(name)
                _add_new(names.setdefault(stem, set()), loaded, path / name)
                tensors.setdefault(stem, {}).update(loaded)
    _demand_state(manifest, path)
    return manifest, State(tensors=tensors, values=values)


def _state_values(data: bytes) -> dict[str, Any]:
    values = json.loads(data)
    if not isinstance(values, dict):
        raise TypeError(f"expected a JSON object, got {type(values).__name__}")
    return values


def _demand_state(manifest: Manifest, path: Path) -> None:
    if STATE_FILE not in manifest.files:
        raise CheckpointError(f"{path} cannot be trusted: it has no {STATE_FILE}.")


def _add_new(names: set[str], more: Iterable[str], file: Path) -> None:
    """Add the names of a shard's tensors to those of the shards before it."""
    new = set(more)
    if twice := names & new:
        raise CheckpointError(f"{file} holds {printable(min(twice))!r} once more.")
    names |= new


def _manifest_of(path: Path, run: str | None) -> Manifest:
    manifest = read_manifest(path)
    if run is not None and manifest.facts.run != run:
        raise CheckpointError(
            f"{path} belongs to another run ({printable(manifest.facts.run)[:40]!r}, this is {run!r})."
        )
    return manifest


@contextlib.contextmanager
def _named(file: Path) -> Any:
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        reason = printable(str(error))[:200]
        raise CheckpointError(f"{printable(str(file))} cannot be trusted: {type(error).__name__}: {reason}") from error


def _metric(manifest: Manifest, policy: CheckpointPolicy) -> float | None:
    return None if policy.best is None else manifest.facts.metrics.get(policy.best)


def _could_not_write(step: int, directory: Path, reason: str, needed: int | None) -> CheckpointError:
    return CheckpointError(
        f"could not write the checkpoint of step {step} into {directory}: {reason} ({room(directory, needed)}). "
        "The older checkpoints are untouched. Hint: mend the cause and repeat the command; it resumes from them."
    )
