"""Directories of checkpoints that survive a crash at any moment.

One write-once directory per step, ``step-00000042.<id>/``: safetensors files, ``state.json``, and last of all
``manifest.json`` with the size and SHA-256 of each. It is written under a temporary name; every file, then the
directory, is synced; then it is renamed, and the parent synced: that is the commit. It is read back and verified before
an older one goes. A reader scans newest to oldest and trusts nothing it has not verified; ``LATEST`` is a hint for
people.
"""

import contextlib
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import load

from unisono.checkpoint.draft import Draft, could_not_write, explained
from unisono.checkpoint.files import FileSum, check_sum, read_checked, safetensors_chunks, write_synced
from unisono.checkpoint.format import State
from unisono.checkpoint.manifest import (
    DIRECTORY_NAME,
    FILE_NAME,
    STATE_FILE,
    Facts,
    Manifest,
    encode,
    may_be_link,
    read_manifest,
)
from unisono.checkpoint.policy import CheckpointPolicy, KeptCheckpoint, choose_kept, stem_of
from unisono.checkpoint.values import printable
from unisono.errors import CheckpointError
from unisono.system.directory import Directory, entered
from unisono.system.disk import is_lasting

LATEST = "LATEST"
Guard = Callable[[], None]
"""Raises where this process may no longer commit: another launch has taken over the run directory."""


def begin(home: Directory, step: int, needed_bytes: int) -> Draft:
    """Clear away what crashes have left and make a directory for a new checkpoint; one process calls this.

    Raises:
        CheckpointError: It cannot be made, or the disk has no room for `needed_bytes`.
    """  # noqa: DOC501 - a function makes the error
    draft = Draft(step, home, f"step-{step:08d}.{uuid.uuid4().hex[:8]}")
    with draft.explained():
        for left_over in home.names():
            if left_over.startswith(".") and left_over.endswith(".tmp"):
                home.remove(left_over)
        if needed_bytes > shutil.disk_usage(home.descriptor).free:
            raise could_not_write(step, home.path, "not enough room on the disk", needed_bytes)
        home.mkdir(draft.temporary)
    return draft


def commit(draft: Draft, files: Mapping[str, FileSum], facts: Facts, guard: Guard | None = None) -> Path:
    """Make a draft the checkpoint of its step: after this it survives a crash; returns its directory.

    Raises:
        CheckpointError: Writing failed, or `guard` refused; there is no such checkpoint then.
    """
    with draft.explained(), draft.opened() as place:
        write_synced(place, FILE_NAME, [encode(draft.step, files, facts)])
        place.sync()
        if guard is not None:
            guard()
        draft.home.rename(draft.temporary, draft.name)
        draft.home.sync()
    return draft.home.path / draft.name


def discard(draft: Draft) -> None:
    """Remove what a failed write has left, as far as that can be done."""
    with contextlib.suppress(OSError):
        draft.home.remove(draft.temporary)


def settle(home: Directory, name: str, policy: CheckpointPolicy) -> None:
    """Read a new checkpoint back from the disk, then point ``LATEST`` to it and remove older ones by `policy`.

    Raises:
        CheckpointError: It does not verify (no older one has been removed then), or an old one cannot be removed.
    """
    with _checkpoint(home, name) as place:
        manifest = verify(place, from_disk=True)
    try:
        home.replace(LATEST, f"{name}\n".encode(), sync=False)
        for old in choose_removed(home, name, manifest, policy):
            remove(home, old)
        home.sync()
    except OSError as error:
        raise CheckpointError(
            f"the checkpoint {home.path / name} is safe, but tidying up after it failed: {error}. "
            "Hint: see to the directory.",
            is_final=is_lasting(error),
        ) from error


def remove(home: Directory, name: str) -> None:
    """Remove a checkpoint: at once for every reader, then from the disk."""
    gone = f".{name}.tmp"
    home.rename(name, gone)
    home.remove(gone)


def choose_removed(home: Directory, name: str, manifest: Manifest, policy: CheckpointPolicy) -> list[str]:
    """Return the checkpoints that `policy` does not keep beside that of a name; another run's stay."""
    found: list[tuple[str, KeptCheckpoint]] = []
    kept_valid = 0
    for step, path in list_steps(home):
        other = path.name
        if other == name:
            continue
        with contextlib.suppress(CheckpointError), _checkpoint(home, other) as place:
            theirs = read_manifest(place)
            if theirs.facts.run != manifest.facts.run:
                continue
            if kept_valid < policy.keep - 1 or policy.best is not None:
                verify(place)  # a damaged one must not take the place of a good one
            kept_valid += 1
            found.append(
                (other, KeptCheckpoint(step=step, is_valid=True, metric=theirs.facts.metrics.get(policy.best or "")))
            )
            continue
        found.append((other, KeptCheckpoint(step=step, is_valid=False)))
    new = KeptCheckpoint(step=manifest.step, is_valid=True, metric=manifest.facts.metrics.get(policy.best or ""))
    num_bytes = sum(entry.bytes for entry in manifest.files.values())
    stays = choose_kept([candidate for _, candidate in found], new, policy, num_bytes=num_bytes)
    return [other for (other, _), is_kept in zip(found, stays, strict=True) if not is_kept]


def write(
    directory: Path | Directory,
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
    path = directory if isinstance(directory, Path) else directory.path
    with explained(step, path), entered(directory, make=True) as home:
        draft, files = prepare(home, step, state)
        try:
            committed = commit(draft, files, facts or Facts(), guard)
        finally:
            discard(draft)  # nothing is left where it was committed
        settle(home, draft.name, policy or CheckpointPolicy())
        return committed


def prepare(home: Directory, step: int, state: State) -> tuple[Draft, dict[str, FileSum]]:
    """Write the files of one checkpoint, which is none before `commit`; `CheckpointError` where that fails."""
    draft = begin(home, step, sum(each.nbytes for tensors in state.tensors.values() for each in tensors.values()))
    try:
        files = {f"{stem}.safetensors": draft.put(f"{stem}.safetensors", safetensors_chunks(tensors))
                 for stem, tensors in state.tensors.items()}  # fmt: skip
        return draft, {**files, STATE_FILE: draft.put(STATE_FILE, [encode_values(state.values)])}
    except BaseException:
        discard(draft)
        raise


def encode_values(values: Mapping[str, Any]) -> bytes:
    """Return the bytes of ``state.json``."""
    return json.dumps(values, indent=1, allow_nan=False).encode()


def list_steps(directory: Path | Directory) -> list[tuple[int, Path]]:
    """Return the checkpoints of a directory, newest step first, unverified; empty when there is none."""
    if isinstance(directory, Path) and not directory.is_dir():
        return []
    with entered(directory, follow=may_be_link(directory)) as home:
        matches = [match for name in home.names() if (match := DIRECTORY_NAME.fullmatch(name))]
        found = [(int(match[1]), home.path / match[0]) for match in matches]
    return sorted(found, key=lambda item: (item[0], item[1].name), reverse=True)


def newest_valid(directory: Path | Directory, run: str | None = None) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies, and one complaint for each newer one that does not.

    Raises:
        CheckpointError: There are checkpoints but none verifies.
    """
    complaints, candidates = list[str](), list_steps(directory)
    if not candidates:
        return None, complaints
    with entered(directory, follow=may_be_link(directory)) as home:
        for _, path in candidates:
            try:
                with _checkpoint(home, path.name) as place:
                    verify(place, run)
            except CheckpointError as error:
                complaints.append(str(error))
            else:
                return path, complaints
    raise CheckpointError(
        f"none of the {len(candidates)} checkpoints in {home.path} can be trusted:\n  "
        + "\n  ".join(complaints)
        + "\nHint: remove the directory to start again from step 0.",
        is_final=True,
    )


def verify(place: Path | Directory, run: str | None = None, *, from_disk: bool = False) -> Manifest:
    """Return the manifest of one checkpoint after comparing every byte with it, and looking whether it can be loaded.

    Raises:
        CheckpointError: A file is missing, has another size or hash, or is not what its name says; or the manifest is
            not one of ours.
    """
    return _examine(place, run, from_disk=from_disk)[0]


def read(place: Path | Directory, run: str | None = None) -> tuple[Manifest, State]:
    """Return manifest and state of one checkpoint; every byte is verified before it is looked into.

    Raises:
        CheckpointError: As `verify`; or a file is not what its name says.
    """
    return _examine(place, run, is_kept=True)


def _examine(
    place: Path | Directory, run: str | None, *, from_disk: bool = False, is_kept: bool = False
) -> tuple[Manifest, State]:
    """Compare every byte with the manifest, and look into every file; return the tensors where `is_kept`."""
    tensors: dict[str, dict[str, Any]] = {}
    names: dict[str, set[str]] = {}
    values: dict[str, Any] = {}
    with _opened(place) as home:
        manifest = _manifest_of(home, run)
        for name, expected in manifest.files.items():
            file, stem = home.path / name, stem_of(name)
            with _named(file):
                if name != STATE_FILE and not is_kept:
                    check_sum(home, name, expected, from_disk=from_disk)
                    if name.endswith(".safetensors"):
                        # "np": torch's way raises a RuntimeError where it cannot open.
                        with home.reading(name) as (it, _), safe_open(f"/proc/self/fd/{it}", "np") as shard:
                            _add_new(names.setdefault(stem, set()), shard.keys(), file)
                    continue
                data = read_checked(home, name, expected, from_disk=from_disk)
                if name == STATE_FILE:
                    values = _state_values(data)
                elif name.endswith(".safetensors"):
                    loaded = load(data)
                    _add_new(names.setdefault(stem, set()), loaded, file)
                    tensors.setdefault(stem, {}).update(loaded)
    return manifest, State(tensors=tensors, values=values)


def read_in(home: Directory, name: str, run: str | None = None) -> tuple[Manifest, State]:
    """As `read`, of a checkpoint in a directory that is open."""
    with _checkpoint(home, name) as place:
        return read(place, run)


@contextlib.contextmanager
def _opened(place: Path | Directory) -> Iterator[Directory]:
    """Open one checkpoint's directory; a link of a checkpoint's name is somebody else's."""
    if isinstance(place, Directory):
        yield place
        return
    with _named(place):
        home = Directory.open(place, follow=may_be_link(place))
    with home:
        yield home


@contextlib.contextmanager
def _checkpoint(home: Directory, name: str) -> Iterator[Directory]:
    """Open one of a directory's checkpoints, or raise `CheckpointError`."""
    with _named(home.path / name):
        place = home.child(name)
    with place:
        yield place


def _state_values(data: bytes) -> dict[str, Any]:
    values = json.loads(data)
    if not isinstance(values, dict):
        raise TypeError(f"expected a JSON object, got {type(values).__name__}")
    return values


def _add_new(names: set[str], more: Iterable[str], file: Path) -> None:
    """Add the names of a shard's tensors to those of the shards before it."""
    if twice := names & (new := set(more)):
        raise CheckpointError(f"{file} holds {printable(min(twice))!r} once more.")
    names |= new


def _manifest_of(home: Directory, run: str | None) -> Manifest:
    manifest = read_manifest(home)
    if run is not None and manifest.facts.run != run:
        raise CheckpointError(
            f"{home.path} belongs to another run ({printable(manifest.facts.run)[:40]!r}, this is {run!r})."
        )
    return manifest


@contextlib.contextmanager
def _named(file: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        reason = printable(str(error))[:200]
        raise CheckpointError(f"{printable(str(file))} cannot be trusted: {type(error).__name__}: {reason}") from error
