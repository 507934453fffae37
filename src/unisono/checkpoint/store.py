"""Directories of checkpoints that survive a crash at any moment.

One write-once directory per step, ``step-00000042.<id>/``: safetensors files, ``state.json``, and last of all
``manifest.json`` with the size and SHA-256 of each. It is written under a temporary name; every file, then the
directory, is synced; then it is renamed, and the parent synced. A reader scans newest to oldest and trusts nothing
it has not verified.
"""

import hashlib
import json
import os
import re
import shutil
import uuid
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load, save

from unisono.checkpoint.format import FORMAT_VERSION, State
from unisono.errors import CheckpointError, ConfigError

_NAME = re.compile(r"step-(\d{8,})\.[0-9a-f]{8}")


def write(directory: Path, step: int, state: State, *, keep: int = 2) -> Path:
    """Write one checkpoint, then remove all but it and the newest valid others; returns its directory.

    The removal happens only after the new checkpoint has been read back and verified. One process calls this.

    Args:
        directory: ``checkpoints/`` of the run directory; created when missing.
        step: Steps done.
        state: What to save.
        keep: Checkpoints to leave, at least 1.

    Raises:
        ConfigError: ``keep < 1``.
        CheckpointError: Writing failed or what was written does not verify; the older checkpoints are untouched.
    """
    if keep < 1:
        raise ConfigError(f"expected keep >= 1, got {keep}.")
    name = f"step-{step:08d}.{uuid.uuid4().hex[:8]}"
    temporary = directory / f".{name}.tmp"
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for left_over in directory.glob(".step-*.tmp"):
            shutil.rmtree(left_over)
        temporary.mkdir(mode=0o700)
        files = {
            f"{stem}.safetensors": save({key: value.contiguous() for key, value in tensors.items()})
            for stem, tensors in state.tensors.items()
        }
        files["state.json"] = json.dumps(state.values, indent=1).encode()
        manifest: dict[str, Any] = {
            "format_version": FORMAT_VERSION,
            "step": step,
            "files": {
                file: {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()} for file, data in files.items()
            },
        }
        manifest["sha256"] = _hash_manifest(manifest)
        for file, data in files.items():
            _write_synced(temporary / file, data)
        _write_synced(temporary / "manifest.json", json.dumps(manifest, indent=1).encode())
        _sync_directory(temporary)
        temporary.rename(directory / name)
        _sync_directory(directory)
    except OSError as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise CheckpointError(
            f"could not write the checkpoint of step {step} into {directory}: {error.strerror or error} "
            f"({_space(state, directory)}). The older checkpoints are untouched. "
            "Hint: mend the cause and repeat the command; it resumes from them."
        ) from error
    read(directory / name)
    _prune(directory, directory / name, keep)
    return directory / name


def list_steps(directory: Path) -> list[tuple[int, Path]]:
    """Return the checkpoints of a directory, newest step first, unverified; empty when there is none."""
    if not directory.is_dir():
        return []
    found = [(int(match[1]), path) for path in directory.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted(found, key=lambda item: (item[0], item[1].name), reverse=True)


def newest_valid(directory: Path) -> tuple[Path | None, list[str]]:
    """Return the newest checkpoint that verifies, and one complaint for each newer one that does not.

    Raises:
        CheckpointError: There are checkpoints but none verifies.
    """
    complaints: list[str] = []
    candidates = list_steps(directory)
    for _, path in candidates:
        try:
            read(path)
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


def read(path: Path) -> tuple[int, State]:
    """Return the step and state of one checkpoint after verifying every byte of it.

    Raises:
        CheckpointError: A file is missing, has another size or hash, or the manifest is not one of ours.
    """
    try:
        manifest: dict[str, Any] = json.loads((path / "manifest.json").read_bytes())
        if manifest["format_version"] != FORMAT_VERSION:
            raise CheckpointError(
                f"{path} has format {manifest['format_version']!r}, this version reads {FORMAT_VERSION}."
            )
        named = _NAME.fullmatch(path.name)
        if manifest["sha256"] != _hash_manifest(manifest) or (named and int(named[1]) != manifest["step"]):
            raise CheckpointError(f"{path / 'manifest.json'} is damaged, or not this directory's.")
        contents: dict[str, bytes] = {}
        for name, expected in manifest["files"].items():
            if Path(name).name != name:
                raise CheckpointError(
                    f"{path / 'manifest.json'} names {name!r}, which is not a file of the checkpoint."
                )
            data = (path / name).read_bytes()
            found = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
            if found != expected:
                raise CheckpointError(f"{path / name} is damaged: expected {expected}, found {found}.")
            contents[name] = data
        tensors = {
            name.removesuffix(".safetensors"): load(data)
            for name, data in contents.items()
            if name.endswith(".safetensors")
        }
        return int(manifest["step"]), State(tensors=tensors, values=json.loads(contents["state.json"]))
    except CheckpointError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, SafetensorError) as error:
        raise CheckpointError(f"{path} cannot be trusted: {type(error).__name__}: {error}") from error


def _prune(directory: Path, new: Path, keep: int) -> None:
    """Leave `new` and the ``keep - 1`` newest others that verify; damaged ones must not take the place of good ones."""
    kept = 1
    for _, path in list_steps(directory):
        if path == new:
            continue
        if kept < keep and _is_valid(path):
            kept += 1
            continue
        try:
            shutil.rmtree(path)
        except OSError as error:
            raise CheckpointError(f"could not remove the old checkpoint {path}: {error}.") from error


def _is_valid(path: Path) -> bool:
    try:
        read(path)
    except CheckpointError:
        return False
    return True


def _hash_manifest(manifest: dict[str, Any]) -> str:
    others = {key: value for key, value in manifest.items() if key != "sha256"}
    return hashlib.sha256(json.dumps(others, sort_keys=True).encode()).hexdigest()


def _space(state: State, directory: Path) -> str:
    needed = sum(tensor.nbytes for tensors in state.tensors.values() for tensor in tensors.values())
    free = shutil.disk_usage(next(path for path in (directory, *directory.parents) if path.is_dir())).free
    return f"{needed / 1e6:.1f} MB needed, {free / 1e6:.1f} MB free"


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
